"""A def as an operator of torch's dispatcher, for modes, transforms, tracers and fake tensors.

The operator is functional. Its arguments are the def's parameters, then the incoming values of outputs that accumulate, then
``unchecked``; integers travel as int64 (uint64 as the same bits), floats as doubles.
"""
from __future__ import annotations

import hashlib
import keyword
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tcjit.grammar.dtypes import DTYPES
from tcjit.jit import arguments, kernel
from tcjit.jit.arguments import Value
from tcjit.jit.signature import Signature
from tcjit.runtime import tensors

NAMESPACE = "tcjit"
# words that torch's schemas take for something else
_RESERVED = frozenset((*keyword.kwlist, "unchecked", "self", "out", "inf", "nan"))
_KINDS = {"signed": "int", "unsigned": "int", "float": "float", "bool": "bool"}

# runs the def on plain tensors: tensor arguments and scalars as given, incoming values, unchecked
Run = Callable[[Sequence[Any], Sequence[torch.Tensor], bool], list[torch.Tensor]]


@dataclass(frozen=True)
class Operator:
    """An operator as registered; ``overload`` is what torch calls."""

    signature: Signature
    overload: Any

    def __call__(self, tensors_by_name: dict[str, Any], scalars: dict[str, Value], initial: Sequence[torch.Tensor], unchecked: bool) -> Any:
        args = [tensors_by_name[p.name] if p.dims else _sent(scalars[p.name], p.dtype) for p in self.signature.params]
        return self.overload(*args, *initial, unchecked)


def _sent(value: Value, dtype: str) -> Value:
    return arguments.pattern(value, dtype) if dtype == "uint64" and type(value) is int else value


def _received(value: Any, dtype: str) -> Any:
    return int(value) % 2**64 if dtype == "uint64" else value


_lock = threading.Lock()
_libraries: list[torch.library.Library] = []  # an operator lives as long as its library


def _library() -> torch.library.Library:
    with _lock:
        if not _libraries:
            _libraries.append(torch.library.Library(NAMESPACE, "FRAGMENT"))  # type: ignore[no-untyped-call]
        return _libraries[0]


def schema(signature: Signature, name: str) -> str:
    """The operator's type in torch's notation."""
    params = [f"{'Tensor' if p.dims else _KINDS[DTYPES[p.dtype].kind]} {_plain(p.name)}" for p in signature.params]
    params += [f"Tensor {_plain(r)}" for r in signature.accumulates]
    returns = ", ".join("Tensor" for _ in signature.returns)
    return f"{name}({', '.join([*params, 'bool unchecked=False'])}) -> {returns if len(signature.returns) == 1 else f'({returns})'}"


def _plain(name: str) -> str:
    return name + "_" if name in _RESERVED or name.endswith("_") else name


def register(signature: Signature, identity: str, run: Run, symbolic: Callable[[str], object] = lambda size: None) -> Operator:
    """Make the operator ``tcjit::<def>_<hash8>``; ``identity`` is all that distinguishes it from others.

    ``symbolic`` is told of every size that a tracer has a symbol for.
    """
    name = f"{signature.name}_{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
    library = _library()
    library.define(schema(signature, name))  # type: ignore[no-untyped-call]
    overload = getattr(getattr(torch.ops, NAMESPACE), name).default
    count = len(signature.params)

    def split(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Any], Sequence[torch.Tensor], bool]:
        end = count + len(signature.accumulates)
        unchecked = args[end] if len(args) > end else named.get("unchecked", False)
        return [_received(value, p.dtype) for value, p in zip(args, signature.params)], args[count:end], bool(unchecked)

    def on_memory(*args: Any, **named: Any) -> Any:
        return kernel.packed(run(*split(args, named)))

    def fake(*args: Any, **named: Any) -> Any:
        values, _, _ = split(args, named)
        bound = arguments.check(signature, values)
        device = next((tensor.device for tensor in bound.tensors.values()), torch.device("cpu"))
        for name, value in bound.values.items():
            if type(value) is not int:
                symbolic(name)
        shapes = kernel.extents(signature, bound)
        return kernel.packed([torch.empty(s, dtype=tensors.TORCH[r.dtype], device=device) for s, r in zip(shapes, signature.returns)])

    def autograd(*args: Any, **named: Any) -> Any:
        values, initial, _ = split(args, named)
        names = [p.name for p in signature.params] + list(signature.accumulates)
        arguments.refuse_gradients(signature, dict(zip(names, [*values, *initial])))
        with torch._C._AutoDispatchBelowAutograd():
            return overload(*args, **named)

    for key in ("CPU", "CUDA"):
        library.impl(name, on_memory, key)  # type: ignore[no-untyped-call]
    library.impl(name, autograd, "Autograd")  # type: ignore[no-untyped-call]
    library.impl(name, fake, "Meta")  # type: ignore[no-untyped-call]  # serves fake tensors too; register_fake takes 3 ms
    return Operator(signature, overload)
