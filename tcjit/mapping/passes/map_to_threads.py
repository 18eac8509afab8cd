"""Map to threads: each statement's share of the work for every thread of a block, and the loops that one thread runs.

The members of the band below the mark ``Threads`` are the digits of the thread's number, the last one counting fastest. ``Reduce`` above
it says that the threads of the last digit combine their values, ``Mma`` that each warp computes its part on tensor cores, ``AsyncCopy``
that copies may arrive later, at the mark ``WaitGroup``. Below it stand ``Unroll`` and ``Vector``, above loops of one thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from tcjit.mapping.gpu_nest import GpuKernel, MappedStatement, mapped_statements
from tcjit.mapping.isl import member, stack
from tcjit.mapping.marks import AsyncCopy, Mma, Reduce, Threads, Unroll, Vector
from tcjit.mapping.scop import Scop
from tcjit.mapping.tree import KIND, insert_mark, kind, rewrite, statements_below


def map_to_threads(scop: Scop, tree: isl.Schedule, kernels: Sequence[GpuKernel]) -> isl.Schedule:
    """The tree with every leaf replaced by its statement's region."""
    mapped = {region.statement: region for kernel in kernels for region in mapped_statements(kernel.body)}

    def visit(node: isl.ScheduleNode) -> isl.ScheduleNode:
        if kind(node) != KIND.leaf:
            return node
        names = statements_below(node)  # none, where constraints leave a statement without instances
        return _region(scop, node, mapped[names[0]]) if names else node

    return rewrite(tree, visit)


def _region(scop: Scop, node: isl.ScheduleNode, region: MappedStatement) -> isl.ScheduleNode:
    plain = len(region.loops) - region.unrolled
    vector = region.loops[-1:] if region.vector else ()
    unrolled = region.loops[plain : len(region.loops) - len(vector)]
    # built from the inside out: each new node goes above the last one
    if vector:
        node = insert_mark(_band(scop, node, region.statement, vector), Vector())
    if unrolled:
        node = _band(scop, node, region.statement, unrolled)
    if unrolled or vector:
        node = insert_mark(node, Unroll())
    if plain:
        node = _band(scop, node, region.statement, region.loops[:plain])
    node = _band(scop, node, region.statement, region.members)
    for position in range(len(region.members)):
        node = node.band_member_set_coincident(position, int(not (region.reduce and position == len(region.members) - 1)))
    node = insert_mark(node, Threads(region.radices))
    for mark, stands in ((Reduce(), region.reduce), (Mma(), region.mma), (AsyncCopy(), region.async_copy)):
        if stands:
            node = insert_mark(node, mark)
    return node


def _band(scop: Scop, node: isl.ScheduleNode, name: str, texts: Sequence[str]) -> isl.ScheduleNode:
    dims = scop.statement(name).isl_dims
    return node.insert_partial_schedule(stack(scop.ctx, [member(scop.ctx, {name: (dims, text)}) for text in texts])).band_set_permutable(1)
