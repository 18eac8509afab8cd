"""Tables of functions of indices, and of data: what an assignment reads of them is what it computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from tcjit.grammar.arithmetic import index
from tcjit.grammar.ast import Access, Binary, Const, Expr, Select
from tcjit.grammar.walk import rebuild, with_accesses, with_index
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.equality import reads_inside
from tcjit.mapping.instances import Instances


def _without_truths(value: Expr) -> Expr:
    """A value in which conditions stand for the comparison of 1 where they hold, and 0 elsewhere, with 0."""
    value = rebuild(value, _without_truths)
    match value:
        case Binary(op="!=", left=Select(condition=test, then=Const(value=1.0), other=Const(value=0.0)), right=Const(value=0.0)):
            return test
    return value


def wrong_tables(proof: Instances, before: Assignments, after: Assignments, old: Assignment, new: Sequence[Assignment]) -> str:
    """Tables of functions of indices and of elements, read at subscripts for which they are what was computed."""
    *tables, update = new
    made = {table.tensor: table for table in tables}
    for table in tables:
        storage, places = after.storages[table.tensor], tuple(index(name) for name in table.dims)
        whole = table.subscripts == places and table.bounds == tuple((name, 0, end) for name, end in zip(table.dims, storage.shape))
        plain = table.operator == "=" and storage.role == "temporary" and storage.dtype == table.value.dtype and not table.constraints
        changes = table.inputs & {old.tensor, *made} or not reads_inside(after, table)
        if table.tensor in before.storages or changes or not (whole and plain) or set(table.dims) & set(old.dims):
            return "a table is no function of its indices and of what stays as it is"

    def computed(access: Access) -> Expr:
        if access.tensor not in made:
            return access
        places = zip(made[access.tensor].dims, access.subscripts, strict=True)
        return reduce(lambda value, place: with_index(value, *place), places, made[access.tensor].value)

    if replace(update, value=old.value) != old or not reads_inside(after, update):
        return "the update changed"
    value = _without_truths(with_accesses(update.value, computed))
    same = proof.agree(old.value, value, proof.instances(old), old)
    return "" if same else "a table has another value"
