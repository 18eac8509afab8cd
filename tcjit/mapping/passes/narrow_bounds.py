"""Narrow bounds: an update whose conditions leave few values of an index runs over these.

``d_X(i) += i == 0 && t - k < 0 ? d_Y(t) * G(k) : 0.0``, what a repeated border adds to a gradient, has terms for one ``i`` and few ``t``.
Each condition bounds each of its indices by the ranges of the others, as bounds are propagated in constraint programming. Of a reduction
that gathers the results without terms are started by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tcjit.grammar.affine import is_gather, linear
from tcjit.grammar.ast import Binary, Expr
from tcjit.grammar.polynomial import ZeroDivisor
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.reduction import conjuncts, guarded_term

WORTH = 2  # times fewer values: bounds that begin at 0 suit other passes
ROUNDS = 4  # of propagation, at most

_Ranges = dict[str, tuple[int, int]]  # from the first to before the last
_Row = tuple[Mapping[str, int], int]  # sum(coefficient * index) + constant >= 0


def narrow_bounds(before: Assignments) -> Assignments:
    """The program with updates over the values of indices that conditions leave, where these are few."""
    return before.with_parts([_narrowed(before, a) for a in before.assignments])


def _narrowed(before: Assignments, a: Assignment) -> list[Assignment]:
    gathers = any(is_gather(sub) for access in a.reads for sub in access.subscripts)  # which may move out of what needs no condition
    results = before.may_leave_results(a) or gathers and a.start is not None
    movable = {name for name, _, _ in (a.bounds if results else a.terms) if name not in a.dynamic}
    if a.operator == "=" or a.empty or before.program.dynamic or not movable:
        return [a]
    conditions, _ = guarded_term(a.value, a.operator, before.values)
    rows = [row for _, condition in conditions for part in conjuncts(condition) for row in _rows(part, before.values)]
    ranges: _Ranges = {name: (lower, upper) for name, lower, upper in a.bounds}
    for _ in range(ROUNDS):
        last = dict(ranges)
        for row in rows:
            _propagate(row, ranges, movable)
        if last == ranges:
            break
    if any(lower >= upper for lower, upper in ranges.values()):
        return [a]  # no term counts
    few = {name for name, lower, upper in a.bounds if (ranges[name][1] - ranges[name][0]) * WORTH <= upper - lower}
    made = replace(a, bounds=tuple((name, *(ranges[name] if name in few else ends)) for name, *ends in a.bounds)) if few else a
    return [*([] if before.may_leave_results(a) else _starts_of_others(a, made)), made]


def _starts_of_others(a: Assignment, narrowed: Assignment) -> list[Assignment]:
    """The results of an assignment that one over fewer of them does not start, as boxes."""
    made = []
    box = {name: (lower, upper) for name, lower, upper in a.results}
    for name, lower, upper in narrowed.results:
        for side in ((box[name][0], lower), (upper, box[name][1])):
            if side[0] < side[1]:
                bounds = tuple((dim, *(side if dim == name else ends)) for dim, ends in box.items())
                made.append(replace(a, operator="=", value=a.start or a.value, bounds=bounds, reduction=(), start=None))
        box[name] = (lower, upper)
    return made


def _rows(condition: Expr, values: Mapping[str, int]) -> Iterator[_Row]:
    """A comparison of sums of indices as rows; none of any other condition."""
    if not isinstance(condition, Binary) or condition.op not in ("<", "<=", ">", ">=", "==") or condition.left.dtype != "int64":
        return
    try:
        form = linear(Binary("-", condition.left, condition.right, dtype="int64"), values)
    except ZeroDivisor:
        return
    if form is None or not isinstance(form[1], int) or not all(isinstance(c, int) for c in form[0].values()):
        return
    coefficients = {name: c for name, c in form[0].items() if isinstance(c, int)}
    if condition.op in (">", ">=", "=="):
        yield coefficients, form[1] - (condition.op == ">")
    if condition.op in ("<", "<=", "=="):
        yield {name: -c for name, c in coefficients.items()}, -form[1] - (condition.op == "<")


def _propagate(row: _Row, ranges: _Ranges, movable: set[str]) -> None:
    """Bound each index of a row by the greatest that the others make it."""
    coefficients, constant = row
    most = {name: max(c * ranges[name][0], c * (ranges[name][1] - 1)) for name, c in coefficients.items()}
    for name, c in coefficients.items():
        rest = constant + sum(most.values()) - most[name]  # c * index + rest >= 0
        lower, upper = ranges[name]
        if name in movable:
            ranges[name] = (max(lower, -(rest // c)), upper) if c > 0 else (lower, min(upper, rest // -c + 1))
        if ranges[name][0] >= ranges[name][1]:
            return
        most[name] = max(c * ranges[name][0], c * (ranges[name][1] - 1))
