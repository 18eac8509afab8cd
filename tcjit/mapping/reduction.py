"""What the operators of reductions start from and run in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

from tcjit.grammar.affine import condition
from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Expr, Scalar, Select, Statement, Unary
from tcjit.grammar.dtypes import DTYPES, holds
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import rebuild, wide_factors
from tcjit.mapping.machine import Device
from tcjit.mapping.storage import Bounds

EXTREMES = ("max=", "min=")
ATOMIC = ("+=", "min=", "max=")  # operators that commute, of which GPUs have atomic updates


def needs_wide(s: Statement, dtype: str) -> bool:
    """Whether a reduction must run in a wider type than that of its tensor, ``dtype``.

    Half-precision sums lose bits and bool sums have no addition; narrower integers wrap to the same bits either way.
    """
    kind = DTYPES[dtype].kind
    return bool(s.reduction) and s.accumulate != dtype and kind in ("float", "bool") and s.operator in ("+=", "*=")


def identity(operator: str, dtype: str) -> Const:
    """The value that a reduction starts from."""
    kind = DTYPES[dtype]
    value: int | float | bool
    if operator in ("+=", "*="):
        number = 0 if operator == "+=" else 1
        value = float(number) if kind.kind == "float" else bool(number) if kind.kind == "bool" else number
    elif kind.kind == "float":
        value = float("inf") if operator == "min=" else float("-inf")
    elif kind.kind == "bool":
        value = operator == "min="
    else:
        value = kind.greatest if operator == "min=" else kind.least
    return Const(value, dtype=dtype)


def is_atomic(operator: str, dtype: str, device: Device) -> bool:
    """Whether a device has atomic updates of a reduction's results."""
    kind = DTYPES[dtype]
    if operator not in ATOMIC or kind.bits < 32 or f"atomic{kind.bits}" not in device.capabilities:
        return False
    return kind.kind != "float" or operator != "+=" or "atomic_float_sums" in device.capabilities


def is_identity(value: Expr, operator: str) -> bool:
    """Whether a term leaves every result as it is that a reduction which starts from its identity may have."""
    neutral = identity(operator, value.dtype)
    return isinstance(value, Const) and value == neutral and str(value.value) == str(neutral.value)  # 0.0 is no -0.0


def leaves_any(value: Expr, operator: str) -> bool:
    """Whether a term leaves every result as it is: 0.0 added to -0.0 does not, -0.0 does."""
    return isinstance(value, Const) and value == identity(operator, value.dtype) and str(value.value) != "0.0"


def conjuncts(test: Expr) -> list[Expr]:
    """The parts of a condition that must all hold, in the order in which they are evaluated."""
    if isinstance(test, Binary) and test.op == "&&":
        return [*conjuncts(test.left), *conjuncts(test.right)]
    return [test]


def conjunction(conditions: Sequence[Expr]) -> Expr:
    """The condition that all of some hold, evaluated from the left."""
    first, *others = conditions or (Const(True, dtype="bool"),)
    return reduce(lambda left, right: Binary("&&", left, right, dtype="bool"), others, first)


def combined(operator: str, left: Expr, right: Expr) -> Expr:
    """One step of a reduction."""
    if operator in ("+=", "*="):
        return Binary(operator[0], left, right, dtype=right.dtype)
    return Call(operator[:3], (left, right), dtype=right.dtype)


def guarded_term(value: Expr, operator: str, values: Mapping[str, int]) -> tuple[list[tuple[str, Expr]], Expr]:
    """The affine conditions, in isl's words and as they stand, without which a term is the identity, and its value where they hold."""
    conditions: list[tuple[str, Expr]] = []
    while isinstance(value, Select) and (text := condition(value.condition, values)) is not None:
        if is_identity(value.other, operator):
            conditions.append((f"({text})", value.condition))
            value = value.then
        elif is_identity(value.then, operator):
            conditions.append((f"(not ({text}))", Unary("!", value.condition, dtype="bool")))
            value = value.other
        else:
            break
    return conditions, value


def guarded_factors(value: Expr) -> tuple[list[Expr], list[Expr]]:
    """The conditions without which a term of a sum is 0, in their order, and the factors of its value where they hold, with its sign."""
    conditions: list[Expr] = []
    negative = False
    while True:
        if isinstance(value, Select) and is_identity(value.other, "+="):
            conditions += conjuncts(value.condition)
            value = value.then
        elif isinstance(value, Unary) and value.op == "-" and DTYPES[value.dtype].kind == "float":
            negative, value = not negative, value.operand
        else:
            first, *others = wide_factors(value)
            return conditions, [Unary("-", first, dtype=first.dtype) if negative else first, *others]


def quotient_factors(value: Expr) -> list[tuple[str, Expr]]:
    """The factors of a product, each behind ``*``, and what it is divided by behind ``/``."""
    match value:
        case Binary(op="*", left=left, right=right):
            return [*quotient_factors(left), *quotient_factors(right)]
        case Binary(op="/", left=left, right=right) if DTYPES[value.dtype].kind == "float":
            return [*quotient_factors(left), ("/", right)]
    return [("*", value)]


def product_of(value: Expr, others: Iterable[tuple[str, Expr]]) -> Expr:
    """A value with such factors, which follow it."""
    factors = [("*", value), *others]
    if value == identity("*=", value.dtype) and len(factors) > 1 and factors[1][0] == "*":
        factors = factors[1:]
    return reduce(lambda left, other: Binary(other[0], left, other[1], dtype=value.dtype), factors[1:], factors[0][1])


def is_reused(results: Bounds, factors: Iterable[Expr]) -> bool:
    """Whether each factor is read for several results, as nests do."""
    return all(any(name not in names(factor) for name, lower, upper in results if upper - lower > 1) for factor in factors)


def casts_inside(value: Expr) -> Expr:
    """A value whose conversions stand inside of its choices; that of a number is one, where its type holds it."""
    if isinstance(value, Select):
        return Select(value.condition, casts_inside(value.then), casts_inside(value.other), dtype=value.dtype)
    if isinstance(value, Cast):
        operand = casts_inside(value.operand)
        if isinstance(operand, Select):
            arms = (casts_inside(Cast(arm, dtype=value.dtype)) for arm in (operand.then, operand.other))
            return Select(operand.condition, *arms, dtype=value.dtype)
        if isinstance(operand, Const) and DTYPES[operand.dtype].kind == DTYPES[value.dtype].kind and holds(value.dtype, operand.dtype):
            return replace(operand, dtype=value.dtype)
    return value


def signed(value: Expr) -> tuple[Expr, Select] | None:
    """Of ``condition ? X : -X``, or the other way round, X and the sign that it has as a factor, ``condition ? 1 : -1``."""
    if not isinstance(value, Select) or DTYPES[value.dtype].kind not in ("float", "signed"):
        return None
    for one, other, sign in ((value.then, value.other, 1), (value.other, value.then, -1)):
        if isinstance(other, Unary) and other.op == "-" and other.operand == one:
            as_float = DTYPES[value.dtype].kind == "float"
            plus, minus = (Const(float(by) if as_float else by, dtype=value.dtype) for by in (sign, -sign))
            return one, replace(value, then=plus, other=minus)
    return None


def with_signs_as_factors(value: Expr) -> Expr:
    """A value with ``X * (condition ? 1 : -1)`` for ``condition ? X : -X``: the same numbers."""
    found = signed(value)
    if found is None:
        return rebuild(value, with_signs_as_factors)
    return Binary("*", with_signs_as_factors(found[0]), rebuild(found[1], with_signs_as_factors), dtype=value.dtype)


def is_plain_product(value: Expr) -> bool:
    """Whether a value is a product of elements, converted perhaps: 0 where all of them are."""
    if isinstance(value, Binary):
        return value.op == "*" and is_plain_product(value.left) and is_plain_product(value.right)
    return is_plain_product(value.operand) if isinstance(value, Cast) else isinstance(value, Access)


def is_product(value: Expr) -> bool:
    """Whether a value is one of float sums and products of elements."""
    return value.dtype in ("float32", "float64") and _is_arithmetic(value, value.dtype)


def _is_arithmetic(value: Expr, dtype: str) -> bool:
    if isinstance(value, Binary):
        operands = (value.left, value.right)
        return value.op in ("+", "-", "*") and value.dtype == dtype and all(_is_arithmetic(operand, dtype) for operand in operands)
    if isinstance(value, Unary):
        return value.op == "-" and _is_arithmetic(value.operand, dtype)
    if isinstance(value, Cast):
        return isinstance(value.operand, (Scalar, Const)) and value.dtype == dtype
    return isinstance(value, (Access, Const, Scalar)) and value.dtype == dtype
