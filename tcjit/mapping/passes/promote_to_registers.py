"""Promote to registers: outputs that a group accumulates or changes, and inputs that it reads several times, as temporaries.

An output is stored once, at the end; an input is loaded once. ``allocate`` puts the temporaries in registers, or in shared memory where
threads read each other's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from tcjit.grammar.ast import Access, Expr
from tcjit.mapping.gpu_nest import GroupPlan, StatementPlan
from tcjit.mapping.scop import ScopStatement
from tcjit.mapping.scop_builder import LoweredScop, ScopBuilder, items_with, plain_dims
from tcjit.mapping.strides import KEPT, accesses

Place = tuple[str | int | None, ...]  # the roles of the subscripts


def promote_to_registers(lowered: LoweredScop) -> LoweredScop:
    """The scop with the promoted outputs and inputs."""
    draft = ScopBuilder(lowered)
    plans = []
    used = [_used(draft, plan) for plan in lowered.plans]
    for number, plan in enumerate(lowered.plans):
        later = set[str]().union(*used[number + 1 :])
        elsewhere = later.union(*used[:number])
        plans.append(_inputs(draft, _outputs(draft, plan, elsewhere, later)))
    return draft.done(plans)


def _used(draft: ScopBuilder, plan: GroupPlan) -> set[str]:
    """The tensors that a group touches."""
    return {access.tensor for item in plan.items for access in accesses(draft.statements[item.statement])}


def _place(item: StatementPlan, access: Access) -> Place | None:
    """Where the subscripts stand in the group; None unless each is a column or the lane."""
    place = tuple(map(item.role, plain_dims(access.subscripts) or ()))
    whole = set(place) - {"lane"} == set(range(len(item.columns)))
    return place if whole and len(place) == len(access.subscripts) else None


def _outputs(draft: ScopBuilder, plan: GroupPlan, elsewhere: set[str], later: set[str]) -> GroupPlan:
    """With what it writes for others, in groups before or ``later``, held until it is stored; what nobody reads later is not stored."""
    written = dict.fromkeys(draft.statements[item.statement].tensor for item in plan.items)
    for tensor in written:
        storage = draft.scop.tensor(tensor)
        if storage.role == "temporary" and tensor not in elsewhere:
            continue
        users = [item for item in plan.items if any(a.tensor == tensor for a in accesses(draft.statements[item.statement]))]
        places = {_place(item, a) for item in users for a in accesses(draft.statements[item.statement]) if a.tensor == tensor}
        place = next(iter(places))
        if any(item.lane[1].per_thread > KEPT for item in users if item.lane and place is not None and "lane" in place):
            continue  # too long a row to stay anywhere but in memory
        if len(places) > 1 or place is None or (len(users) == 1 and draft.statements[users[0].statement].operator == "="):
            continue
        if len({_box(draft.statements[item.statement], tensor) for item in users}) > 1:
            continue  # a store of the whole box would write what nobody computed
        last = [item for item in users if draft.statements[item.statement].tensor == tensor][-1]
        begins = draft.statements[users[0].statement]
        starts = begins.operator == "=" and begins.tensor == tensor and all(a.tensor != tensor for a, _ in begins.reads)
        dead = storage.role == "temporary" and tensor not in later
        plan = _promoted(draft, plan, tensor, dict.fromkeys(users), None if starts else users[0], None if dead else last)
    return plan


def _promoted(
    draft: ScopBuilder,
    plan: GroupPlan,
    tensor: str,
    users: Mapping[StatementPlan, tuple[Expr, ...] | None],
    first: StatementPlan | None,
    last: StatementPlan | None = None,
) -> GroupPlan:
    """With a temporary in the place of a tensor that ``users`` access, at all subscripts or some, which is loaded before the ``first`` of
    them and stored after the ``last``, if there are such."""
    storage = draft.scop.tensor(tensor)
    copy = draft.copy_of(storage)

    def renamed(access: Access, subscripts: tuple[Expr, ...] | None) -> Access:
        return replace(access, tensor=copy.name) if access.tensor == tensor and subscripts in (None, access.subscripts) else access

    for item, subscripts in users.items():
        draft.change(item.statement, partial(renamed, subscripts=subscripts))
    before = {first.statement: [_move(draft, "L", first, copy.name, tensor, storage.dtype)]} if first else {}
    after = {last.statement: [_move(draft, "W", last, tensor, copy.name, storage.dtype)]} if last else {}
    return replace(plan, items=items_with(plan.items, before, after))


def _box(s: ScopStatement, tensor: str) -> tuple[tuple[str, str], ...]:
    """The elements of a tensor that a statement uses, as limits along each axis."""
    access = next(a for a in accesses(s) if a.tensor == tensor)
    return tuple(s.range(dim) for dim in plain_dims(access.subscripts) or ())


def _move(draft: ScopBuilder, kind: str, item: StatementPlan, target: str, source: str, dtype: str) -> StatementPlan:
    """A statement that copies the elements of ``source`` that an item uses to ``target``."""
    s = draft.statements[item.statement]
    access = next(a for a in accesses(s) if a.tensor in (target, source))
    dims = plain_dims(access.subscripts) or ()
    bounds = tuple(bound for bound in s.bounds if bound[0] in dims)
    name = draft.add(kind, s, target, access.subscripts, "=", Access(source, access.subscripts, dtype=dtype), bounds)
    lane = item.lane if item.lane and item.lane[0] in dims else None
    return StatementPlan(name, tuple(dim if dim in dims else "" for dim in item.columns), lane)


def _inputs(draft: ScopBuilder, plan: GroupPlan) -> GroupPlan:
    """Load once what several statements read along the lane."""
    readers: dict[tuple[str, Place, tuple[tuple[str, str], ...]], dict[StatementPlan, tuple[Expr, ...]]] = {}
    written = {draft.statements[item.statement].tensor for item in plan.items}
    for item in plan.items:
        s = draft.statements[item.statement]
        for access, guards in s.reads:
            place = _place(item, access)
            if place and "lane" in place and access.tensor not in written and not guards and not s.constraints:
                readers.setdefault((access.tensor, place, _box(s, access.tensor)), {})[item] = access.subscripts
    for (tensor, _, _), subscripts_of in readers.items():
        if len(subscripts_of) < 2 or any(item.lane[1].per_thread > KEPT for item in subscripts_of if item.lane):
            continue
        plan = _promoted(draft, plan, tensor, subscripts_of, next(iter(subscripts_of)))
    return plan
