"""A def as a callable on tensors: the fast path, the checks, the kernels of every shape, and torch's dispatcher for the rest."""
from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_dynamo_compiling

from tcjit.errors import ArgumentError, TCError
from tcjit.jit import arguments, kernel, operator, stored, targets
from tcjit.jit.arguments import Bound
from tcjit.jit.define import checked_options, checked_target
from tcjit.jit.fast import Table
from tcjit.jit.kernel import Kernel
from tcjit.jit.launch import Key
from tcjit.jit.signature import Signature
from tcjit.jit.targets import cpu  # noqa: F401  # the target of most calls, which should not wait for it
from tcjit.runtime import tensors

if TYPE_CHECKING:
    from tcjit.jit.targets import Target
    from tcjit.mapping.options import Options

Results = torch.Tensor | tuple[torch.Tensor, ...]


class Function:
    """One def, compiled for the shapes of a call on first use.

    Calls are safe from several threads; kernels for one key are compiled once.
    """

    def __init__(self, text: str, signature: Signature, target: str | None, options: Options | None) -> None:
        self.text = text
        self.signature = signature
        self.target = target
        self._asked = targets.find(target) if target else None
        self.options = options
        self.__name__ = self.__qualname__ = signature.name
        self.__doc__ = f"{signature}, a tensor comprehension:\n\n{text.strip()}"
        self._table = Table()
        self._call = self._table.call
        self._kernels: dict[Key, Kernel] = {}
        identity = repr((text, signature.name, target, options))
        self._operator = operator.register(signature, identity, self._on_plain)
        self._overload = self._operator.overload

    def __repr__(self) -> str:
        return f"<tcjit {self.signature}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return function, (self.text, self.signature.name, self.target, self.options)

    # ------------------------------------------------------------ calling

    def __call__(self, *args: Any, out: Any = None, unchecked: bool = False, **unknown: Any) -> Any:
        """One tensor, or a tuple in the order of the returns.

        ``out=`` takes the tensors to write, one or a tuple; ``unchecked=True`` drops the test of gathers and of integer divisors.
        Raises the TCErrors of the checks, of the compilation, and GatherError or DivisionError from the kernel.
        """
        if unknown:
            what = f"{self.__name__}() takes no argument {next(iter(unknown))}="
            raise ArgumentError(what, hint="arguments by position, out=, unchecked=")
        if is_dynamo_compiling():
            return self._traced(args, out, unchecked)
        result = self._call(args, out, unchecked)
        if result is NotImplemented:
            return self._slow(args, out, unchecked)
        return result

    def _traced(self, args: tuple[Any, ...], out: Any, unchecked: bool) -> Any:
        """What torch.compile sees: the operator, and copies where the caller gave outputs."""
        outs = [] if out is None else list(out) if isinstance(out, (tuple, list)) else [out]
        initial = [given for given, output in zip(outs, self.signature.returns) if output.accumulates]
        results = self._overload(*args, *initial, unchecked)
        if out is None:
            return results
        for given, result in zip(outs, results if isinstance(results, tuple) else (results,)):
            given.copy_(result)
        return out

    def _slow(self, args: tuple[Any, ...], out: Any, unchecked: bool) -> Results:
        _require_bool(unchecked)
        signature = self.signature
        bound = arguments.check(signature, args, self._asked)
        arguments.refuse_gradients(signature, dict(zip((p.name for p in signature.params), args)))
        target = targets.resolve(self.target, bound.places)
        outs = arguments.outputs(signature, out, bound, kernel.extents(signature, bound), target)
        if tensors.plain_state() and all(map(tensors.plain, bound.tensors.values())) and all(map(tensors.plain, outs or ())):
            results = self._run(bound, target, outs, unchecked)
        else:
            results = self._dispatched(bound, outs, unchecked)
        return kernel.packed(results)

    def _dispatched(self, bound: Bound, outs: list[torch.Tensor] | None, unchecked: bool) -> list[torch.Tensor]:
        """Through torch's dispatcher."""
        initial = [given for given, output in zip(outs or (), self.signature.returns) if output.accumulates]
        try:
            results = self._operator(bound.tensors, bound.scalars, initial, unchecked)
            results = list(results) if isinstance(results, (tuple, list)) else [results]
            if outs is None:
                return results
            with tensors.one_thread_after_fork():
                for given, result in zip(outs, results):
                    given.copy_(result)
        except TCError:
            raise
        except Exception as error:  # modes, transforms and wrappers each refuse in their own way
            raise arguments.wrapped(self.signature, error) from error
        return outs

    def _on_plain(self, args: Sequence[Any], initial: Sequence[torch.Tensor], unchecked: bool) -> list[torch.Tensor]:
        """The operator's implementation: tensors have memory, lazy bits are resolved; wrong arguments can still come from outside."""
        quick = self._call(tuple(args), None, unchecked)
        if quick is not NotImplemented:
            return list(quick) if isinstance(quick, tuple) else [quick]
        bound = arguments.check(self.signature, args, self._asked)
        target = targets.resolve(self.target, bound.places)
        names = iter(initial)
        outs = None
        if initial:
            shapes = kernel.extents(self.signature, bound)
            with tensors.one_thread_after_fork():
                outs = [
                    next(names).clone(memory_format=torch.contiguous_format)
                    if output.accumulates
                    else tensors.empty(shape, output.dtype, target.place)
                    for output, shape in zip(self.signature.returns, shapes)
                ]
            arguments.outputs(self.signature, outs, bound, shapes, target)
        return self._run(bound, target, outs, unchecked)

    def _run(self, bound: Bound, target: Target, outs: list[torch.Tensor] | None, unchecked: bool) -> list[torch.Tensor]:
        made = self._kernel(bound, not unchecked, target, self.options)
        results = made.run(list(bound.tensors.values()), bound.scalars, outs)
        if made.binary is not None:
            self._call = self._table.remember(self.signature, made.key, made.binary, bound)
        return results

    # ------------------------------------------------------------ kernels

    def compile(self, *args: Any, options: Options | None = None, target: str | None = None, unchecked: bool = False) -> Kernel:
        """The kernel for these arguments, without running it; meta tensors do for shapes.

        >>> import tcjit, torch
        >>> tc = tcjit.define("def twice(float(N) X) -> (Y) { Y(i) = 2 * X(i) }", target="reference")
        >>> tc.twice.compile(torch.empty(5, device="meta")).target
        'reference'
        """
        _require_bool(unchecked)
        chosen = checked_target(target) or self.target
        bound = arguments.check(self.signature, args, targets.find(chosen) if chosen else None, shapes_only=True)
        return self._kernel(bound, not unchecked, targets.resolve(chosen, bound.places), checked_options(options) or self.options)

    def _kernel(self, bound: Bound, checked: bool, target: Target, options: Options | None) -> Kernel:
        key = Key.of(bound, checked, target, options)
        found = self._kernels.get(key)
        if found is not None:
            return found
        with _in_flight.only_one((self, key)):
            found = self._kernels.get(key)
            if found is None:
                found = self._kernels[key] = targets.find(key.target, key.place).kernel(self.text, self.signature, key)
        return found


def _require_bool(unchecked: Any) -> None:
    if type(unchecked) is not bool:
        raise ArgumentError(f"unchecked= must be True or False, not {unchecked!r}", hint="unchecked=True")


# ---------------------------------------------------------------- one of each


class _InFlight:
    """Lets one thread in per key, the others wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[Any, tuple[threading.Lock, int]] = {}  # by key: its lock, and how many hold it or wait for it

    @contextmanager
    def only_one(self, key: Any) -> Iterator[None]:
        with self._lock:
            lock, users = self._held.get(key, (threading.Lock(), 0))
            self._held[key] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._lock:
                _, users = self._held[key]
                if users > 1:
                    self._held[key] = lock, users - 1
                else:
                    del self._held[key]


_in_flight = _InFlight()
_functions: dict[tuple[Any, ...], Function] = {}


def _after_fork() -> None:
    global _in_flight
    _in_flight = _InFlight()  # locks may have been held by threads that are not in this process


os.register_at_fork(after_in_child=_after_fork)


def function(text: str, name: str, target: str | None, options: Options | None) -> Function:
    """The callable of a def; one per process for the same text, target and options."""
    key = (text, name, target, options)
    found = _functions.get(key)
    if found is not None:
        return found
    with _in_flight.only_one(key):
        found = _functions.get(key)
        if found is None:
            found = _functions[key] = Function(text, stored.signature(text, name), target, options)
    return found
