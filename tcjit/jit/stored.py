"""What the cache holds for calls: signatures by text, kernels by key, the launcher. What is missing is made, then kept.

Found in the cache, none of these needs lark or isl; nothing here imports torch.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tcjit import cache, config
from tcjit.errors import ArgumentError
from tcjit.jit import targets
from tcjit.jit.signature import Signature, of
from tcjit.mapping.options import Options
from tcjit.runtime import launcher

if TYPE_CHECKING:
    from tcjit.jit.launch import Key


class Binary(NamedTuple):
    """A loaded kernel: its launch record, the launch itself, and how to get the texts of its compilation."""

    record: Mapping[str, Any]
    launch: targets.Launch
    artifacts: Callable[[], Mapping[str, str]]


def signatures(text: str) -> tuple[Signature, ...]:
    """The signatures of a text's defs; the errors of parsing, checking and inferring where it has them."""
    store, key = cache.store(), cache.text_key(text)
    known = store.signatures(key)
    if known is not None:
        try:
            return tuple(map(Signature.from_json, known))
        except (KeyError, TypeError, ValueError, AttributeError):
            pass  # not what this version writes: made anew
    from tcjit.jit.compile import definitions  # needs lark and isl

    made = tuple(map(of, definitions(text)))
    store.put_signatures(key, [signature.to_json() for signature in made])
    return made


def signature(text: str, name: str) -> Signature:
    """The signature of one def; an ArgumentError where the text has none of that name."""
    known = signatures(text)
    for found in known:
        if found.name == name:
            return found
    raise ArgumentError(f"the text has no def called {name!r}", hint="one of " + ", ".join(s.name for s in known))


def binary(text: str, signature: Signature, key: Key) -> Binary:
    """The kernel of a key, out of the cache or compiled now."""
    store, target = cache.store(), targets.find(key.target, key.place)
    options = (key.options or Options()).normalised(target.heeds, signature.traits, signature.loops)
    facts = {
        "text": text,
        "name": signature.name,
        "shapes": [list(shape) for shape in key.shapes],
        "layouts": list(key.layouts),
        "scalars": dict(key.scalars),
        "checked": key.checked,
        "options": options.to_dict(),
    }
    name = cache.call_key(target.code, target.identity(), **facts)
    entry = store.get(name)
    if entry is None or (config.verify() and not entry.record.get("verified")):  # what was never proved is compiled again, and proved
        from tcjit.jit.compile import compile_kernel  # needs lark and isl

        names = [p.name for p in signature.params if p.dims]
        record, library, texts = compile_kernel(
            text,
            signature.name,
            dict(zip(names, key.shapes)),
            dict(zip(names, key.layouts)),
            dict(key.scalars),
            target=target,
            options=options,
            checked=key.checked,
        )
        entry = store.put(name, record, library, texts)
    return Binary(entry.record, target.load(entry.record, entry.library), entry.artifacts)


def launcher_library() -> Path:
    """The fast path's extension as a file; a CompileError where it cannot be built."""
    store, name = cache.store(), launcher.key()
    found = store.blob(name)
    return found if found is not None else store.put_blob(name, launcher.build(store))
