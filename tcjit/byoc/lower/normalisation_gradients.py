"""Softmax and the normalisations of training: backward operators, and batch norm by the batch with its new statistics."""
from __future__ import annotations

from collections.abc import Sequence

from tcjit.byoc.lower.builder import DefBuilder, Element, NodeCall, broadcast, converted, known, literal, wide
from tcjit.byoc.lower.elementwise import floating
from tcjit.byoc.lower.normalisation import combined, dropped
from tcjit.byoc.lower.reductions import count, finish, moments, reduced
from tcjit.byoc.lower.rules import rule
from tcjit.byoc.lower.views import reshape
from tcjit.errors import PartitionError

_NOT_ASKED = "is not asked for"


def _results(call: NodeCall, found: Sequence[Element | None]) -> list[Element | str]:
    """Elements in the types and shapes of the outputs; None where nobody asks for one."""
    made: list[Element | str] = []
    for value, each in zip(call.node.outputs, found, strict=True):
        if each is None or value.type is None:
            made.append(_NOT_ASKED)
        else:
            dtype, shape = known(value)
            made.append(reshape(converted(each, dtype), shape))
    return made


@rule("_softmax_backward_data", "_log_softmax_backward_data")
def softmax_gradient(call: NodeCall) -> Element:
    gradient, result, dtype = call.materialised("grad_output"), call.materialised("output"), wide(call.dtype)
    shape = result.shape
    dims = [call.axis("dim", len(shape))] if shape else []
    if not floating(result.dtype):
        raise PartitionError(f"a softmax of {result.dtype}")
    if call.node.op == "aten._log_softmax_backward_data":
        total = dropped(reduced(call.builder, gradient, dims, "+", dtype), shape, dims)
        return finish(call, combined("{0} - exp({1}) * {2}", dtype, shape, [gradient, result, total], 12))
    products = combined("{0} * {1}", dtype, shape, [gradient, result], 1)
    total = dropped(reduced(call.builder, products, dims, "+", dtype), shape, dims)
    return finish(call, combined("({0} - {1}) * {2}", dtype, shape, [gradient, total, result], 2))


def _by_input(builder: DefBuilder, gradient: Element, hat: Element, scale: Element, dims: Sequence[int], dtype: str) -> Element:
    """The gradient by what was normalised over some dimensions; ``hat`` is the result before weight and bias, and ``gradient`` by that.
    ``scale`` is without the dimensions."""
    shape = hat.shape
    gradient = builder.keep(gradient)
    total = reduced(builder, gradient, dims, "+", dtype)
    along = reduced(builder, combined("{0} * {1}", dtype, shape, [gradient, hat], 1), dims, "+", dtype)
    parts = [gradient, hat, *(dropped(each, shape, dims) for each in (total, along, scale))]
    return combined(f"({{0}} - ({{2}} + {{1}} * {{3}}) / {literal(count(hat, dims), dtype)}) * {{4}}", dtype, shape, parts, 9)


def _hat(x: Element, mean: Element, scale: Element, dims: Sequence[int], dtype: str) -> Element:
    return combined("({0} - {1}) * {2}", dtype, x.shape, [x, dropped(mean, x.shape, dims), dropped(scale, x.shape, dims)], 2)


def _asked(call: NodeCall) -> list[bool]:
    mask = call.argument("output_mask")
    asked = list(mask) if isinstance(mask, tuple) else [True] * len(call.node.outputs)
    return [bool(one) and call.builder.needs(value) for one, value in zip(asked, call.node.outputs)]


@rule("native_layer_norm_backward")
def layer_norm_gradient(call: NodeCall) -> Sequence[Element | str]:
    x, gradient, dtype = call.materialised("input"), call.materialised("grad_out"), wide(call.dtype)
    rank, normalised = len(x.shape), call.integers("normalized_shape")
    dims, batch = list(range(rank - len(normalised), rank)), list(range(rank - len(normalised)))
    mean, scale = (reshape(call.materialised(name), x.shape[: len(batch)]) for name in ("mean", "rstd"))
    hat, weighted, weight = _hat(x, mean, scale, dims, dtype), gradient, call.optional("weight")
    if weight is not None:
        weighted = combined("{0} * {1}", dtype, x.shape, [gradient, broadcast(call.builder, weight, x.shape)], 1)
    by_input, by_weight, by_bias = _asked(call)
    products = combined("{0} * {1}", dtype, x.shape, [gradient, hat], 1)
    return _results(call, [
        _by_input(call.builder, weighted, hat, scale, dims, dtype) if by_input else None,
        reduced(call.builder, products, batch, "+", dtype) if by_weight else None,
        reduced(call.builder, gradient, batch, "+", dtype) if by_bias else None,
    ])  # fmt: skip


@rule("native_group_norm_backward")
def group_norm_gradient(call: NodeCall) -> Sequence[Element | str]:
    dtype, (batch, channels, plane, groups) = wide(call.dtype), (call.integer(name) for name in ("N", "C", "HxW", "group"))
    shape, dims = (batch, groups, channels // groups, plane), [2, 3]
    x, gradient = (reshape(call.materialised(name), shape) for name in ("input", "grad_out"))
    mean, scale = (reshape(call.materialised(name), shape[:2]) for name in ("mean", "rstd"))
    hat, weighted, weight = _hat(x, mean, scale, dims, dtype), gradient, call.optional("weight")
    if weight is not None:
        weight = broadcast(call.builder, reshape(weight, (1, groups, channels // groups, 1)), shape)
        weighted = combined("{0} * {1}", dtype, shape, [gradient, weight], 1)
    by_input, by_weight, by_bias = _asked(call)
    products = combined("{0} * {1}", dtype, shape, [gradient, hat], 1)
    return _results(call, [
        _by_input(call.builder, weighted, hat, scale, dims, dtype) if by_input else None,
        reduced(call.builder, products, [0, 3], "+", dtype) if by_weight else None,
        reduced(call.builder, gradient, [0, 3], "+", dtype) if by_bias else None,
    ])  # fmt: skip


@rule("native_batch_norm_backward")
def batch_norm_gradient(call: NodeCall) -> Sequence[Element | str]:
    x, gradient, dtype = call.materialised("input"), call.materialised("grad_out"), wide(call.dtype)
    dims, weight = [0, *range(2, len(x.shape))], call.optional("weight")
    if call.flag("train"):
        mean, scale = call.tensor("save_mean"), call.tensor("save_invstd")
    else:
        mean, variance, eps = call.tensor("running_mean"), call.tensor("running_var"), literal(call.number("eps"), dtype)
        scale = call.builder.keep(combined(f"rsqrt({{0}} + {eps})", dtype, variance.shape, [variance], 9))
    hat, weighted = _hat(x, mean, scale, dims, dtype), gradient
    if weight is not None:
        weighted = combined("{0} * {1}", dtype, x.shape, [gradient, dropped(weight, x.shape, dims)], 1)
    by_input, by_weight, by_bias = _asked(call)
    products = combined("{0} * {1}", dtype, x.shape, [gradient, hat], 1)
    found = None
    if by_input and call.flag("train"):
        found = _by_input(call.builder, weighted, hat, scale, dims, dtype)
    elif by_input:
        found = combined("{0} * {1}", dtype, x.shape, [weighted, dropped(scale, x.shape, dims)], 1)
    return _results(call, [
        found,
        reduced(call.builder, products, dims, "+", dtype) if by_weight else None,
        reduced(call.builder, gradient, dims, "+", dtype) if by_bias else None,
    ])  # fmt: skip


@rule("_native_batch_norm_legit_functional")
def batch_norm_of_the_batch(call: NodeCall) -> Sequence[Element | str]:
    """Normalised by the batch; its mean and reciprocal deviation, and the running statistics behind it."""
    if not call.flag("training"):
        raise PartitionError("does not normalise by the batch")
    x, dtype = call.materialised("input"), wide(call.dtype)
    dims, momentum = [0, *range(2, len(x.shape))], call.number("momentum")
    mean, squares = moments(call.builder, x, dims, dtype)
    size, eps = count(x, dims), literal(call.number("eps"), dtype)
    scale = call.builder.keep(combined(f"rsqrt({{0}} / {literal(size, dtype)} + {eps})", dtype, squares.shape, [squares], 10))
    text, parts = "{0}", [_hat(x, mean, scale, dims, dtype)]
    for name, sign in (("weight", "*"), ("bias", "+")):
        if (each := call.optional(name)) is not None:
            text += f" {sign} {{{len(parts)}}}"
            parts.append(dropped(each, x.shape, dims))
    variance = combined(f"{{0}} / {literal(max(size - 1, 1), dtype)}", dtype, mean.shape, [squares], 4)
    mixed = f"{{0}} * {literal(1 - momentum, dtype)} + {{1}} * {literal(momentum, dtype)}"
    pairs = (("running_mean", mean), ("running_var", variance))
    running = [combined(mixed, dtype, mean.shape, [call.tensor(name), new], 3) for name, new in pairs]
    return _results(call, [combined(text, dtype, x.shape, parts, 4), mean, scale, *running])
