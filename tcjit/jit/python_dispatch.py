"""Python dispatch cache for kernels that the C launcher cannot call.

A call is looked up by its guards: shape, stride, dtype, device and dispatch keys of each tensor, specialised scalars, and whether torch is
to be deterministic. Misses take the full checks; so do modes, lazy bits and ``out=``. Calls that autograd records have entries of their
own.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tcjit.errors import TCError
from tcjit.grammar.ast import Param
from tcjit.jit import arguments
from tcjit.jit.arguments import BoundArguments, pattern
from tcjit.jit.kernel_cache import LoadedBinary
from tcjit.jit.launch import Key, RecordedCall, integer_values, runtime_numbers
from tcjit.jit.launch_record import failure
from tcjit.jit.signature import Signature
from tcjit.runtime import tensors

ENTRIES = 256  # calls remembered, as in the C launcher
_keys = torch._C._dispatch_keys
_deterministic = torch.are_deterministic_algorithms_enabled
_Entry = Callable[[list[torch.Tensor], dict[str, Any], tuple[Any, ...]], Any]


class PythonDispatch:
    """Prepared calls of one def or kernel, by their guards."""

    def __init__(self, signature: Signature) -> None:
        self._params = signature.params
        self._specialised = frozenset(signature.specialised)
        self._entries: dict[tuple[Any, ...], _Entry] = {}

    def add(
        self, signature: Signature, key: Key, binary: LoadedBinary, bound: BoundArguments, recorded: RecordedCall | None = None
    ) -> bool:
        """Remember a call that ran; False for a def whose outputs must be passed."""
        if signature.accumulates:
            return False
        how = () if recorded is None else _how(self._params, recorded.requires, bound.scalars)
        guards: list[Any] = [not key.checked, _deterministic(), *how]
        for param in self._params:
            if param.dims:
                guards += _guards(bound.tensors[param.name])
            elif param.name in self._specialised:
                guards.append(bound.scalars[param.name])
        while len(self._entries) >= ENTRIES:
            del self._entries[next(iter(self._entries))]
        self._entries[tuple(guards)] = _prepared(signature, key, binary, bound, recorded)
        return True

    def call(self, args: tuple[Any, ...], out: Any, unchecked: bool) -> Any:
        """The results of a prepared call; NotImplemented on a miss."""
        if out is not None or len(args) != len(self._params) or not tensors.plain_state():
            return NotImplemented
        inputs: list[torch.Tensor] = []
        scalars: dict[str, Any] = {}
        guards: list[Any] = []
        requires, records = 0, torch.is_grad_enabled()
        for place, (param, value) in enumerate(zip(self._params, args)):
            if param.dims:
                if type(value) not in tensors.TYPES:
                    return NotImplemented
                requires |= (records and value.requires_grad) << place
                try:
                    guards += _guards(value)
                except RuntimeError:  # a nested tensor, which has no sizes
                    return NotImplemented
                inputs.append(value)
            else:
                try:
                    scalars[param.name] = arguments.scalar(param.name, param.dtype, value)
                except TCError:
                    return NotImplemented  # which says what is wrong
                if param.name in self._specialised:
                    guards.append(scalars[param.name])
        if requires and any(not param.dims and isinstance(value, torch.Tensor) for param, value in zip(self._params, args)):
            return NotImplemented
        entry = self._entries.get((unchecked, _deterministic(), *(_how(self._params, requires, scalars) if requires else ()), *guards))
        return NotImplemented if entry is None else entry(inputs, scalars, args)


def _how(params: Sequence[Param], requires: int, scalars: Mapping[str, Any]) -> tuple[Any, ...]:
    """The guards of a recorded call beside those of others."""
    return requires, *integer_values(params, scalars).values()


def _guards(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The guards of a tensor: all that a prepared call depends on, but for its content and address."""
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, _keys(tensor).raw_repr()


def _prepared(signature: Signature, key: Key, binary: LoadedBinary, bound: BoundArguments, recorded: RecordedCall | None) -> _Entry:
    record, launch, _ = binary
    on = key.target
    outputs = [(tuple(returned["shape"]), returned["dtype"], returned["name"]) for returned in record["returns"]]
    fixed = runtime_numbers(signature, record, list(bound.tensors.values()), bound.scalars)
    varying = [(slot, name, dtype) for slot, (kind, name, dtype) in enumerate(record["numbers"]) if kind == "scalar"]

    def run(inputs: list[torch.Tensor], scalars: dict[str, Any]) -> list[torch.Tensor]:
        results = [tensors.empty(shape, dtype, on.device, name) for shape, dtype, name in outputs]
        numbers = list(fixed)
        for slot, name, dtype in varying:
            numbers[slot] = pattern(scalars[name], dtype)
        flag = launch(results, inputs, numbers)
        if flag:
            raise failure(record, flag)
        return results

    def call(inputs: list[torch.Tensor], scalars: dict[str, Any], args: tuple[Any, ...]) -> Any:
        for tensor in inputs:
            if not on.accepts(tensor) or (tensor.data_ptr() == 0 and tensor.numel() != 0):
                return NotImplemented
        if recorded is not None:
            return recorded.record(lambda ctx, args: recorded.recording.record(ctx, args, run(inputs, scalars)), *args)
        results = run(inputs, scalars)
        return results[0] if len(results) == 1 else tuple(results)

    return call
