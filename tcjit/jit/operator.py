"""A def as an operator of torch's dispatcher, for modes, tracers, fake tensors and autograd.

The operator is functional. Its arguments are the def's parameters, then the incoming values of outputs that accumulate, then
``unchecked``; integers travel as int64 (uint64 as the same bits), floats as doubles. A second operator of a def takes tensors without
dimensions for the floats: gradients by them pass, and tracers need not know their values.
"""
from __future__ import annotations

import hashlib
import keyword
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tcjit.dataclass import dataclass
from tcjit.grammar.ast import Param
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
# records a call that needs gradients in autograd's graph: unchecked, what computes the results of arguments, the arguments
Record = Callable[..., Any]


def lifted(signature: Signature) -> frozenset[str]:
    """The scalars for which the second operator takes tensors: floats; there is no such operator where there are none."""
    return frozenset(p.name for p in signature.params if not p.dims and DTYPES[p.dtype].kind == "float")


@dataclass(frozen=True)
class Operator:
    """An operator as registered; ``overload`` is what torch calls, ``lifted`` the scalars that are tensors."""

    signature: Signature
    overload: Any
    lifted: frozenset[str]

    def __call__(self, args: Sequence[Any], initial: Sequence[torch.Tensor], unchecked: bool) -> Any:
        sent = [self._sent(param, value) for param, value in zip(self.signature.params, args)]
        return self.overload(*sent, *initial, unchecked)

    def _sent(self, param: Param, value: Any) -> Any:
        if param.dims:
            return value
        if param.name in self.lifted:
            dtype = tensors.TORCH[param.dtype]
            if not isinstance(value, torch.Tensor):
                return torch.tensor(value, dtype=dtype)
            return value if value.dtype == dtype else value.to(dtype)
        return _sent(value, param.dtype)


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


def schema(signature: Signature, name: str, lifted: frozenset[str] = frozenset()) -> str:
    """The operator's type in torch's notation."""
    params = [f"{'Tensor' if p.dims or p.name in lifted else _KINDS[DTYPES[p.dtype].kind]} {_plain(p.name)}" for p in signature.params]
    params += [f"Tensor {_plain(r)}" for r in signature.accumulates]
    returns = ", ".join("Tensor" for _ in signature.returns)
    return f"{name}({', '.join([*params, 'bool unchecked=False'])}) -> {returns if len(signature.returns) == 1 else f'({returns})'}"


def _plain(name: str) -> str:
    return name + "_" if name in _RESERVED or name.endswith("_") else name


def register(
    signature: Signature,
    identity: str,
    run: Run,
    record: Record,
    symbolic: Callable[[str], object] = lambda size: None,
    lifted: frozenset[str] = frozenset(),
) -> Operator:
    """Make the operator ``tcjit::<def>_<hash8>``; ``identity`` is all that distinguishes it from others.

    ``symbolic`` is told of every size that a tracer has a symbol for; ``lifted`` scalars are tensors.
    """
    identity = f"{identity} {sorted(lifted)}" if lifted else identity
    name = f"{signature.name}_{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
    library = _library()
    library.define(schema(signature, name, lifted))  # type: ignore[no-untyped-call]
    overload = getattr(getattr(torch.ops, NAMESPACE), name).default
    made = Operator(signature, overload, lifted)
    count = len(signature.params)

    def split(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Any], Sequence[torch.Tensor], bool]:
        end = count + len(signature.accumulates)
        unchecked = args[end] if len(args) > end else named.get("unchecked", False)
        return [_received(value, p.dtype) for value, p in zip(args, signature.params)], args[count:end], bool(unchecked)

    def on_memory(*args: Any, **named: Any) -> Any:
        return kernel.packed(run(*split(args, named)))

    def fake(*args: Any, **named: Any) -> Any:
        values, _, _ = split(args, named)
        bound = arguments.check(signature, values, deferred=lifted)
        device = next((tensor.device for tensor in bound.tensors.values()), torch.device("cpu"))
        for name, value in bound.values.items():
            if type(value) is not int:
                symbolic(name)
        shapes = kernel.extents(signature, bound)
        return kernel.packed([torch.empty(s, dtype=tensors.TORCH[r.dtype], device=device) for s, r in zip(shapes, signature.returns)])

    def autograd(*args: Any, **named: Any) -> Any:
        values, initial, unchecked = split(args, named)
        arguments.refuse_tangents(signature, [*values, *initial])

        def below(values: Sequence[Any], other: Any = None) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return (made if other is None else other.operator_for(values))(values, initial, unchecked)

        if not torch.is_grad_enabled() or not any(isinstance(v, torch.Tensor) and v.requires_grad for v in (*values, *initial)):
            return below(values)
        if initial:
            arguments.refuse_gradients_with_out(signature, [*values, *initial])
        return record(unchecked, below, *values)

    for key in ("CPU", "CUDA"):
        library.impl(name, on_memory, key)  # type: ignore[no-untyped-call]
    library.impl(name, autograd, "Autograd")  # type: ignore[no-untyped-call]
    library.impl(name, fake, "Meta")  # type: ignore[no-untyped-call]  # serves fake tensors too; register_fake takes 3 ms
    return made
