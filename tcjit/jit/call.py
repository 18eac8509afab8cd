"""A def as a callable on tensors: the fast path, the checks, the kernels of every shape, and torch's dispatcher for the rest."""
from __future__ import annotations

import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_dynamo_compiling

from tcjit.checked import brief
from tcjit.errors import ArgumentError, CheckError, ShapeError, TCError
from tcjit.jit import arguments, autograd, kernel, kernel_cache, operator, targets
from tcjit.jit.arguments import BoundArguments
from tcjit.jit.derivatives import NONE, Derivatives
from tcjit.jit.differentiation import Adjoint, Integers, adjoint_of, integers
from tcjit.jit.dynamic import SizeHistory, instance
from tcjit.jit.fast import Table
from tcjit.jit.kernel import Kernel
from tcjit.jit.kernel_cache import LoadedBinary
from tcjit.jit.key_locks import KeyLocks
from tcjit.jit.launch import Key
from tcjit.jit.recent import Recent
from tcjit.jit.settings import checked_options, checked_target
from tcjit.jit.signature import Signature
from tcjit.jit.targets import cpu  # noqa: F401  # the target of most calls, which should not wait for it
from tcjit.runtime import host, tensors

if TYPE_CHECKING:
    from tcjit.jit.targets import Target
    from tcjit.mapping.options import Options
    from tcjit.tuner.config import TunerConfig
    from tcjit.tuner.result import TuneResult

SLOW = 1.0  # seconds of compiling that a user wonders about
_log = logging.getLogger("tcjit")

KERNELS = 1024  # of a def that stay at hand; others are found in the cache again


class Function:
    """One def, compiled for the shapes of a call on first use.

    Calls are safe from several threads; kernels for one key are compiled once. ``origin``: the function that this one computes for a batch,
    and the parameters that are batched.
    """

    def __init__(
        self,
        text: str,
        signature: Signature,
        target: str | None,
        options: Options | None,
        dynamic: tuple[str, ...] = (),
        derivatives: Derivatives = NONE,
        origin: tuple[Function, frozenset[str]] | None = None,
    ) -> None:
        self.text = text
        self.signature = signature
        self.target = target
        self._asked = targets.find(target) if target else None
        self.options = options
        self.__name__ = self.__qualname__ = signature.name
        self.__doc__ = f"{signature}, a tensor comprehension:\n\n{text.strip()}"
        self._table = Table()
        self.__signature__ = arguments.shown(signature)
        self._call = self._table.call
        self._kernels: Recent[Key, Kernel] = Recent(KERNELS)
        self.dynamic = dynamic
        self._sizes = SizeHistory(signature, dynamic)
        self._dynamic_kernels: Recent[Key, LoadedBinary] = Recent(KERNELS)  # dynamic kernels
        self._slow_logged = False
        self.derivatives = derivatives
        self.origin = origin
        self.adjoints: dict[tuple[frozenset[str], Integers], list[Adjoint]] = {}
        self._batched: dict[frozenset[str], Function | CheckError] = {}
        self.identity = repr((text, signature.name, target, options, dynamic))
        if derivatives != NONE:
            self.identity += repr(derivatives)
        if origin is not None:
            self.identity = repr((sorted(origin[1]), hashlib.sha256(origin[0].identity.encode()).hexdigest()))
        self._operator = self._register(frozenset())
        self._overload = self._operator.overload
        self._lifted = operator.lifted(signature)
        self._lifted_operator = self._register(self._lifted) if self._lifted else self._operator

    def __repr__(self) -> str:
        return f"<tcjit {self.signature}>"

    def _repr_html_(self) -> str:
        from tcjit import notebook  # what few processes need

        known = {"target": self.target or "the device of the arguments", "options": self.options or "the tuned ones, or the model's"}
        kernels = {f"kernel for {', '.join(map(str, key.shapes))}": kernel.target for key, kernel in list(self._kernels.items())[:10]}
        text, facts = notebook.listing(self.text.strip("\n")), notebook.facts({**known, **kernels})
        return notebook.fragment(notebook.heading(str(self.signature)), text, facts)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.origin is not None:
            return Function.batched, self.origin
        return function, (self.text, self.signature.name, self.target, self.options, self.dynamic, self.derivatives)

    def _register(self, lifted: frozenset[str]) -> operator.Operator:
        return operator.register(self.signature, self.identity, self._run_operator, self._record, self._sizes.symbolic, lifted)

    def _forget(self) -> None:
        """Look up the options anew, where none are given."""
        if self.options is None:
            self._kernels.clear()
            self._dynamic_kernels.clear()
            self._table = Table()
            self._call = self._table.call

    # ------------------------------------------------------------ calling

    def __call__(self, *args: Any, out: Any = None, unchecked: bool = False, **named: Any) -> Any:
        """One tensor, or a tuple in the order of the returns; arguments by position, which is fastest, or by the names of the def.

        ``out=`` takes the tensors to write, one or a tuple; ``unchecked=True`` drops the test of gathers and of integer divisors.
        Raises the TCErrors of the checks, of the compilation, and GatherError or DivisionError from the kernel.
        """
        if named:
            args = arguments.positional(self.signature, args, named)
        if is_dynamo_compiling():
            return self._traced(args, out, unchecked)
        try:
            result = self._call(args, out, unchecked)
        except RuntimeError as error:
            if isinstance(error, TCError) or out is not None:  # what is given may be written already
                raise
            result = NotImplemented  # there may be no memory for the results; the longer way says what is wrong
        return self._slow(args, out, unchecked) if result is NotImplemented else result

    def _traced(self, args: tuple[Any, ...], out: Any, unchecked: bool) -> Any:
        """What torch.compile sees: the operator, and copies where the caller gave outputs."""
        outs = [] if out is None else list(out) if isinstance(out, (tuple, list)) else [out]
        initial = [tensor for tensor, output in zip(outs, self.signature.returns) if output.accumulates]
        if outs and torch.is_grad_enabled():
            arguments.refuse_gradients_with_out(self.signature, [*args, *outs])
        if self._has_lifted(args):
            results = self._lifted_operator(args, initial, unchecked)
        else:
            results = self._overload(*args, *initial, unchecked)
        if out is None:
            return results
        for tensor, result in zip(outs, results if isinstance(results, tuple) else (results,)):
            tensor.copy_(result)
        return out

    def _has_lifted(self, args: Sequence[Any]) -> bool:
        """Whether a float is given as a tensor."""
        return any(p.name in self._lifted and isinstance(value, torch.Tensor) for p, value in zip(self.signature.params, args))

    def _has_scalar_tensors(self, args: Sequence[Any]) -> bool:
        """Whether a number is given as a tensor."""
        return any(not p.dims and isinstance(value, torch.Tensor) for p, value in zip(self.signature.params, args))

    def _queued_scalars(self, args: Sequence[Any]) -> frozenset[str]:
        """The floats that are given as tensors of their type on a device: the host would wait there for all that was queued before."""
        types = {p.name: tensors.TORCH[p.dtype] for p in self.signature.params if p.name in self._lifted}
        named = zip((p.name for p in self.signature.params), args)
        return frozenset(name for name, value in named if name in types and tensors.queued(value) and value.dtype == types[name])

    def _with_scalars_in_memory(self, names: frozenset[str], args: Sequence[Any], unchecked: bool) -> Any:
        """The results for some scalars that are not read here, as those of a batch of one; None where there is no def over a batch."""
        try:
            made = self.batched(names)
        except CheckError:
            return None
        values = [value.reshape(1) if p.name in names else value for p, value in zip(self.signature.params, args)]
        try:
            results = made.apply(values, unchecked)
        except TCError:
            arguments.check(self.signature, args, self._asked, deferred=names)  # which tells of the def that the caller knows
            raise
        return tuple(result.squeeze(0) for result in results) if isinstance(results, tuple) else results.squeeze(0)

    def _slow(self, args: tuple[Any, ...], out: Any, unchecked: bool, inner: bool = False) -> Any:
        """A call with all checks; ``inner`` ones, of derivatives, give a result where there is no gradient: its own backward raises."""
        _check_bool(unchecked)
        signature = self.signature
        tensors_of_arrays = arguments.imported(signature, args)
        if tensors_of_arrays is not args:
            return self(*tensors_of_arrays, out=out, unchecked=unchecked)
        if out is None and autograd.transformed(args):
            return self._transformed(args, unchecked)
        wrt = autograd.requiring(signature, args)
        is_plain = tensors.plain_state()
        if wrt and not inner:
            adjoint_of(self, wrt, integers(signature, args), args)
        if wrt and is_plain and out is None and all(type(value) in tensors.TYPES for value in args if isinstance(value, torch.Tensor)):
            return self._record(unchecked, lambda values, other: (other or self).apply(values, unchecked), *args, again=True)
        is_deferred = wrt or not is_plain or not all(map(tensors.readable, args))
        if not is_deferred and out is None and (names := self._queued_scalars(args)):
            results = self._with_scalars_in_memory(names, args, unchecked)
            if results is not None:
                return results
        if not is_deferred and self._has_scalar_tensors(args):
            numbers = tuple(map(tensors.number, args))
            if not self._has_scalar_tensors(numbers):
                return self(*numbers, out=out, unchecked=unchecked)
        bound = arguments.check(signature, args, self._asked, deferred=self._lifted if is_deferred else ())
        target = targets.resolve(self.target, bound.devices)
        outs = arguments.outputs(signature, out, bound, kernel.extents(signature, bound), target)
        given = (*bound.tensors.values(), *filter(torch.is_tensor, bound.scalars.values()), *(outs or ()))
        if not is_plain or not all(map(tensors.plain, given)):
            return kernel.packed(self._dispatched(bound, outs, unchecked))
        return kernel.packed(self._run(bound, target, outs, unchecked))

    def _transformed(self, args: tuple[Any, ...], unchecked: bool) -> Any:
        """Through functorch's transforms, or forward mode."""
        if (result := autograd.repeated_in_vmap(self, unchecked, args)) is not NotImplemented:
            return result
        bound = arguments.check(self.signature, args, self._asked, deferred=[p.name for p in self.signature.params])
        arguments.outputs(self.signature, None, bound, [], targets.resolve(self.target, bound.devices))
        return self._transformer(unchecked, *args)

    def _record(self, unchecked: bool, run: autograd.Run, *args: Any, again: bool = False) -> Any:
        """``run(args, None)`` as a node of autograd's graph, which raises where there is no adjoint; none where that leaves these out.
        Calls like this one are prepared for if they may come ``again``."""
        wrt = autograd.requiring(self.signature, args)
        try:
            is_cut = wrt.isdisjoint(adjoint_of(self, wrt, integers(self.signature, args), args).gradients)
        except TCError:
            is_cut = False

        def call(ctx: Any, args: Sequence[Any]) -> Any:
            recording, results = autograd.recording(self, unchecked, run, ctx, args)
            if again and isinstance(recording.adjoint, Adjoint):
                self._call = recording.remember(self._table, args, self._prepared, self._recorded)
            return results

        if not is_cut:
            return self._recorded(call, *args)
        with torch.set_grad_enabled(autograd.transformed(args)):  # transforms around the innermost one may record
            return run(args, None)

    @cached_property
    def _prepared(self) -> Callable[..., Any]:
        return cache(partial(autograd.prepared, self))

    @cached_property
    def _recorded(self) -> Callable[..., Any]:
        return autograd.recorder(self)

    @cached_property
    def _transformer(self) -> Callable[..., Any]:
        return autograd.transformer(self)

    def operator_for(self, args: Sequence[Any]) -> operator.Operator:
        """The operator that takes these arguments."""
        return self._lifted_operator if self._has_lifted(args) else self._operator

    def repeated(self, args: tuple[Any, ...], unchecked: bool) -> Any:
        """The results of a prepared call; NotImplemented where there is none for it."""
        return self._call(args, None, unchecked)

    def apply(self, args: Sequence[Any], unchecked: bool) -> Any:
        """A call that derivatives make."""
        args = tuple(args)
        if is_dynamo_compiling():
            return self._traced(args, None, unchecked)
        result = self._call(args, None, unchecked)
        return self._slow(args, None, unchecked, inner=True) if result is NotImplemented else result

    def _dispatched(self, bound: BoundArguments, outs: list[torch.Tensor] | None, unchecked: bool) -> list[torch.Tensor]:
        """Through torch's dispatcher."""
        initial = [tensor for tensor, output in zip(outs or (), self.signature.returns) if output.accumulates]
        args = [bound.tensors[p.name] if p.dims else bound.scalars[p.name] for p in self.signature.params]
        try:
            results = self.operator_for(args)(args, initial, unchecked)
            results = list(results) if isinstance(results, (tuple, list)) else [results]
            if outs is None:
                return results
            with tensors.one_thread_after_fork():
                for tensor, result in zip(outs, results):
                    tensor.copy_(result)
        except TCError:
            raise
        except Exception as error:  # modes, transforms and wrappers each refuse in their own way
            raise arguments.wrapped(self.signature, error) from error
        return outs

    def _run_operator(self, args: Sequence[Any], initial: Sequence[torch.Tensor], unchecked: bool) -> list[torch.Tensor]:
        """The operator's implementation: tensors have memory, lazy bits are resolved; wrong arguments can still come from outside."""
        is_cut = torch.is_grad_enabled() and any(isinstance(value, torch.Tensor) and value.requires_grad for value in args)
        quick = NotImplemented if is_cut else self._call(tuple(args), None, unchecked)  # which would record, above autograd's keys
        if quick is not NotImplemented:
            return list(quick) if isinstance(quick, tuple) else [quick]
        bound = arguments.check(self.signature, args, self._asked)
        target = targets.resolve(self.target, bound.devices)
        names = iter(initial)
        outs = None
        if initial:
            shapes = kernel.extents(self.signature, bound)
            with tensors.one_thread_after_fork():
                outs = [
                    next(names).clone(memory_format=torch.contiguous_format)
                    if output.accumulates
                    else tensors.empty(shape, output.dtype, target.device, output.name)
                    for output, shape in zip(self.signature.returns, shapes)
                ]
            arguments.outputs(self.signature, outs, bound, shapes, target)
        return self._run(bound, target, outs, unchecked)

    def _run(self, bound: BoundArguments, target: Target, outs: list[torch.Tensor] | None, unchecked: bool) -> list[torch.Tensor]:
        compiled = self._kernel(bound, not unchecked, target, self.options)
        results = compiled.run(list(bound.tensors.values()), bound.scalars, outs)
        if compiled.binary is not None:
            self._call = self._table.remember(self.signature, compiled.key, compiled.binary, bound)
        return results

    # ------------------------------------------------------------ other functions

    def sibling(self, name: str) -> Function:
        """Another def of the same text, for the same target and with the same options."""
        sizes = kernel_cache.signature(self.text, name)
        dynamic = tuple(size for size in self.dynamic if size in sizes.sizes and size not in sizes.specialised)
        return function(self.text, name, self.target, self.options, dynamic, self.derivatives.of(name))

    def derived(self, text: str, name: str) -> Function:
        """The def of a derived text, for the same target; by options of its own."""
        signature = kernel_cache.signature(text, name)
        dynamic = tuple(size for size in self.dynamic if size in signature.sizes and size not in signature.specialised)
        return function(text, name, self.target, None, dynamic, Derivatives(ties=self.derivatives.ties))

    def batched(self, names: frozenset[str]) -> Function:
        """The function that computes this one for a batch of the parameters ``names``; a CheckError where there is none."""
        made = self._batched.get(names)
        if made is None:
            with _locks.acquired((self, names)):
                made = self._batched.get(names)
                if made is None:
                    made = self._batched[names] = self._over_batch(names)
        if isinstance(made, CheckError):
            raise made
        return made

    def _over_batch(self, names: frozenset[str]) -> Function | CheckError:
        from tcjit.grammar.batch import batch  # needs lark and isl
        from tcjit.jit.compile import definition

        try:
            text = batch(definition(self.text, self.signature.name), names)
        except CheckError as error:
            return error.with_traceback(None)
        signature = kernel_cache.signature(text, self.signature.name)
        dynamic = tuple(size for size in self.dynamic if size in signature.sizes)
        return Function(text, signature, self.target, self.options, dynamic, origin=(self, names))

    # ------------------------------------------------------------ kernels

    def compile(
        self, *args: Any, options: Options | None = None, target: str | None = None, unchecked: bool = False, **named: Any
    ) -> Kernel:
        """The kernel for these arguments, without running it; meta tensors do for shapes.

        >>> import tcjit, torch
        >>> tc = tcjit.define("def twice(float(N) X) -> (Y) { Y(i) = 2 * X(i) }", target="reference")
        >>> tc.twice.compile(torch.empty(5, device="meta")).target
        'reference'
        """
        args = arguments.imported(self.signature, arguments.positional(self.signature, args, named) if named else args)
        _check_bool(unchecked)
        chosen = checked_target(target) or self.target
        bound = arguments.check(self.signature, args, targets.find(chosen) if chosen else None, shapes_only=True)
        target_here = targets.resolve(chosen, bound.devices)
        return self._kernel(bound, not unchecked, target_here, checked_options(options) or self.options, called=False)

    def backward_source(self, *args: Any, **named: Any) -> str:
        """The text of the def's adjoint by all its parameters of floats: for every size, or with the numbers of these arguments.

        Without arguments it holds for integer scalars that are at least 1 where they are a factor or divisor of index arithmetic. Meta
        tensors do for shapes. Raises a CheckError for a function without a derivative.

        >>> import tcjit
        >>> tc = tcjit.define("def scale(float(N) X, float(M) W) -> (Y) { Y(i) = X(i) * W(0) }")
        >>> print(tc.scale.backward_source(), end="")
        def scale_backward(float32(N) d_Y, float32(N) X, float32(M) W) -> (float32(N) d_X, float32(M) d_W) {
            d_X(i) = d_Y(i) * W(0)
            d_W(m) +=! m == 0 ? d_Y(i) * X(i) : 0.0 where m in 0:M
        }
        """
        from tcjit.jit.derivative import backward_source  # needs isl and lark

        args = arguments.positional(self.signature, args, named) if named else args
        values = arguments.check(self.signature, args, shapes_only=True).values if args else None
        return backward_source(self.text, self.signature.name, values, self.derivatives.ties)

    def autotune(
        self,
        *args: Any,
        also: Sequence[Sequence[Any]] = (),
        config: TunerConfig | None = None,
        cache: bool = True,
        target: str | None = None,
        progress: bool | None = None,
        **named: Any,
    ) -> TuneResult:
        """Search the best mapping options for these arguments; calls with these shapes use them from then on, in every process.

        ``also`` are further sets of arguments for which the same options are to be good: the geometric mean counts. With
        ``cache=False`` the result is only returned. A search that was interrupted or killed goes on where it was; Ctrl-C ends it with
        the best so far. ``progress`` shows a line on standard error, by default where that is a terminal. Floating-point arguments
        count by their shapes and strides, integers by their values. Raises a TuneError where no candidate is valid.
        """
        args = arguments.positional(self.signature, args, named) if named else args
        from tcjit.jit import autotune  # imports optuna

        if not isinstance(also, (list, tuple)) or not all(isinstance(more, (list, tuple)) for more in also):
            raise ArgumentError("also= must be a list of lists of arguments", hint="also=[(X2, W2), (X3, W3)]")
        args, *also = (arguments.imported(self.signature, tuple(example)) for example in (args, *also))
        result = autotune.autotune(self.text, self.signature, checked_target(target) or self.target, [args, *also], config, cache, progress)
        if cache:
            forget(self.signature)
            until = math.inf if config is None or config.seconds is None else time.monotonic() + config.timeout
            with suppress(host.TimedOut), host.limited(until):  # then the first call compiles
                for example in (args, *also):  # as calls will want it: the next process finds the kernel, too
                    self.compile(*example, target=target)
        return result

    def _kernel(self, bound: BoundArguments, checked: bool, target: Target, options: Options | None, called: bool = True) -> Kernel:
        """The kernel for bound arguments; only those of calls count for what becomes dynamic by itself."""
        key = Key.of(bound, checked, target, options)
        compiled = self._kernels.get(key)
        if compiled is not None:
            return compiled
        with _locks.acquired((self, key)):
            compiled = self._kernels.get(key)
            if compiled is None:
                start = time.perf_counter()
                if called:
                    self._sizes.see(bound.values)
                compiled = self._dynamic(key, bound, called) if key.target.supports_dynamic else None
                if compiled is None:
                    compiled = kernel.create(self.text, self.signature, key)
                    self._sizes.compiled(key, compiled.nests)
                self._kernels.put(key, compiled)
                self._log_slow(compiled, time.perf_counter() - start)
        return compiled

    def _log_slow(self, compiled: Kernel, seconds: float) -> None:
        """Log a slow first compilation, once per def."""
        if seconds > SLOW and not self._slow_logged:
            self._slow_logged = True
            _log.info("%r took %.1f s to compile; later calls of these shapes, in any process, do not wait", compiled, seconds)

    def _dynamic(self, key: Key, bound: BoundArguments, called: bool) -> Kernel | None:
        """The kernel for this key and many others; None where the shapes are to have one of their own."""
        wide = key.widened(self.signature, self._sizes.limits_of(bound.values, called))
        if not wide.dynamic or kernel_cache.is_tuned(self.signature, key):
            return None
        with _locks.acquired((self, wide)):
            binary = self._dynamic_kernels.get(wide) or self._reading(wide, key, bound)
            if binary is None:
                try:
                    binary = kernel_cache.binary(self.text, self.signature, wide)
                except TCError as error:
                    kernel.specialised(self.text, self.signature, key)  # whose own errors come first
                    if isinstance(error, ShapeError) and any(size in self.dynamic for size, _, _ in wide.dynamic):
                        raise  # the def's own doing
                    self._sizes.refuse(error.what)
                    return None
                self._dynamic_kernels.put(wide, binary)
                self._sizes.compiled(wide, binary.record.get("nests", 0))
        return instance(self.text, self.signature, key, binary)

    def _reading(self, wide: Key, key: Key, bound: BoundArguments) -> LoadedBinary | None:
        """A dynamic kernel for other layouts that happens to read these: where a size is 1, many look alike."""
        reads, inputs = key.target.reads, bound.tensors.values()
        for other, binary in self._dynamic_kernels.items():
            if replace(other, layouts=wide.layouts) == wide and all(
                reads(layout, shape, tensor.stride()) for layout, shape, tensor in zip(other.layouts, key.shapes, inputs)
            ):
                return binary
        return None


def _check_bool(unchecked: Any) -> None:
    if type(unchecked) is not bool:
        raise ArgumentError(f"unchecked= must be True or False, not {brief(unchecked)}", hint="unchecked=True")


# ---------------------------------------------------------------- one of each


_locks = KeyLocks()
_functions: dict[tuple[Any, ...], Function] = {}


def _after_fork() -> None:
    global _locks
    _locks = KeyLocks()  # locks may have been held by threads that are not in this process


os.register_at_fork(after_in_child=_after_fork)


def function(
    text: str, name: str, target: str | None, options: Options | None, dynamic: tuple[str, ...] = (), derivatives: Derivatives = NONE
) -> Function:
    """The callable of a def; one per process for the same text, target, options, dynamic sizes and derivatives."""
    key = (text, name, target, options, dynamic, derivatives)
    known = _functions.get(key)
    if known is not None:
        return known
    with _locks.acquired(key):
        known = _functions.get(key)
        if known is None:
            known = _functions[key] = Function(text, kernel_cache.signature(text, name), target, options, dynamic, derivatives)
    return known


def forget(signature: Signature) -> None:
    """Let every def of this signature look up its options anew."""
    for function in list(_functions.values()):  # other threads may define more
        savings = [adjoint.saving for known in list(function.adjoints.values()) for adjoint in known]
        forwards = [saving.forward.signature for saving in savings if saving is not None]  # whose kernels recorded calls run
        if signature in (function.signature, *forwards):
            function._forget()
