"""Activations with parameters."""
from __future__ import annotations

from collections.abc import Sequence

from tcjit.byoc.lower.builder import Element, NodeCall
from tcjit.byoc.lower.elementwise import LOG_SIGMOID, fitting, floating, formula
from tcjit.byoc.lower.rules import rule
from tcjit.byoc.lower.views import narrow
from tcjit.errors import PartitionError
from tcjit.grammar.linear import Linear


def _activation(call: NodeCall, text: str, cost: int, *numbers: int | float, rounds: bool = False) -> Element:
    if not floating(call.dtype):
        raise PartitionError(f"{call.node.op} of {call.dtype}")
    return formula(call, text, [call.tensor("self"), *numbers], cost, rounds=rounds)


@rule("gelu")
def gelu(call: NodeCall) -> Element:
    if call.word("approximate") == "tanh":
        return _activation(call, "0.5 * {0} * (1.0 + tanh(0.7978845608028654 * ({0} + 0.044715 * {0} * {0} * {0})))", 16)
    return _activation(call, "0.5 * {0} * (1.0 + erf({0} * 0.7071067811865476))", 12)


@rule("elu", "celu")
def elu(call: NodeCall) -> Element:
    alpha = call.number("alpha", 1)
    scale, inner = (1.0, 1.0 / alpha) if call.node.op == "aten.celu" else (call.number("scale", 1), call.number("input_scale", 1))
    return _activation(call, "({0} <= 0.0) ? expm1({0} * {1}) * {2} : {0} * {3}", 12, inner, alpha * scale, scale)


@rule("leaky_relu")
def leaky_relu(call: NodeCall) -> Element:
    return _activation(call, "({0} > 0.0) ? {0} : {0} * {1}", 2, call.number("negative_slope", 0.01))


@rule("prelu", "_prelu_kernel")
def prelu(call: NodeCall) -> Element:
    x, slope = call.tensor("self"), call.tensor("weight")
    if call.node.op == "aten.prelu":
        own, rank = slope, len(x.shape)
        place = 1 if own.size > 1 else None
        shape = tuple(own.size if each == place else 1 for each in range(max(rank, 1)))
        slope = Element(own.dtype, shape[:rank], lambda subscripts: own.at([subscripts[1] if place else Linear.of(0)] * len(own.shape)))
    return formula(call, "({0} > 0.0) ? {0} : {1} * {0}", [x, slope], 2)


@rule("softplus")
def softplus(call: NodeCall) -> Element:
    text = "({0} * {1} > {2}) ? {0} : log1p(exp({0} * {1})) / {1}"
    return _activation(call, text, 24, call.number("beta", 1), call.number("threshold", 20))


@rule("hardshrink")
def hardshrink(call: NodeCall) -> Element:
    return _activation(call, "({0} >= -{1} && {0} <= {1}) ? 0.0 : {0}", 2, call.number("lambd", 0.5), rounds=True)


@rule("softshrink")
def softshrink(call: NodeCall) -> Element:
    return _activation(call, "({0} > {1}) ? {0} - {1} : ({0} < -{1}) ? {0} + {1} : {0} * 0.0", 3, call.number("lambd", 0.5))


@rule("threshold")
def threshold(call: NodeCall) -> Element:
    limit, value = call.number("threshold"), call.number("value")
    fitting([limit, value], call.dtype)
    return formula(call, "({0} <= {1}) ? {2} : {0}", [call.tensor("self"), limit, value], 2, rounds=True)


@rule("nan_to_num")
def nan_to_num(call: NodeCall) -> Element:
    if not floating(call.dtype) or call.dtype not in ("float32", "float64"):
        raise PartitionError(f"nan_to_num of {call.dtype}")
    most = 3.4028234663852886e38 if call.dtype == "float32" else 1.7976931348623157e308
    numbers = call.number("nan", 0.0), call.number("posinf", most), call.number("neginf", -most)
    return _activation(call, "({0} != {0}) ? {1} : ({0} == infinity()) ? {2} : ({0} == -infinity()) ? {3} : {0}", 3, *numbers)


@rule("log_sigmoid_forward")
def log_sigmoid_forward(call: NodeCall) -> Sequence[Element | str]:
    return formula(call, LOG_SIGMOID, [call.tensor("self")], 18), "the buffer of log_sigmoid_forward is for its gradient"


@rule("glu")
def gates(call: NodeCall) -> Element:
    base = call.tensor("self")
    dim = call.axis("dim", len(base.shape), -1)
    half = base.shape[dim] // 2
    return formula(call, "{0} * sigmoid({1})", [narrow(base, dim, 0, half), narrow(base, dim, half, half)], 9)
