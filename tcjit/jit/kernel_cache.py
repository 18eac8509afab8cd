"""Signatures by text, kernels by key, and the launcher: out of the cache, or compiled and stored.

A hit needs neither lark nor isl; nothing here imports torch.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tcjit import cache, config
from tcjit.errors import ArgumentError, MappingError, TCError
from tcjit.jit import launch_record, targets
from tcjit.jit.signature import Signature, of
from tcjit.mapping.options import Options
from tcjit.runtime import launcher

if TYPE_CHECKING:
    from tcjit.jit.launch import Key


NEAR = 4.0  # tuned options serve shapes whose every extent is within this factor of theirs
ATTEMPTS = 3  # to load a kernel: another process that makes room may throw it out just before


class LoadedBinary(NamedTuple):
    """A loaded kernel: its launch record in the names of the def that it was asked for, with the origin of its options; the launch
    itself; and how to get the texts of its compilation."""

    record: Mapping[str, Any]
    launch: targets.LoadedKernel
    artifacts: Callable[[], Mapping[str, str]]


class OptionsChoice(NamedTuple):
    """Options for a kernel; ``tuned`` unless a caller or the model chose them, and where they come from in words."""

    options: Options
    tuned: bool
    origin: str


def signatures(text: str) -> tuple[Signature, ...]:
    """The signatures of a text's defs; the errors of parsing, checking and inferring where it has them."""
    store, key = cache.store(), cache.text_key(text)
    known = store.signatures(key)
    if known is not None:
        try:
            return tuple(map(Signature.from_json, known))
        except (KeyError, TypeError, ValueError, AttributeError):
            pass  # not what this version writes: made anew
    from tcjit.grammar.front import read  # needs lark

    inferred = tuple(map(of, read(text)))
    store.put_signatures(key, [signature.to_json() for signature in inferred])
    return inferred


def signature(text: str, name: str) -> Signature:
    """The signature of one def; an ArgumentError where the text has none of that name."""
    known = signatures(text)
    for one in known:
        if one.name == name:
            return one
    raise ArgumentError(f"the text has no def called {name!r}", hint="one of " + ", ".join(s.name for s in known))


def binary(text: str, signature: Signature, key: Key) -> LoadedBinary:
    """The kernel of a key, out of the cache or compiled now."""
    options, tuned, origin = chosen(signature, key)
    options = options.normalised(key.target.option_kind, signature.traits, signature.loops)
    for left in reversed(range(ATTEMPTS)):
        entry = _entry(text, signature, key, options, tuned)
        record = launch_record.rename(entry.record, signature)
        refused = record.get("refused")
        record["origin"] = f"the model's, since those {origin} do not serve: {refused}" if refused else origin
        try:
            return LoadedBinary(record, key.target.load(record, entry.library), partial(launch_record.texts, entry, signature))
        except (OSError, TCError):
            if not left or entry.library.exists():
                raise
    raise AssertionError("the last attempt returns or raises")


def _entry(text: str, signature: Signature, key: Key, options: Options, tuned: bool) -> cache.Entry:
    """The kernel of a key as it is stored, compiled now if need be."""
    store = cache.store()
    facts = {
        "program": signature.canonical,
        "shapes": [list(shape) for shape in key.shapes],
        "layouts": list(key.layouts),
        "scalars": [value for _, value in key.scalars],
        "checked": key.checked,
        "options": options.to_dict(),
    }
    if key.dynamic:
        facts["dynamic"] = [[signature.sizes.index(size), *limits] for size, *limits in key.dynamic]
    tools = key.target.identity()
    name = cache.call_key(key.target.code, tools, **facts)
    entry = store.get(name)
    if entry is not None and entry.record.get("refused") and not tuned:
        entry = None  # these very options were asked for: let the caller know why they do not serve
    if entry is None or (config.verify() and not entry.record.get("verified")):  # what was never proved is compiled again, and proved
        try:
            record, library, texts = _compiled(text, signature, key, options)
        except TCError as error:
            if not tuned:
                raise
            # tuned for other shapes or by another version; kept under this name, so that nobody tries again
            options = Options()
            record, library, texts = _compiled(text, signature, key, options)
            record["refused"] = error.what
        facts = {"asked": options.to_dict(), "tools": cache.made_by(tools)}
        entry = store.put(name, {**launch_record.anonymise(record, signature), **facts}, library, texts)
    return entry


def chosen(signature: Signature, key: Key) -> OptionsChoice:
    """The options for a key: its own, else those that were tuned for its shapes or near ones, else the model's. Nothing is scheduled."""
    if key.options is not None:
        return OptionsChoice(key.options, False, "given")
    nearest = cache.store().nearest(family(signature, key), key.shapes, NEAR)
    if nearest is not None:
        try:
            options = Options.from_dict(nearest.options)
        except (MappingError, TypeError, ValueError):
            return OptionsChoice(Options(), False, "the model's, since those tuned are of another version")
        shapes = " ".join("x".join(map(str, shape)) for shape in nearest.shapes)
        return OptionsChoice(options, True, f"tuned for {'these shapes' if nearest.shapes == key.shapes else shapes}")
    return OptionsChoice(Options(), False, "the model's")


def is_tuned(signature: Signature, key: Key) -> bool:
    """Whether options were tuned for exactly these shapes."""
    if key.options is not None:
        return False
    return cache.store().choice(family(signature, key), key.shapes) is not None


def family(signature: Signature, key: Key) -> str:
    """The cache's key for tuned options of a program on a device; shapes and run-time checks are no part of it."""
    scalars = [value for _, value in key.scalars]
    target = key.target
    return cache.options_key(target.code, signature.canonical, device=target.hardware(), layouts=list(key.layouts), scalars=scalars)


def _compiled(text: str, signature: Signature, key: Key, options: Options) -> tuple[dict[str, Any], bytes, dict[str, str]]:
    from tcjit.jit.compile import compile_kernel  # needs lark and isl

    names = [p.name for p in signature.params if p.dims]
    return compile_kernel(
        text,
        signature.name,
        dict(zip(names, key.shapes)),
        dict(zip(names, key.layouts)),
        dict(key.scalars),
        target=key.target,
        options=options,
        checked=key.checked,
        dynamic={size: (least, greatest) for size, least, greatest in key.dynamic},
    )


def launcher_library() -> Path:
    """The fast path's extension as a file; a CompileError where it cannot be built."""
    store = cache.store()
    name = launcher.key(store)
    library = store.blob(name)
    return library if library is not None else store.put_blob(name, launcher.build(store))
