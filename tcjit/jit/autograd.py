"""A def in PyTorch's differentiation: one ``autograd.Function`` for graphs, one for functorch's transforms and for forward mode.

Both call the adjoint as a def, which is differentiated in the same way. Tensors are kept by ``save_for_backward`` alone, so that hooks see
them and writes to them are found; those that an adjoint needs for extents alone are not kept.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.forward_ad import _set_fwd_grad_enabled
from torch.autograd.function import _SingleLevelFunction

from tcjit.errors import ArgumentError, CheckError, ShapeError, TCError
from tcjit.grammar.bind import bind
from tcjit.grammar.dtypes import DTYPES
from tcjit.jit.differentiation import Adjoint, Differentiable, Tangent, adjoint_of, integers, tangent_of
from tcjit.jit.signature import Signature
from tcjit.runtime import tensors

Run = Callable[[Sequence[Any], Any], Any]  # the results of a function, or of another one, which saves more, for the same arguments
_Like = tuple[Sequence[int], torch.dtype, torch.device]  # what zeros and tensors without content are made of


def requiring(signature: Signature, args: Sequence[Any]) -> frozenset[str]:
    """The parameters whose arguments require a gradient; an ArgumentError where one can have none."""
    if not torch.is_grad_enabled():
        return frozenset()
    requires = [isinstance(value, torch.Tensor) and value.requires_grad for value in args]
    return _differentiated(signature, requires)


def _differentiated(signature: Signature, needed: Sequence[bool]) -> frozenset[str]:
    found = [param for param, one in zip(signature.params, needed) if one]
    for param in found:
        if DTYPES[param.dtype].kind != "float":
            what = f"argument {param.name} of {signature.name}() requires grad, and there is no gradient by {param.dtype}"
            raise ArgumentError(what, hint="x.detach()")
    return frozenset(param.name for param in found)


def transformed(args: Sequence[Any]) -> bool:
    """Whether a transform of functorch, or differentiation in forward mode, has to see a call with these arguments."""
    level = _level()
    return _any_tangent(args) if level is None else level != TransformType.Functionalize


def _level() -> Any:
    """The kind of functorch's innermost transform; None outside of all."""
    interpreter: Any = torch._C._functorch.peek_interpreter_stack()
    return None if interpreter is None else interpreter.key()


def _any_tangent(args: Sequence[Any]) -> bool:
    return any(isinstance(value, torch.Tensor) and tensors.tangent(value) for value in args)


def recorder(function: Differentiable) -> Callable[..., Any]:
    """``record(unchecked, run, *args)``: the results of ``run``, as a node of autograd's graph; of the innermost one under a transform."""
    count = len(function.signature.returns)

    def forward(ctx: Any, unchecked: bool, run: Run, *args: Any) -> Any:
        adjoint = _needed_adjoint(ctx, function, args)
        if adjoint is None or adjoint.saving is None:
            results, saved = run(args, None), {}
        else:
            every = run(args, adjoint.saving.forward)
            results, saved = every[0] if count == 1 else every[:count], dict(zip(adjoint.saving.names, every[count:]))
        _mark(ctx, function, results, _keep_for_backward(ctx, function, unchecked, args, results, saved))
        return results

    def forward_of_a_level(ctx: Any, unchecked: bool, run: Run, *args: Any) -> Any:
        def lower(args: Sequence[Any], other: Any) -> Any:
            with torch.enable_grad(), _set_fwd_grad_enabled(True):  # for the transforms around this one
                return run(args, other)

        return forward(ctx, unchecked, lower, *args)

    def backward(ctx: Any, *cotangents: Any) -> Any:
        return (None, None, *_gradients(ctx, function, cotangents, ctx.needs_input_grad[2:]))

    def node_class(base: Any, forward: Any) -> Any:
        return type(function.signature.name, (base,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})

    usual = node_class(torch.autograd.Function, forward)
    of_a_level = node_class(_SingleLevelFunction, forward_of_a_level)

    def record(*args: Any) -> Any:
        if _level() is None:
            return usual.apply(*args)
        with enable_single_level_autograd_function():
            return of_a_level.apply(*args)

    return record


def transformer(function: Differentiable) -> Callable[..., Any]:
    """``apply(unchecked, *args)``: the results as functorch's transforms and forward mode see them."""

    def forward(unchecked: bool, *args: Any) -> Any:
        return function.apply(args, unchecked)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        unchecked, *args = inputs
        level = _level()
        differentiated = frozenset(returned.name for returned in function.signature.returns)
        if level != TransformType.Jvp:
            _needed_adjoint(ctx, function, args)
            differentiated &= _keep_for_backward(ctx, function, unchecked, args, output, {})
        if level == TransformType.Jvp or (level is None and tensors.forward_level()):
            differentiated &= _keep_for_forward(ctx, function, unchecked, args, output)
        _mark(ctx, function, output, differentiated)

    def backward(ctx: Any, *cotangents: Any) -> Any:
        return (None, *_gradients(ctx, function, cotangents, ctx.needs_input_grad[1:]))

    def jvp(ctx: Any, unchecked: None, *tangents: Any) -> Any:
        return _tangents(ctx, function, tangents)

    def vmap(info: Any, in_dims: tuple[Any, ...], unchecked: bool, *args: Any) -> Any:
        return _over_batch(function, info.batch_size, in_dims[1:], unchecked, args)

    methods: dict[str, Any] = {"forward": forward, "setup_context": setup_context, "backward": backward, "jvp": jvp, "vmap": vmap}
    made: dict[str, Any] = {name: staticmethod(method) for name, method in methods.items()}
    of_all: Callable[..., Any] = type(function.signature.name, (torch.autograd.Function,), made).apply  # type: ignore[attr-defined]

    def apply(unchecked: bool, *args: Any) -> Any:
        if _is_in_vmap_alone(args):
            return _in_vmap(function, unchecked, args)  # what the class would do, without what functorch does around it
        return of_all(unchecked, *args)

    return apply


# ---------------------------------------------------------------- what is kept


@dataclass(frozen=True)
class _State:
    """What a node knows beside the tensors that autograd keeps for it: their names, scalars and sizes, and what all tensors were like."""

    unchecked: bool
    names: tuple[str, ...]
    values: dict[str, Any]
    like: dict[str, _Like]

    def read(self, saved: Sequence[torch.Tensor]) -> dict[str, Any]:
        """The arguments that are no derivatives, by name."""
        return {**self.values, **dict(zip(self.names, saved))}

    def zeros(self, name: str) -> torch.Tensor | float:
        if name not in self.like:  # a scalar that was given as a number
            return 0.0
        shape, dtype, device = self.like[name]
        return torch.zeros(tuple(shape), dtype=dtype, device=device)

    def shaped(self, name: str) -> torch.Tensor:
        """A tensor of extents alone, of one undefined element."""
        shape, dtype, device = self.like[name]
        return torch.empty((), dtype=dtype, device=device).expand(tuple(shape))


def _state(
    function: Differentiable,
    unchecked: bool,
    args: Sequence[Any],
    results: Any,
    reads: Sequence[str],
    unread: Sequence[str],
    saved: Mapping[str, torch.Tensor],
) -> tuple[_State, list[torch.Tensor]]:
    """A node's state, and the tensors to keep: those of ``reads`` but not of ``unread``, temporaries that were ``saved`` among them."""
    signature = function.signature
    named: dict[str, Any] = {**saved, **dict(zip((p.name for p in signature.params), args))}
    named |= zip((r.name for r in signature.returns), results if isinstance(results, tuple) else (results,))
    given = {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}
    like: dict[str, _Like] = {name: (value.shape, value.dtype, value.device) for name, value in given.items()}
    kept = {name: named[name] for name in reads if name in like and name not in unread}
    values = {name: named[name] for name in reads if name in named and name not in like}
    if any(name not in named for name in reads):
        sizes = bind(signature.params, [tuple(named[p.name].shape) if p.dims else None for p in signature.params])
        values |= {name: sizes[name] for name in reads if name not in named}
    return _State(unchecked, tuple(kept), values, like), list(kept.values())


def _needed_adjoint(ctx: Any, function: Differentiable, args: Sequence[Any]) -> Adjoint | None:
    """The adjoint, if a gradient is needed and there is one; where there is none, the backward says so."""
    needed = ctx.needs_input_grad[-len(args) :]
    ctx.adjoint = None
    if any(needed):
        try:
            ctx.adjoint = adjoint_of(function, _differentiated(function.signature, needed), integers(function.signature, args))
        except TCError as error:
            ctx.adjoint = error.with_traceback(None)  # whose frames would keep the arguments
    return ctx.adjoint if isinstance(ctx.adjoint, Adjoint) else None


def _keep_for_backward(
    ctx: Any, function: Differentiable, unchecked: bool, args: Sequence[Any], results: Any, saved: dict[str, torch.Tensor]
) -> frozenset[str]:
    """Keep what the adjoint reads, and what was saved for the one that takes it. The returns that have cotangents."""
    ctx.set_materialize_grads(False)
    adjoint = ctx.adjoint
    if not isinstance(adjoint, Adjoint):
        return frozenset(returned.name for returned in function.signature.returns)
    takers = [adjoint, *([adjoint.saving.adjoint] if saved and adjoint.saving is not None else [])]
    reads = dict.fromkeys(name for taker in takers for name in taker.reads)
    unread = [name for name in reads if all(name in taker.function.signature.unread for taker in takers if name in taker.reads)]
    ctx.backward_state, kept = _state(function, unchecked, args, results, [*reads], unread, saved)
    ctx.save_for_backward(*kept)
    return frozenset(adjoint.cotangents)


def _keep_for_forward(ctx: Any, function: Differentiable, unchecked: bool, args: Sequence[Any], results: Any) -> frozenset[str]:
    """Save what the tangent reads; where there is none, the jvp says so. The returns that have tangents."""
    ctx.set_materialize_grads(False)
    try:
        ctx.tangent = tangent = tangent_of(function, integers(function.signature, args))
    except TCError as error:
        ctx.tangent = error.with_traceback(None)
        return frozenset(returned.name for returned in function.signature.returns)
    ctx.forward_state, kept = _state(function, unchecked, args, results, tangent.reads, (), {})
    ctx.save_for_forward(*kept)
    return frozenset(tangent.results)


def _mark(ctx: Any, function: Differentiable, results: Any, differentiated: frozenset[str]) -> None:
    """Mark the results that have no derivatives: they do not require any, and autograd refuses to start from them."""
    made = results if isinstance(results, tuple) else (results,)
    ctx.mark_non_differentiable(*(value for output, value in zip(function.signature.returns, made) if output.name not in differentiated))


# ---------------------------------------------------------------- derivatives


def _gradients(ctx: Any, function: Differentiable, cotangents: Sequence[Any], needed: Sequence[bool]) -> list[Any]:
    """The gradients by the parameters for cotangents of the returns; None where there is none, or nobody asks."""
    signature = function.signature
    adjoint: Adjoint | TCError = ctx.adjoint
    if isinstance(adjoint, TCError):
        raise adjoint
    asked = [one and param.name in adjoint.gradients for param, one in zip(signature.params, needed)]
    given = {r.name: cotangent for r, cotangent in zip(signature.returns, cotangents) if r.name in adjoint.cotangents}
    if not any(asked) or all(cotangent is None for cotangent in given.values()):
        return [None] * len(signature.params)
    state: _State = ctx.backward_state
    values = state.read(ctx.saved_tensors)
    saving = adjoint.saving
    if saving is not None and not torch.is_grad_enabled() and {*saving.names} <= {*values}:  # nobody differentiates these gradients
        adjoint = saving.adjoint
    for name, parameter in adjoint.cotangents.items():
        values[parameter] = state.zeros(name) if given[name] is None else _dense(given[name])
    values |= {name: state.shaped(name) for name in adjoint.function.signature.unread if name not in values}
    results = _called(adjoint.function, values, state.unchecked)
    return [_gradient(function, adjoint, p.name, results, state) if one else None for p, one in zip(signature.params, asked)]


def _gradient(function: Differentiable, adjoint: Adjoint, parameter: str, results: dict[str, torch.Tensor], state: _State) -> torch.Tensor:
    """The gradient by one parameter; a ShapeError where the adjoint gives it another shape."""
    gradient = results[adjoint.gradients[parameter]]
    if dimensions := adjoint.sums.get(parameter):
        gradient = gradient.sum(dimensions)
    wanted = state.like[parameter][0]
    if tuple(gradient.shape) != tuple(wanted):
        name = adjoint.gradients[parameter]
        raise ShapeError(
            f"{name} of {adjoint.function.signature.name}() has shape {tuple(gradient.shape)}, and {parameter} of "
            f"{function.signature.name}() has {tuple(wanted)}",
            hint="ranges in the text of the adjoint",
        )
    return gradient


def _tangents(ctx: Any, function: Differentiable, given: Sequence[Any]) -> Any:
    """The tangents of the returns; None for those without."""
    signature = function.signature
    tangent: Tangent | TCError = ctx.tangent
    if isinstance(tangent, TCError):
        raise tangent
    state: _State = ctx.forward_state
    by_name = {param.name: value for param, value in zip(signature.params, given) if value is not None}
    for name in by_name:
        if name not in tangent.tangents:
            raise ArgumentError(
                f"argument {name} of {signature.name}() has a tangent, and {tangent.function.signature.name}() takes none of it",
                hint=f"a tangent def with a parameter for it, or {name}.detach()",
            )
    values = state.read(ctx.saved_tensors)
    for name, parameter in tangent.tangents.items():
        values[parameter] = by_name[name] if name in by_name else state.zeros(name)
    values |= {parameter: state.zeros(name) for parameter, name in tangent.zeros.items()}
    results = _called(tangent.function, values, state.unchecked)
    found = tuple(results[tangent.results[r.name]] if r.name in tangent.results else None for r in signature.returns)
    return found[0] if len(found) == 1 else found


def _called(function: Differentiable, values: dict[str, Any], unchecked: bool) -> dict[str, torch.Tensor]:
    """The results of a function by name."""
    results = function.apply([values[param.name] for param in function.signature.params], unchecked)
    return dict(zip((r.name for r in function.signature.returns), results if isinstance(results, tuple) else (results,)))


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """A cotangent that is one element for all, as that of a sum is, in memory of its own: kernels are made for strides."""
    return tensor.contiguous() if 0 in tensor.stride() else tensor


# ---------------------------------------------------------------- batches


def _over_batch(function: Differentiable, size: int, dimensions: Sequence[int | None], unchecked: bool, args: Sequence[Any]) -> Any:
    """The results for a batch, and where its dimension is in them: those of one def over the batch, or of a call for each element."""
    signature = function.signature
    values = [arg if dimension is None else arg.movedim(dimension, 0) for arg, dimension in zip(args, dimensions)]
    batched = frozenset(param.name for param, dimension in zip(signature.params, dimensions) if dimension is not None)
    wanted = {p.name: tensors.TORCH[p.dtype] for p in signature.params if not p.dims and p.name in batched}
    numbers = [(value.dtype, wanted[p.name]) for p, value in zip(signature.params, values) if p.name in wanted]
    if all(dtype == to or (dtype.is_floating_point and to.is_floating_point) for dtype, to in numbers):
        try:
            made = function.batched(batched)
        except CheckError:
            pass
        else:
            values = [value.to(wanted[p.name]) if p.name in wanted else value for p, value in zip(signature.params, values)]
            return _with_dimension(made.apply(values, unchecked))
    return _with_dimension(_one_by_one(function, size, batched, unchecked, values))  # which refuses numbers that do not fit


def _is_in_vmap_alone(args: Sequence[Any]) -> bool:
    """Whether ``vmap`` is the only transform of functorch, over tensors with dimensions that no other has wrapped."""
    functorch: Any = torch._C._functorch
    if _level() != TransformType.Vmap or functorch.get_dynamic_layer_stack_depth() != 1:
        return False
    given = [arg for arg in args if isinstance(arg, torch.Tensor)]
    plain = (functorch.get_unwrapped(arg) if functorch.is_batchedtensor(arg) else arg for arg in given)
    return all(arg.dim() for arg in given) and not any(map(functorch.is_functorch_wrapped_tensor, plain))


def _in_vmap(function: Differentiable, unchecked: bool, args: Sequence[Any]) -> Any:
    """The results of a call in ``vmap``: a call over a batch outside of it."""
    interpreter: Any = retrieve_current_functorch_interpreter()
    level: int = interpreter.level()
    functorch: Any = torch._C._functorch
    batched = [isinstance(arg, torch.Tensor) and functorch.is_batchedtensor(arg) for arg in args]
    values, dimensions = zip(*(functorch._unwrap_batched(a, level) if one else (a, None) for a, one in zip(args, batched)))
    with interpreter.lower():
        if not any(batched):
            return function.apply(args, unchecked)
        results, _ = _over_batch(function, interpreter.batch_size(), dimensions, unchecked, values)
    if isinstance(results, tuple):
        return tuple(functorch._add_batch_dim(result, 0, level) for result in results)
    return functorch._add_batch_dim(results, 0, level)


def _with_dimension(results: Any) -> tuple[Any, Any]:
    return results, (0,) * len(results) if isinstance(results, tuple) else 0


def _one_by_one(function: Differentiable, size: int, batched: frozenset[str], unchecked: bool, values: Sequence[Any]) -> Any:
    """The results of a call for each element of a batch."""
    names = [param.name for param in function.signature.params]
    rows = [
        function.apply([value[number] if name in batched else value for name, value in zip(names, values)], unchecked)
        for number in range(size)
    ]
    if not rows:
        raise ArgumentError(f"{function.signature.name}() has no text over a batch, and this one is empty", hint="a batch with elements")
    if isinstance(rows[0], tuple):
        return tuple(_stacked(function, column) for column in zip(*rows))
    return _stacked(function, rows)


def _stacked(function: Differentiable, rows: Sequence[torch.Tensor]) -> torch.Tensor:
    shapes = dict.fromkeys(tuple(row.shape) for row in rows)
    if len(shapes) > 1:
        name, several = function.signature.name, ", ".join(map(str, shapes))
        raise ShapeError(f"results of {name}() for the elements of a batch have the shapes {several}", hint="a call for each, outside vmap")
    return torch.stack(tuple(rows))
