"""How many chunks of a product's reduction give the processors of a GPU enough to do: by the tiles that its results make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from tcjit.grammar.ast import Cast
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.machine import Device
from tcjit.mapping.reduction import is_plain_product
from tcjit.mapping.storage import Bounds
from tcjit.mapping.tile_time import MMA_STAGES, MMA_STEPS, MMA_TILES, STAGES, TILES, BlockTile, mma_extent, step_of

LEAST_TERMS = 64  # of a chunk
WORTH = 0.85  # of the time without chunks that one with them may take: the model is rough
UNEQUAL = 1.05  # times as long as equal chunks take others, whose copies have conditions
CLOSE = 16  # one of so many chunks more where they are equal then
WHOLE = 16  # terms of a step of most tiles
SMALLEST = 32  # results along a side of a product on tensor cores

Tile = tuple[int, int, BlockTile, float]  # rows and columns, with the rate of the arithmetic
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
    counts = {1 << power for power in range(max(1, most).bit_length())}
    tiles = tuple(_tiles(a, sides, device))
    for rows, columns, tile, _ in tiles:  # and those whose blocks the processors hold all at once
        blocks = -(-sides[0] // rows) * -(-sides[1] // columns) * sides[2]
        counts |= {device.processors * resident // blocks for resident in range(1, tile.resident(device) + 1)}
    times = {count: _time(a, sides, tiles, count, device) for count in sorted(counts) if 1 <= count <= max(1, most)}
    best = min(times, key=lambda count: times[count])
    return best if times[best] < WORTH * times[1] else 1


def cut_dimension(terms: Bounds, asked: int) -> tuple[str, int, int]:
    """The dimension that is cut into so many chunks: the outermost one that is long enough, which leaves long runs, or the longest."""
    longest = max(terms, key=lambda bound: bound[2] - bound[1])
    return next((bound for bound in terms if bound[2] - bound[1] >= asked), longest)


def chunk_size(extent: int, asked: int) -> int:
    """How many values of a dimension a chunk has where so many are asked for: hardly more that are equal, or whole steps of a tile."""
    equal = next((count for count in range(asked, asked + asked // CLOSE + 1) if extent % count == 0), None)
    size = -(-extent // (equal or asked))
    return size if equal or size < CLOSE * WHOLE else -(-size // WHOLE) * WHOLE


def _time(a: Assignment, sides: Sides, tiles: Sequence[Tile], asked: int, device: Device) -> float:
    """Cycles of all blocks of the fastest tile, and of the launch that combines their results."""
    down, across, others = sides
    _, lower, upper = cut_dimension(a.terms, asked)
    extent = upper - lower
    size = chunk_size(extent, asked)
    chunks, terms = -(-extent // size), prod(high - low for _, low, high in a.terms) // extent * size
    fastest = min(
        tile.cycles(-(-down // rows) * -(-across // columns) * others * chunks, terms, device, rate)
        for rows, columns, tile, rate in tiles
    )
    moved = 2 * chunks * prod(sides) * DTYPES[a.value.dtype].bytes
    fastest *= UNEQUAL if extent % size else 1
    return fastest + (device.costs.launch + moved / device.costs.l2_load if chunks > 1 else 0)


def _tiles(a: Assignment, sides: Sides, device: Device) -> Iterator[Tile]:
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
        vectors = [next(v for v in (4, 2, 1) if each % v == 0) for each in per_thread]
        block = BlockTile(per_thread, threads[0] * threads[1], step, step * (rows + columns) * size, stages, vectors)
        yield rows, columns, block, device.costs.fma_rate
