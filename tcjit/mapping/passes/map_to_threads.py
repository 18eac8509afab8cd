"""Threads: each statement's share of the work for every thread of a block, and the loops that one thread runs.

The mark ``threads 8x32`` says that the members of the band below are the digits of the thread's number, the last one counting fastest.
``reduce`` above it says that the threads of the last digit combine their values, ``atoms`` that each warp computes its part as a whole,
``ahead`` that copies may arrive later, where a mark ``wait`` stands.
Below, ``unroll`` stands above loops that are unrolled, and ``vector`` above one that reads or writes neighbours at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from tcjit.mapping.gpu_nest import Kernel, Region, regions
from tcjit.mapping.isl import identifier, member, stack
from tcjit.mapping.scop import Scop
from tcjit.mapping.tree import KIND, kind, rewrite, statements_below


def threads(scop: Scop, tree: isl.Schedule, kernels: Sequence[Kernel]) -> isl.Schedule:
    """The tree with every leaf replaced by its statement's region."""
    found = {region.statement: region for kernel in kernels for region in regions(kernel.body)}

    def visit(node: isl.ScheduleNode) -> isl.ScheduleNode:
        if kind(node) != KIND.leaf:
            return node
        names = statements_below(node)  # none, where constraints leave a statement without instances
        return _region(scop, node, found[names[0]]) if names else node

    return rewrite(tree, visit)


def _region(scop: Scop, node: isl.ScheduleNode, region: Region) -> isl.ScheduleNode:
    plain = len(region.loops) - region.unrolled
    vector = region.loops[-1:] if region.vector else ()
    unrolled = region.loops[plain : len(region.loops) - len(vector)]
    # built from the inside out: each new node goes above the last one
    if vector:
        node = _marked(scop, _band(scop, node, region.statement, vector), "vector")
    if unrolled:
        node = _band(scop, node, region.statement, unrolled)
    if unrolled or vector:
        node = _marked(scop, node, "unroll")
    if plain:
        node = _band(scop, node, region.statement, region.loops[:plain])
    node = _band(scop, node, region.statement, region.members)
    for position in range(len(region.members)):
        node = node.band_member_set_coincident(position, int(not (region.reduce and position == len(region.members) - 1)))
    node = _marked(scop, node, "threads " + "x".join(map(str, region.radices)))
    for name, wanted in (("reduce", region.reduce), ("atoms", region.atoms), ("ahead", region.ahead)):
        if wanted:
            node = _marked(scop, node, name)
    return node


def _band(scop: Scop, node: isl.ScheduleNode, name: str, texts: Sequence[str]) -> isl.ScheduleNode:
    dims = scop.statement(name).isl_dims
    return node.insert_partial_schedule(stack(scop.ctx, [member(scop.ctx, {name: (dims, text)}) for text in texts])).band_set_permutable(1)


def _marked(scop: Scop, node: isl.ScheduleNode, name: str) -> isl.ScheduleNode:
    return node.insert_mark(identifier(scop.ctx, name))
