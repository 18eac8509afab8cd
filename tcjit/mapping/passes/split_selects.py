"""Split selects: the extremes of ``c ? e : f`` are those of ``e`` where ``c`` holds, and of ``f`` for results that have a term where not.

``Y(i) max=! (i + k >= 1 && i + k <= N) ? X(i + k - 1) : -1e30`` is the greatest ``X`` of each window, and then ``max(Y(i), -1e30)`` for
the windows that reach over the border. Extremes may take a value as often as they like, so that one update stands for all such terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tcjit.grammar.affine import linear
from tcjit.grammar.ast import Access, Binary, Const, Expr, Select, Unary
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import walk, with_indices
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.operations import may_fail
from tcjit.mapping.reduction import EXTREMES, combined, identity, is_identity

LEAST_WHERE_TRUE = {"<": True, "<=": True, ">": False, ">=": False}  # whether a comparison holds rather where left - right is least

Ends = Mapping[str, tuple[int, int]]


def split_selects(before: Assignments) -> Assignments:
    """The program with extremes whose terms outside of a condition on indices are the identity."""

    def visit(a: Assignment, _: Temporaries) -> list[Assignment]:
        known = not (a.outer or a.dynamic.keys() & {*a.reduction} or a.constraints or a.empty or a.tensor in a.inputs)
        value = a.value
        if a.operator not in EXTREMES or not a.reduction or not known or a.start is None or not isinstance(value, Select):
            return [a]
        neutral = identity(a.operator, value.dtype)
        ends = {name: (lower, upper - 1) for name, lower, upper in a.terms}
        for truth, term, other in ((True, value.then, value.other), (False, value.other, value.then)):
            outside = _somewhere(value.condition, not truth, ends, before.values)
            if outside is None or is_identity(other, a.operator) or not _is_invariant(a, other) or not _has_elements(term):
                continue
            arms = (term, neutral) if truth else (neutral, term)
            inside = replace(a, value=Select(value.condition, *arms, dtype=value.dtype))
            result = Access(a.tensor, a.subscripts, dtype=value.dtype)
            border = Select(outside, combined(a.operator, result, other), result, dtype=value.dtype)
            return [inside, replace(a, operator="=", value=border, bounds=a.results, reduction=(), start=None)]
        return [a]

    return rewrite(before, visit)


def _is_invariant(a: Assignment, value: Expr) -> bool:
    """Whether a value is the same for all terms of a result, and may be computed once more than they are."""
    return not names(value).keys() & {*a.reduction} and not may_fail(value) and not _has_elements(value)


def _has_elements(value: Expr) -> bool:
    return any(isinstance(part, Access) for part in walk(value))


def _somewhere(test: Expr, truth: bool, ends: Ends, values: Mapping[str, int]) -> Expr | None:
    """The condition on results that ``test`` is ``truth`` for one of their terms, which are a box; None where it is not found."""
    if isinstance(test, Unary) and test.op == "!":
        return _somewhere(test.operand, not truth, ends, values)
    if not isinstance(test, Binary):
        return None
    if test.op == ("||" if truth else "&&"):
        sides = _somewhere(test.left, truth, ends, values), _somewhere(test.right, truth, ends, values)
        return None if sides[0] is None or sides[1] is None else Binary("||", sides[0], sides[1], dtype="bool")
    if test.op not in LEAST_WHERE_TRUE or test.left.dtype != "int64":
        return None
    form = linear(Binary("-", test.left, test.right, dtype="int64"), values)
    if form is None:
        return None
    least, at = LEAST_WHERE_TRUE[test.op] is truth, dict[str, Expr]()
    for name, (lower, upper) in ends.items():
        step = form[0].get(name, 0)
        if not isinstance(step, int):
            return None
        at[name] = Const(lower if (step >= 0) is least else upper, dtype="int64")
    found = with_indices(test, at)
    return found if truth else Unary("!", found, dtype="bool")
