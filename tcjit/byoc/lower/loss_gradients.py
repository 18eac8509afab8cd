"""Backward operators of losses: a number of the gradient for each element, or one for all of them."""
from __future__ import annotations

from collections.abc import Sequence

from tcjit.byoc.lower.builder import Element, NodeCall, broadcast, literal
from tcjit.byoc.lower.indexing import integer_tensor
from tcjit.byoc.lower.losses import FLOATS, MEAN, NONE
from tcjit.byoc.lower.normalisation import combined
from tcjit.byoc.lower.rules import rule
from tcjit.errors import PartitionError
from tcjit.grammar.linear import Linear

_DISTANCES = ("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward")


@rule(*_DISTANCES)
def distance_gradient(call: NodeCall) -> Element:
    parts = [call.materialised(name) for name in ("self", "target", "grad_output")]
    if call.dtype not in FLOATS or any(each.dtype != call.dtype for each in parts):
        raise PartitionError(f"{call.node.op} of {', '.join(each.dtype for each in parts)}, not in one type of {' or '.join(FLOATS)}")
    parts = [broadcast(call.builder, each, call.shape) for each in parts]
    size = 1
    for extent in call.shape:
        size *= extent
    norm = literal(1 / size if call.integer("reduction", MEAN) == MEAN else 1, call.dtype)
    off, scaled = "({0} - {1})", f"{{2}} * {norm}"
    match call.node.op.removeprefix("aten."):
        case "mse_loss_backward":
            text = f"{literal(2, call.dtype)} * {off} * {scaled}"
        case "smooth_l1_loss_backward":
            beta = literal(call.number("beta"), call.dtype)
            text = f"({off} <= -{beta}) ? -({scaled}) : ({off} >= {beta}) ? {scaled} : {off} / {beta} * {scaled}"
        case _:
            delta = literal(call.number("delta"), call.dtype)
            text = f"({off} <= -{delta}) ? -{delta} * {scaled} : ({off} >= {delta}) ? {delta} * {scaled} : {off} * {scaled}"
    return combined(text, call.dtype, call.shape, parts, 6)


@rule("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_gradient(call: NodeCall) -> Element:
    """Minus the weight of a row's class there, zero elsewhere and in rows that are ignored."""
    gradient, target, total = call.tensor("grad_output"), integer_tensor(call, "target"), call.tensor("total_weight")
    weight, dim, reduction = call.optional("weight"), 0 if len(call.shape) == 1 else 1, call.integer("reduction")
    if call.dtype not in FLOATS or gradient.dtype != call.dtype:
        raise PartitionError(f"{call.node.op} of {call.dtype}")
    ignored, zero = literal(call.integer("ignore_index"), target.dtype), literal(0, call.dtype)

    def at(subscripts: Sequence[Linear]) -> str:
        row = [*subscripts[:dim], *subscripts[dim + 1 :]]
        classes = target.at(row[: len(target.shape)])
        own = f"-{gradient.at(row if gradient.shape else [])}"
        if weight is not None:
            own += f" * {weight.at([subscripts[dim]])}"
        if reduction == MEAN:
            own += f" / {total.at([])}"
        return f"(({classes} == {target.dtype}({subscripts[dim]}) && {classes} != {ignored}) ? {own} : {zero})"

    if reduction == NONE and gradient.shape != target.shape:
        raise PartitionError("its gradient is not that of rows")
    return Element(call.dtype, call.shape, at, 8)
