"""The ways in which a group can be shared out over blocks, warps and threads, before the model of the time chooses.

A plan deals threads, and results of a thread, to dimensions. Which these can be follows from how the accesses of the main statement move:

- Where two classes of columns each read an operand again, a block computes a tile, and the terms of the sum go through shared memory in
  steps; the leaf is multiply-adds of a thread, or ``mma`` of a warp.
- Else threads are dealt to the columns nearest in memory, one element each or several, or 32 by 32 elements where a read lies the other
  way; or some of them to a lane: a dimension that is not shared, as a row of a softmax, or terms of a sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from tcjit.grammar.ast import Access, Binary, Cast
from tcjit.mapping.footprint import WIDE, piece
from tcjit.mapping.gpu.statement_group import BLOCK, WARP, MemoryAccess, StatementGroup, over_columns
from tcjit.mapping.gpu_nest import UNROLLED, Distribution, GroupPlan
from tcjit.mapping.reduction import is_plain_product
from tcjit.mapping.scop import ScopStatement
from tcjit.mapping.strides import KEPT
from tcjit.mapping.tile_time import MMA_STAGES, MMA_STEPS, MMA_TILES, STAGES, TILES, mma_extent, step_of

Shares = Mapping[int, Distribution]  # by the number of a column
Tile = tuple[int, int, int, int]  # threads down and across, results of a thread down and across

FLAT_MMA_TILES = ((2, 4, 2, 4), (1, 8, 2, 4), (1, 4, 2, 4), (1, 8, 1, 4), (1, 4, 1, 4), (1, 4, 1, 2))  # where a block has few rows
STEP = 8  # terms of a reduction that pass through shared memory at once where the block waits for its copies
COPIED_BYTES = (4, 8)  # of the elements that one asynchronous instruction copies; neighbours of narrower ones together, or without it
BLOCKS = (BLOCK, 2 * BLOCK, 4 * BLOCK)  # threads of a block whose threads share sums
IDLE = 8  # results beside which there may be one that a thread computes in vain
PATCHES = (2, 4, 8, 16, 32)  # results of a thread that have the same terms
SQUARE = 32  # side of the tile that transposes a read
IN_FLIGHT = 4  # elements of a thread whose loads are under way at once, at least
ROW_ELEMENTS = 16  # of a row, for each thread, before more threads take it
LANES = 4  # times as many threads for a row, where there are few


# ---------------------------------------------------------------- products: a tile for a block, terms in steps


def fma_tiles(g: StatementGroup) -> Iterator[GroupPlan]:
    """A thread has a patch of results in registers."""
    if g.reuse is None:
        return
    across, down = g.reuse
    order = (*reversed(down), *reversed(across))
    for tile in _tiles(g):
        warps = (tile[0] // 8, tile[1] // 4) if g.device.warp == 32 and tile[0] % 8 == tile[1] % 4 == 0 else (1, 1)  # of 8 threads by 4
        for first in (((False, False),) if g.options.threads else ((False, False), (False, True), (True, False), (True, True))):
            columns = g.shares(_both(g, across, down, tile, warps, first))
            for terms, stages in _ways(g, sum(prod(columns[c].tile for c in side) for side in g.reuse)):
                yield _in_steps(g, columns, order, terms, stages)


def mma_tiles(g: StatementGroup) -> Iterator[GroupPlan]:
    """The product of two half-precision matrices: a warp has tiles of 16 by 8 results, of which its threads keep some together."""
    s = g.main
    if "mma" not in g.device.capabilities or not g.options.shared or not _product_of_halves(s) or g.reuse is None:
        return
    open_ended = any(dim in s.reduction for dim, _, _ in s.dynamic_bounds)  # of a dynamic size: the last step may be short
    others = set(s.dims) - set(g.dims(s)) - set(s.reduction)
    if others or open_ended or not s.reduction or (s.constraints and not over_columns(s, g.dims(s))):
        return
    across, down = (side[0] for side in g.reuse)
    for tile in (*MMA_TILES, *FLAT_MMA_TILES) if g.block else MMA_TILES:
        rows, columns = mma_extent(tile)
        fits = rows < 2 * g.extent(down) and columns < 2 * g.extent(across) and not (g.block and g.most(down) % rows)
        if not fits or tile[0] * tile[1] * g.device.warp > g.most_threads:
            continue
        shares = {down: g.share(down, rows, 8, 1, tile[0]), across: g.share(across, columns, 4, 2, tile[1])}
        for steps in _mma_steps(g, s):
            single = "async_copy" not in g.device.capabilities or g.options.reduction_tile or g.options.pipeline_stages
            for stages in (1,) if single else MMA_STAGES:
                yield _in_steps(g, g.shares(shares), (down, across), steps[-1][1].tile, stages, steps)


def _in_steps(
    g: StatementGroup,
    columns: tuple[Distribution, ...],
    order: Sequence[int],
    terms: int,
    stages: int,
    mma_steps: tuple[tuple[str, Distribution], ...] = (),
) -> GroupPlan:
    """A tile whose sums take so many terms at once; on tensor cores the main statement takes ``mma_steps``."""
    items = []
    for s, item in zip(g.statements, g.items(), strict=True):
        if s is g.main and mma_steps:
            item = replace(item, steps=mma_steps, mma=True)
        elif s.reduction and len(g.accesses(s)) > 3:
            item = replace(item, steps=_steps(g, s, terms, columns))
        items.append(item)
    plan = GroupPlan(columns, tuple(c for c in order if columns[c].shared_out), tuple(items))
    # copies cannot run further ahead than the loop of steps is long, or of a block's tiles
    trips = [[share.tiles for _, share in item.steps if share.tiles > 1] for item in items]
    tiles = [plan.ahead_over_tiles] if plan.ahead_over_tiles > 1 else []
    stages = min([g.options.pipeline_stages or stages, *(loops[-1] for loops in trips if loops), *tiles])
    if any(s.constraints and not over_columns(s, g.dims(s)) for s in g.statements):
        # a block may have a single step: its copies come right before it; nor do copies run ahead over steps that are left out
        stages = min(stages, 1 if any(" or " in text for s in g.statements for text in s.constraints) else 2)
    return replace(plan, stages=stages)


def _product_of_halves(s: ScopStatement) -> bool:
    """Whether a statement adds products of two elements of one half-precision type in float32."""
    if s.operator != "+=" or not isinstance(s.value, Cast) or s.value.dtype != "float32" or not isinstance(s.value.operand, Binary):
        return False
    value = s.value.operand
    factors = (value.left, value.right)
    halves = value.dtype in ("float16", "bfloat16")
    return value.op == "*" and halves and all(isinstance(a, Access) and a.dtype == value.dtype for a in factors)


def _mma_steps(g: StatementGroup, s: ScopStatement) -> Iterator[tuple[tuple[str, Distribution], ...]]:
    """The steps of all dimensions of the reduction: one comes last that has as many terms as whole instructions, the others one by one."""
    for dim in sorted(s.reduction, key=s.extent, reverse=True):
        lower, upper = s.ranges[dim]
        terms, sizes = upper - lower, (g.options.reduction_tile,) if g.options.reduction_tile else MMA_STEPS
        if terms in (2 * n for n in sizes):
            sizes = (terms, *sizes)
        whole = [n for n in sizes if n % MMA_STEPS[-1] == 0]
        others = tuple((other, Distribution(s.ranges[other][0], s.extent(other), 1)) for other in s.reduction if other != dim)
        # all steps alike, or the last one filled up with zeros
        for step in [n for n in whole if terms % n == 0] or [n for n in whole if n < 2 * terms]:
            yield (*others, (dim, Distribution(lower, terms, step)))


def _ways(g: StatementGroup, lines: int) -> list[tuple[int, int]]:
    """Terms of a step, and stages of the copies; ``lines`` are the rows and columns of a tile."""
    options, s = g.options, g.main
    blocking = options.reduction_tile or STEP, options.pipeline_stages or 1
    copied = is_plain_product(s.value) and any(a.bytes in COPIED_BYTES for a in g.operands(s))
    if options.pipeline_stages:
        return [blocking]
    terms = options.reduction_tile or step_of(lines)
    if not copied or "async_copy" not in g.device.capabilities:
        return [blocking, (terms, 1)]
    return [*((terms, stages) for stages in range(STAGES, 1, -1)), blocking]


def _tiles(g: StatementGroup) -> Sequence[Tile]:
    threads, results = g.options.threads, g.options.registers
    tiles = [t for t in TILES if t[0] * t[1] <= g.most_threads] or [(1, g.most_threads, 1, 1)]
    if threads:
        tiles = [(threads[0], threads[1], ry, rx) for _, _, ry, rx in tiles]
    if results:
        tiles = [(ty, tx, results[0], results[1]) for ty, tx, _, _ in tiles]
    return list(dict.fromkeys(tiles))


def _both(
    g: StatementGroup, across: Sequence[int], down: Sequence[int], tile: Tile, warps: tuple[int, int], results_first: tuple[bool, bool]
) -> dict[int, Distribution]:
    """Threads and results of a tile dealt to both classes; what one has no use for, the other gets."""
    ty, tx, ry, rx = tile
    first, also = results_first

    def used(shares: Shares) -> int:
        return prod(share.threads * share.warps for share in shares.values())

    columns = _dealt(g, across, tx, rx, warps[1], results_first=also)
    left = tx // used(columns) if also else 1
    rows = _dealt(g, down, ty * left, ry, warps[0], results_first=first)
    if first and left == 1:
        columns = _dealt(g, across, tx * (ty // used(rows)), rx, warps[1], results_first=also)
    return columns | rows


def _dealt(
    g: StatementGroup, columns: Sequence[int], threads: int, results: int, warps: int, *, results_first: bool
) -> dict[int, Distribution]:
    """Threads and results dealt to columns, the nearest in memory first; that one also over warps, if it is long enough. A short column
    has a thread for each result, or, ``results_first``, threads with neighbours."""
    shares: dict[int, Distribution] = {}
    for place, c in enumerate(columns):
        extent = g.most(c)
        if results_first:
            per_thread = next((n for n in range(results, 1, -1) if results % n == 0 and n <= extent and -extent % n <= extent // IDLE), 1)
            most = -(-extent // per_thread)
            count = -(-most // -(-most // min(threads, most)))
        else:
            count = min(threads, extent)
            per_thread = min(results, -(-extent // count))
        several = place == 0 and not g.along_rows(c)
        vector = next(v for v in (4, 2, 1) if per_thread % v == 0 and v <= (g.options.vector or 4)) if several else 1
        tile = count * per_thread
        of_warps = warps if place == 0 and count == threads and tile <= extent else 1
        shares[c] = g.share(c, min(tile, extent), count // of_warps, vector, of_warps)
        threads, results = threads // count, results // per_thread
    return shares


def _steps(g: StatementGroup, s: ScopStatement, terms: int, columns: Sequence[Distribution]) -> tuple[tuple[str, Distribution], ...]:
    """The terms of a reduction in steps of about so many: the last dimensions whole while they are short."""
    taken = 1
    # as many as are written out for all results of a thread
    room = 1 << 30 if g.options.reduction_tile else max(1, UNROLLED // prod(share.per_thread for share in columns))
    shares: dict[str, Distribution] = {}
    # windows first: a piece that holds one is hardly larger than without it
    reduced = [d for d in reversed(s.dims) if d in s.reduction]
    for dim in sorted(reduced, key=lambda d: not any(d in a.shifted for a in g.operands(s))):
        lower, upper = s.ranges[dim]
        extent = upper - lower
        # beside whole windows, a few more terms make a step worth its barriers
        most = min(terms if taken == 1 else 4 * terms // taken, room // taken)
        short = taken * extent <= min(2 * terms, room)
        size = extent if short else max(n for n in range(1, max(1, most) + 1) if extent % n == 0 or taken == 1)
        shares[dim] = Distribution(lower, extent, min(size, extent))
        taken *= min(size, extent)
    return tuple((dim, shares[dim]) for dim in s.dims if dim in shares)


# ---------------------------------------------------------------- everything else: threads along columns, and along a lane


def squares(g: StatementGroup) -> Iterator[GroupPlan]:
    """A square tile in shared memory that is read along one side and written along the other."""
    s, dims = g.main, g.dims(g.main)
    write, *reads = g.accesses(s)
    near = _side(g, write)
    for a in (a for a in reads if a.tensor != s.tensor):
        far = _side(g, a)
        room = SQUARE * (SQUARE + 1) * a.bytes <= g.device.shared_bytes and g.most_threads >= SQUARE
        apart = near and far and not {*near} & {*far} and a.stride(dims[near[0]]) not in (0, 1)
        if s.reduction or g.block or not (g.options.shared and apart and room and a.affine):
            continue
        # a thread has two elements of 2 bytes, so that a warp reads and writes 128 bytes of a row
        pair = a.bytes <= 2 and g.options.vector != 1 and not g.lower(near[0]) and g.extent(near[0]) % 2 == 0
        side = SQUARE * (2 if pair and min(g.extent(near[0]), g.extent(far[0])) >= 2 * SQUARE else 1)
        across = _dealt_square(g, near, side, SQUARE, side // SQUARE)
        down = _dealt_square(g, far, side, min(g.most_threads // prod(share.threads for share in across.values()), SQUARE))
        plan = GroupPlan(g.shares(across | down), (*reversed(far), *reversed(near)), g.items(), shared=((s.name, a.access),))
        item = next(item for item in plan.items if item.statement == s.name)
        copied = piece(g.scop.tensor(a.tensor), s, plan, item, a.access, g.scop.values)
        if copied is not None and copied.elements * a.bytes <= g.device.shared_bytes:  # not where an axis is walked in long steps
            yield plan


def _side(g: StatementGroup, a: MemoryAccess) -> list[int]:
    """The columns of one side of a square, the nearest in memory first: as many as an access goes along without gaps until it is full."""
    found, length, dims = list[int](), 1, g.dims(g.main)
    while length < SQUARE:
        column = next((c for c in g.columns if c not in found and g.extent(c) > 1 and a.stride(dims[c]) == length), None)
        if column is None:
            return []
        found.append(column)
        length *= g.extent(column)
    return found


def _dealt_square(g: StatementGroup, columns: Sequence[int], side: int, threads: int, vector: int = 1) -> dict[int, Distribution]:
    """A side of a square dealt to its columns: all but the last are whole."""
    shares: dict[int, Distribution] = {}
    for c in columns:
        tile = min(side, g.extent(c))
        shares[c] = g.share(c, tile, min(threads, -(-tile // vector)), vector)
        side, threads = -(-side // tile), -(-threads // shares[c].threads)
    return shares


def elements(g: StatementGroup) -> Iterator[GroupPlan]:
    """A thread for each vector of elements, or for several along a column that blocks share."""
    for near in _orders(g):
        vector = _vector(g, [(s, g.dims(s)[near[0]]) for s in g.statements], ends=True) if near else 1
        for power in range(vector.bit_length()):
            plan, times = _strip(g, near, g.most_threads, 1 << power), IN_FLIGHT >> power
            yield plan
            yield from _patches(g, near, 1 << power)
            while times > 1 and not g.main.reduction and not g.block:
                wide = [c for c in near if plan.columns[c].tiles >= 2 * times]
                whole = [c for c in wide if plan.columns[c].extent % (times * plan.columns[c].tile) == 0]
                for c in [*whole, *wide][:1]:
                    several = replace(plan.columns[c], tile=times * plan.columns[c].tile)
                    yield replace(plan, columns=(*plan.columns[:c], several, *plan.columns[c + 1 :]))
                times //= 2
            for c in _short(g, near):  # which a thread reads, or writes, one by one
                yield replace(plan, columns=(*plan.columns[:c], g.share(c, g.extent(c)), *plan.columns[c + 1 :]))


def scattered(g: StatementGroup) -> GroupPlan:
    """A thread for each update of a scatter: one element, as no atomic access has several."""
    return _strip(g, _orders(g)[0], g.most_threads, 1)


def _patches(g: StatementGroup, near: Sequence[int], vector: int) -> Iterator[GroupPlan]:
    """Several results of a thread that have the same terms: these are loaded once for all of them."""
    s, dims = g.main, g.dims(g.main)
    for c in near[1:] if s.reduction and not g.block else ():
        alike = g.operands(s) and not any(a.moves(dims[c]) for a in g.operands(s))
        plan = _strip(g, [other for other in near if other != c], g.most_threads, vector)
        for results in PATCHES if alike else ():
            if g.extent(c) % results == 0:
                yield replace(plan, columns=(*plan.columns[:c], g.share(c, results), *plan.columns[c + 1 :]))


def shared_elements(g: StatementGroup) -> Iterator[GroupPlan]:
    """Several threads for each element, neighbours for neighbouring ones: they share a sum, or a row that statements read again."""
    lanes = {s.name: max(own, key=s.extent) for s in g.statements if (own := g.own_dims(s))}
    if g.main.name not in lanes or not g.main.reduction or g.block:
        return
    extent = g.main.extent(lanes[g.main.name])
    for near in _orders(g):
        plan = _strip(g, near, min(WARP, g.most_threads), 1)
        counts = [min(threads // plan.threads, extent // 2, WARP) for threads in ((g.most_threads,) if g.options.block else BLOCKS)]
        for count in {1 << max(0, count - 1).bit_length() for count in (*counts, max(2, -(-extent // ROW_ELEMENTS)))}:
            if 1 < count and count * plan.threads <= _most_lanes(g):
                yield _along_lanes(g, plan, lanes, count)


def rows(g: StatementGroup, in_memory: bool) -> Iterator[GroupPlan]:
    """The threads of a block along a row, or along several short ones: of those that lie ``in_memory`` one by one, or of all others."""
    lanes = {s.name: max(own, key=lambda d: g.nearness(s, d)) for s in g.statements if (own := g.own_dims(s))}
    lane = lanes.get(g.main.name, "")
    one_by_one = all(lane not in a.shifted and a.stride(lane) in (0, 1) for a in g.accesses(g.main))
    # what lies along a window is read again for neighbouring results, which caches have: each of many results has a thread to itself
    window = any(lane in a.shifted or (a.moves(lane) and not a.affine) for a in g.accesses(g.main))
    if not lane or one_by_one != in_memory or (window and g.points >= g.device.processors * BLOCK):
        return
    longest = max(g.scop.statement(name).extent(dim) for name, dim in lanes.items())
    pieces = -(-longest // _vector(g, _alike(g, lanes, g.main.name)))
    least = _lane_threads(g, pieces, longest)
    most = min(LANES * least, 1 << (pieces - 1).bit_length(), 1 << _most_lanes(g).bit_length() - 1)
    for threads in dict.fromkeys((least, most if g.points < g.device.processors and not g.options.threads else least)):
        # several short rows for a block, as long as every processor has one
        left = g.block.threads // threads if g.block else min((g.options.block or 128) // threads, g.points // g.device.processors)
        plan = _strip(g, [*reversed(g.columns)], max(1, left), 1)
        yield _along_lanes(g, replace(plan, lane_first=False), lanes, threads)


def _orders(g: StatementGroup) -> list[list[int]]:
    """The columns, the one that neighbouring threads go along first: that of most accesses, that of the results, or of what is read."""
    s, dims = g.main, g.dims(g.main)
    unit = [c for a in g.accesses(s) for c, dim in enumerate(dims) if a.stride(dim) == 1 and g.extent(c) > 1]
    first = dict.fromkeys((max(g.columns, key=lambda c: g.nearness(s, dims[c]), default=0), *unit))
    return [[c, *(other for other in reversed(g.columns) if other != c)] for c in first] if dims else [[]]


def _short(g: StatementGroup, near: Sequence[int]) -> list[int]:
    """Short columns whose values are neighbours for an access, where threads go along another one."""
    dims = g.dims(g.main)
    found = [c for c in near[1:] if 1 < g.extent(c) <= KEPT and any(a.stride(dims[c]) == 1 for a in g.accesses(g.main))]
    return [] if g.main.reduction or g.block else found


def _strip(g: StatementGroup, near: Sequence[int], threads: int, vector: int) -> GroupPlan:
    """Threads for the columns, as many in each block, and neighbours of a thread along the first."""
    shares: dict[int, Distribution] = {}
    for place, c in enumerate(near):
        wide = vector if place == 0 else 1
        pieces = -(-g.most(c) // wide)
        count = -(-pieces // -(-pieces // min(threads, pieces)))
        if place == 0 and count < pieces:
            count = min(threads, -(-count // WARP) * WARP)
        shares[c] = g.share(c, min(count * wide, g.most(c)), count, wide)
        threads //= count
    order = tuple(c for c in reversed(near) if shares[c].shared_out)
    return GroupPlan(g.shares(shares), order, g.items(), lane_first=True)


def _along_lanes(g: StatementGroup, plan: GroupPlan, lanes: Mapping[str, str], threads: int) -> GroupPlan:
    """A plan with so many threads along a dimension of each statement that has one."""
    items = []
    for item in plan.items:
        if dim := lanes.get(item.statement):
            lower, upper = g.scop.statement(item.statement).ranges[dim]
            vector = 1 if plan.lane_first else _vector(g, _alike(g, lanes, item.statement))
            item = replace(item, lane=(dim, Distribution(lower, upper - lower, upper - lower, threads, vector)))
        items.append(item)
    return replace(plan, items=tuple(items), lane_threads=threads)


def _alike(g: StatementGroup, lanes: Mapping[str, str], name: str) -> list[tuple[ScopStatement, str]]:
    """The statements with a lane of the same range: others have vectors of their own, and share no registers."""
    own = g.scop.statement(name).ranges[lanes[name]]
    return [(s, lanes[s.name]) for s in g.statements if s.name in lanes and s.ranges[lanes[s.name]] == own]


def _vector(g: StatementGroup, moving: Sequence[tuple[ScopStatement, str]], *, ends: bool = False) -> int:
    """Neighbours along dimensions of statements that a thread takes at once: as many as fill 16 bytes of the widest type, or 4, where no
    access jumps. The last ones may be fewer where a thread tells them apart at the ``ends``, as long as all others are aligned."""
    accesses = [a.stride(dim) for s, dim in moving for a in g.accesses(s)]
    sizes = [a.bytes for s, dim in moving for a in g.accesses(s) if a.stride(dim) == 1]
    wide = g.options.vector or max(4, WIDE // max(sizes, default=WIDE))

    def fits(s: ScopStatement, dim: str) -> bool:
        lower, upper = s.ranges[dim]
        apart = [step for a in g.accesses(s) if a.stride(dim) == 1 for other, step in a.strides.items() if other != dim]
        told = ends and upper >= 2 * wide and not any(step is None or step % wide for step in apart)
        return lower % wide == 0 and (upper % wide == 0 or told)

    while wide > 1 and not all(fits(s, dim) for s, dim in moving):
        wide //= 2
    return 1 if set(accesses) - {0, 1} else wide


def _most_lanes(g: StatementGroup) -> int:
    return min(g.options.block or 1024, g.device.max_threads)


def _lane_threads(g: StatementGroup, pieces_of_row: int, longest: int) -> int:
    """A power of two: part of a warp for short rows, a warp up to a length, then more."""
    threads = g.options.threads[-1] if g.options.threads else 0
    if not threads:
        threads = min(pieces_of_row, 32) if longest <= 32 * 2 * ROW_ELEMENTS else -(-longest // ROW_ELEMENTS)
    return 1 << min(max(0, threads - 1).bit_length(), _most_lanes(g).bit_length() - 1)
