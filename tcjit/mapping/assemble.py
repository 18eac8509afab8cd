"""From plans to kernels: the loops of blocks, of tiles and of steps, and the order of statements in them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce
from itertools import groupby

from tcjit.mapping.gpu_nest import BlockNode, GpuKernel, GroupPlan, SequentialLoops, by_kernel
from tcjit.mapping.marks import GridBlock
from tcjit.mapping.scop_builder import LoweredScop


def assemble(lowered: LoweredScop) -> tuple[GpuKernel, ...]:
    """A kernel for each plan, or for those that are fused, its buffers those of the copies."""
    return tuple(_kernel(lowered, plans, GridBlock(number)) for number, plans in enumerate(by_kernel(lowered.plans)))


def _kernel(lowered: LoweredScop, plans: tuple[GroupPlan, ...], mark: GridBlock) -> GpuKernel:
    phases = [_phase(plan) for plan in plans]
    # the columns that have blocks are those that all plans share, in one order
    blocks = tuple(reduce(dict.__or__, columns) for columns in zip(*(blocks for blocks, _ in phases), strict=True))
    buffers = tuple(buffer for buffer in lowered.buffers if buffer.mark == mark)
    return GpuKernel(plans, blocks, tuple(node for _, body in phases for node in body), buffers)


def _phase(plan: GroupPlan) -> tuple[list[dict[str, str]], tuple[BlockNode, ...]]:
    """The block loops of a plan, and what a block does."""
    copies = {item.statement for item in plan.items if item.reader}
    body: list[BlockNode] = []
    for _, group in groupby(plan.items, lambda item: item.reader or item.statement):
        together = tuple(group)
        steps = zip(*([pair for pair in item.steps if pair[1].tiles > 1] for item in together), strict=True)
        loops = [{item.statement: share.text("block", dim) for item, (dim, share) in zip(together, step, strict=True)} for step in steps]
        body += _looped(loops, [item.statement for item in together], copies, plan.stages if len(together) > 1 else 1)
    members: dict[str, list[dict[str, str]]] = {"block": [], "tile": []}
    for c, share in enumerate(plan.columns):
        for level, loops in members.items():
            if share.levels[level][1] > 1:
                loops.append({item.statement: item.column(c, plan.columns).text(level, item.columns[c]) for item in plan.items})
    stages = plan.stages if copies and plan.ahead_over_tiles > 1 else 1
    return members["block"], tuple(_looped(members["tile"], body, copies, stages))


def _looped(loops: list[dict[str, str]], body: Sequence[BlockNode], copies: Collection[str], stages: int) -> Sequence[BlockNode]:
    """A body in loops, if there are any, in whose last one copies run ahead of the ``stages``."""
    if not loops:
        return body
    last = {name: f"{text} - {stages - 1}" if name in copies else text for name, text in loops[-1].items()}
    return [SequentialLoops((*loops[:-1], last), tuple(body), stages)]
