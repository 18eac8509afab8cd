"""Softmax and the normalisations, in two passes over the data where there is a variance."""
from __future__ import annotations

import math
from collections.abc import Sequence

from tcjit.byoc.lower.builder import DefBuilder, Element, NodeCall, broadcast, cast, converted, literal, wide
from tcjit.byoc.lower.elementwise import floating
from tcjit.byoc.lower.reductions import count, moments, reduced
from tcjit.byoc.lower.rules import rule
from tcjit.byoc.lower.views import reshape
from tcjit.errors import PartitionError
from tcjit.grammar.dtypes import FORMATS
from tcjit.grammar.linear import Linear


def combined(text: str, dtype: str, shape: Sequence[int], parts: Sequence[Element], cost: int) -> Element:
    """A formula over elements of this shape, in ``dtype``."""

    def at(subscripts: Sequence[Linear]) -> str:
        return f"({text.format(*(cast(each.at(subscripts), each.dtype, dtype) for each in parts))})"

    return Element(dtype, tuple(shape), at, cost + sum(each.cost for each in parts))


def dropped(element: Element, shape: Sequence[int], dims: Sequence[int]) -> Element:
    """Statistics without ``dims`` at the subscripts of ``shape``, which has them."""
    return Element(
        element.dtype, tuple(shape), lambda at: element.at([each for place, each in enumerate(at) if place not in dims]), element.cost
    )


@rule("softmax", "_softmax", "_safe_softmax")
def softmax(call: NodeCall) -> Element:
    x, dim, dtype = _exponents(call)
    shape = x.shape
    top = dropped(reduced(call.builder, x, [dim] if shape else [], "max", dtype), shape, [dim])
    parts = [x, top]
    safe = call.node.op == "aten._safe_softmax"
    text = "({1} == -infinity()) ? 0.0 : exp({0} - {1})" if safe else "exp({0} - {1})"
    powers = call.builder.keep(combined(text, dtype, shape, parts, 9))
    total = dropped(reduced(call.builder, powers, [dim] if shape else [], "+", dtype), shape, [dim])
    text = "({1} == 0.0) ? 0.0 : {0} / {1}" if safe else "{0} / {1}"
    return converted(combined(text, dtype, shape, [powers, total], 4), call.dtype)


@rule("log_softmax", "_log_softmax")
def log_softmax(call: NodeCall) -> Element:
    x, dim, dtype = _exponents(call)
    return converted(log_softmax_of(call.builder, x, dim, dtype), call.dtype)


def log_softmax_of(builder: DefBuilder, x: Element, dim: int, dtype: str) -> Element:
    """Of a mere access, in ``dtype``."""
    dims = [dim] if x.shape else []
    top = reduced(builder, x, dims, "max", dtype)

    def power(text: str, subscripts: list[Linear]) -> str:
        return f"exp({cast(text, x.dtype, dtype)} - {top.at([each for place, each in enumerate(subscripts) if place not in dims])})"

    total = reduced(builder, x, dims, "+", dtype, power)
    log = builder.keep(combined("log({0})", dtype, total.shape, [total], 8))
    parts = [x, dropped(top, x.shape, dims), dropped(log, x.shape, dims)]
    return combined("{0} - {1} - {2}", dtype, x.shape, parts, 2)


def _exponents(call: NodeCall) -> tuple[Element, int, str]:
    """What softmax is taken of, a mere access; the dimension; and the type to compute in."""
    x, dtype = call.materialised("self"), wide(call.dtype)
    if not floating(call.dtype):
        raise PartitionError(f"softmax of {call.dtype}")
    if x.dtype != call.dtype:
        x = call.builder.keep(converted(x, call.dtype))
    return x, call.axis("dim", len(x.shape)), dtype


def _normalised(
    builder: DefBuilder, x: Element, dims: Sequence[int], eps: float, dtype: str, weight: Element | None, bias: Element | None
) -> tuple[Element, Element, Element]:
    """x, a mere access, to mean 0 and variance 1 over some dimensions, times a weight, plus a bias, each of x's shape; and mean and
    reciprocal deviation without these dimensions."""
    mean, squares = moments(builder, x, dims, dtype)
    size, slight = literal(count(x, dims), dtype), literal(eps, dtype)
    scale = builder.keep(combined(f"rsqrt({{0}} / {size} + {slight})", dtype, squares.shape, [squares], 10))
    parts = [x, dropped(mean, x.shape, dims), dropped(scale, x.shape, dims)]
    return _affine("({0} - {1}) * {2}", dtype, x.shape, parts, weight, bias), mean, scale


def _affine(
    text: str, dtype: str, shape: Sequence[int], parts: list[Element], weight: Element | None, bias: Element | None
) -> Element:
    for each, sign in ((weight, "*"), (bias, "+")):
        if each is not None:
            text += f" {sign} {{{len(parts)}}}"
            parts = [*parts, each]
    return combined(text, dtype, shape, parts, 2 * len(parts))


@rule("layer_norm", "native_layer_norm")
def layer_norm(call: NodeCall) -> Element | Sequence[Element | str]:
    x, dtype = call.materialised("input"), wide(call.dtype)
    shape = call.integers("normalized_shape")
    dims = list(range(len(x.shape) - len(shape), len(x.shape)))
    weight, bias = (_spread(call, name, x.shape) for name in ("weight", "bias"))
    found, mean, scale = _normalised(call.builder, x, dims, call.number("eps", 1e-5), dtype, weight, bias)
    return _with_statistics(call, converted(found, call.dtype), mean, scale)


def _with_statistics(call: NodeCall, found: Element, mean: Element, scale: Element) -> Element | Sequence[Element | str]:
    if len(call.node.outputs) == 1:
        return found
    others: list[Element | str] = []
    for value, each in zip(call.node.outputs[1:], (mean, scale)):
        kind = value.type
        known = kind is not None and kind.shape is not None and None not in kind.shape
        shape = tuple(extent or 0 for extent in kind.shape or ()) if kind is not None and known else ()
        others.append(reshape(converted(each, kind.dtype), shape) if kind is not None and math.prod(shape) == each.size else "is empty")
    return [found, *others]


def _spread(call: NodeCall, name: str, shape: Sequence[int], place: int | None = None) -> Element | None:
    """A weight or bias over a shape: of the last dimensions, or of the dimension ``place``."""
    own = call.optional(name)
    if own is None:
        return None
    if place is not None:
        own = reshape(own, [own.size if each == place else 1 for each in range(len(shape))])
    return broadcast(call.builder, own, shape)


@rule("group_norm", "native_group_norm")
def group_norm(call: NodeCall) -> Element | Sequence[Element | str]:
    x, dtype = call.materialised("input"), wide(call.dtype)
    native = call.node.op == "aten.native_group_norm"
    batch, channels, *plane = x.shape
    groups = call.integer("group" if native else "num_groups")
    apart = (batch, groups, channels // groups, *plane)
    grouped = reshape(x, apart)
    affine: list[Element | None] = []
    for name in ("weight", "bias"):
        own = call.optional(name)
        affine.append(own and broadcast(call.builder, reshape(own, (1, *apart[1:3], *[1] * len(plane))), apart))
    found, mean, scale = _normalised(call.builder, grouped, range(2, len(apart)), call.number("eps", 1e-5), dtype, *affine)
    return _with_statistics(call, reshape(converted(found, call.dtype), x.shape), mean, scale)


@rule("instance_norm")
def instance_norm(call: NodeCall) -> Element | Sequence[Element | str]:
    if not call.flag("use_input_stats"):
        return batch_norm(call)
    if call.argument("running_mean") is not None:
        raise PartitionError("changes its running statistics")
    x = call.materialised("input")
    weight, bias = (_spread(call, name, x.shape, 1) for name in ("weight", "bias"))
    dims = range(2, len(x.shape))
    found, _, _ = _normalised(call.builder, x, dims, call.number("eps", 1e-5), wide(call.dtype), weight, bias)
    return converted(found, call.dtype)


@rule("batch_norm", "native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit_no_training", "_batch_norm_no_update")
def batch_norm(call: NodeCall) -> Element | Sequence[Element | str]:
    """With given statistics: one scale and one shift per channel."""
    if call.flag("training") or call.argument("running_mean") is None:
        raise PartitionError("normalises by the batch, and may change its running statistics")
    x, dtype = call.tensor("input"), wide(call.dtype)
    mean, variance = call.tensor("running_mean"), call.tensor("running_var")
    eps = literal(call.number("eps" if "eps" in call.node.arguments else "epsilon", 1e-5), dtype)
    weight, bias = call.optional("weight"), call.optional("bias")
    shape = mean.shape
    scale = call.builder.keep(_affine(f"rsqrt({{0}} + {eps})", dtype, shape, [variance], weight, None))
    shift = _affine("0.0 - {0} * {1}", dtype, shape, [mean, scale], None, bias)
    over = [broadcast(call.builder, reshape(each, (1, each.size, *[1] * (len(x.shape) - 2))), x.shape) for each in (scale, shift)]
    found = converted(combined("{0} * {1} + {2}", dtype, x.shape, [x, *over], 2), call.dtype)
    return [found, *["its statistics are for training"] * (len(call.node.outputs) - 1)]


@rule("rms_norm", "_fused_rms_norm")
def rms_norm(call: NodeCall) -> Element | Sequence[Element | str]:
    x, dtype = call.materialised("input"), wide(call.dtype)
    shape = call.integers("normalized_shape")
    dims = list(range(len(x.shape) - len(shape), len(x.shape)))
    eps = call.number("eps", FORMATS[x.dtype].eps if floating(x.dtype) else None)
    squares = reduced(call.builder, x, dims, "+", dtype, lambda text, _: "{0} * {0}".format(cast(text, x.dtype, dtype)))
    size, slight = literal(count(x, dims), dtype), literal(eps, dtype)
    scale = call.builder.keep(combined(f"rsqrt({{0}} / {size} + {slight})", dtype, squares.shape, [squares], 10))
    weight = _spread(call, "weight", x.shape)
    found = _affine("{0} * {1}", dtype, x.shape, [x, dropped(scale, x.shape, dims)], weight, None)
    done = converted(found, call.dtype)
    return done if len(call.node.outputs) == 1 else [done, "its statistics are for training"]
