"""Reduce strength: powers whose exponents are small whole numbers, constants or functions of indices, are products, and a division of
integers by one of several constants is one of several divisions by a constant, which multiply and shift.

``pow(X(i), k)`` with ``k in 0:9`` takes four squarings and selections (Cocke and Kennedy 1977). A power in float32 is a product of
doubles, rounded once; a float64 one of exponent n is off by up to n - 1 roundings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from tcjit.grammar.ast import Binary, Call, Cast, Const, Expr, Index, Select, Size, Unary
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import rebuild, walk
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.nest.vector_forms import INTEGER_POWER
from tcjit.mapping.operations import CALL, divides_integers, operations

Limits = tuple[int, int]
MOST_DIVISORS = 8  # that conditions choose between: the dividend is written once for each
LIMITS = {"float64": (-7, 10)}  # exponents whose products are exact to 6 units in the last place
SINGLE = (-63, 63)  # in double: exact to the last place of a float


def reduce_strength(before: Assignments) -> Assignments:
    """The program with products in the place of powers."""
    return before.with_parts([(_reduced(before, a),) for a in before.assignments])


def _reduced(before: Assignments, a: Assignment) -> Assignment:
    fixed = {name: (lower, upper - 1) for name, lower, upper in a.bounds if name not in a.dynamic and lower < upper}
    return replace(a, value=_with_products(a.value, fixed, {} if before.program.dynamic else before.values))


def _with_products(value: Expr, ranges: Mapping[str, Limits], values: Mapping[str, int]) -> Expr:
    value = rebuild(value, partial(_with_products, ranges=ranges, values=values))
    if divides_integers(value):
        return _chosen(value, value.right) if isinstance(value.right, Select) and _are_divisors(value.right) else value
    if not isinstance(value, Call) or value.function != "pow":
        return value
    (base, exponent), (least, most) = value.args, LIMITS.get(value.dtype, SINGLE)
    if exponent == Const(2.0, dtype=value.dtype) and operations(base) < CALL:
        return Binary("*", base, base, dtype=value.dtype)
    if isinstance(exponent, Const):
        found = (int(exponent.value),) * 2 if exponent.value in range(least, most + 1) else None
    else:  # negative ones are inverses, which others would compute in vain
        found = _limits(exponent.operand, ranges, values) if isinstance(exponent, Cast) else None
        found = found if found is None or 0 <= found[0] else None
    if found is None or found[1] > most:
        return value
    bits = max(map(abs, found)).bit_length()
    return replace(value, function=INTEGER_POWER, args=(*value.args, Const(bits, dtype="int64")))


def _are_divisors(expr: Expr) -> bool:
    """Whether conditions choose between few constants, none of which is zero."""
    arms = [part for part in walk(expr) if isinstance(part, Select)]
    ends = [arm for part in arms for arm in (part.then, part.other) if not isinstance(arm, Select)]
    return len(ends) <= MOST_DIVISORS and all(isinstance(end, Const) and end.value for end in ends)


def _chosen(division: Binary, divisor: Expr) -> Expr:
    """The quotient, or rest, for one of the divisors."""
    if not isinstance(divisor, Select):
        return replace(division, right=divisor)
    then, other = _chosen(division, divisor.then), _chosen(division, divisor.other)
    return Select(divisor.condition, then, other, dtype=division.dtype)


def _limits(expr: Expr, ranges: Mapping[str, Limits], values: Mapping[str, int]) -> Limits | None:
    """The least and greatest value of an integer expression over indices no part of which wraps."""
    found: Limits | None = None
    match expr:
        case Const():
            found = int(expr.value), int(expr.value)
        case Index():
            found = ranges.get(expr.name)
        case Size() if expr.name in values:
            found = values[expr.name], values[expr.name]
        case Cast():
            found = _limits(expr.operand, ranges, values)
        case Unary(op="-"):
            inner = _limits(expr.operand, ranges, values)
            found = inner and (-inner[1], -inner[0])
        case Binary(op="+" | "-" | "*"):
            left, right = _limits(expr.left, ranges, values), _limits(expr.right, ranges, values)
            if left is not None and right is not None:
                ends = [{"+": a + b, "-": a - b, "*": a * b}[expr.op] for a in left for b in right]
                found = min(ends), max(ends)
    kind = DTYPES[expr.dtype]
    return found if found and kind.is_integer and kind.least <= found[0] and found[1] <= kind.greatest else None
