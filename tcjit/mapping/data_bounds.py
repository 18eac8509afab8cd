"""Bounds that comparisons with data give an index: of ``(y >= Box(r) && more) ? term : identity``, the ``y`` from ``Box(r)`` on.

The others have no term: a loop over the index runs between such bounds, clamped to its range, and asks the other conditions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tcjit.dataclass import dataclass
from tcjit.grammar.arithmetic import times
from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Expr, Index
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import INTEGERS, names
from tcjit.grammar.walk import walk
from tcjit.mapping.equality import conditions_of, linear_form, where
from tcjit.mapping.operations import may_fail
from tcjit.mapping.scop import StatementForm
from tcjit.mapping.storage import Bounds

LONG_ROW = 16  # vectors of a row, from which on a part of it that data bound is worth its vectors that are not whole
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True)
class DataBound:
    """What a comparison with data says of an index: that it is at most, or at least, an int64 ``value``, which does not depend on it."""

    condition: Binary
    is_upper: bool
    value: Expr


def data_bounds(
    value: Expr, operator: str, index: str, bounds: Bounds, values: Mapping[str, int], inner: Collection[str]
) -> list[DataBound]:
    """The bounds that conditions of a reduction's value give an index, by data that do not depend on it or on ``inner`` indices; none
    behind a condition whose evaluation may raise an error, which bounds would leave out."""
    found = []
    for condition in conditions_of(value, operator)[0]:
        if may_fail(condition, values):
            break
        if isinstance(condition, Binary) and (bound := _bound(condition, index, bounds, values)) is not None:
            if not names(bound.value).keys() & {index, *inner}:
                found.append(bound)
    return found


def bounds_of_terms(s: StatementForm, values: Mapping[str, int], lane: str = "") -> list[DataBound]:
    """Those that data which depend on no term, and on no lane, give the indices of a reduction."""
    others = {*s.reduction, lane}
    return [bound for dim in s.reduction for bound in data_bounds(s.value, s.operator, dim, s.bounds, values, others)]


def without(value: Expr, operator: str, bounds: Collection[DataBound]) -> Expr:
    """A reduction's value where the index lies between some bounds."""
    conditions, term, identity = conditions_of(value, operator)
    known = [bound.condition for bound in bounds]
    return where([one for one in conditions if one not in known], term, identity)


def _bound(condition: Binary, index: str, bounds: Bounds, values: Mapping[str, int]) -> DataBound | None:
    """What a comparison says of an index that stands on one side of it, as a linear form that does not wrap, data being the other."""
    if condition.op not in MIRRORED or condition.left.dtype not in INTEGERS:
        return None
    ranges = {name: (lower, upper - 1) for name, lower, upper in bounds}
    sides = (condition.left, condition.op, condition.right), (condition.right, MIRRORED[condition.op], condition.left)
    for near, op, far in sides:
        form = linear_form(near, ranges, values)
        if form is None or abs(form.get(index, 0)) != 1 or not any(isinstance(part, Access) for part in walk(far)):
            continue
        ends = [sorted(c * end for end in ranges.get(name, (1, 1))) for name, c in form.items()]
        least, greatest = sum(low for low, _ in ends), sum(high for _, high in ends)
        data = _clamped(far, least - 1, greatest + 1)
        if data is None:
            return None
        rest = [(name, c) for name, c in form.items() if name != index and c]
        if op in ("<", ">"):
            rest.append(("", 1 if op == "<" else -1))
        for name, c in rest:
            data = Binary("-", data, times(c, Index(name, dtype="int64")) if name else Const(c, dtype="int64"), dtype="int64")
        if form[index] < 0:
            data = Binary("-", Const(0, dtype="int64"), data, dtype="int64")
        return DataBound(condition, (op in ("<", "<=")) == (form[index] > 0), data)
    return None


def _clamped(far: Expr, least: int, greatest: int) -> Expr | None:
    """Data as int64, of which sums with small numbers do not wrap: a form between ``least`` and ``greatest`` compares alike with both."""
    kind = DTYPES[far.dtype]
    if kind.kind == "unsigned" and kind.bits == 64:
        return None
    wide: Expr = far if far.dtype == "int64" else Cast(far, dtype="int64")
    low, high = Const(least, dtype="int64"), Const(greatest, dtype="int64")
    return wide if kind.bits < 64 else Call("clamp", (wide, low, high), dtype="int64")
