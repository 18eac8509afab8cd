"""Map to blocks: a launch for each kernel, its outer coincident loops as a grid of blocks, and the steps that a block's threads take.

Where copies run ahead of what reads them, the mark ``WaitGroup`` stands above the body of the steps: all copies have arrived but
those of the last steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from tcjit.mapping.gpu_nest import BlockNode, GpuKernel, SequentialLoops, mapped_statements
from tcjit.mapping.isl import member, stack
from tcjit.mapping.marks import Grid, GridBlock, Launch, Sync, WaitGroup
from tcjit.mapping.passes.fuse import filters
from tcjit.mapping.scop import Scop
from tcjit.mapping.tree import insert_mark


def map_to_blocks(scop: Scop, kernels: Sequence[GpuKernel]) -> isl.Schedule:
    """The tree of all kernels down to one leaf for each statement."""
    node = isl.Schedule.from_domain(scop.domain).get_root().child(0)
    if len(kernels) > 1:
        node = node.insert_sequence(filters(scop, [kernel.statements for kernel in kernels]))
    depth = node.get_tree_depth()
    for number, kernel in enumerate(kernels):
        below = node.child(number).child(0) if len(kernels) > 1 else node
        below = insert_mark(below, Launch(number)).child(0)
        if kernel.blocks:
            below = _band(scop, below, kernel.blocks, coincident=True)
            below = insert_mark(below, Grid()).child(0).child(0)
        below = insert_mark(below, GridBlock(number)).child(0)
        below = _body(scop, below, kernel.body)
        node = below.ancestor(below.get_tree_depth() - depth)
    return node.get_schedule()


def _body(scop: Scop, node: isl.ScheduleNode, body: Sequence[BlockNode]) -> isl.ScheduleNode:
    depth = node.get_tree_depth()
    if len(body) > 1:
        node = node.insert_sequence(filters(scop, [[r.statement for r in mapped_statements((phase,))] for phase in body]))
    inner = node.get_tree_depth()
    for number, phase in enumerate(body):
        if isinstance(phase, SequentialLoops):
            below = node.child(number).child(0) if len(body) > 1 else node
            below = _band(scop, below, phase.loops, coincident=False).child(0)
            below = _body(scop, below, phase.body)
            if phase.stages > 1:
                # every step waits for its own copies, which were started before those of the steps in between
                below = insert_mark(below, Sync("block"))
                below = insert_mark(below, WaitGroup(phase.stages - 2))
            node = below.ancestor(below.get_tree_depth() - inner)
    return node.ancestor(node.get_tree_depth() - depth)


def _band(scop: Scop, node: isl.ScheduleNode, loops: Sequence[dict[str, str]], *, coincident: bool) -> isl.ScheduleNode:
    members = [member(scop.ctx, {s: (scop.statement(s).isl_dims, text) for s, text in loop.items()}) for loop in loops]
    node = node.insert_partial_schedule(stack(scop.ctx, members)).band_set_permutable(1)
    for position in range(len(loops) if coincident else 0):
        node = node.band_member_set_coincident(position, 1)
    return node
