"""Conditions as facts ``expression >= 0``, which can be compared, weakened and printed without divisions."""

from __future__ import annotations

from math import gcd

from tcjit.codegen.loops import BooleanOp, Compare, Condition
from tcjit.grammar.linear import Linear, Opaque


def facts(condition: Condition) -> list[Linear] | None:
    """Expressions that are all at least 0 exactly where a condition holds; None where it is no conjunction of inequalities."""
    if isinstance(condition, BooleanOp):
        left, right = facts(condition.left), facts(condition.right)
        return None if condition.op != "&&" or left is None or right is None else left + right
    distance = condition.left - condition.right
    if condition.op in (">=", ">"):
        return split(distance - (condition.op == ">"))
    return split(distance.times(-1) - (condition.op == "<")) if condition.op in ("<=", "<") else None


def split(value: Linear) -> list[Linear]:
    """Expressions that are all at least 0 exactly where the value is, with fewer divisions, minima and maxima where that is possible."""
    for atom, coefficient in value.terms:
        if not isinstance(atom, Opaque) or abs(coefficient) != 1:
            continue
        rest = value - Linear(((atom, coefficient),))
        if (atom.op == "min" and coefficient == 1) or (atom.op == "max" and coefficient == -1):
            return [piece for argument in atom.args for piece in split(rest + argument.times(coefficient))]
        if atom.op == "floor" and atom.args[1].is_constant:
            divisor = atom.args[1].constant
            # floor(a / d) + r >= 0 where a + d r >= 0, and r - floor(a / d) >= 0 where d r + d - 1 - a >= 0
            whole = rest.times(divisor) + atom.args[0].times(coefficient)
            return split(whole if coefficient == 1 else whole + (divisor - 1))
    return [tightened(value)]


def tightened(fact: Linear) -> Linear:
    """The same fact with the smallest whole numbers."""
    common = gcd(*(coefficient for _, coefficient in fact.terms))
    if common <= 1:
        return fact
    return Linear(tuple((atom, coefficient // common) for atom, coefficient in fact.terms), fact.constant // common)


def comparison(fact: Linear) -> Compare:
    """``fact >= 0`` with positive numbers on either side, as people write it."""
    less = Linear(tuple((atom, -c) for atom, c in fact.terms if c < 0))
    more = Linear(tuple((atom, c) for atom, c in fact.terms if c > 0))
    if not less.terms:
        return Compare(more, ">=", Linear.of(-fact.constant))
    return Compare(less, "<=", more + fact.constant)
