"""Eliminate conditions: what comparisons of indices always are, by the ranges of these, takes the place of the comparisons.

Texts that hold for all sizes, as those of gradients, have conditions that given sizes make true: ``64 * g + t < I`` where ``I`` is a
multiple of 64. So have guards of borders that a program does not reach. After constraint elimination in LLVM, with intervals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from tcjit.grammar.ast import Binary, Const, Expr, Index, Select, Unary
from tcjit.grammar.linear import Limits, Ranges
from tcjit.grammar.polynomial import Value, ZeroDivisor, integer, names, number, with_remainders
from tcjit.grammar.walk import rebuild
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.operations import either_comparison, may_fail


def eliminate_conditions(before: Assignments) -> Assignments:
    """The program without conditions that hold for all values of their indices, or for none, and without indices that cancel in others."""
    return before.with_parts([(_reduced(before, a),) for a in before.assignments])


def _reduced(before: Assignments, a: Assignment) -> Assignment:
    fixed = {name: (lower, upper - 1) for name, lower, upper in a.bounds if name not in a.dynamic and lower < upper}
    values = {} if before.program.dynamic else before.values
    a = replace(a, value=_cancelled(a.value, values))
    value = simplified(a.value, fixed, values)
    return a if a.reduction and isinstance(value, Const) else replace(a, value=value)  # a nest without terms is none


def simplified(value: Expr, ranges: Ranges, values: Mapping[str, int]) -> Expr:
    """A value without the conditions that hold for all values of indices in some ranges, or for none."""
    value = rebuild(value, partial(simplified, ranges=ranges, values=values))
    match value:
        case Select(condition=Const(value=bool(holds)), then=then, other=other):
            return then if holds else other
        case Unary(op="!", operand=Const(value=bool(holds))):
            return Const(not holds, dtype="bool")
        case Binary(op="&&" | "||" as op, left=Const(value=bool(holds)), right=right):
            return right if holds == (op == "&&") else value.left
        case Binary(op="&&" | "||" as op, left=left, right=Const(value=bool(holds))):
            return left if holds == (op == "&&") else value if may_fail(left) else value.right
        case Binary(op="||"):
            return either_comparison(value) or value
        case Binary(op="<" | "<=" | ">" | ">=" | "==" | "!=", left=Expr(dtype="int64")):
            always = _always(value, ranges, values)
            return value if always is None else Const(always, dtype="bool")
    return value


def _cancelled(value: Expr, values: Mapping[str, int]) -> Expr:
    """A value whose comparisons have no indices that cancel: loops that do not have them test what they are told to."""
    value = rebuild(value, partial(_cancelled, values=values))
    match value:
        case Binary(op="<" | "<=" | ">" | ">=" | "==" | "!=", left=Expr(dtype="int64")):
            left = value.left if (found := _difference(value, values)) is None else with_remainders(found)
            return replace(value, left=left, right=number(0)) if found is not None and names(left).keys() < names(value).keys() else value
    return value


def _difference(comparison: Binary, values: Mapping[str, int]) -> Value | None:
    """What the left side of a comparison has more than the right one, as far as that is known."""
    try:
        return integer(Binary("-", comparison.left, comparison.right, dtype="int64"), values)
    except ZeroDivisor:
        return None


def _always(comparison: Binary, ranges: Ranges, values: Mapping[str, int]) -> bool | None:
    """Whether a comparison always holds, or never; None where it may do either."""
    found = _difference(comparison, values)
    ends = None if found is None else _limits(found, ranges)
    if ends is None:
        return None
    least, greatest = ends
    match comparison.op:
        case "<" | ">=":
            less = True if greatest < 0 else False if least >= 0 else None
            return less if less is None or comparison.op == "<" else not less
        case ">" | "<=":
            greater = True if least > 0 else False if greatest <= 0 else None
            return greater if greater is None or comparison.op == ">" else not greater
    equal = True if least == greatest == 0 else False if least > 0 or greatest < 0 else None
    return equal if equal is None or comparison.op == "==" else not equal


def _limits(value: Value, ranges: Ranges) -> Limits | None:
    """The least and greatest value of sums of indices and their quotients; None of anything else."""
    if isinstance(value, int):
        return value, value
    least = greatest = 0
    for atoms, coefficient in value.terms.items():
        ends = _atom_limits(atoms[0], ranges) if len(atoms) == 1 else None if atoms else (1, 1)
        if ends is None:
            return None
        least += min(coefficient * ends[0], coefficient * ends[1])
        greatest += max(coefficient * ends[0], coefficient * ends[1])
    return least, greatest


def _atom_limits(atom: Expr, ranges: Ranges) -> Limits | None:
    match atom:
        case Index(name=name):
            return ranges.get(name)
        case Binary(op="/", left=left, right=Const(value=int(divisor))) if divisor > 0:
            numerator = integer(left)
            ends = None if numerator is None else _limits(numerator, ranges)
            return ends and (ends[0] // divisor, ends[1] // divisor)
    return None
