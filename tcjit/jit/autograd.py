"""A def in PyTorch's differentiation: one ``autograd.Function`` for graphs, one for functorch's transforms and for forward mode.

Both call the adjoint as a def, which is differentiated in the same way. Tensors are kept by ``save_for_backward`` alone, so that hooks see
them and writes to them are found; those that an adjoint needs for extents alone are not kept.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

import torch
from torch._C._functorch import TransformType
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.forward_ad import _set_fwd_grad_enabled
from torch.autograd.function import _SingleLevelFunction

from tcjit.errors import ArgumentError, CheckError, ShapeError, TCError
from tcjit.grammar.dtypes import DTYPES
from tcjit.jit.differentiation import Adjoint, Differentiable, Tangent, adjoint_of, integers, tangent_of
from tcjit.jit.recording import Kept, Recording
from tcjit.jit.signature import Signature
from tcjit.runtime import tensors

Run = Callable[[Sequence[Any], Any], Any]  # the results of a function, or of another one, which saves more, for the same arguments
Call = Callable[[Any, Sequence[Any]], Any]  # the results of a call; a node, the context of a `Function`, gets what its backward reads


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
    """``record(call, *args)``: the results of ``call(ctx, args)`` as a node of autograd's graph, of the innermost one under a transform."""

    def forward(ctx: Any, call: Call, *args: Any) -> Any:
        return call(ctx, args)

    def forward_of_a_level(ctx: Any, call: Call, *args: Any) -> Any:
        with torch.enable_grad(), _set_fwd_grad_enabled(True):  # for the transforms around this one
            return call(ctx, args)

    def backward(ctx: Any, *cotangents: Any) -> Any:
        return (None, *_gradients(ctx, cotangents, ctx.needs_input_grad[1:]))

    usual = _node_class(function, torch.autograd.Function, forward, backward)
    of_a_level = _node_class(function, _SingleLevelFunction, forward_of_a_level, backward)

    def record(*args: Any) -> Any:
        if _level() is None:
            return usual.apply(*args)
        with enable_single_level_autograd_function():
            return of_a_level.apply(*args)

    return record


def prepared(function: Differentiable, launcher: ModuleType) -> Callable[..., Any]:
    """``record(*args)`` for calls that wait for the launcher's ``forward``, outside of transforms, which this does not look for.

    At each call torch looks up a few attributes of the class: it is one without bases that have them, and nodes have no dictionary.
    """

    def backward(ctx: Any, *cotangents: Any) -> Any:
        return _gradients(ctx, cotangents, ctx.needs_input_grad)

    node: Any = _node_class(function, torch.autograd.Function, launcher.forward, backward)
    found: dict[str, Any] = {}
    for base in reversed(node.__mro__):
        if base not in (object, torch._C._FunctionBase):
            found |= {name: getattr(node, name) for name in vars(base) if not name.startswith("__") and name != "apply"}
    found["_backward_cls"] = type(f"{node.__name__}Backward", (node._backward_cls,), {"__slots__": ("recorded",)})
    apply: Callable[..., Any] = launcher.Flat(node.__name__, (torch._C._FunctionBase,), found).apply
    return apply


def _node_class(function: Differentiable, base: Any, forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    return type(function.signature.name, (base,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


def recording(function: Differentiable, unchecked: bool, run: Run, ctx: Any, args: Sequence[Any]) -> tuple[Recording, Any]:
    """What a node keeps of a call, and what it returns."""
    adjoint = _needed_adjoint(ctx, function, args)
    saving = adjoint.saving if isinstance(adjoint, Adjoint) else None
    every = run(args, None if saving is None else saving.forward)
    every = every if isinstance(every, tuple) else (every,)
    made = Recording.of(function, unchecked, adjoint, args, every)
    return made, made.record(ctx, args, every)


def transformer(function: Differentiable) -> Callable[..., Any]:
    """``apply(unchecked, *args)``: the results as functorch's transforms and forward mode see them."""

    def forward(unchecked: bool, *args: Any) -> Any:
        return function.apply(args, unchecked)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        unchecked, *args = inputs
        level = _level()
        results = output if isinstance(output, tuple) else (output,)
        constants: frozenset[int] = frozenset()
        if level != TransformType.Jvp:
            recorded = Recording.of(function, unchecked, _needed_adjoint(ctx, function, args), args, results)
            recorded.keep(ctx, args, results)
            constants |= {*recorded.constants}
        if level == TransformType.Jvp or (level is None and tensors.forward_level()):
            constants |= _keep_for_forward(ctx, function, unchecked, args, results)
        ctx.mark_non_differentiable(*(results[place - len(args)] for place in sorted(constants)))

    def backward(ctx: Any, *cotangents: Any) -> Any:
        return (None, *_gradients(ctx, cotangents, ctx.needs_input_grad[1:]))

    def jvp(ctx: Any, unchecked: None, *tangents: Any) -> Any:
        return _tangents(ctx, function, tangents)

    def vmap(info: Any, in_dims: tuple[Any, ...], unchecked: bool, *args: Any) -> Any:
        return _over_batch(function, info.batch_size, in_dims[1:], unchecked, args)

    methods: dict[str, Any] = {"forward": forward, "setup_context": setup_context, "backward": backward, "jvp": jvp, "vmap": vmap}
    made: dict[str, Any] = {name: staticmethod(method) for name, method in methods.items()}
    of_all: Callable[..., Any] = type(function.signature.name, (torch.autograd.Function,), made).apply  # type: ignore[attr-defined]

    def apply(unchecked: bool, *args: Any) -> Any:
        if _is_in_vmap_alone(args):
            return _in_vmap(function, unchecked, args, _over_batch)  # what the class would do, without what functorch does around it
        return of_all(unchecked, *args)

    return apply


# ---------------------------------------------------------------- what is kept


def _needed_adjoint(ctx: Any, function: Differentiable, args: Sequence[Any]) -> Adjoint | TCError | None:
    """The adjoint, or the error that the backward raises where there is none; None where no gradient is needed."""
    needed = ctx.needs_input_grad[-len(args) :]
    if not any(needed):
        return None
    try:
        return adjoint_of(function, _differentiated(function.signature, needed), integers(function.signature, args), args)
    except TCError as error:
        return error.with_traceback(None)  # whose frames would keep the arguments


def _keep_for_forward(ctx: Any, function: Differentiable, unchecked: bool, args: Sequence[Any], results: Sequence[Any]) -> frozenset[int]:
    """Save what the tangent reads; where there is none, the jvp says so. The places of returns that have no tangents."""
    ctx.set_materialize_grads(False)
    try:
        tangent = tangent_of(function, integers(function.signature, args))
    except TCError as error:
        ctx.tangent = error.with_traceback(None)
        return frozenset()
    kept = Kept.of(function, args, results, tangent.reads)
    values = (*args, *results)
    ctx.save_for_forward(*(values[place] for place in kept.tensors.values()))
    ctx.tangent, ctx.forward_state = tangent, (kept, unchecked, tuple(values[place] for place in kept.scalars.values()))
    return frozenset(place for place, r in enumerate(function.signature.returns, len(args)) if r.name not in tangent.results)


# ---------------------------------------------------------------- derivatives


def _gradients(ctx: Any, cotangents: Sequence[Any], needed: tuple[bool, ...]) -> tuple[Any, ...]:
    """The gradients by the parameters for cotangents of the returns; None where there is none, or nobody asks."""
    recorded: Recording
    recorded, scalars = ctx.recorded
    return recorded.gradients(ctx, scalars, cotangents, needed)


def _tangents(ctx: Any, function: Differentiable, given: Sequence[Any]) -> Any:
    """The tangents of the returns; None for those without."""
    signature = function.signature
    tangent: Tangent | TCError = ctx.tangent
    if isinstance(tangent, TCError):
        raise tangent
    kept: Kept
    kept, unchecked, scalars = ctx.forward_state
    by_name = {param.name: value for param, value in zip(signature.params, given) if value is not None}
    for name in by_name:
        if name not in tangent.tangents:
            raise ArgumentError(
                f"argument {name} of {signature.name}() has a tangent, and {tangent.function.signature.name}() takes none of it",
                hint=f"a tangent def with a parameter for it, or {name}.detach()",
            )
    values = kept.read(ctx.saved_tensors, scalars)
    for name, parameter in tangent.tangents.items():
        values[parameter] = by_name[name] if name in by_name else kept.zeros(name)
    values |= {parameter: kept.zeros(name) for parameter, name in tangent.zeros.items()}
    results = _called(tangent.function, values, unchecked)
    found = tuple(results[tangent.results[r.name]] if r.name in tangent.results else None for r in signature.returns)
    return found[0] if len(found) == 1 else found


def _called(function: Differentiable, values: dict[str, Any], unchecked: bool) -> dict[str, torch.Tensor]:
    """The results of a function by name."""
    results = function.apply([values[param.name] for param in function.signature.params], unchecked)
    return dict(zip((r.name for r in function.signature.returns), results if isinstance(results, tuple) else (results,)))


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


def repeated_in_vmap(function: Differentiable, unchecked: bool, args: Sequence[Any]) -> Any:
    """The results of a call in nothing but ``vmap`` for whose batch a call is prepared; NotImplemented elsewhere."""
    return _in_vmap(function, unchecked, args, _repeated_over_batch) if _is_in_vmap_alone(args) else NotImplemented


def _repeated_over_batch(
    function: Differentiable, size: int, dimensions: Sequence[int | None], unchecked: bool, args: Sequence[Any]
) -> tuple[Any, None]:
    batched = frozenset(param.name for param, dimension in zip(function.signature.params, dimensions) if dimension is not None)
    values = tuple(arg.movedim(dimension, 0) if dimension else arg for arg, dimension in zip(args, dimensions))
    with suppress(CheckError):
        return function.batched(batched).repeated(values, unchecked), None
    return NotImplemented, None


def _in_vmap(function: Differentiable, unchecked: bool, args: Sequence[Any], over_batch: Callable[..., Any]) -> Any:
    """The results of a call in ``vmap``: a call over a batch outside of it."""
    interpreter: Any = retrieve_current_functorch_interpreter()
    level: int = interpreter.level()
    functorch: Any = torch._C._functorch
    batched = [isinstance(arg, torch.Tensor) and functorch.is_batchedtensor(arg) for arg in args]
    values, dimensions = zip(*(functorch._unwrap_batched(a, level) if one else (a, None) for a, one in zip(args, batched)))
    with interpreter.lower():
        if not any(batched):
            return function.apply(args, unchecked)
        results, _ = over_batch(function, interpreter.batch_size(), dimensions, unchecked, values)
    if results is NotImplemented:
        return results
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
