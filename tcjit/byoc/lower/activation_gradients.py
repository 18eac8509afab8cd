"""Backward operators of activations and of dropout, as AOTAutograd's graphs have them; at kinks as ATen has them."""
from __future__ import annotations

from tcjit.byoc.lower.builder import Element, NodeCall
from tcjit.byoc.lower.elementwise import floating, formula
from tcjit.byoc.lower.rules import rule
from tcjit.errors import PartitionError

_SOFT = "(({1} > 20.0) ? {1} : log1p(exp({1})))"
# of the gradient {0} and the input, of sigmoid and tanh the result, {1}: text, cost
_TEXTS = {
    "sigmoid": ("{0} * (1.0 - {1}) * {1}", 3),
    "tanh": ("{0} * (1.0 - {1} * {1})", 3),
    "silu": ("{0} * sigmoid({1}) * (1.0 + {1} * (1.0 - sigmoid({1})))", 20),
    "mish": (f"{{0}} * (tanh({_SOFT}) + {{1}} * sigmoid({{1}}) * (1.0 - tanh({_SOFT}) * tanh({_SOFT})))", 60),
    "hardswish": ("({1} <= -3.0) ? 0.0 : ({1} < 3.0) ? {0} * ({1} / 3.0 + 0.5) : {0}", 4),
    "hardsigmoid": ("({1} > -3.0 && {1} < 3.0) ? {0} / 6.0 : 0.0", 3),
}
# the same with numbers by these names, {2} and so on
_WITH_NUMBERS = {
    "threshold": ("({1} <= {2}) ? 0.0 : {0}", ("threshold",)),
    "hardtanh": ("({1} <= {2} || {1} >= {3}) ? 0.0 : {0}", ("min_val", "max_val")),
    "leaky_relu": ("({1} > 0.0) ? {0} : {0} * {2}", ("negative_slope",)),
    "softplus": ("({1} * {2} > {3}) ? {0} : {0} * sigmoid({1} * {2})", ("beta", "threshold")),
}
_GELU = "{0} * (0.5 * (1.0 + erf({1} * 0.7071067811865476)) + {1} * exp(-0.5 * {1} * {1}) * 0.3989422804014327)"
_INNER = "tanh(0.7978845608028654 * ({1} + 0.044715 * {1} * {1} * {1}))"
_GELU_TANH = (
    f"{{0}} * (0.5 * (1.0 + {_INNER}) + 0.5 * {{1}} * (1.0 - {_INNER} * {_INNER}) * "
    "(0.7978845608028654 * (1.0 + 0.134145 * {1} * {1})))"
)


def _parts(call: NodeCall) -> list[Element | int | float]:
    """The gradient and what it is multiplied by, both brought to the result's type."""
    if not floating(call.dtype):
        raise PartitionError(f"{call.node.op} of {call.dtype}")
    other = next(name for name in ("self", "output", "self_or_result") if name in call.node.arguments)
    return [call.tensor("grad_output"), call.tensor(other)]


@rule(*(f"{name}_backward" for name in _TEXTS))
def gradient(call: NodeCall) -> Element:
    text, cost = _TEXTS[call.node.op.removeprefix("aten.").removesuffix("_backward")]
    return formula(call, text, _parts(call), cost)


@rule(*(f"{name}_backward" for name in _WITH_NUMBERS))
def gradient_with_numbers(call: NodeCall) -> Element:
    text, names = _WITH_NUMBERS[call.node.op.removeprefix("aten.").removesuffix("_backward")]
    return formula(call, text, [*_parts(call), *(call.number(name) for name in names)], 12 if "sigmoid" in text else 3)


@rule("log_sigmoid_backward")
def log_sigmoid_gradient(call: NodeCall) -> Element:
    return formula(call, "{0} * sigmoid(-{1})", _parts(call), 9)


@rule("gelu_backward")
def gelu_gradient(call: NodeCall) -> Element:
    return formula(call, _GELU_TANH if call.word("approximate") == "tanh" else _GELU, _parts(call), 30)


@rule("elu_backward")
def elu_gradient(call: NodeCall) -> Element:
    """By the input or, if that is what was kept, by the result."""
    scale, inner = call.number("scale"), call.number("input_scale")
    below = "({1} + {4})" if call.flag("is_result") else "{4} * exp({1} * {3})"
    text = f"({{1}} <= 0.0) ? {{0}} * {{3}} * {below} : {{0}} * {{2}}"
    return formula(call, text, [*_parts(call), scale, inner, call.number("alpha") * scale], 12)


@rule("native_dropout_backward")
def dropout_gradient(call: NodeCall) -> Element:
    return formula(call, "{0} * {1} * {2}", [call.tensor("grad_output"), call.tensor("mask"), call.number("scale")], 2)
