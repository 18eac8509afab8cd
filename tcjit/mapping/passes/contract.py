"""Contract: give a temporary a small private buffer where all its uses stay inside one tile.

The buffer is the tensor folded modulo its footprint in one tile: element ``a`` lives in slot ``(a - base) mod size`` along each dimension.
Two elements that one tile touches lie closer than the footprint is wide, so they never share a slot.
"""

from __future__ import annotations

from collections import Counter

import islpy as isl

from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.dependences import Dependences
from tcjit.mapping.isl import descendants
from tcjit.mapping.machine import LINE
from tcjit.mapping.marks import Mark, Tile
from tcjit.mapping.scop import Scop
from tcjit.mapping.storage import Axis, Buffer, Storage
from tcjit.mapping.tree import mark_of

PADDED_ROW = 4  # lines that a row of a buffer has at least that is padded to an odd number of whole ones
STACK_BYTES = 128 << 10  # of private buffers that live on a thread's stack; the rest has a place for each thread in the workspace


def contract(scop: Scop, deps: Dependences, tree: isl.Schedule, most: int) -> tuple[Buffer, ...]:
    """The private buffers that the tree allows: per temporary one for each tile mark below which it is used; ``most`` bytes below one."""
    tiles = [node for node in descendants(tree.get_root()) if _is_tile(node)]
    outer = [node for node in tiles if not any(_is_tile(node.ancestor(up)) for up in range(1, node.get_tree_depth() + 1))]
    inner = [node for node in tiles if not any(_is_tile(below) for below in descendants(node.child(0)))]
    private: list[Buffer] = []
    used: Counter[Mark] = Counter()  # bytes below each tile mark
    for storage in scop.tensors if tiles else ():
        if storage.role != "temporary":
            continue
        buffers = _buffers(scop, deps, inner, storage) or (_buffers(scop, deps, outer, storage) if outer != inner else None)
        if buffers is None:
            continue
        bytes_each = {b.mark: b.elements * DTYPES[storage.dtype].bytes for b in buffers}
        if all(used[mark] + size <= most for mark, size in bytes_each.items()):
            private += buffers
            for mark, size in bytes_each.items():
                used[mark] += size
    return tuple(private)


def _is_tile(node: isl.ScheduleNode) -> bool:
    return isinstance(mark_of(node), Tile)


def uses(scop: Scop, storage: Storage) -> isl.UnionMap:
    """All accesses to one tensor."""
    return scop.reads.union(scop.writes).intersect_range(scop.universe(storage.name))


def footprint(accesses: isl.UnionMap, node: isl.ScheduleNode) -> isl.Map | None:
    """What one iteration of the loops above a node touches: ``{ [prefix] -> T[a] }``; None where nothing is touched."""
    prefix = node.get_prefix_schedule_union_map().intersect_domain(node.get_domain())
    touched = prefix.reverse().apply_range(accesses)
    return None if touched.is_empty() else isl.Map.from_union_map(touched)


def private_flow(deps: Dependences, node: isl.ScheduleNode, accesses: isl.UnionMap) -> bool:
    """Whether every value that is read below the node was written in the same iteration of the loops above it."""
    here = node.get_domain()
    flow = accesses.apply_range(accesses.reverse()).intersect(deps.flow)
    flow = flow.intersect_domain(here).union(flow.intersect_range(here))
    inside = flow.intersect_domain(here).intersect_range(here)
    if not flow.is_subset(inside):
        return False
    return bool(inside.is_subset(inside.eq_at_multi_union_pw_aff(node.get_prefix_schedule_multi_union_pw_aff())))


def _buffers(scop: Scop, deps: Dependences, tiles: list[isl.ScheduleNode], storage: Storage) -> list[Buffer] | None:
    """One buffer for each tile mark below which the tensor is used; None unless all of them can be private."""
    accesses = uses(scop, storage)
    buffers = []
    for node in tiles:
        touched, mark = footprint(accesses, node), mark_of(node)
        if touched is None or mark is None:
            continue
        if not private_flow(deps, node, accesses):
            return None
        least, greatest = touched.min_multi_pw_aff(), touched.max_multi_pw_aff()
        axes: list[Axis] = []
        step, line = 1, LINE // DTYPES[storage.dtype].bytes
        for axis in reversed(range(len(storage.shape))):
            width = greatest.get_at(axis).sub(least.get_at(axis)).max_val()
            start = least.get_at(axis).min_val()
            if not width.is_int() or not start.is_int():
                return None
            axes.insert(0, Axis(start.to_python(), ((1, width.to_python() + 1, step),)))
            count = width.to_python() + 1
            if step == 1 and axis and count >= PADDED_ROW * line:
                count = (-(-count // line) | 1) * line  # so that its neighbours begin where lines do, and in other sets of a cache
            step *= count
        buffers.append(Buffer(storage.name, mark, "thread", tuple(axes), step))
    return buffers or None

