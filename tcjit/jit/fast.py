"""The dispatch cache of a def: prepared calls in a C extension, or in Python for kernels that C cannot launch.

Without the extension every call on the CPU takes the longer way, no other.
"""
from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

import torch

from tcjit.errors import TCError
from tcjit.grammar.ast import Param
from tcjit.grammar.dtypes import DTYPES
from tcjit.jit import kernel_cache
from tcjit.jit.arguments import BoundArguments, pattern
from tcjit.jit.kernel_cache import LoadedBinary
from tcjit.jit.launch import Key, RecordedCall, integer_values, runtime_numbers
from tcjit.jit.launch_record import failure
from tcjit.jit.python_dispatch import PythonDispatch
from tcjit.jit.signature import Signature
from tcjit.runtime import launcher, tensors

FastCall = Callable[[tuple[Any, ...], Any, bool], Any]


class _Extension:
    """The extension of this process: not yet asked for, there, or not to be had."""

    def __init__(self) -> None:
        self.module: ModuleType | None = None
        self.tried = False
        self.lock = threading.Lock()

    def load(self) -> ModuleType | None:
        with self.lock:
            if not self.tried:
                self.module = _load()
                self.tried = True
        return self.module


def _load() -> ModuleType | None:
    """The extension, out of the cache or built now; None where the machine or this torch lacks what it needs."""
    offered = tensors.for_launcher()
    if offered is None:
        return None
    try:
        module = launcher.load(kernel_cache.launcher_library())
    except TCError:
        return None
    if not module.configure(*offered):
        return None
    launcher.register(module)
    return module


extension = _Extension()
_changing = threading.Lock()  # a table


def _after_fork() -> None:
    global _changing
    extension.lock, _changing = threading.Lock(), threading.Lock()  # whoever held them is not in this process


os.register_at_fork(after_in_child=_after_fork)


def always_miss(args: tuple[Any, ...], out: Any, unchecked: bool) -> Any:
    """The dispatch cache of a def without calls: always a miss."""
    return NotImplemented


class Table:
    """The dispatch cache of one def or kernel; ``call`` looks a call up and runs it, or returns NotImplemented."""

    def __init__(self) -> None:
        self.call: FastCall = always_miss
        self._launcher: launcher.Launcher | None = None
        self._repeats: PythonDispatch | None = None
        self._calls = 0
        self._known: list[object] = []  # what the launcher's table holds, oldest first

    def remember(
        self, signature: Signature, key: Key, binary: LoadedBinary, bound: BoundArguments, recorded: RecordedCall | None = None
    ) -> FastCall:
        """Prepare for more calls like this one, from the second on: building the extension would slow down a single call."""
        if not binary.launch.address:
            self._repeats = self._repeats or PythonDispatch(signature)
            if self._repeats.add(signature, key, binary, bound, recorded):
                self.call = self._repeats.call if self._launcher is None else self._c_then_python
            return self.call
        self._calls += recorded is None  # which ran another call
        if self._calls > 1 or extension.tried:
            module = extension.load()
            if module is not None:
                with _changing:
                    self._add(module, signature, key, binary, bound, recorded)
        return self.call

    def _add(
        self, module: ModuleType, signature: Signature, key: Key, binary: LoadedBinary, bound: BoundArguments, recorded: RecordedCall | None
    ) -> None:
        how = None if recorded is None else (recorded.requires, *integer_values(signature.params, bound.scalars).values())
        identity = key, tuple(tensor.stride() for tensor in bound.tensors.values()), how
        if identity in self._known:  # it was some other argument, such as a scalar in a tensor, that took the longer way
            return
        if self._launcher is None:
            self._launcher = module.Launcher()
        if _add(module, self._launcher, signature, key, binary, bound, recorded):
            self._known = [*self._known, identity][-module.ENTRIES :]
            self.call = self._launcher.call if self._repeats is None else self._c_then_python

    def _c_then_python(self, args: tuple[Any, ...], out: Any, unchecked: bool) -> Any:
        """For a def that was called on the CPU and on another device."""
        result = NotImplemented if self._launcher is None else self._launcher.call(args, out, unchecked)
        return self._repeats.call(args, out, unchecked) if result is NotImplemented and self._repeats is not None else result


def _add(
    module: ModuleType,
    to: launcher.Launcher,
    signature: Signature,
    key: Key,
    binary: LoadedBinary,
    bound: BoundArguments,
    recorded: RecordedCall | None,
) -> bool:
    record = binary.record
    fixed = {**dict(key.scalars), **(integer_values(signature.params, bound.scalars) if recorded is not None else {})}
    slots = {name: number for number, (kind, name, _) in enumerate(record["numbers"]) if kind == "scalar"}
    params = []
    for param in signature.params:
        spec = _tensor(bound.tensors[param.name]) if param.dims else _scalar(param, slots, fixed.get(param.name))
        if spec is None:
            return False
        params.append(spec)
    try:
        with torch.inference_mode(False):
            outputs = [
                (tensors.template(returned["shape"], returned["dtype"]), tuple(returned["shape"]), *tensors.codes(returned["dtype"]))
                for returned in record["returns"]
            ]
    except RuntimeError:  # not enough memory for one more set of outputs
        return False
    numbers = runtime_numbers(signature, record, list(bound.tensors.values()), bound.scalars)
    return to.add(
        binary.launch.address,
        key.checked,
        not signature.accumulates,
        tuple(params),
        tuple(outputs),
        tuple(numbers),
        record["workspace"],
        record,
        partial(_fail, record),
        None if recorded is None else _recording(recorded, module),
    )


def _recording(recorded: RecordedCall, module: ModuleType) -> tuple[Any, ...]:
    """How the extension records a call."""
    places = recorded.kept, recorded.scalars, recorded.constants
    return recorded.requires, recorded.prepared(module), (recorded.recording, ()), *places, recorded.returned


def _fail(record: Mapping[str, Any], flag: int) -> None:
    raise failure(record, flag)


def _tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    code, bits = tensors.codes(tensors.NAMES[tensor.dtype])
    return ("t", tuple(tensor.shape), tuple(tensor.stride()), code, bits)


def _scalar(param: Param, slots: dict[str, int], fixed: int | None) -> tuple[Any, ...] | None:
    """How the extension reads a scalar, of one value where that is ``fixed``; None for the half types, whose rounding is left to Python."""
    kind = DTYPES[param.dtype]
    if kind.kind == "float":
        letter = {32: "f", 64: "d"}.get(kind.bits, "")
    else:
        letter = "b" if kind.kind == "bool" else "u" if param.dtype == "uint64" else "i"
    if not letter:
        return None
    low, high = (kind.least, kind.greatest) if letter == "i" else (0, 0)
    return (letter, low, high, slots.get(param.name, -1), None if fixed is None else pattern(fixed, param.dtype))
