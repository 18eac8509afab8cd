"""Extremes whose terms under a condition on indices are one value for all: its update once, of the results that have such a term."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tcjit.grammar.affine import condition
from tcjit.grammar.ast import Access, Expr, Select
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import walk
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.instances import Instances, results_of
from tcjit.mapping.reduction import combined, is_identity


def wrong_selects(instances: Instances, old: Assignment, new: Sequence[Assignment]) -> str:
    """What is wrong with an extreme of fewer terms and an update of its results in the place of an extreme."""
    if len(new) != 2 or old.operator not in ("max=", "min=") or old.start is None:
        return "no extreme and an update"
    inside, border = new
    pair = inside.value, border.value
    if replace(inside, value=old.value) != old or replace(border, value=old.value) != replace(
        results_of(old), operator="=", value=old.value, start=None
    ):
        return "results are lost"
    if not isinstance(old.value, Select) or not isinstance(pair[0], Select) or not isinstance(pair[1], Select):
        return "there is no condition"
    if (pair[0].condition, pair[0].dtype) != (old.value.condition, old.value.dtype):
        return "the terms have another condition"
    result = Access(old.tensor, old.subscripts, dtype=old.value.dtype)
    for kept, gone, truth in (("then", "other", True), ("other", "then", False)):
        value: Expr = getattr(old.value, gone)
        same = getattr(pair[0], kept) == getattr(old.value, kept) and is_identity(getattr(pair[0], gone), old.operator)
        updates = (pair[1].then, pair[1].other) == (combined(old.operator, result, value), result)
        moves = names(value).keys() & {*old.reduction} or any(isinstance(part, Access) for part in walk(value))
        if same and updates and not moves:
            return _wrong_border(instances, old, pair[1].condition, truth)
    return "a term has another value"


def _wrong_border(instances: Instances, old: Assignment, outside: Expr, truth: bool) -> str:
    """Whether the results that are updated are not those which have a term where the condition is not ``truth``."""
    assert isinstance(old.value, Select)
    texts = condition(old.value.condition, instances.values), condition(outside, instances.values)
    if texts[0] is None or texts[1] is None:
        return "a condition is not affine"
    whole = results_of(old)
    gone = instances.instances(old).intersect(instances.where(old, f"not ({texts[0]})" if truth else texts[0]))
    updated = instances.instances(whole).intersect(instances.where(whole, texts[1]))
    reached = gone.apply(instances.map(old.dims, whole.dims))
    return "" if reached.is_equal(updated) else "other results have such a term"
