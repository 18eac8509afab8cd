"""Map to threads: each statement's share of the work for every thread of a block, and the loops that one thread runs.

The members of the band below the mark ``Threads`` are the digits of the thread's number, the last one counting fastest. ``Reduce`` above
it says that the threads of the last digit combine their values, ``Mma`` that each warp computes its part on tensor cores, ``AsyncCopy``
that copies may arrive later, at the mark ``WaitGroup``. Below it stand ``Unroll`` and ``Vector``, above loops of one thread, and ``Atomic``
above the loops of a scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import islpy as isl

from tcjit.grammar.affine import isl_name
from tcjit.mapping.gpu_nest import UNROLLED, Distribution, GpuKernel, GroupPlan, StatementPlan
from tcjit.mapping.marks import AsyncCopy, Atomic, Mma, Reduce, Scatter, Threads, Unroll, Vector
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.tree import KIND, insert_band, insert_mark, kind, rewrite, statements_below

UNROLLED_ROUNDS = 128  # results of one thread that are kept apart: those of a warp's share on tensor cores
UNROLLED_COPIES = 32  # rounds of a copy that are worth unrolling

Shares = Sequence[tuple[str, Distribution]]  # of dimensions


def map_to_threads(scop: Scop, tree: isl.Schedule, kernels: Sequence[GpuKernel]) -> isl.Schedule:
    """The tree with every leaf replaced by what threads do of its statement."""
    mapped = {name: found for kernel in kernels for name, found in kernel.items.items()}

    def visit(node: isl.ScheduleNode) -> isl.ScheduleNode:
        if kind(node) != KIND.leaf:
            return node
        names = statements_below(node)  # none, where constraints leave a statement without instances
        return _region(scop, node, *mapped[names[0]]) if names else node

    return rewrite(tree, visit)


def _region(scop: Scop, node: isl.ScheduleNode, item: StatementPlan, plan: GroupPlan) -> isl.ScheduleNode:
    def band(node: isl.ScheduleNode, texts: Sequence[str], coincident: Sequence[int] = ()) -> isl.ScheduleNode:
        return insert_band(scop, node, [{item.statement: text} for text in texts], coincident)

    digits = plan.digits(item) or [("0", "thread", Distribution(0, 1, 1))]
    members = [share.text(level, dim) for dim, level, share in digits]
    s = scop.statement(item.statement)
    plain, unrolled, vector = _loops(s, item, plan)
    # built from the inside out: each new node goes above the last one
    if vector:
        node = insert_mark(band(node, vector), Vector())
    if unrolled:
        node = band(node, unrolled)
    if unrolled or vector:
        node = insert_mark(node, Unroll())
    if plain:
        node = band(node, plain)
    for dim in reversed(s.scatter):
        node = insert_mark(band(node, [isl_name(dim)]), Scatter())
    if s.scatter:
        node = insert_mark(node, Atomic())
    node = band(node, members, range(len(members) - item.reduce))
    node = insert_mark(node, Threads(tuple(share.levels[level][1] for _, level, share in digits)))
    for mark, stands in ((Reduce(), item.reduce), (Mma(), item.mma), (AsyncCopy(), item.async_copy)):
        if stands:
            node = insert_mark(node, mark)
    return node


def _loops(s: ScopStatement, item: StatementPlan, plan: GroupPlan) -> tuple[list[str], list[str], list[str]]:
    """The loops that one thread runs, outermost first: those that stay, those that are unrolled, and the one over neighbours."""
    lane = [item.lane] if item.lane else []
    spread = item.axes or [*lane, *zip(item.columns, plan.columns, strict=True)]
    # the vector loop of the fastest digit comes last, next to memory
    ranked = item.axes or sorted(spread, key=lambda pair: _rank(plan, item, pair[0]))
    own = sorted((d for d in s.dims if d not in s.scatter and item.share(d, plan.columns) is None), key=lambda dim: dim in s.reduction)
    steps = dict(item.steps)
    terms = [(dim, steps[dim]) for dim in s.dims if dim in steps and min(steps[dim].tile, steps[dim].extent) > 1]
    vectors = _texts("vector", ranked)
    # what a step's unrolled terms follow must stand before them
    loops = [*map(isl_name, own), *_texts("round", terms), *_texts("round", spread), *vectors]
    rounds = prod(share.rounds for _, share in spread)
    results = rounds * prod(share.vector for _, share in spread)
    unrolled = len(vectors)
    if rounds <= UNROLLED_COPIES if item.reader else results <= UNROLLED_ROUNDS:
        unrolled += len(_texts("round", spread))
        if results * prod(min(share.tile, share.extent) for share in steps.values()) <= UNROLLED:
            unrolled += len(terms)
    plain = len(loops) - unrolled
    return loops[:plain], loops[plain : len(loops) - bool(vectors)], vectors[-1:]


def _texts(level: str, shares: Shares) -> list[str]:
    """The digits of some dimensions that have several values."""
    return [share.text(level, dim) for dim, share in shares if share.levels[level][1] > 1]


def _rank(plan: GroupPlan, item: StatementPlan, dim: str) -> int:
    role = item.role(dim)
    if role == "lane":
        return -1 if plan.lane_first else len(plan.order)
    return plan.order.index(role) if role in plan.order else -1
