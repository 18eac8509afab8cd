"""Sums that conditions on data have left: the same factors, and 0 wherever a condition fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tcjit.grammar.ast import Access, Expr, Index, Select
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import with_names
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.equality import reads_inside
from tcjit.mapping.instances import results_of
from tcjit.mapping.reduction import guarded_factors, identity, is_identity


def wrong_unswitched(before: Assignments, after: Assignments, old: Assignment, new: Sequence[Assignment]) -> str:
    """What is wrong with copies of factors, a sum of products, and perhaps a choice of its results, in the place of a sum."""
    apart = bool(new) and not new[-1].reduction
    *copies, update = new[:-1] if apart else new
    made = {copy.tensor: copy for copy in copies}
    started = old.operator == "+=" and old.start == identity("+=", old.value.dtype) and old.tensor not in old.inputs
    if made.keys() & before.storages.keys() or len(made) < len(copies) or not started:
        return "the copies are no temporaries of one sum"
    conditions, wanted = guarded_factors(old.value)
    kept, product = guarded_factors(update.value)
    guards = Counter(conditions) - Counter(kept)
    if Counter(kept) - Counter(conditions):
        return "a condition is new"

    def guarded(factor: Expr) -> Expr | None:
        """The factor that an element of a copy is where the conditions hold, and 0 where one fails."""
        if not isinstance(factor, Access) or factor.tensor not in made:
            return None
        copy, places = made[factor.tensor], [sub.name for sub in factor.subscripts if isinstance(sub, Index)]
        own = [sub.name for sub in copy.subscripts if isinstance(sub, Index)]
        if len(own) != len(copy.subscripts) or len({*places}) != len(own) or copy.operator != "=" or copy.dims != tuple(own):
            return None
        if copy.constraints or copy.dynamic or [copy.ranges[name] for name in own] != [old.ranges.get(name) for name in places]:
            return None
        found, value = _chosen(with_names(copy.value, dict(zip(own, places, strict=True))))
        inside = not guards - Counter(found) and Counter(found) <= Counter(conditions)
        return value if inside and reads_inside(replace(after, assignments=(copy,)), copy) else None

    inside = [guarded(factor) for factor in product]
    if Counter(one or factor for one, factor in zip(inside, product, strict=True)) != Counter(wanted):
        return "a factor changed"
    same = replace(update, tensor=old.tensor, subscripts=old.subscripts, value=old.value) == old
    if not apart:
        same = same and (update.tensor, update.subscripts) == (old.tensor, old.subscripts)
        return "" if same and None not in inside else "a term is not 0"
    store = new[-1]
    chosen, value = _chosen(store.value)
    moving = {name for guard in guards for name in names(guard)} & {*old.reduction}
    results = update.tensor not in before.storages and sorted(update.dims) == sorted(old.dims) and not moving
    if not same or not results or value != Access(update.tensor, update.subscripts, dtype=old.value.dtype) or Counter(chosen) != guards:
        return "the results are not what was summed"
    if replace(store, value=old.value) != replace(results_of(old), operator="=", value=old.value, start=None):
        return "results are lost"
    return "" if reads_inside(replace(after, assignments=(update,)), update) else "the sum reads what is not there"


def _chosen(value: Expr) -> tuple[list[Expr], Expr]:
    """The conditions under which a value is another one, and 0 elsewhere."""
    conditions = []
    while isinstance(value, Select) and is_identity(value.other, "+="):
        conditions.append(value.condition)
        value = value.then
    return conditions, value
