"""Cases: cut a sum where a condition on one index of its results changes, so that each part sums up plain products.

``(t >= 32 ? A(k, t - 32) * W(c, k) : 0.0)`` summed over ``k`` is a product of plain reads for ``t >= 32`` and zero below. Contractions on
explicit vectors need such plain terms; the values are the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from tcjit.grammar.ast import Binary, Expr, Select
from tcjit.grammar.walk import rebuild, walk
from tcjit.mapping.pack import is_product
from tcjit.mapping.storage import Bounds
from tcjit.mapping.strides import affine_form

MOST_CASES = 4  # parts of a sum: every one is code of its own


def cases(value: Expr, left: Bounds, values: Mapping[str, int], moving: Container[str] = ()) -> list[tuple[Bounds, Expr]]:
    """The boxes of the results and what is summed up in each; one, with the value itself, where cutting makes no products of it.

    ``left`` bounds the indices of the results; the range of one of the ``moving`` depends on dynamic sizes.
    """
    whole = [(left, value)]
    for name, lower, upper in left:
        if name in moving:
            continue
        cuts = {lower, upper}
        for node in walk(value):
            if isinstance(node, Select) and (change := _change(node.condition, name, values)) is not None and lower < change < upper:
                cuts.add(change)
        if not 2 < len(cuts) <= MOST_CASES + 1:
            continue
        ends = sorted(cuts)
        made = []
        for least, beyond in zip(ends, ends[1:], strict=False):
            box = tuple((d, least, beyond) if d == name else (d, lo, hi) for d, lo, hi in left)
            made.append((box, _decided(value, name, least, values)))
        if all(is_product(part) for _, part in made):
            return made
    return whole


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


def _decided(value: Expr, name: str, at: int, values: Mapping[str, int]) -> Expr:
    """The value with every choice made that depends on one index alone, as for ``at``."""
    if isinstance(value, Select) and (form := _form(value.condition, name, values)) is not None:
        return _decided(value.then if _holds(form, at) else value.other, name, at, values)
    return rebuild(value, lambda child: _decided(child, name, at, values))
