"""Multiply predicates: truth values of tensors under which a sum of integers has its terms are factors of these, 0 or 1.

``T(i) +=! (A(i,j) && A(j,k) && A(k,i)) ? 1 : 0`` counts triangles, and is a contraction of three matrices: its terms are products, which
``factor_contractions`` orders, and instructions for bytes add up. Of floats a term that does not count may be infinite or NaN.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from tcjit.grammar.ast import Access, Binary, Cast, Const, Expr, Select
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.nest.narrow_factors import without_conditions
from tcjit.mapping.operations import may_fail
from tcjit.mapping.reduction import conjunction, conjuncts

ONE, ZERO = Const(1, dtype="int32"), Const(0, dtype="int32")


def multiply_predicates(before: Assignments) -> Assignments:
    """The program with sums of int32 whose conditions on truth values are factors."""
    return before.with_parts([(_multiplied(a),) for a in before.assignments])


def _multiplied(a: Assignment) -> Assignment:
    value, conditions = without_conditions(a.value)
    parts = [part for condition in conditions for part in conjuncts(condition)]
    predicates = [part for part in parts if _is_predicate(part)]
    if a.operator != "+=" or not a.reduction or a.value.dtype != "int32" or not predicates or any(map(may_fail, (*parts, value))):
        return a
    made: list[Expr] = [Cast(part, dtype="int32") for part in predicates] + ([] if value == ONE else [value])
    product = reduce(lambda left, right: Binary("*", left, right, dtype="int32"), made)
    rest = [part for part in parts if part not in predicates]
    return replace(a, value=Select(conjunction(rest), product, ZERO, dtype="int32") if rest else product)


def _is_predicate(condition: Expr) -> bool:
    """Whether a condition is a truth value in memory."""
    return isinstance(condition, Access) and condition.dtype == "bool"
