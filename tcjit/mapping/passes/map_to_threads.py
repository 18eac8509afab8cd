"""Map to threads: each statement's share of the work for every thread of a block, and the loops that one thread runs.

The members of the band below the mark ``Threads`` are the digits of the thread's number, the last one counting fastest. ``Reduce`` above
it says that the threads of the last digit combine their values, ``Mma`` that each warp computes its part on tensor cores, ``AsyncCopy``
that copies may arrive later, at the mark ``WaitGroup``. Below it stand ``Unroll`` and ``Vector``, above loops of one thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from tcjit.mapping.gpu_nest import GpuKernel, MappedStatement, mapped_statements
from tcjit.mapping.marks import AsyncCopy, Mma, Reduce, Threads, Unroll, Vector
from tcjit.mapping.scop import Scop
from tcjit.mapping.tree import KIND, insert_band, insert_mark, kind, rewrite, statements_below


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
    def band(node: isl.ScheduleNode, texts: Sequence[str], coincident: Sequence[int] = ()) -> isl.ScheduleNode:
        return insert_band(scop, node, [{region.statement: text} for text in texts], coincident)

    plain = len(region.loops) - region.unrolled
    vector = region.loops[-1:] if region.vector else ()
    unrolled = region.loops[plain : len(region.loops) - len(vector)]
    # built from the inside out: each new node goes above the last one
    if vector:
        node = insert_mark(band(node, vector), Vector())
    if unrolled:
        node = band(node, unrolled)
    if unrolled or vector:
        node = insert_mark(node, Unroll())
    if plain:
        node = band(node, region.loops[:plain])
    node = band(node, region.members, range(len(region.members) - region.reduce))
    node = insert_mark(node, Threads(region.radices))
    for mark, stands in ((Reduce(), region.reduce), (Mma(), region.mma), (AsyncCopy(), region.async_copy)):
        if stands:
            node = insert_mark(node, mark)
    return node
