"""Elementwise operations: arithmetic, comparisons, logic, conversions and functions of one number, promoted as PyTorch promotes.

Expressions of the half types are computed in float32 and rounded after every operation, as PyTorch rounds them: what does not have the
result's type is brought to it first, but for numbers, which a few operations round and most take as they are.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tcjit.byoc.graph import Value
from tcjit.byoc.lower.builder import CHEAP, Element, NodeCall, broadcast, cast, literal, wide
from tcjit.byoc.lower.rules import rule
from tcjit.errors import PartitionError
from tcjit.grammar.dtypes import DTYPES, promote
from tcjit.grammar.linear import Linear

Operand: TypeAlias = "Element | int | float"

_KINDS = {"bool": 0, "unsigned": 1, "signed": 1, "float": 2}


def floating(dtype: str) -> bool:
    return DTYPES[dtype].kind == "float"


def operand(call: NodeCall, name: str) -> Operand:
    """A tensor or a number."""
    return call.tensor(name) if isinstance(call.argument(name), Value) else call.number(name)


def formula(
    call: NodeCall, text: str, operands: Sequence[Operand], cost: int, compute: str = "", result: str = "", rounds: bool = False
) -> Element:
    """An element by a formula over ``{0} {1} ...``, which are brought to the type ``compute``, by default that of the result made wide.

    ``result`` is the formula's own type where it differs from ``compute``. ``rounds``: numbers are brought to the result's type first.
    """
    through = call.dtype if not compute else ""
    compute = compute or wide(call.dtype)
    parts: list[tuple[Operand, str]] = []  # each with the type that it is brought to first
    total = cost
    for place, each in enumerate(operands):
        exact = rounds or (isinstance(each, Element) and bool(each.shape))
        if isinstance(each, Element):
            repeated = text.count(f"{{{place}}}")
            if repeated > 1 and each.cost * repeated > 2 * CHEAP:
                each = call.builder.keep(each)
            each = broadcast(call.builder, each, call.shape)
            total += each.cost * max(repeated, 1)
        parts.append((each, through if exact and through else compute))

    def brought(each: Operand, first: str, subscripts: Sequence[Linear]) -> str:
        own = cast(each.at(subscripts), each.dtype, first) if isinstance(each, Element) else literal(each, first)
        return cast(own, first, compute)

    def at(subscripts: Sequence[Linear]) -> str:
        texts = [brought(each, first, subscripts) for each, first in parts]
        return cast(f"({text.format(*texts)})", result or compute, call.dtype)

    return Element(call.dtype, call.shape, at, total)


def common(operands: Sequence[Operand]) -> str:
    """The type that PyTorch compares operands in: tensors with dimensions count before those without, and these before numbers."""
    found = ""
    ranks: tuple[list[str], list[str], list[str]] = ([], [], [])
    for each in operands:
        if isinstance(each, Element):
            ranks[0 if each.shape else 1].append(each.dtype)
        else:
            ranks[2].append("bool" if isinstance(each, bool) else "int64" if isinstance(each, int) else "float32")
    for dtypes in ranks:
        lower = ""
        for dtype in dtypes:
            lower = _promoted(lower, dtype) if lower else dtype
        if not lower:
            continue
        if not found:
            found = lower
        elif not floating(found) and (found == "bool" or floating(lower)):
            found = _promoted(found, lower)
    return found


def _promoted(left: str, right: str) -> str:
    found = promote(left, right)
    if found is None:
        raise PartitionError(f"{left} and {right} have no common type")
    return found


def fitting(operands: Sequence[Operand], dtype: str) -> None:
    """A PartitionError where a number does not fit an integer type."""
    facts = DTYPES[dtype]
    for each in operands:
        if not isinstance(each, Element) and facts.is_integer and not facts.least <= each <= facts.greatest:
            raise PartitionError(f"{each} is no {dtype}")


# ---------------------------------------------------------------- functions of one number

LOG_SIGMOID = "min({0}, 0.0) - log1p(exp(-abs({0})))"

# Where functions have kinks, texts have the arms whose derivatives are PyTorch's gradients there; no derivative divides infinities.
# of the type of the result, integers made floats: text, cost
_FLOATS = {
    **{name: (f"{name}({{0}})", 8) for name in "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan".split()},
    **{name: (f"{name}({{0}})", 8) for name in "sinh cosh tanh asinh acosh atanh erf erfc sigmoid".split()},
    "sqrt": ("sqrt({0})", 4),
    "rsqrt": ("rsqrt({0})", 5),
    "reciprocal": ("1.0 / {0}", 4),
    "special_expit": ("sigmoid({0})", 8),
    "special_erf": ("erf({0})", 8),
    "special_expm1": ("expm1({0})", 8),
    "special_log1p": ("log1p({0})", 8),
    "special_exp2": ("exp2({0})", 8),
    "silu": ("{0} * sigmoid({0})", 12),
    "mish": ("{0} * tanh(({0} > 20.0) ? {0} : log1p(exp({0})))", 25),
    "hardswish": ("({0} <= -3.0) ? {0} * 0.0 : ({0} >= 3.0) ? {0} : {0} * ({0} + 3.0) / 6.0", 6),
    "hardsigmoid": ("({0} <= -3.0) ? 0.0 : ({0} >= 3.0) ? 1.0 : ({0} + 3.0) / 6.0", 5),
    "log_sigmoid": (LOG_SIGMOID, 18),
    "selu": ("({0} <= 0.0) ? expm1({0}) * 1.7580993408473766 : {0} * 1.0507009873554805", 10),
    "deg2rad": ("{0} * 0.017453292519943295", 1),
    "rad2deg": ("{0} * 57.29577951308232", 1),
}
# that leave the type as it is: for floats, for integers ("" where there is none)
_KEEPING = {
    "neg": ("-{0}", "-{0}"),
    "negative": ("-{0}", "-{0}"),
    "abs": ("abs({0})", "abs({0})"),
    "absolute": ("abs({0})", "abs({0})"),
    "relu": ("relu({0})", "max({0}, 0)"),
    "relu6": ("({0} <= 0.0) ? 0.0 : ({0} >= 6.0) ? 6.0 : {0}", "min(max({0}, 0), 6)"),
    "sign": ("({0} > 0.0) ? 1.0 : ({0} < 0.0) ? -1.0 : 0.0", "({0} > 0) ? 1 : ({0} < 0) ? -1 : 0"),
    "square": ("{0} * {0}", "{0} * {0}"),
    "floor": ("floor({0})", "{0}"),
    "ceil": ("ceil({0})", "{0}"),
    "trunc": ("trunc({0})", "{0}"),
    "fix": ("trunc({0})", "{0}"),
    "frac": ("{0} - trunc({0})", ""),
    # ties to even, where C's goes away from zero
    "round": ("(abs({0} - trunc({0})) == 0.5) ? 2.0 * round({0} * 0.5) : round({0})", "{0}"),
    "bitwise_not": ("", "-{0} - 1"),
}
# of any type, to bool: for floats, for integers
_TESTS = {
    "isnan": ("{0} != {0}", "false && {0} == 0"),
    "isinf": ("abs({0}) == infinity()", "false && {0} == 0"),
    "isfinite": ("abs({0}) < infinity()", "true || {0} == 0"),
    "logical_not": ("{0} == 0.0", "{0} == 0"),
}


@rule(*_FLOATS)
def float_function(call: NodeCall) -> Element:
    text, cost = _FLOATS[call.node.op.removeprefix("aten.")]
    return formula(call, text, [call.tensor("self")], cost)


@rule(*_KEEPING)
def keeping_function(call: NodeCall) -> Element:
    x, name = call.tensor("self"), call.node.op.removeprefix("aten.")
    if x.dtype == "bool":
        if name == "bitwise_not":
            return formula(call, "!{0}", [x], 1)
        raise PartitionError(f"{name} of bools")
    if call.integer("decimals", 0):
        raise PartitionError("rounds to decimals")
    text = _KEEPING[name][0 if floating(x.dtype) else 1]
    if not text:
        raise PartitionError(f"{name} of {x.dtype}")
    numbers = "float32" if name == "sign" and floating(x.dtype) else ""
    return formula(call, text, [x], 2, result=numbers)


@rule(*_TESTS)
def test_function(call: NodeCall) -> Element:
    x, texts = call.tensor("self"), _TESTS[call.node.op.removeprefix("aten.")]
    if x.dtype == "bool":
        negates = call.node.op == "aten.logical_not"
        return formula(call, "!{0}" if negates else texts[1].replace("{0} == 0", "{0}"), [x], 1, "bool", "bool")
    return formula(call, texts[0 if floating(x.dtype) else 1], [x], 1, wide(x.dtype), "bool")


# ---------------------------------------------------------------- arithmetic


def _bools(call: NodeCall, text: str, operands: Sequence[Operand]) -> Element:
    return formula(call, text, operands, 1, "bool", "bool")


@rule("add", "sub", "subtract", "rsub")
def sum_or_difference(call: NodeCall) -> Element:
    operands, alpha = [operand(call, "self"), operand(call, "other")], call.number("alpha", 1)
    if call.node.op == "aten.rsub":
        operands.reverse()
    sign = "+" if call.node.op == "aten.add" else "-"
    if call.dtype == "bool":
        if sign == "-" or not alpha:
            raise PartitionError("a difference of bools")
        return _bools(call, "{0} || {1}", operands)
    fitting(operands, call.dtype)
    if alpha == 1:
        return formula(call, f"{{0}} {sign} {{1}}", operands, 1, rounds=True)
    return formula(call, f"{{0}} {sign} {{2}} * {{1}}", [*operands, alpha], 2, rounds=True)


@rule("mul", "multiply")
def product(call: NodeCall) -> Element:
    operands = [operand(call, "self"), operand(call, "other")]
    fitting(operands, call.dtype)
    return _bools(call, "{0} && {1}", operands) if call.dtype == "bool" else formula(call, "{0} * {1}", operands, 1)


# what fmod leaves, with the sign of the divisor, as Python's %; and the quotient before it is made whole
_ADJUSTS = "(fmod({0}, {1}) != 0.0 && ({1} < 0.0) != (fmod({0}, {1}) < 0.0))"
_REST = f"{_ADJUSTS} ? fmod({{0}}, {{1}}) + {{1}} : fmod({{0}}, {{1}})"
_NEARLY = f"({{0}} - fmod({{0}}, {{1}})) / {{1}} - ({_ADJUSTS} ? 1.0 : 0.0)"
_FLOOR = "({1} == 0.0) ? {0} / {1} : ({2} == 0.0) ? copysign(0.0, {0} / {1}) : ({2} - floor({2}) > 0.5) ? floor({2}) + 1.0 : floor({2})"


@rule("div", "divide", "true_divide", "floor_divide")
def quotient(call: NodeCall) -> Element:
    operands = [operand(call, "self"), operand(call, "other")]
    mode = "floor" if call.node.op == "aten.floor_divide" else call.word("rounding_mode")
    if call.dtype == "bool":
        raise PartitionError("a quotient of bools")
    if not mode:
        return formula(call, "{0} / {1}", operands, 4)
    fitting(operands, call.dtype)
    if floating(call.dtype):
        if mode == "trunc":
            return formula(call, "trunc({0} / {1})", operands, 6)
        if wide(call.dtype) != call.dtype:
            raise PartitionError(f"floors quotients of {call.dtype}")
        operands = _kept(call, operands)
        return formula(call, _FLOOR, [*operands, call.builder.keep(formula(call, _NEARLY, operands, 30))], 10)
    if mode == "floor":
        return formula(call, "{0} / {1}", operands, 8)
    text = "{0} / {1} + (({0} % {1} != 0 && ({0} < 0) != ({1} < 0)) ? 1 : 0)"
    return formula(call, text, _kept(call, operands), 16)


def _kept(call: NodeCall, operands: Sequence[Operand]) -> list[Operand]:
    return [call.builder.keep(each) if isinstance(each, Element) else each for each in operands]


@rule("remainder", "fmod")
def rest(call: NodeCall) -> Element:
    operands = [operand(call, "self"), operand(call, "other")]
    fitting(operands, call.dtype)
    if call.node.op == "aten.fmod":
        if not floating(call.dtype):
            raise PartitionError(f"fmod of {call.dtype}")
        return formula(call, "fmod({0}, {1})", operands, 8, rounds=True)
    if call.dtype == "bool":
        raise PartitionError("a remainder of bools")
    if not floating(call.dtype):
        return formula(call, "{0} % {1}", operands, 8)
    return formula(call, _REST, _kept(call, operands), 24, rounds=True)


_POWERS = {2.0: "{0} * {0}", 3.0: "{0} * {0} * {0}", 1.0: "{0}"}
_FLOAT_POWERS = {
    **_POWERS,
    0.5: "sqrt({0})",
    0.0: "pow({0}, 0.0)",
    -0.5: "1.0 / sqrt({0})",
    -1.0: "1.0 / {0}",
    -2.0: "(1.0 / {0}) * (1.0 / {0})",
}


@rule("pow")
def power(call: NodeCall) -> Element:
    base, exponent = operand(call, "self"), operand(call, "exponent")
    if not isinstance(exponent, Element):
        text = (_FLOAT_POWERS if floating(call.dtype) else _POWERS).get(float(exponent))
        if text:
            return formula(call, text, [base], 4)
    if not floating(call.dtype):
        raise PartitionError(f"{call.dtype} to the power of {exponent if not isinstance(exponent, Element) else 'a tensor'}")
    return formula(call, "pow({0}, {1})", [base, exponent], 20, rounds=True)


# of two numbers: text, whether integers (bools among them) may be
_PAIRS = {
    "maximum": ("max({0}, {1})", True),
    "minimum": ("min({0}, {1})", True),
    "fmax": ("fmax({0}, {1})", False),
    "fmin": ("fmin({0}, {1})", False),
    "atan2": ("atan2({0}, {1})", False),
    "arctan2": ("atan2({0}, {1})", False),
    "hypot": ("hypot({0}, {1})", False),
    "copysign": ("copysign({0}, {1})", False),
}


@rule(*_PAIRS)
def pair(call: NodeCall, name: str = "") -> Element:
    operands = [operand(call, "self"), operand(call, "other")]
    text, integers = _PAIRS[(name or call.node.op).removeprefix("aten.")]
    if not integers and not floating(call.dtype):
        raise PartitionError(f"{call.node.op} of {call.dtype}")
    return formula(call, text, operands, 1 if integers else 10)


@rule("xlogy", "special_xlogy")
def product_with_logarithm(call: NodeCall) -> Element:
    if not floating(call.dtype):
        raise PartitionError(f"{call.node.op} of {call.dtype}")
    text = "({1} != {1}) ? {1} : ({0} == 0.0) ? 0.0 : {0} * log({1})"
    return formula(call, text, [operand(call, "self"), operand(call, "other")], 12)


@rule("addcmul", "addcdiv")
def fused_sum(call: NodeCall) -> Element:
    operands = [call.tensor("self"), call.tensor("tensor1"), call.tensor("tensor2"), call.number("value", 1)]
    sign = "*" if call.node.op == "aten.addcmul" else "/"
    if not floating(call.dtype):
        raise PartitionError(f"{call.node.op} of {call.dtype}")
    return formula(call, f"{{0}} + {{3}} * {{1}} {sign} {{2}}", operands, 4)


@rule("lerp")
def between(call: NodeCall) -> Element:
    operands = [call.tensor("self"), call.tensor("end"), operand(call, "weight")]
    text = "(abs({2}) < 0.5) ? {0} + {2} * ({1} - {0}) : {1} - ({1} - {0}) * (1.0 - {2})"
    return formula(call, text, operands, 6)


# ---------------------------------------------------------------- comparisons, logic, choice

_COMPARISONS = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
}  # fmt: skip


@rule(*_COMPARISONS)
def comparison(call: NodeCall) -> Element:
    operands = [operand(call, "self"), operand(call, "other")]
    sign, compute = _COMPARISONS[call.node.op.removeprefix("aten.")], common(operands)
    fitting(operands, compute)
    if compute == "bool":
        compute = "int32"
    if DTYPES[compute].kind == "float" and DTYPES[compute].bits == 16:
        operands = [_rounded(each, compute) for each in operands]
    return formula(call, f"{{0}} {sign} {{1}}", operands, 1, wide(compute), "bool")


def _rounded(each: Operand, dtype: str) -> Operand:
    """A number as the half type that it is compared in holds it."""
    if isinstance(each, Element):
        return each
    return Element(dtype, (), lambda subscripts: literal(each, dtype))


_LOGIC = {"logical_and": "&&", "logical_or": "||", "logical_xor": "!=", "bitwise_and": "&&", "bitwise_or": "||", "bitwise_xor": "!="}


@rule(*_LOGIC, "__and__", "__or__", "__xor__")
def logic(call: NodeCall) -> Element:
    name = call.node.op.removeprefix("aten.").replace("__", "")
    operands = [operand(call, "self"), operand(call, "other")]
    if not name.startswith("logical") and call.dtype != "bool":
        raise PartitionError(f"bits of {call.dtype}")
    return formula(call, f"{{0}} {_LOGIC.get(name) or _LOGIC[f'bitwise_{name}']} {{1}}", operands, 1, "bool", "bool")


@rule("where")
def choice(call: NodeCall) -> Element:
    condition = call.tensor("condition")
    if condition.dtype != "bool":
        raise PartitionError("chooses by numbers")
    return _choice(call, condition, operand(call, "self"), operand(call, "other"))


@rule("masked_fill")
def masked(call: NodeCall) -> Element:
    return _choice(call, call.tensor("mask"), operand(call, "value"), call.tensor("self"))


def _choice(call: NodeCall, condition: Element, then: Operand, other: Operand) -> Element:
    test = broadcast(call.builder, condition, call.shape)
    arms = [broadcast(call.builder, each, call.shape) if isinstance(each, Element) else each for each in (then, other)]
    fitting(arms, call.dtype)

    def at(subscripts: Sequence[Linear]) -> str:
        texts = [
            cast(each.at(subscripts), each.dtype, call.dtype) if isinstance(each, Element) else literal(each, call.dtype) for each in arms
        ]
        return f"({cast(test.at(subscripts), test.dtype, 'bool')} ? {texts[0]} : {texts[1]})"

    return Element(call.dtype, call.shape, at, test.cost + 1 + sum(each.cost for each in arms if isinstance(each, Element)))


@rule("hardtanh")
def hardtanh(call: NodeCall) -> Element:
    x, limits = operand(call, "self"), [call.number("min_val", -1), call.number("max_val", 1)]
    _limits(limits, call.dtype)
    return formula(call, "({0} <= {1}) ? {1} : ({0} >= {2}) ? {2} : {0}", [x, *limits], 2)


@rule("clamp", "clip", "clamp_min", "clamp_max")
def limited(call: NodeCall) -> Element:
    x, given = operand(call, "self"), [name for name in ("min", "max") if call.argument(name) is not None]
    limits = [operand(call, name) for name in given]
    _limits(limits, call.dtype)
    if len(limits) != 1:
        return formula(call, "clamp({0}, {1}, {2})" if limits else "{0}", [x, *limits], 2)
    sign = "<" if given == ["min"] else ">"
    unordered = " || {1} != {1}" if isinstance(limits[0], Element) and floating(call.dtype) else ""
    return formula(call, f"({{0}} {sign} {{1}}{unordered}) ? {{1}} : {{0}}", [x, *limits], 2)


def _limits(limits: Sequence[Operand], dtype: str) -> None:
    """A PartitionError for limits that are no numbers of a type."""
    fitting(limits, dtype)
    if any(isinstance(each, float) and each != each for each in limits):
        raise PartitionError("a limit is NaN")


# ---------------------------------------------------------------- conversions and copies


@rule("to", "_to_copy", "type_as")
def conversion(call: NodeCall) -> Element:
    x = call.tensor("self")
    if floating(x.dtype) and not floating(call.dtype) and call.dtype not in ("bool", "int32", "int64"):
        raise PartitionError(f"{x.dtype} to {call.dtype}, which wraps or not as the machine does it")
    return formula(call, "{0}", [x], 0 if x.dtype == call.dtype else 1, x.dtype)


@rule("clone", "contiguous", "detach", "alias", "lift_fresh", "lift_fresh_copy", "detach_copy", "alias_copy", "positive")
def copy(call: NodeCall) -> Element:
    return call.tensor("self")


@rule("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def dropout(call: NodeCall) -> Element:
    if call.flag("train") and call.number("p") != 0:
        raise PartitionError("draws random numbers")
    return call.tensor("input")


# ---------------------------------------------------------------- numbers from nothing

_VALUES = {"zeros": 0, "ones": 1, "zeros_like": 0, "ones_like": 1, "new_zeros": 0, "new_ones": 1}


@rule(*_VALUES, "full", "full_like", "new_full", "scalar_tensor", "fill")
def filled(call: NodeCall) -> Element:
    name = call.node.op.removeprefix("aten.")
    given = "s" if name == "scalar_tensor" else "value" if name == "fill" else "fill_value"
    value = _VALUES[name] if name in _VALUES else operand(call, given)
    fitting([value], call.dtype)
    return formula(call, "{0}", [value], 0, call.dtype)


@rule("arange")
def counted(call: NodeCall) -> Element:
    start, step = call.number("start", 0), call.number("step", 1)
    if floating(call.dtype) or not isinstance(start, int) or not isinstance(step, int):
        raise PartitionError("counts in floats")
    return Element(call.dtype, call.shape, lambda subscripts: f"({start} + {step} * {call.dtype}({subscripts[0]}))")
