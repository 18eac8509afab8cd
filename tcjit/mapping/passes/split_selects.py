"""Split selects: the extremes of ``c ? e : f`` are those of ``e`` where ``c`` holds, and of ``f`` for results that have a term where not.

``Y(i) max=! (i + k >= 1 && i + k <= N) ? X(i + k - 1) : -1e30`` is the greatest ``X`` of each window, and then ``max(Y(i), -1e30)`` for
the windows that reach over the border. Extremes may take a value as often as they like, so that one update stands for all such terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tcjit.grammar.affine import condition
from tcjit.grammar.ast import Access, Binary, Const, Expr, Index, Select, Unary
from tcjit.grammar.polynomial import Value, ZeroDivisor, integer, names, number
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
    comparison = "==" if test.op == "!=" else test.op
    truth = truth != (test.op == "!=")
    steps = _steps(test, ends, values)
    if steps is None:
        return None
    least, greatest = ({name: number(ends[name][(step > 0) is last]) for name, (step, _) in steps.items()} for last in (False, True))
    if comparison in LEAST_WHERE_TRUE:
        found = with_indices(test, least if LEAST_WHERE_TRUE[comparison] is truth else greatest)
        return found if truth else Unary("!", found, dtype="bool")
    if comparison != "==":
        return None
    first, last = (replace(test, op="==", left=with_indices(test.left, at), right=with_indices(test.right, at)) for at in (least, greatest))
    if not truth:  # one of the ends is another value
        ends_differ = integer(Binary("-", *map(_difference, (last, first)), dtype="int64"), values)
        if isinstance(ends_differ, int) and ends_differ:
            return Const(True, dtype="bool")
        return Unary("!", Binary("&&", first, last, dtype="bool"), dtype="bool")
    if len(steps) > 1 or any(not single for _, single in steps.values()):
        return None
    return Binary("&&", replace(first, op="<="), replace(last, op=">="), dtype="bool")


def _difference(test: Binary) -> Expr:
    return Binary("-", test.left, test.right, dtype="int64")


def _steps(test: Binary, ends: Ends, values: Mapping[str, int]) -> dict[str, tuple[int, bool]] | None:
    """For each of some indices in a comparison whether the left side less the right one grows with it, 1, or falls, -1, and whether it then
    takes every value between its ends; None where one may do either."""
    if test.left.dtype != "int64":
        return None
    try:
        difference = integer(_difference(test), values)
    except ZeroDivisor:
        return None
    if difference is None or condition(test, values) is None:
        return None
    found = {}
    for name in (name for name in names(test) if name in ends):
        steps = _step(difference, name)
        if steps is None:
            return None
        if steps[0]:
            found[name] = steps
    return found


def _step(value: Value, name: str) -> tuple[int, bool] | None:
    """The same for an index of a sum of indices and of quotients of such sums; 0 for one that it does not have."""
    signs, largest = set[int](), 0
    for monomial, factor in () if isinstance(value, int) else value.terms.items():
        if not any(name in names(part) for part in monomial):
            continue
        inner: tuple[int, bool] | None = None
        match monomial:
            case (Index(),):
                inner = 1, True
            case (Binary(op="/", left=left, right=Const(value=int(divisor))),) if divisor > 0 and (numerator := integer(left)) is not None:
                inner = _step(numerator, name)
        if inner is None:
            return None
        signs.add(inner[0] if factor > 0 else -inner[0])
        largest += abs(factor) if inner[1] else 2
    return None if len(signs) > 1 else (signs.pop() if signs else 0, largest <= 1)
