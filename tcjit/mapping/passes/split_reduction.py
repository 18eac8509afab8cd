"""Split reduction: let the threads of a block share a reduction, with a partial result each.

A reduction along the lane becomes a partial result for each of the lane's threads, which every thread accumulates by itself, and a
statement that combines them in a fixed order.
"""

from __future__ import annotations

from dataclasses import replace

from tcjit.grammar.affine import isl_name
from tcjit.grammar.arithmetic import index
from tcjit.grammar.ast import Access
from tcjit.mapping.gpu_nest import Distribution, GroupPlan, StatementPlan
from tcjit.mapping.reduction import identity
from tcjit.mapping.scop import ScopStatement
from tcjit.mapping.scop_builder import LoweredScop, ScopBuilder, items_with, owner
from tcjit.mapping.storage import fresh


def split_reduction(lowered: LoweredScop) -> LoweredScop:
    """The scop with every reduction along a lane in parts."""
    draft = ScopBuilder(lowered)
    return draft.done([_plan(draft, plan) for plan in lowered.plans])


def _plan(draft: ScopBuilder, plan: GroupPlan) -> GroupPlan:
    for item in plan.items:
        s = draft.statements[item.statement]
        if item.lane and item.lane[0] in s.reduction and item.lane[1].threads > 1:
            before, after = _split(draft, plan, item, s, item.lane[1])
            plan = replace(plan, items=items_with(plan.items, {item.statement: [before]}, {item.statement: [after]}))
    return plan


def _split(
    draft: ScopBuilder, plan: GroupPlan, item: StatementPlan, s: ScopStatement, share: Distribution
) -> tuple[StatementPlan, StatementPlan]:
    """The items that start the parts and that combine them; the statement itself now accumulates into the parts."""
    assert item.lane is not None
    dim = item.lane[0]
    storage = next(t for t in draft.tensors if t.name == s.tensor)
    extents = (None, *storage.dynamic_extents) if storage.dynamic_extents else ()
    part = draft.temporary(f"{s.tensor}_part", storage.dtype, (share.threads, *storage.shape), extents)
    axes = [f"a{i}" for i in range(len(storage.shape))]
    draft.aliases[part.name] = f"{{ {isl_name(part.name)}[{', '.join(['t', *axes])}] -> {isl_name(storage.name)}[{', '.join(axes)}] }}"
    draft.statements[s.name] = replace(s, tensor=part.name, subscripts=(owner(dim, share), *s.subscripts))

    left = tuple(bound for bound in s.bounds if bound[0] not in s.reduction)
    thread = fresh("thread", {name for name, _, _ in s.bounds})
    limits = (thread, 0, share.threads)
    lane = (thread, Distribution(0, share.threads, share.threads, share.threads))
    at = (index(thread), *s.subscripts)
    first = draft.add("I", s, part.name, at, "=", identity(s.operator, storage.dtype), (*left, limits))
    combined = Access(part.name, at, dtype=storage.dtype)
    last = draft.add("R", s, s.tensor, s.subscripts, s.operator, combined, (*left, limits), reduction=(thread,))
    # shuffles serve runs of a power of two of neighbouring threads with one result each; others are added up one after the other
    one_each = all(share.per_thread == 1 for share in plan.columns) and all(name in item.columns for name, _, _ in left)
    together = share.threads & (share.threads - 1) == 0 and not plan.lane_first and one_each
    combine = StatementPlan(last, item.columns, lane, reduce=True) if together else StatementPlan(last, item.columns)
    return StatementPlan(first, item.columns, lane), combine
