"""Losses: one number per row or element, then none, their mean or their sum."""
from __future__ import annotations

import math
from collections.abc import Sequence

from tcjit.byoc.lower.builder import Element, NodeCall, broadcast, literal
from tcjit.byoc.lower.indexing import integer_tensor, through
from tcjit.byoc.lower.indices import from_text, interval
from tcjit.byoc.lower.normalisation import combined, log_softmax_of
from tcjit.byoc.lower.reductions import count, finish, reduced
from tcjit.byoc.lower.rules import rule
from tcjit.errors import PartitionError
from tcjit.grammar.linear import Linear

NONE, MEAN = 0, 1  # of PyTorch's reductions; the third is the sum
FLOATS = ("float32", "float64")


def _operands(call: NodeCall, *names: str) -> tuple[list[Element], tuple[int, ...]]:
    """Tensors of the result's type, and the shape that they broadcast to; each is read without work."""
    found = [call.materialised(name) for name in names]
    if call.dtype not in FLOATS or any(each.dtype != call.dtype for each in found):
        raise PartitionError(f"{call.node.op} of {', '.join(each.dtype for each in found)}, not in one type of {' or '.join(FLOATS)}")
    rank = max(len(each.shape) for each in found)
    padded = [(1,) * (rank - len(each.shape)) + each.shape for each in found]
    shape = tuple(max(extents) for extents in zip(*padded))
    return [broadcast(call.builder, each, shape) for each in found], shape


def _finished(call: NodeCall, losses: Element, weights: Element | None = None) -> Element:
    """Losses as the call's reduction asks for; a mean is over the sum of ``weights``, where there are some."""
    kind = call.integer("reduction", MEAN)
    if kind == NONE:
        return finish(call, losses)
    dims = list(range(len(losses.shape)))
    total = reduced(call.builder, losses, dims, "+", call.dtype)
    if kind != MEAN:
        return finish(call, total)
    if weights is None:
        return finish(call, combined("{0} / " + literal(count(losses, dims), call.dtype), call.dtype, (), [total], 4))
    return finish(call, combined("{0} / {1}", call.dtype, (), [total, reduced(call.builder, weights, dims, "+", call.dtype)], 4))


@rule("smooth_l1_loss")
def smooth_l1_loss(call: NodeCall) -> Element:
    parts, shape = _operands(call, "self", "target")
    beta = call.number("beta", 1.0)
    off = call.builder.keep(combined("abs({0} - {1})", call.dtype, shape, parts, 2))
    text = "{0}"
    if beta:
        bound, half = literal(beta, call.dtype), literal(0.5, call.dtype)
        text = f"({{0}} < {bound}) ? {half} * {{0}} * {{0}} / {bound} : {{0}} - {half} * {bound}"
    return _finished(call, combined(text, call.dtype, shape, [off], 8))


@rule("mse_loss", "huber_loss")
def distance_loss(call: NodeCall) -> Element:
    parts, shape = _operands(call, "self", "target")
    text = "({0} - {1}) * ({0} - {1})"
    if call.node.op == "aten.huber_loss":
        parts = [call.builder.keep(combined("abs({0} - {1})", call.dtype, shape, parts, 2))]
        delta, half = literal(call.number("delta", 1.0), call.dtype), literal(0.5, call.dtype)
        text = f"({{0}} < {delta}) ? {half} * {{0}} * {{0}} : {delta} * ({{0}} - {half} * {delta})"
    return _finished(call, combined(text, call.dtype, shape, parts, 6))


@rule("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(call: NodeCall) -> Element:
    names = [name for name in ("self", "target", "weight", "pos_weight") if call.argument(name) is not None]
    parts, shape = _operands(call, *names)
    places = {name: f"{{{place}}}" for place, name in enumerate(names)}
    soft = "(log1p(exp(-abs({0}))) + max(-{0}, 0.0))"
    if "pos_weight" in places:
        soft = f"(1.0 + ({places['pos_weight']} - 1.0) * {{1}}) * {soft}"
    text = f"(1.0 - {{1}}) * {{0}} + {soft}"
    if "weight" in places:
        text = f"({text}) * {places['weight']}"
    return _finished(call, combined(text, call.dtype, shape, parts, 24))


@rule("nll_loss_forward", "nll_loss2d_forward")
def nll_loss_forward(call: NodeCall) -> Sequence[Element | str]:
    x, weight = call.materialised("self"), None if call.argument("weight") is None else call.materialised("weight")
    if call.dtype not in FLOATS or x.dtype != call.dtype or (weight is not None and weight.dtype != call.dtype):
        raise PartitionError(f"{call.node.op} of {x.dtype}, not in one type of {' or '.join(FLOATS)}")
    losses, weights = _class_losses(call, x, weight, 0 if len(x.shape) == 1 else 1)
    if call.integer("reduction", MEAN) == NONE and len(x.shape) > 1:
        return [_finished(call, losses), Element(call.dtype, (), lambda at: literal(0, call.dtype))]
    total = reduced(call.builder, weights, list(range(len(weights.shape))), "+", call.dtype)
    return [_finished(call, losses, weights), total]


@rule("kl_div")
def kl_div(call: NodeCall) -> Element:
    parts, shape = _operands(call, "self", "target")
    zero = literal(0, call.dtype)
    text = f"(({{1}} == {zero}) ? {zero} : {{1}} * log({{1}})) - {{1}} * {{0}}"
    return _finished(call, combined("exp({1}) * ({1} - {0})" if call.flag("log_target") else text, call.dtype, shape, parts, 12))


@rule("triplet_margin_loss")
def triplet_margin_loss(call: NodeCall) -> Element:
    (anchor, positive, negative), shape = _operands(call, "anchor", "positive", "negative")
    order, eps = call.number("p", 2.0), literal(call.number("eps", 1e-6), call.dtype)
    if order not in (1, 2, math.inf) or not shape:
        raise PartitionError(f"distances of order {order}, or of numbers")

    def distance(one: Element, other: Element) -> Element:
        off = call.builder.keep(combined(f"abs({{0}} - {{1}} + {eps})", call.dtype, shape, [one, other], 3))
        square = (lambda text, _: f"{text} * {text}") if order == 2 else None
        found = reduced(call.builder, off, [len(shape) - 1], "max" if order == math.inf else "+", call.dtype, square)
        return combined("sqrt({0})", call.dtype, found.shape, [found], 4) if order == 2 else found

    near, far = distance(anchor, positive), distance(anchor, negative)
    if call.flag("swap"):
        far = combined("fmin({0}, {1})", call.dtype, far.shape, [far, distance(positive, negative)], 2)
    text = f"fmax({literal(call.number('margin', 1.0), call.dtype)} + {{0}} - {{1}}, {literal(0, call.dtype)})"
    return _finished(call, combined(text, call.dtype, near.shape, [near, far], 4))


@rule("cross_entropy_loss")
def cross_entropy_loss(call: NodeCall) -> Element:
    x, weight = call.materialised("self"), None if call.argument("weight") is None else call.materialised("weight")
    if call.dtype not in FLOATS or x.dtype != call.dtype or (weight is not None and weight.dtype != call.dtype):
        raise PartitionError(f"cross_entropy_loss of {x.dtype}, not in one type of {' or '.join(FLOATS)}")
    dim = 0 if len(x.shape) == 1 else 1
    logs = call.builder.keep(log_softmax_of(call.builder, x, dim, call.dtype))
    if call.tensor("target").shape == x.shape and call.tensor("target").dtype in FLOATS:
        return _of_parts(call, logs, weight, dim)
    return _of_classes(call, logs, weight, dim)


def _of_parts(call: NodeCall, logs: Element, weight: Element | None, dim: int) -> Element:
    """The target says for each class how much it is there. A mean is over the rows."""
    target, classes, smoothing = call.materialised("target"), logs.shape[dim], call.number("label_smoothing", 0.0)
    if target.dtype != call.dtype:
        raise PartitionError(f"its target is {target.dtype}")

    def term(text: str, subscripts: list[Linear]) -> str:
        part = target.at(subscripts)
        if smoothing:
            part = f"({part} * {literal(1 - smoothing, call.dtype)} + {literal(smoothing / classes, call.dtype)})"
        return f"-({text} * {part}{'' if weight is None else ' * ' + weight.at([subscripts[dim]])})"

    return _finished(call, reduced(call.builder, logs, [dim], "+", call.dtype, term))


def _of_classes(call: NodeCall, logs: Element, weight: Element | None, dim: int) -> Element:
    """The target says which class it is; rows of one class are ignored. A mean is over the weights of the rows."""
    losses, weights = _class_losses(call, logs, weight, dim)
    classes, smoothing, zero = logs.shape[dim], call.number("label_smoothing", 0.0), literal(0, call.dtype)
    if smoothing:
        target = integer_tensor(call, "target")

        def term(text: str, subscripts: list[Linear]) -> str:
            return f"-{text}" if weight is None else f"-({text} * {weight.at([subscripts[dim]])})"

        even = reduced(call.builder, logs, [dim], "+", call.dtype, term)
        kept = Element(call.dtype, target.shape, lambda at: f"(({_left_out(call, target, at)}) ? {zero} : {even.at(at)})", 3)
        own, others = literal(1 - smoothing, call.dtype), literal(smoothing / classes, call.dtype)
        losses = combined(f"{own} * {{0}} + {others} * {{1}}", call.dtype, target.shape, [losses, kept], 4)
    return _finished(call, call.builder.keep(losses), weights)


def _left_out(call: NodeCall, target: Element, at: Sequence[Linear]) -> str:
    return f"{target.at(at)} == {literal(call.integer('ignore_index', -100), target.dtype)}"


def _class_losses(call: NodeCall, logs: Element, weight: Element | None, dim: int) -> tuple[Element, Element]:
    """The loss and the weight of each row."""
    target, zero = integer_tensor(call, "target"), literal(0, call.dtype)

    def place(at: Sequence[Linear]) -> Linear:
        left_out = _left_out(call, target, at)
        return from_text(f"({left_out}) ? {literal(0, target.dtype)} : {target.at(at)}", *interval(through(target, at)))

    def row_weight(at: Sequence[Linear]) -> str:
        own = literal(1, call.dtype) if weight is None else weight.at([place(at)])
        return f"(({_left_out(call, target, at)}) ? {zero} : {own})"

    weights = call.builder.store(Element(call.dtype, target.shape, row_weight, 4))
    log = Element(call.dtype, target.shape, lambda at: logs.at([*at[:dim], place(at), *at[dim:]]), 4)
    text = "({0} == " + zero + ") ? " + zero + " : -{0} * {1}"
    if weight is not None:  # a class of no weight is no row that is ignored
        text = "-{0} * {1}"
    return combined(text, call.dtype, target.shape, [weights, log], 4), weights
