"""Prefetch: which operands of a nest each step fetches for a tile to come, so that they are there when it begins.

Processors foresee long rows. They do not foresee a small block of which every line is used again before the next block begins far away, as
the images of a batch are for a convolution: its lines come one after the other, each when it is needed. After Mowry, Lam and Gupta, Design
and Evaluation of a Compiler Algorithm for Prefetching (ASPLOS 1992).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from math import prod

from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.machine import LINE, Core
from tcjit.mapping.nest.nest import Leaf, Nest, Prefetch
from tcjit.mapping.nest.operands import Operand
from tcjit.mapping.nest.statement import FlatAccess, FlatStatement
from tcjit.mapping.nest.traffic import Moved

UPDATES = 8  # of accumulators for each line that a step fetches, at least
NEW_PART = 0.5  # of what a tile reads at a term that the one before it did not read, at least
STEPS_AHEAD = 8  # at which a panel is fetched: about the latency of the last cache
NEAR_PART = 4  # such blocks fit into the second cache, with what else it holds


def prefetches(s: FlatStatement, nest: Nest, found: Sequence[Operand], staged: Collection[int], core: Core) -> tuple[Prefetch, ...]:
    """The operands that come from beyond the second cache in blocks that the tiles inside a loop read again, and that loop's dimension."""
    leaf, fetched = nest.leaf, []
    if leaf.lane in s.terms:
        return ()
    rows, window = prod(count for _, count in leaf.rows), prod(s.extent(dim) for dim in leaf.window)
    updates = leaf.vectors * rows * window
    for number, operand in enumerate(found):
        flat = operand.flats[0]
        if number in staged or operand.single is None or flat.runtime:
            continue
        size = DTYPES[operand.value.dtype].bytes
        if flat.elements * size <= core.l2 or len(lines_of_step(flat, s, leaf, core.lanes, size)) * UPDATES > updates:
            continue
        dim = _loop_of_blocks(s, nest, flat, size, core)
        if dim:
            fetched.append(Prefetch(number, dim))
    return tuple(fetched)


def panel_prefetches(s: FlatStatement, nest: Nest, found: Sequence[Operand], panel: int, core: Core) -> tuple[Prefetch, ...]:
    """The operands in lanes whose ``panel``, bytes for all terms of a tile, the first cache does not hold: each step fetches the lines of
    a later one from the second."""
    leaf, terms = nest.leaf, [loop.dim for loop in nest.loops if loop.dim in s.terms]
    if leaf.lane in s.terms or leaf.window or not terms or panel <= core.l1 // 2 or s.extent(terms[-1]) < 2 * STEPS_AHEAD:
        return ()
    known = {prefetch.operand for prefetch in nest.prefetch}
    moving = [number for number, operand in enumerate(found) if {leaf.lane, terms[-1]} <= {*operand.dims}]
    others = [number for number in moving if number not in known]
    return tuple(Prefetch(number, terms[-1], STEPS_AHEAD) for number in others if not found[number].flats[0].runtime)


def _loop_of_blocks(s: FlatStatement, nest: Nest, flat: FlatAccess, size: int, core: Core) -> str:
    """The dimension of the innermost loop each iteration of which reads another block, small enough to be fetched one iteration before."""
    moved = Moved(flat.form, size, False)
    tile = {dim: nest.leaf.tile(dim, core.lanes) for dim in s.outputs}
    sizes = {dim: min(tile.get(dim, s.extent(dim)), s.extent(dim)) for dim in s.dims}
    if _is_in_order(s, nest, flat, sizes, LINE // size):
        return ""
    part = _part_of_term(s, nest, flat, sizes, core.page // size)
    for loop in reversed(nest.loops[: nest.accumulated(s)]):
        step = abs(flat.stride(loop.dim)) * loop.block
        if not step or loop.dim in s.terms or sizes[loop.dim] == s.extent(loop.dim):
            continue
        if moved.footprint(sizes) * NEAR_PART > core.l2:
            return ""
        span = 1 + sum(abs(flat.stride(dim)) * (sizes[dim] - 1) for dim in flat.dims)
        if step >= span or step >= NEW_PART * part > 0:
            return loop.dim
        sizes[loop.dim] = s.extent(loop.dim)
    return ""


def _part_of_term(s: FlatStatement, nest: Nest, flat: FlatAccess, tile: Mapping[str, int], page: int) -> int:
    """The elements between the first and the last that a tile reads at one term, where each term has its part on another page; else 0."""
    terms = [dim for dim in s.terms if dim not in nest.leaf.window and s.extent(dim) > 1]
    if not terms or min(abs(flat.stride(dim)) for dim in terms) < page:
        return 0
    return 1 + sum(abs(flat.stride(dim)) * (count - 1) for dim, count in tile.items() if dim not in terms and dim in flat.dims)


def _is_in_order(s: FlatStatement, nest: Nest, flat: FlatAccess, tile: Mapping[str, int], line: int) -> bool:
    """Whether the steps of a tile read one line after the other, which processors foresee."""
    inside = {dim: 1 if dim in s.terms and dim not in nest.leaf.window else count for dim, count in tile.items()}
    for loop in reversed(nest.loops[nest.accumulated(s) :]):
        span = 1 + sum(abs(flat.stride(dim)) * (inside[dim] - 1) for dim in flat.dims)
        if abs(flat.stride(loop.dim)) > span + line:
            return False
        inside[loop.dim] = tile[loop.dim]
    return True


def lines_of_step(flat: FlatAccess, s: FlatStatement, leaf: Leaf, lanes: int, size: int) -> list[int]:
    """The first elements of the lines that one step reads, from the first of all of them."""
    ranges = [(flat.stride(dim), count) for dim, count in (*leaf.rows, *((dim, s.extent(dim)) for dim in leaf.window))]
    ranges.append((flat.stride(leaf.lane), leaf.vectors * lanes))
    places = {sum(at) for at in product(*({step * number for number in range(count)} for step, count in ranges))}
    lines: list[int] = []
    for place in sorted(places):
        if not lines or place >= lines[-1] + LINE // size:
            lines.append(place)
    return lines
