"""Cases: cut a statement where a condition on one index of its results changes, so that each part is computed without asking.

``(t >= 32 ? A(k, t - 32) * W(c, k) : 0.0)`` summed over ``k`` is a product of plain reads for ``t >= 32`` and zero below. Contractions on
explicit vectors need such plain terms. ``(t < 32 ? A(t) : B(t - 32))`` joins two tensors: two copies, each as fast as memory. The values
are the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from tcjit.grammar.ast import Binary, Expr, Select
from tcjit.grammar.linear import Linear, Ranges, limits
from tcjit.grammar.walk import rebuild, walk
from tcjit.mapping.reduction import is_product
from tcjit.mapping.storage import Bounds
from tcjit.mapping.strides import affine_form

MOST_CASES = 4  # parts of a sum: every one is code of its own
MOST_JOINED = 32  # parts of an assignment: every one is a statement to schedule
COMPARISONS = {
    "<": lambda least, most: (most < 0, least >= 0),
    "<=": lambda least, most: (most <= 0, least > 0),
    ">": lambda least, most: (least > 0, most <= 0),
    ">=": lambda least, most: (least >= 0, most < 0),
    "==": lambda least, most: (least == most == 0, most < 0 or least > 0),
    "!=": lambda least, most: (most < 0 or least > 0, least == most == 0),
}  # of a difference with 0: whether it holds for all values between two, and whether for none


def cases(value: Expr, left: Bounds, values: Mapping[str, int], moving: Container[str] = ()) -> list[tuple[Bounds, Expr]]:
    """The boxes of the results and what is summed up in each; one, with the value itself, where cutting makes no products of it.

    ``left`` bounds the indices of the results; the range of one of the ``moving`` depends on dynamic sizes.
    """
    conditions = [node.condition for node in walk(value) if isinstance(node, Select)]
    for name, lower, upper in left:
        cuts = _cuts(conditions, name, lower, upper, values) if name not in moving else set()
        if 0 < len(cuts) < MOST_CASES:
            made = _cut(value, left, name, cuts, values)
            if all(is_product(part) for _, part in made):
                return made
    return [(left, value)]


def joined(value: Expr, box: Bounds, values: Mapping[str, int], moving: Container[str] = ()) -> list[tuple[Bounds, Expr]]:
    """The boxes of what is joined from several values along one index, and the value of each; one where nothing is joined, or too much."""
    for name, lower, upper in box:
        if name in moving:
            continue
        conditions = []
        rest = value
        while isinstance(rest, Select) and _change(rest.condition, name, values) is not None:
            conditions.append(rest.condition)
            rest = rest.other
        cuts = _cuts(conditions, name, lower, upper, values)
        if 0 < len(cuts) < MOST_JOINED:
            return _cut(value, box, name, cuts, values)
    return [(box, value)]


def _cuts(conditions: Iterable[Expr], name: str, lower: int, upper: int, values: Mapping[str, int]) -> set[int]:
    """Where between two bounds of an index conditions change."""
    changes = (_change(condition, name, values) for condition in conditions)
    return {change for change in changes if change is not None and lower < change < upper}


def _cut(value: Expr, box: Bounds, name: str, cuts: Iterable[int], values: Mapping[str, int]) -> list[tuple[Bounds, Expr]]:
    """The parts of a box between the cuts of one index, with the value there."""
    lower, upper = next((lo, hi) for d, lo, hi in box if d == name)
    ends = [lower, *sorted(cuts), upper]
    made = []
    for least, beyond in zip(ends, ends[1:], strict=False):
        part = tuple((d, least, beyond) if d == name else (d, lo, hi) for d, lo, hi in box)
        made.append((part, _decided(value, name, least, beyond, values)))
    return made


def difference(comparison: Expr, values: Mapping[str, int]) -> Linear | None:
    """What a comparison of sums of indices compares with 0; None for any other."""
    if not isinstance(comparison, Binary) or comparison.op not in COMPARISONS:
        return None
    left, right = affine_form(comparison.left, values), affine_form(comparison.right, values)
    if left is None or right is None:
        return None
    found = Linear.of(left[1] - right[1])
    for sign, form in ((1, left[0]), (-1, right[0])):
        for dim, factor in form.items():
            found = found + Linear.of(dim).times(sign * factor)
    return found


def truth(comparison: Expr, form: Linear, ranges: Ranges) -> bool | None:
    """Whether a comparison of a difference holds for all values in some ranges, or for none."""
    assert isinstance(comparison, Binary)
    reach = limits(form, ranges)
    if reach is None:
        return None
    always, never = COMPARISONS[comparison.op](*reach)
    return True if always else False if never else None


def changes(comparison: Expr, form: Linear, variable: str) -> Iterator[int]:
    """The values of a variable at which a comparison differs from what it is just before."""
    step = form.coefficient(variable)
    near = -form.constant // step if step else 0  # where both sides are equal, or just before
    for at in range(near, near + 3) if step else ():
        if truth(comparison, form, {variable: (at, at)}) != truth(comparison, form, {variable: (at - 1, at - 1)}):
            yield at


def _form(condition: Expr, name: str, values: Mapping[str, int]) -> Linear | None:
    """The difference of an inequality that one index decides, which changes it by one."""
    form = difference(condition, values)
    alone = form is not None and form.variables == {name} and form.coefficient(name) in (-1, 1)
    return form if alone and isinstance(condition, Binary) and condition.op not in ("==", "!=") else None


def _change(condition: Expr, name: str, values: Mapping[str, int]) -> int | None:
    """The first value of an index at which a condition differs from what it is just before."""
    form = _form(condition, name, values)
    return None if form is None else next(changes(condition, form, name), None)


def _decided(value: Expr, name: str, least: int, beyond: int, values: Mapping[str, int]) -> Expr:
    """The value with every choice made that depends on one index alone and is the same between two of its values."""
    if isinstance(value, Select) and (form := _form(value.condition, name, values)) is not None:
        if (holds := truth(value.condition, form, {name: (least, beyond - 1)})) is not None:
            return _decided(value.then if holds else value.other, name, least, beyond, values)
    return rebuild(value, lambda child: _decided(child, name, least, beyond, values))
