"""Plan a nest: the register tile that the cost model ranks first, and the loops around it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from heapq import heappop, heappush
from itertools import chain, combinations, permutations, product
from math import prod

from tcjit.dataclass import dataclass
from tcjit.errors import MappingError
from tcjit.grammar.ast import Expr
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import with_accesses
from tcjit.mapping.machine import LINE, Core
from tcjit.mapping.nest.cost import Estimate, TileCosts
from tcjit.mapping.nest.matrix_unit import DEPTH, estimate_matrix, matrix_shapes
from tcjit.mapping.nest.merge_dims import fix_dim
from tcjit.mapping.nest.nest import Leaf, Loop, Nest
from tcjit.mapping.nest.operand_use import CACHED, FOLLOWED, OperandUse, Shape, step_of
from tcjit.mapping.nest.operands import Operand, operands
from tcjit.mapping.nest.prefetch import panel_prefetches, prefetches
from tcjit.mapping.nest.statement import DIM, FlatAccess, FlatStatement
from tcjit.mapping.nest.traffic import Moved, Traffic
from tcjit.mapping.nest.vector_forms import MATRIX_PRODUCTS, has_vector_form

VECTORS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14)
COLUMNS = (2, 3, 4, 5, 6)  # of rows along two dimensions
FEW_ROWS = 4  # of a tile at least where a result may have fewer: those that are missing are asked for at each term
LINE_ROWS = 16  # besides, where neighbours lie along the rows: of float32 a whole line
WINDOW = 4  # terms of a dimension that is written out, at most
WINDOWS = 32  # and of all of them together
BLOCK_TERMS = 512  # terms that accumulators sum: the sum of more loses digits, and its panels leave the caches
BLOCK_SIZES = (128, 256)  # terms that all tiles sum before the next ones, where operands are read as they lie
LEAST_BLOCKS = 4  # of them that a sum has: what blocks store and load again is more than they save else
BLOCKED = 0.96  # of the time of tiles that sum all terms that blocks around them may take: the model knows tiles better
STRIDED_LINE = 24.0  # cycles of a line from beyond the second cache that lies apart from those of the terms beside it
LINES_ALONE = 8  # side by side, of which prefetchers foresee none: of more they have the others
ROWS_APART = 256  # in lanes, which tiles read on where others ended, whose lines all take so long: of fewer that part of them do
FETCHED = 0.5  # of that for lines that are asked for ahead
STREAMED_ROWS = 16  # of a matrix that is read once, side by side: prefetchers follow about as many
BLOCK_EDGES = 4  # times the cycles in which a tile's accumulators are loaded and stored that a block of terms takes at least
BLOCK_STARTS = 10  # times the cycles in which threads start that a block around all results takes at least
STREAMED_PAGES = 4  # of each of them that a thread takes at once, at most
PARTS = 4  # their number is a multiple of, as that of threads often is
ROUNDING = ("float32", "float64")  # types whose sums lose digits
WORTH = 0.9  # of what loops move from beyond the second cache that others around the same tile move, at most: it is a rough estimate
GAIN = 0.98  # of the time of a plan that one of another tile takes at most, whose own time is longer
HIDDEN = 0.2  # of a tile's time that memory may take without a trace
OVERLAPPED = 1.1  # times what one iteration of a loop reads that two read, at most, where they read nearly the same
CLOSE = 0.01  # estimates that differ by less are equal: the nearer writes, then the longer tile, decide

_Choice = tuple[tuple[int, ...], TileCosts, Shape, Estimate]


@dataclass(frozen=True)
class Plan:
    """A nest of a statement, its operands, the body over them, and what the model says of it; ``moved``: the cycles of what its loops read
    and write beyond the second cache; ``late``: those by which results in short stretches take longer."""

    nest: Nest
    operands: tuple[Operand, ...]
    body: Expr
    estimate: Estimate
    moved: float
    late: float


def plan_nests(
    statements: Sequence[FlatStatement],
    core: Core,
    known: dict[object, Plan],
    leaf: Leaf | None = None,
    register_tile: tuple[int, ...] = (),
    kept: frozenset[Expr] = frozenset(),
    *,
    cold: bool = False,
) -> list[Plan]:
    """The plans of several statements; those that are alike, as layers and residue classes often are, are ranked once, as are those that
    several passes ask for, which is then ``known``."""
    plans = []
    for s in statements:
        estimated = s.estimated()
        alike = _alike(estimated, kept), core, leaf, register_tile, cold
        plan = known.get(alike) or plan_nest(estimated, core, leaf, register_tile, kept, cold=cold)
        known[alike] = plan
        plans.append(replace(plan, operands=operands(s, plan.nest.leaf.lane, kept)[0]))
    return plans


def _alike(s: FlatStatement, kept: frozenset[Expr]) -> object:
    """What a plan depends on: neither what tensors are called, nor where accesses begin, nor the points inside the ranges of dimensions."""
    names = {tensor: str(number) for number, tensor in enumerate(dict.fromkeys(flat.tensor for flat in s.accesses))}

    def named(expr: Expr) -> Expr:
        return with_accesses(expr, lambda access: replace(access, tensor=names.get(access.tensor, access.tensor)))

    def form(flat: FlatAccess) -> frozenset[tuple[str, int]]:
        return frozenset(flat.form.items())

    reads = tuple((named(access), flat.elements, form(flat)) for access, flat in s.reads.items())
    epilogue = tuple((form(e.write), *map(form, e.reads.values())) for e in s.epilogue)
    results = s.operator, form(s.write), epilogue, s.stored, s.in_memory, frozenset(s.fewest.items())
    domain = s.dims, s.terms, s.shared, tuple(map(s.range, s.dims)), s.is_box, s.joint_conditions
    return domain, results, named(s.body), reads, frozenset(map(named, kept))


def plan_nest(
    s: FlatStatement, core: Core, leaf: Leaf | None = None, register_tile: tuple[int, ...] = (), kept: frozenset[Expr] = frozenset(),
    *, cold: bool = False,
) -> Plan:  # fmt: skip
    """The nest of a reduction that the model expects to be fastest, with lanes and rows as ``leaf`` has them where there is one, or of the
    rows and vectors of ``register_tile`` as far as extents allow; a MappingError where there is none. Operands whose values are ``kept``
    are not copied. ``cold``: no cache holds what all iterations of its shared loops read."""
    choices = partial(_choices, s, core, leaf, register_tile, kept, cold=cold)
    plan = _best(choice for choice in choices() if leaf is not None and choice[-1].staged == leaf.staged) if leaf is not None else None
    plan = plan or _best(choices())
    if plan is None and leaf is not None:  # dimensions of the tile were merged when its operands had been copied
        plan = _best(_choices(s, core, None, register_tile, kept, cold=cold))
    if plan is None:
        raise MappingError(f"{s.name} has no register tile")
    loops = tuple(Loop(dim, 1) for dim in s.shared)
    estimate = replace(plan.estimate, cycles=plan.estimate.cycles * prod(s.extent(dim) for dim in s.shared))
    return replace(plan, nest=replace(plan.nest, loops=(*loops, *plan.nest.loops)), estimate=estimate)


def _best(choices: Iterable[_Choice]) -> Plan | None:
    """The plan of the register tile that takes the least time with its loops, or that of the tile that does alone where the loops of others
    gain little. What loops read again only adds to a tile's time, so that the plans of few tiles are made."""
    best: tuple[tuple[float, ...], Plan] | None = None
    for rank, costs, shape, cost in choices:
        if best is not None and rank >= best[0]:
            break
        plan = _around(costs, shape, cost)
        if plan.moved > HIDDEN * cost.cycles:
            turned = _around(costs, shape, cost, turned=True)
            gains = turned.moved < WORTH * plan.moved and turned.moved + turned.late < WORTH * (plan.moved + plan.late)
            plan = turned if gains else plan
        worth = 1.0 if best is None else 1 / GAIN
        again = _rank(plan.estimate.cycles * max(worth, _margin(costs))), *rank[1:]
        if best is None or again < best[0]:
            best = (_rank(plan.estimate.cycles * _margin(costs)), *rank[1:]), plan
    return best and best[1]


def _rank(cycles: float) -> int:
    return round(math.log(cycles) / CLOSE)


def _margin(costs: TileCosts) -> float:
    """Times that the estimate of a plan counts."""
    return 1 / BLOCKED if costs.block else 1.0


def register_tiles(s: FlatStatement, core: Core) -> list[tuple[int, int]]:
    """The rows and vectors of all register tiles of a reduction, in the order in which the model ranks them."""
    return list(dict.fromkeys((shape.rows * shape.columns, shape.vectors) for _, _, shape, _ in _choices(s, core, None, ())))


def _choices(
    s: FlatStatement, core: Core, leaf: Leaf | None, register_tile: tuple[int, ...], kept: frozenset[Expr] = frozenset(),
    *, cold: bool = False,
) -> Iterator[_Choice]:  # fmt: skip
    """The register tiles that are possible at one iteration of the shared loops, the best first, each behind its rank: best-first search,
    which estimates tiles only once none that is left may take less time."""
    tiles = list(_tiles(s, core, leaf, register_tile, kept, cold=cold))
    queue: list[tuple[tuple[int, ...], int, int, Estimate | None]] = []  # by rank, what has the same in the order of its number
    for tile, (_, _, least) in enumerate(tiles):
        heappush(queue, ((_rank(least),), tile, 0, None))
    while queue:
        rank, tile, _, cost = heappop(queue)
        costs, shape, _ = tiles[tile]
        if cost is not None:
            yield rank, costs, shape, cost
            continue
        for number, estimated in enumerate(_estimates(costs, shape)):
            step = abs(s.write.stride(shape.row)) if shape.row else 0
            bound, cycles = (_rank(each * _margin(costs)) for each in (costs.bound(shape, estimated.cycles), estimated.cycles))
            heappush(queue, ((bound, cycles, step, -shape.accumulators), tile, number, estimated))


def _tiles(
    s: FlatStatement, core: Core, leaf: Leaf | None, register_tile: tuple[int, ...], kept: frozenset[Expr], *, cold: bool
) -> Iterator[tuple[TileCosts, Shape, float]]:
    """The same tiles in any order, with cycles that each takes at least."""
    shared = {dim: s.extent(dim) for dim in s.shared}
    once = frozenset(access for access, flat in s.reads.items() if not any(map(flat.stride, s.shared)))  # copied before the shared loops
    s = _at_one_iteration(s)
    longest = _window(s)
    reads = s.reads.values()
    terms = [dim for dim in reversed(s.terms) if dim not in longest]
    innermost = sorted(terms, key=lambda dim: max((abs(flat.stride(dim)) for flat in reads), default=0))[:1]
    for lane in [dim for dim in (*s.outputs, *innermost) if leaf is None or dim == leaf.lane]:
        found, body = operands(s, lane, kept)
        strided = any(operand.stride(lane) > 1 or operand.single is None for operand in found)  # what is computed once must be staged
        if lane in s.terms and (strided or not found or 2 * s.extent(lane) < core.lanes):
            continue
        sizes = [0] if lane not in s.outputs else _block_sizes(s, core) if leaf is None else [leaf.block]
        for first, block in product(range(len(longest) + 1), sizes):
            costs = TileCosts(s, lane, longest[first:], found, body, core, shared, once, kept, cold, block)
            if block and not costs.gains_by_blocks:
                continue
            vectors = () if getattr(s.body, "function", "") in MATRIX_PRODUCTS else _shapes(costs, register_tile)
            for shape in (*vectors, *(() if block else matrix_shapes(costs))):
                if leaf is not None and not _is_like(shape, leaf):
                    continue
                if shape.depth and register_tile and register_tile != (shape.rows, shape.vectors):
                    continue
                if (least := 1.0 if shape.depth else costs.least(shape)) is not None:
                    yield costs, shape, least * _margin(costs)


def _estimates(costs: TileCosts, shape: Shape) -> Iterator[Estimate]:
    """The costs of a tile with each set of copies that may pay."""
    some = () if shape.depth else costs.either_way
    for turned in chain.from_iterable(combinations(some, count) for count in range(len(some) + 1)):
        cost = estimate_matrix(costs, shape) if shape.depth else costs.estimate(shape, turned)
        if cost is None:
            return
        yield cost


def _block_sizes(s: FlatStatement, core: Core) -> list[int]:
    """The terms of blocks that all tiles may sum one after the other: 0 for none, and some where a core's cache does not hold operands that
    are all used again."""
    total = sum(flat.elements * DTYPES[access.dtype].bytes for access, flat in s.reads.items())
    fits = s.operator == "+=" and (s.in_memory or not s.epilogue) and has_vector_form(s.body) and len(s.terms) == 1 and total > core.l2
    fits = fits and _sums_all_terms(s)
    fits = fits and all(any(s.extent(dim) > 1 and not flat.stride(dim) for dim in s.outputs) for flat in s.reads.values())
    return [0, *(size for size in BLOCK_SIZES if fits and s.extent(s.terms[0]) >= LEAST_BLOCKS * size)]


def _sums_all_terms(s: FlatStatement) -> bool:
    """Whether no condition has a part of the terms count for each result."""
    return not any(dims & set(s.terms) for dims in s.joint_conditions)


def _at_one_iteration(s: FlatStatement) -> FlatStatement:
    """The statement at the middle iteration of the shared loops, or at one that has terms."""
    values = {dim: s.extent(dim) // 2 for dim in s.shared}
    middle = reduce(lambda left, dim: fix_dim(left, dim, values[dim]), values, s)
    if not middle.domain.is_empty():
        return middle
    point = s.domain.sample_point()
    values = {dim: point.get_coordinate_val(DIM.set, s.dims.index(dim)).to_python() for dim in s.shared}
    return reduce(lambda left, dim: fix_dim(left, dim, values[dim]), values, s)


def _window(s: FlatStatement) -> tuple[str, ...]:
    """Short terms, the innermost first to be chosen, in the order of the statement; none where the points are evaluated in loops over
    lanes."""
    if not has_vector_form(s.body):
        return ()
    chosen: list[str] = []
    points = 1
    for dim in reversed(s.terms):
        least, greatest = s.range(dim)
        if greatest - least < WINDOW and points * (greatest - least + 1) <= WINDOWS:
            chosen.insert(0, dim)
            points *= greatest - least + 1
    return tuple(chosen)


def _shapes(costs: TileCosts, register_tile: tuple[int, ...]) -> Iterator[Shape]:
    """Tiles along rows of a result that some operand does not move with, whose loads are shared."""
    s, lane, found, core, over_terms = costs.s, costs.lane, costs.operands, costs.core, costs.over_terms
    scattered = not over_terms and s.write.stride(lane) != 1
    again = [operand for operand in found if not s.terms or {*operand.dims} & {*s.terms}]  # others stay in registers
    reusing = [dim for dim in s.outputs if dim != lane and any(dim not in operand.dims for operand in again)]
    others = [dim for dim in s.outputs if dim != lane][-1:]
    beside = [dim for dim in s.outputs if scattered and dim != lane and s.write.stride(dim) == 1]  # stored together
    choices: list[str | None] = [*dict.fromkeys([*(reusing or (others if over_terms or scattered else [])), *beside])]
    whole = -(-s.extent(lane) // core.lanes)
    most = min(whole, 4 if over_terms else max(VECTORS))
    for row in choices if choices and (scattered or register_tile) else [*choices, None]:
        greatest = min(s.extent(row), max(FEW_ROWS, s.fewest.get(row, s.extent(row)))) if row else 1
        even = [] if row else [-(-whole // -(-whole // max(VECTORS)))]  # tiles of a row by itself that are equally long
        several = dict.fromkeys((*ROWS, *([greatest] if greatest < max(ROWS) else []), *([LINE_ROWS] if row in beside else [])))
        for vectors in (min(register_tile[1], most),) if register_tile else dict.fromkeys((*VECTORS, *even)):
            for rows in (min(register_tile[0], greatest),) if register_tile else several:
                if vectors <= most and rows <= greatest:
                    yield Shape(lane, vectors, row, rows, costs.window, costs.terms)
    # few rows that share all vectors, and others that have vectors of their own, of the same lines, and share what these rows load
    vectored = [use for use in found if lane in use.dims]
    sharing = [dim for dim in reusing if 1 < s.extent(dim) <= max(COLUMNS) and not any(dim in use.dims for use in vectored)]
    near = [dim for dim in reusing if all(0 < abs(flat.stride(dim)) * core.element <= core.page for use in vectored for flat in use.flats)]
    for row, column in product(sharing, near) if vectored and not over_terms and not register_tile else ():
        for vectors, columns in product((1, 2, 3), COLUMNS):
            if vectors <= most and columns <= s.fewest.get(column, s.extent(column)):
                yield Shape(lane, vectors, row, s.extent(row), costs.window, costs.terms, column, columns)
    for row, column in permutations(reusing, 2) if over_terms else ():
        for rows, columns in product(COLUMNS, repeat=2):
            wanted = not register_tile or (rows * columns, 1) == (*register_tile,)
            if wanted and all(count <= s.fewest.get(dim, s.extent(dim)) for dim, count in ((row, rows), (column, columns))):
                yield Shape(lane, 1, row, rows, costs.window, costs.terms, column, columns)


def _is_like(shape: Shape, leaf: Leaf) -> bool:
    depth = leaf.depth[0] if leaf.depth else ""
    return (shape.lane, shape.vectors, shape.leaf_rows, shape.depth) == (leaf.lane, leaf.vectors, leaf.rows, depth)


def _blocks(costs: TileCosts, shape: Shape, cost: Estimate, *, crowded: bool) -> tuple[list[Loop], bool, list[Loop]]:
    """A loop over blocks of a term where there are many terms; whether it stands around the results: one block of all panels after the
    other, where panels leave the caches, come from memory for each tile of other results (``crowded``), or only pass through them; and
    loops around it, over parts of rows for threads to share."""
    s, core, terms = costs.s, costs.core, costs.trips * costs.points
    if not shape.terms or (costs.over_terms and (s.epilogue or s.operator != "+=")):
        return [], False, []
    unstaged = [use for number, use in enumerate(costs.uses) if number not in cost.staged]
    streams = len(shape.terms) == 1 and not shape.window and any(use.streams(shape) for use in unstaged)
    if not streams and s.operator != "+=":
        return [], False, []
    parts = _streamed_parts(costs, shape) if streams else []
    most = _streamed_terms(costs, shape, cost, bool(parts)) if streams else BLOCK_TERMS
    width, rows = shape.vectors * core.lanes, shape.rows if shape.row else 1
    again = not costs.over_terms and any(use.results > (rows if use.moves else width) for use in costs.uses)  # by another tile
    kept = _sums_all_terms(s) and (s.in_memory or not s.epilogue)  # between blocks of all panels
    far = streams or (kept and again and (crowded or cost.lane_panel + cost.row_panel > CACHED * core.l2))
    if costs.over_terms and not streams and (cached := _cached_terms(costs, shape)):
        most, far = cached, True
    if costs.block:
        most, far = costs.block, True
    if terms < 2 * most or not (far or s.body.dtype in ROUNDING):
        return [], False, []
    inside = terms
    for dim in _near_last(costs, shape, cost):
        step = shape.vectors * core.lanes if dim == shape.lane else DEPTH if dim == shape.depth else 1
        inside //= s.extent(dim)  # terms at one value of the dimension
        count = s.extent(dim) // step
        size = -(-count // -(-count // max(2, most // (inside * step)))) * step  # blocks of equal size
        if step < size < s.extent(dim):
            break
    else:
        return [], False, []
    return [Loop(dim, size)], far, parts


def _cached_terms(costs: TileCosts, shape: Shape) -> int:
    """The terms, along which lanes are, of blocks of all rows that stay in the second cache while tiles of results read these again, where
    it does not hold all terms; 0 where blocks would be so short that the sums over lanes take longer."""
    core = costs.core
    rows = {use.operand.flats[0].tensor: use.elements * use.bytes // costs.trips for use in costs.uses if use.results > 1}
    tiles = prod(-(-costs.s.extent(dim) // count) for dim, count in shape.leaf_rows)
    most = int(CACHED * core.l2) // max(1, sum(rows.values()))
    across = costs.edge(shape)
    update = shape.accumulators * costs.update / core.lanes  # of one term
    enough = BLOCK_EDGES * across / update
    return most if tiles > 1 and enough <= most < costs.trips * costs.points else 0


def _streamed_parts(costs: TileCosts, shape: Shape) -> list[Loop]:
    """A loop over parts of the rows of a matrix that few tiles read, for threads to share: equal ones, of half a page at least."""
    core, extent, width = costs.core, costs.s.extent(shape.lane), shape.vectors * costs.core.lanes
    page = max(1, core.page // core.element)
    count = PARTS * -(-extent // (PARTS * max(1, STREAMED_PAGES * page)))
    if 2 * extent < count * page:
        return []
    part = -(-extent // (count * width)) * width
    return [Loop(shape.lane, part)] if part < extent else []


def _streamed_terms(costs: TileCosts, shape: Shape, cost: Estimate, shared: bool) -> int:
    """Rows of a matrix that is read once which a block has at least, so that its accumulators' way to memory and back are small beside
    its arithmetic, and so is the threads' start where they do not have the loop around the blocks ``shared``."""
    update = shape.accumulators * costs.update
    starts = 0.0 if shared else BLOCK_STARTS * costs.core.region * costs.trips / cost.cycles
    return math.ceil(max(STREAMED_ROWS, BLOCK_EDGES * 2 * costs.edge(shape) / update, starts))


def _part(counts: Mapping[str, int], panel: int, core: Core) -> int:
    """How many tiles of the outermost of some loops with several read, with all of those inside, what the second cache holds beside other
    panels, in equal parts: 1 where it does not hold two, 0 where it holds all."""
    held = max(1, core.l2 // 4 // max(1, panel))
    tiles = prod(counts.values())
    if tiles <= held:
        return 0
    first = next(count for count in counts.values() if count > 1)
    kept = max(1, held // (tiles // first))
    return -(-first // -(-first // kept)) if kept < first else 0


def _overlapping_inside(costs: TileCosts, tile: Mapping[str, int], dims: Sequence[str]) -> list[str]:
    """Some loops over results, those inside whose iterations read nearly the same, as along a filter whose gradient sums over images."""
    extents = costs.s.extents
    box = {dim: extent if dim in costs.s.terms else min(tile.get(dim, 1), extent) for dim, extent in extents.items()}
    reads = [Moved(flat.form, use.bytes, False) for use in costs.uses for flat in use.operand.flats]

    def growth(dim: str) -> float:
        moving = [moved for moved in reads if moved.form.get(dim)]
        two = {**box, dim: 2 * box[dim]}
        return min((moved.footprint(two) / moved.footprint(box) for moved in moving), default=OVERLAPPED)

    shared = {dim: min(growth(dim), OVERLAPPED) for dim in dims}
    return sorted(dims, key=lambda dim: -shared[dim])


def _parts(counts: Mapping[str, int], panel: int, core: Core, tile: Mapping[str, int]) -> list[Loop]:
    """Loops over parts of some loops with several tiles, so that the second cache holds what one part reads beside other panels: over each
    value of the outer ones while all that is inside is too much, then over equal parts; none where it holds all, or not two tiles."""
    held, inside = max(1, core.l2 // 4 // max(1, panel)), prod(counts.values())
    found: list[Loop] = []
    for dim, count in counts.items():
        if inside <= held:
            return found
        inside //= count
        kept = max(1, held // inside)
        if count > 1:
            found.append(Loop(dim, -(-count // -(-count // kept)) * tile.get(dim, 1)))
        if kept > 1:
            return found
    return []


def _near_last(costs: TileCosts, shape: Shape, cost: Estimate) -> list[str]:
    """The terms outside the window, the one along which elements are nearest to one another innermost."""
    unstaged = [operand for number, operand in enumerate(costs.operands) if number not in cost.staged]
    return sorted(shape.terms, key=lambda dim: -sum(step_of(operand, dim) for operand in unstaged))


def _around(costs: TileCosts, shape: Shape, cost: Estimate, *, turned: bool = False) -> Plan:
    """The loops around a register tile: results that all operands share outermost, the larger panel in the inner loop, or the other one.

    What the inner loops read stays in the second cache, or they run over a part of it that does. Long sums run over blocks of their terms.
    Of results that this cache does not hold neighbours are written one after another, where rows of them lie on many pages.
    """
    s, found, core = costs.s, costs.operands, costs.core
    lane_dims = {dim for operand in found if shape.lane in operand.dims for dim in operand.dims}
    row_dims = {dim for operand in found if shape.lane not in operand.dims for dim in operand.dims}
    tile = {shape.lane: shape.vectors * core.lanes, **dict(shape.leaf_rows)}
    outputs = [dim for dim in s.outputs if dim not in tile]
    columns = [*(dim for dim in outputs if dim in lane_dims - row_dims), *([shape.lane] if shape.lane in s.outputs else [])]
    rows = [*(dim for dim in outputs if dim in row_dims - lane_dims), *(dim for dim, _ in reversed(shape.leaf_rows))]
    batch = [Loop(dim, 1) for dim in outputs if dim not in (*columns, *rows)]
    near = costs.panels_are_near(shape, cost)
    if near:  # of all that lie side by side in a row of results
        across = [loop.dim for loop in batch if loop.dim in costs.dims_in_rows(shape)]
        batch, columns = [loop for loop in batch if loop.dim not in across], [*across, *columns]
    rows_first = near or costs.writes_apart(shape, cost.row_panel)
    if costs.over_terms:  # the rows stay in the nearest cache while what is multiplied by them comes by
        shared = set.intersection(*(set(operand.dims) for operand in found))
        streamed = [use.operand for use in costs.uses if use.beyond and (turned or use.results == 1)]
        batch = [Loop(dim, 1) for dim in outputs if dim in shared]
        inside = [*(dim for dim in outputs if dim not in shared), *([shape.column] if shape.column else [])]
        outside, panel = rows, cost.lane_panel * shape.columns // max(1, shape.rows)
        if streamed:  # what comes from memory for every result, or is ``turned`` outside, is read as it lies there
            dims = sorted(s.outputs, key=lambda dim: -sum(step_of(operand, dim) for operand in streamed))
            batch, outside, inside, panel = [], dims, [], 0
    elif ((cost.staged or cost.lane_panel >= cost.row_panel) and not rows_first) != turned:
        outside, inside, panel = columns, rows, cost.row_panel
    else:
        outside, inside, panel = rows, columns, cost.lane_panel
    inside = _overlapping_inside(costs, tile, inside)
    counts = {dim: -(-s.extent(dim) // tile.get(dim, 1)) for dim in inside}
    again = any(s.extent(dim) > tile.get(dim, 1) for dim in outside)
    crowded = again and _sums_all_terms(s) and _part(counts, panel, core) == 1 and 2 * prod(counts.values()) * panel > core.last
    blocks, far, rows_apart = _blocks(costs, shape, cost, crowded=crowded)
    if far and not costs.block:
        panel = panel * blocks[0].block // s.extent(blocks[0].dim)
    parts = _parts(counts, panel, core, tile) if again else []
    parts = [loop for loop in parts if loop.dim not in {around.dim for around in rows_apart}]  # which has parts already
    terms = [Loop(dim, DEPTH if dim == shape.depth else 1) for dim in _near_last(costs, shape, cost) if dim != shape.lane]
    terms += [Loop(shape.lane, tile[shape.lane])] if shape.lane in s.terms else []
    around = list(dict.fromkeys([*parts, *(Loop(dim, tile.get(dim, 1)) for dim in (*outside, *inside))]))
    around = [*rows_apart, *blocks, *around] if far else [*around, *blocks]
    loops = [*batch, *around, *terms]
    reload = bool(shape.window) and not cost.share and shape.accumulators > 4
    depth = (shape.depth, DEPTH) if shape.depth else None
    leaf = Leaf(shape.lane, shape.vectors, shape.leaf_rows, shape.window, reload, depth, costs.block, cost.staged)
    nest = Nest(tuple(loops), leaf)
    several = [loop.dim for loop in loops if loop.dim in s.outputs and s.extent(loop.dim) > loop.block]
    if not shape.depth:
        beside = costs.prefetched(shape, cost.staged, several)
        others = {*cost.staged, *(prefetch.operand for prefetch in beside)}
        nest = replace(nest, prefetch=(*beside, *prefetches(s, nest, found, others, core)))
        nest = replace(nest, prefetch=(*nest.prefetch, *panel_prefetches(s, nest, found, cost.lane_panel, core)))
    traffic = Traffic(s, nest, found, cost.staged, core.element)
    moved = traffic.cycles(core)
    late = traffic.written_late * core.l3_byte if moved else 0.0
    fetched = [prefetch.operand for prefetch in nest.prefetch]
    streams = far and not costs.block
    before_next = costs.trips * blocks[0].block // s.extent(blocks[0].dim) if streams else costs.block_trips  # terms that a tile sums

    def waiting_part(use: OperandUse) -> float:
        """The part of an operand's lines that no prefetcher asks for: less where the next tile reads rows on where this one ends."""
        if streams and use.streams(shape):
            return 0.0
        reads_on = several and use.operand.is_contiguous(several[-1])
        return min(1.0, before_next / (ROWS_APART if use.moves else STREAMED_ROWS)) if reads_on else 1.0

    waiting = list(map(waiting_part, costs.uses))
    stalls = costs.stalls(shape, cost.staged, fetched, waiting)
    stalls += traffic.into_of(core.l2, len(found)) * core.l3_byte if costs.block else 0.0  # results, which each block waits for
    for number, use in enumerate(costs.uses):
        if not costs.is_strided(use, shape, number in cost.staged) or not waiting[number]:
            continue
        lines = max(1.0, use.width(shape) / LINE)  # at each term
        line = STRIDED_LINE * (FETCHED if number in fetched else 1) * min(1.0, LINES_ALONE / lines, use.step / (FOLLOWED * core.page))
        line *= waiting[number]
        stalls += traffic.into_of(core.l2, number) / LINE * line + costs.tlb_misses(shape, number, before_next)
    return Plan(nest, found, costs.body, replace(cost, cycles=costs.bound(shape, cost.cycles, moved) + stalls), moved, late)
