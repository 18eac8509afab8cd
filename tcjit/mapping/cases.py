"""Cases: cut a statement where a condition on one index of its results changes, so that each part is computed without asking.

``(t >= 32 ? A(k, t - 32) * W(c, k) : 0.0)`` summed over ``k`` is a product of plain reads for ``t >= 32`` and zero below. Contractions on
explicit vectors need such plain terms. ``(t < 32 ? A(t) : B(t - 32))`` joins two tensors: two copies, each as fast as memory. The values
are the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from tcjit.grammar.ast import Binary, Expr, Select
from tcjit.grammar.walk import rebuild, walk
from tcjit.mapping.reduction import is_product
from tcjit.mapping.storage import Bounds
from tcjit.mapping.strides import affine_form

MOST_CASES = 4  # parts of a sum: every one is code of its own
MOST_JOINED = 32  # parts of an assignment: every one is a statement to schedule


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


def _form(condition: Expr, name: str, values: Mapping[str, int]) -> tuple[str, int, int] | None:
    """``factor * name + constant`` and its comparison with 0."""
    if not isinstance(condition, Binary) or condition.op not in ("<", ">", "<=", ">="):
        return None
    left, right = affine_form(condition.left, values), affine_form(condition.right, values)
    if left is None or right is None:
        return None
    factors = {d: f for d in {**left[0], **right[0]} if (f := left[0].get(d, 0) - right[0].get(d, 0))}
    return (condition.op, factors[name], left[1] - right[1]) if list(factors) == [name] and abs(factors[name]) == 1 else None


def _holds(form: tuple[str, int, int], at: int) -> bool:
    op, factor, constant = form
    value = factor * at + constant
    return {"<": value < 0, ">": value > 0, "<=": value <= 0, ">=": value >= 0}[op]


def _change(condition: Expr, name: str, values: Mapping[str, int]) -> int | None:
    """The first value of an index at which a condition differs from what it is just before."""
    form = _form(condition, name, values)
    if form is None:
        return None
    near = -form[2] * form[1]  # where the two sides are equal
    return next((at for at in (near, near + 1) if _holds(form, at) != _holds(form, at - 1)), None)


def _decided(value: Expr, name: str, least: int, beyond: int, values: Mapping[str, int]) -> Expr:
    """The value with every choice made that depends on one index alone and is the same between two of its values."""
    if isinstance(value, Select) and (form := _form(value.condition, name, values)) is not None:
        change = _change(value.condition, name, values)
        if change is None or not least < change < beyond:
            return _decided(value.then if _holds(form, least) else value.other, name, least, beyond, values)
    return rebuild(value, lambda child: _decided(child, name, least, beyond, values))
