"""From statements and plans to kernels: which thread runs which instance, and in which loops."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod

from tcjit.grammar.affine import isl_name
from tcjit.mapping.gpu_nest import (
    BlockNode,
    Distribution,
    GpuKernel,
    GroupPlan,
    MappedStatement,
    SequentialLoops,
    StagedCopy,
    StatementPlan,
    by_kernel,
)
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.scop_builder import LoweredScop

UNROLLED_ROUNDS = 128  # results of one thread that are kept apart: those of a warp's share on tensor cores
UNROLLED = 1024  # statements of a completely unrolled piece of a reduction


def assemble(lowered: LoweredScop) -> tuple[GpuKernel, ...]:
    """A kernel for each plan, or for those that are fused, its buffers those of the copies."""
    return tuple(_kernel(lowered, plans) for plans in by_kernel(lowered.plans))


def _kernel(lowered: LoweredScop, plans: Sequence[GroupPlan]) -> GpuKernel:
    phases = [_phase(lowered, plan) for plan in plans]
    # the columns that have blocks are those that all plans share, in one order
    blocks = tuple(reduce(dict.__or__, columns) for columns in zip(*(blocks for blocks, _ in phases), strict=True))
    buffers = tuple(copy.buffer for plan in plans for copy in _copies(lowered, plan))
    return GpuKernel(blocks, tuple(node for _, body in phases for node in body), max(plan.threads for plan in plans), buffers)


def _copies(lowered: LoweredScop, plan: GroupPlan) -> list[StagedCopy]:
    names = {item.statement for item in plan.items}
    return [copy for copy in lowered.copies if copy.reader in names]


def _phase(lowered: LoweredScop, plan: GroupPlan) -> tuple[list[dict[str, str]], tuple[BlockNode, ...]]:
    """The block loops of a plan, and what a block does."""
    copies = _copies(lowered, plan)
    body: list[BlockNode] = []
    for item in plan.items:
        own = [copy for copy in copies if copy.reader == item.statement]
        phases = (*(part for copy in own for part in copy.fills), region(lowered.scop, plan, item))
        stepped = [(dim, share) for dim, share in item.steps if share.tiles > 1]
        if stepped:
            stages = plan.stages if own else 1
            ahead = [0] * (len(stepped) - 1) + [stages - 1]
            loops = tuple(_step(item, own, *pair, number, ahead[number]) for number, pair in enumerate(stepped))
            body.append(SequentialLoops(loops, phases, stages))
        else:
            body += phases
    blocks, tiles = list[dict[str, str]](), list[dict[str, str]]()
    for number, (c, share) in enumerate((c, share) for c, share in enumerate(plan.columns) if share.tiles > 1):
        of_copies = [(part.statement, *copy.blocks[number]) for copy in copies for part in copy.fills]
        if share.blocks > 1:
            members = {item.statement: share.block_text(item.columns[c]) for item in plan.items}
            blocks.append(members | {name: numbers.block_text(dim) for name, dim, numbers in of_copies})
        if share.sequence > 1:
            members = {item.statement: share.sequence_text(item.columns[c]) for item in plan.items}
            tiles.append(members | {name: numbers.sequence_text(dim) for name, dim, numbers in of_copies})
    stages = plan.stages if copies and plan.ahead_over_tiles > 1 else 1
    filled = {part.statement for copy in copies for part in copy.fills}
    if stages > 1:
        tiles[-1] = {name: f"{text} - {stages - 1}" if name in filled else text for name, text in tiles[-1].items()}
    return blocks, (SequentialLoops(tuple(tiles), tuple(body), stages),) if tiles else tuple(body)


def _step(item: StatementPlan, copies: list[StagedCopy], dim: str, share: Distribution, number: int, ahead: int) -> dict[str, str]:
    filled = {part.statement: f"{copy.steps[number]} - {ahead}" for copy in copies for part in copy.fills}
    return {item.statement: share.tile_text(dim)} | filled


def region(scop: Scop, plan: GroupPlan, item: StatementPlan) -> MappedStatement:
    """The threads and inner loops of one statement."""
    s = scop.statement(item.statement)
    columns = [(plan.columns[c], item.columns[c]) for c in plan.order]
    members = [share.warp_text(dim) for share, dim in columns if share.warps > 1]
    members += [share.thread_text(dim) for share, dim in columns if share.threads > 1]
    if plan.lane_threads > 1:
        member = item.lane[1].thread_text(item.lane[0]) if item.lane else "0"
        members = [member, *members] if plan.lane_first else [*members, member]
    all_columns = list(zip(plan.columns, item.columns, strict=True))
    spread = [*([(item.lane[1], item.lane[0])] if item.lane else []), *all_columns]
    rounds = [(share.round_text(dim), share.rounds) for share, dim in spread if share.rounds > 1]
    # the vector loop of the fastest digit comes last, next to memory
    ranked = sorted(spread, key=lambda pair: _rank(plan, item, pair[1]))
    vectors = [(share.vector_text(dim), share.vector) for share, dim in ranked if share.vector > 1]
    loops = [text for text, _ in (*_rest(s, item), *rounds, *vectors)]
    points = prod(trips for _, trips in (*rounds, *vectors))
    unrolled = len(vectors)
    if points <= UNROLLED_ROUNDS:
        unrolled += len(rounds)
        steps = [share for _, share in item.steps]
        if steps and points * prod(min(share.tile, share.extent) for share in steps) <= UNROLLED:
            unrolled += sum(min(share.tile, share.extent) > 1 for share in steps)
    shares = tuple((dim, share) for dim in s.dims if (share := item.share(dim, plan.columns)) is not None)
    return MappedStatement(
        s.name,
        plan.radices,
        tuple(members) or ("0",),
        tuple(loops),
        unrolled,
        bool(vectors),
        item.reduce,
        item.mma,
        shares=shares,
    )


def _rank(plan: GroupPlan, item: StatementPlan, dim: str) -> int:
    if item.lane and item.lane[0] == dim:
        return -1 if plan.lane_first else len(plan.order)
    column = item.columns.index(dim)
    return plan.order.index(column) if column in plan.order else -1


def _rest(s: ScopStatement, item: StatementPlan) -> list[tuple[str, int]]:
    """The loops that each thread runs through by itself: dimensions of no column and no lane, the terms of a reduction last."""
    steps = dict(item.steps)
    outer: list[tuple[str, int]] = []
    inner: list[tuple[str, int]] = []
    for dim in s.dims:
        if dim in item.columns or (item.lane and item.lane[0] == dim):
            continue
        if dim in steps:
            share = steps[dim]
            if min(share.tile, share.extent) > 1:
                inner.append((share.local_text(dim), min(share.tile, share.extent)))
        else:
            (inner if dim in s.reduction else outer).append((isl_name(dim), s.extent(dim)))
    # what a step's unrolled terms follow must stand before them
    return [*outer, *sorted(inner, key=lambda loop: any(share.local_text(d) == loop[0] for d, share in item.steps))]
