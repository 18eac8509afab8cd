"""How many chunks of a product's reduction give the processors of a GPU enough to do: by the tiles that its results make."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tcjit.grammar.ast import Cast
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.machine import Device
from tcjit.mapping.reduction import is_plain_product
from tcjit.mapping.tile_time import MMA_STAGES, MMA_STEPS, MMA_TILES, STAGES, TILES, BlockTile, mma_extent, step_of

LEAST_TERMS = 64  # of a chunk
WORTH = 0.8  # of the time without chunks that one with them may take: the model is rough
SMALLEST = 32  # results along a side of a product on tensor cores

Sides = tuple[int, int, int]  # of a product: results down and across, and how many of its kind


def product_sides(a: Assignment) -> Sides | None:
    """The extents of the two largest classes of results that an operand is read again for; None for what is no such product."""
    if a.operator != "+=" or not is_plain_product(a.value):
        return None
    reads = list(dict.fromkeys(access for access in a.reads))
    used = [{name for sub in access.subscripts for name in names(sub)} for access in reads]
    extents: dict[frozenset[int], int] = {}
    for name, lower, upper in a.results:
        where = frozenset(number for number, found in enumerate(used) if name in found)
        extents[where] = extents.get(where, 1) * (upper - lower)
    classes = sorted((extent for where, extent in extents.items() if extent > 1 and 0 < len(where) < len(reads)), reverse=True)
    if len(classes) < 2:
        return None
    down, across = classes[:2]
    return down, across, prod(extents.values()) // (down * across)


def product_chunks(a: Assignment, sides: Sides, device: Device) -> int:
    """The number of chunks with which the model gives the least time, 1 where that is hardly less than without."""
    terms = prod(upper - lower for _, lower, upper in a.terms)
    most = min(terms // LEAST_TERMS, max(upper - lower for _, lower, upper in a.terms))
    counts = [1 << power for power in range(max(1, most).bit_length())]
    times = {count: _time(a, sides, terms, count, device) for count in counts}
    best = min(counts, key=lambda count: times[count])
    return best if times[best] < WORTH * times[1] else 1


def _time(a: Assignment, sides: Sides, terms: int, chunks: int, device: Device) -> float:
    """Cycles of all blocks of the fastest tile, and of the launch that combines their results."""
    down, across, others = sides
    fastest = min(
        tile.cycles(-(-down // rows) * -(-across // columns) * others * chunks, -(-terms // chunks), device, rate)
        for rows, columns, tile, rate in _tiles(a, sides, device)
    )
    moved = 2 * chunks * prod(sides) * DTYPES[a.value.dtype].bytes
    return fastest + (device.costs.launch + moved / device.costs.l2_load if chunks > 1 else 0)


def _tiles(a: Assignment, sides: Sides, device: Device) -> Iterator[tuple[int, int, BlockTile, float]]:
    """The rows and columns of tiles that plans choose from, as far as the results reach, with the rate of their arithmetic."""
    down, across, _ = sides
    product = a.value.operand if isinstance(a.value, Cast) else a.value
    size = DTYPES[product.dtype].bytes
    ahead = "async_copy" in device.capabilities
    if product.dtype in ("float16", "bfloat16") and "mma" in device.capabilities and min(down, across) >= SMALLEST:
        for tile in MMA_TILES:
            lines, (wy, wx, my, mx) = mma_extent(tile), tile
            step, stages = MMA_STEPS[0], MMA_STAGES[0] if ahead else 1
            for rows, columns in (lines, lines[::-1]):
                if rows <= down and columns <= across:
                    block = BlockTile((2 * my, 2 * mx), wy * wx * device.warp, step, step * sum(lines) * size, stages)
                    yield rows, columns, block, device.costs.mma_rate
        return
    for ty, tx, ry, rx in TILES:
        threads = min(ty, down), min(tx, across)
        per_thread = min(ry, -(-down // threads[0])), min(rx, -(-across // threads[1]))
        rows, columns = threads[0] * per_thread[0], threads[1] * per_thread[1]
        step, stages = (step_of(rows + columns), STAGES) if ahead and size >= 4 else (8, 1)
        block = BlockTile(per_thread, threads[0] * threads[1], step, step * (rows + columns) * size, stages)
        yield rows, columns, block, device.costs.fma_rate
