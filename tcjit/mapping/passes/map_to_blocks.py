"""Map to blocks: a launch for each kernel, its outer coincident loops as a grid of blocks, and the steps that a block's threads take.

Where copies run ahead of what reads them, the mark ``WaitGroup`` stands above the body of the steps: all copies have arrived but
those of the last steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from tcjit.mapping.gpu_nest import BlockNode, GpuKernel, SequentialLoops, statements
from tcjit.mapping.marks import Grid, GridBlock, Launch, Sync, WaitGroup
from tcjit.mapping.scop import Scop
from tcjit.mapping.tree import filters, insert_band, insert_mark, insert_sequence


def map_to_blocks(scop: Scop, kernels: Sequence[GpuKernel]) -> isl.Schedule:
    """The tree of all kernels down to one leaf for each statement."""
    node = isl.Schedule.from_domain(scop.domain).get_root().child(0)

    def launch(node: isl.ScheduleNode, number: int) -> isl.ScheduleNode:
        kernel, node = kernels[number], insert_mark(node, Launch(number)).child(0)
        if kernel.blocks:
            node = insert_band(scop, node, kernel.blocks, range(len(kernel.blocks)))
            node = insert_mark(node, Grid()).child(0).child(0)
        return _body(scop, insert_mark(node, GridBlock(number)).child(0), kernel.body)

    return insert_sequence(node, filters(scop, [statements(kernel.body) for kernel in kernels]), launch).get_schedule()


def _body(scop: Scop, node: isl.ScheduleNode, body: Sequence[BlockNode]) -> isl.ScheduleNode:
    def steps(node: isl.ScheduleNode, number: int) -> isl.ScheduleNode:
        phase = body[number]
        if not isinstance(phase, SequentialLoops):
            return node
        node = _body(scop, insert_band(scop, node, phase.loops).child(0), phase.body)
        if phase.stages > 1:
            # every step waits for its own copies, which were started before those of the steps in between
            node = insert_mark(insert_mark(node, Sync("block")), WaitGroup(phase.stages - 2))
        return node

    return insert_sequence(node, filters(scop, [statements((phase,)) for phase in body]), steps)
