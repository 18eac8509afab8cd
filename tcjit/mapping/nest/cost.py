"""The cost of a register tile, in cycles of a core: what the choice of a nest ranks by.

A tile step is bound by arithmetic, by loads, or by the latency of its accumulators, whichever is longest; what its operands stream from
beyond the first cache, the edges of tiles, and copies add to that. After Low et al., Analytical Modeling Is Enough for High-Performance
BLIS (2016), with terms for windows, strides and streams.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import gcd, prod

from tcjit.grammar.ast import Access, Call, Cast, Const, Expr, Index
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import children, walk
from tcjit.mapping.machine import LINE, MOVES, Core
from tcjit.mapping.nest.nest import Prefetch
from tcjit.mapping.nest.operands import Operand
from tcjit.mapping.nest.statement import FlatStatement
from tcjit.mapping.nest.vector_forms import STORED_TOGETHER, is_dot_product

# Vector instructions of what is computed, by the text that is printed for it.
CALLS = {"fabs": 1.0, "abs": 1.0, "fmin": 4.0, "fmax": 4.0}
OTHER_CALL = 20.0
UPDATES = {"+=": 1.0, "*=": 1.0, "min=": 3.0, "max=": 3.0}  # of an update alone: a NaN must stay in minima and maxima
EDGE = 2.0  # of an accumulator's start and its store
INTERLEAVED = 2.0  # shuffles of each row where neighbours in several rows are stored together,
EXTRACTED = 2.0  # and for the place of each lane what it takes to extract and to store what belongs there
MASK = 1.0  # the more of a store under a mask
ACROSS_LANES = 5.5  # dependent multiply-adds that the sum over the lanes of a row takes as long as: a shuffle and an addition for each half
PACKED = 3.0  # times a transposed element that each part of a word takes whose neighbours part: vectors transpose what one load reads
CONVERSION = 1.0  # of a vector of narrower elements as it is loaded
SHUFFLED = {1: 1.0, 2: 3.0, 3: 5.0, 4: 7.0}  # loads that a vector of elements so far apart takes as long as: loads, and shuffles of two
L2_WAYS = 16  # lines of the second cache that its sets hold: of processors of today 8 to 20
CHAINS = 2.0  # times the sums that one multiply-add's latency asks for, at which none of it shows
SPILL = 0.2  # cycles of a step for each accumulator, where a window that is written out leaves few registers: some go through memory
SPARE_REGISTERS = 2  # that the compiler wants for such a window
LOOP_OVERHEAD = 3.0  # cycles in which a loop over a term ends and begins again
STALL = 60.0  # cycles of a line on another page than those before it, which no prefetcher asks for
MAX_UPDATES = 256  # written out in one tile: more text than that leaves the caches of instructions

# Shares of times: rules of thumb of the model, which no measurement of a processor gives by itself.
UNHIDDEN_LOADS = 0.05  # of loads, even where arithmetic takes longer: of tiles that are equal else, the one with fewer loads is faster
UNHIDDEN_LINES = 0.5  # of the time of lines from the second cache, which prefetchers do not hide
STREAMS = 4  # rows read along lanes at once that prefetchers follow
MORE_STREAMS = 0.08  # of a tile's time for each row more
IN_TURNS = 0.4  # more of memory's time where it is read along several rows in turns, not along one after the other,
BESIDE = -0.15  # unless these are so many pages long, and there are many: while one waits for its next page, the others go on
FIRST_TILE = 1.0  # more of it where the first of several tiles along terms brings in rows, among loads of what the first cache has
LONG_ROWS, MANY_ROWS = 8, 64
LATE_LINES = 2.0  # more that a stretch of a row takes as long as: prefetchers find it late
PARTIAL_ROWS = 0.5  # of a tile's time for one with fewer rows: its points are tested
PARTIAL_WINDOW = 1.0  # of a tile's time where a part of the window counts: its points are tested
PARTIAL_LANES = 0.15  # of a tile's time for one with fewer lanes: its loads are masked

# Uses of an element that pay for its copy: each reason to copy saves something else at a use.
STRIDED_USES = 8  # gathers
PAGED_USES = 16  # misses of the TLB
FOLLOWED = 0.5  # of a page: steps that are longer prefetchers do not follow
UPDATES_OF_ELEMENT = 8  # that is fetched for a tile to come, at least
CROWDED_USES = 64  # lines that rows a page apart drive out of the first cache: of those that rows share, so not at every use
SHARED_MATRICES = 4  # that threads take one of each, rather than parts of the rows of all
STREAM_USES = 16  # tiles that read an element as it comes from memory, at most
COPY_SHARE = 0.2  # of an operand's arithmetic that a copy into panels may cost where only the cache's ways ask for it


def instructions(body: Expr, operator: str) -> float:
    """Vector instructions of one update; a product is part of the multiply-add."""
    if is_dot_product(body):
        return 1.0

    def count(expr: Expr) -> float:
        if isinstance(expr, (Access, Const, Index)):
            return 0.0
        own = 0.0 if isinstance(expr, Cast) else CALLS.get(expr.function, OTHER_CALL) if isinstance(expr, Call) else 1.0
        return own + sum(map(count, children(expr)))

    inside = count(body)
    fused = operator == "+=" and getattr(body, "op", "") == "*"
    return max(1.0, inside) if fused else inside + UPDATES[operator]


@dataclass(frozen=True)
class Estimate:
    """``cycles`` of all tiles on one core; ``share``: registers hold the window's loads; ``staged``: operands to copy, by their number."""

    cycles: float
    share: bool
    staged: frozenset[int]
    lane_panel: int  # bytes of the operands that move with the lanes, for the terms of one tile
    row_panel: int


@dataclass(frozen=True)
class Shape:
    """A register tile: ``vectors`` along a ``lane``, ``rows`` points of ``row``, the ``window`` of terms written out, other ``terms``.

    Rows may lie along a second dimension as well, ``columns`` points of ``column`` for each of the others.
    """

    lane: str
    vectors: int
    row: str | None
    rows: int
    window: tuple[str, ...]
    terms: tuple[str, ...]
    column: str | None = None
    columns: int = 1
    depth: str = ""  # the term of which a matrix unit sums several points at once; nothing where vectors hold the sums

    @property
    def accumulators(self) -> int:
        return self.vectors * self.rows * self.columns

    @property
    def leaf_rows(self) -> tuple[tuple[str, int], ...]:
        """The points of dimensions of results, those in lanes aside."""
        return tuple((dim, count) for dim, count in ((self.row, self.rows), (self.column, self.columns)) if dim)

    def points(self, dims: Collection[str]) -> int:
        """Rows that differ in an operand that moves with such dimensions."""
        return prod(count for dim, count in self.leaf_rows if dim in dims)


@dataclass(frozen=True)
class TileCosts:
    """The costs of register tiles of one statement with the same lanes and window, whose vectors and rows differ.

    They are those of one iteration of loops that other statements share, over so many points of ``shared`` dimensions; what reads ``once``
    alone is copied before these. Where they are ``cold``, no cache holds what all of them read. The operands of ``kept`` values are read
    where they are.
    """

    s: FlatStatement
    lane: str
    window: tuple[str, ...]
    operands: tuple[Operand, ...]
    body: Expr
    core: Core
    shared: Mapping[str, int] = field(default_factory=dict)
    once: frozenset[Access] = frozenset()
    kept: frozenset[Expr] = frozenset()
    cold: bool = False

    @cached_property
    def iterations(self) -> int:
        """Of the shared loops."""
        return prod(self.shared.values())

    @cached_property
    def terms(self) -> tuple[str, ...]:
        """Those outside the window."""
        return tuple(dim for dim in self.s.terms if dim not in self.window)

    @cached_property
    def points(self) -> int:
        """Of the window."""
        return prod(self.s.extents[dim] for dim in self.window)

    @cached_property
    def trips(self) -> int:
        """Values of the terms."""
        return prod(self.s.extents[dim] for dim in self.terms)

    @cached_property
    def results(self) -> int:
        """Of the statement."""
        return prod(self.s.extents[dim] for dim in self.s.outputs)

    @cached_property
    def update(self) -> float:
        """Cycles of one update of all accumulators, for each of them."""
        return instructions(self.body, self.s.operator) * self.core.multiply_add

    @cached_property
    def over_terms(self) -> bool:
        return self.lane in self.s.terms

    @cached_property
    def uses(self) -> tuple[_Use, ...]:
        return tuple(_Use(self, operand) for operand in self.operands)

    def estimate(self, shape: Shape) -> Estimate | None:
        """The cost of a tile; None where registers do not suffice, or the text would be too long."""
        core, extent, uses = self.core, self.s.extents, self.uses
        row, vectors, rows = shape.row, shape.vectors, shape.rows
        accumulators, moving = shape.accumulators, sum(use.moves for use in uses)
        held = vectors * shape.columns if moving and rows > 1 else min(1, moving)  # operands that rows share
        if accumulators + held + 1 > core.registers or self.points * accumulators > MAX_UPDATES:
            return None
        width, steps = vectors * core.lanes, self.trips
        if self.over_terms:
            steps = steps // extent[self.lane] * -(-extent[self.lane] // width)
        distinct = [use.distinct(shape) * (vectors if use.moves else 1) for use in uses] if self.points > 1 else []
        share = bool(distinct) and accumulators + sum(distinct) <= core.registers - SPARE_REGISTERS
        tiles = self.results if self.over_terms else self.results // extent[self.lane] * -(-extent[self.lane] // width)
        for dim, count in shape.leaf_rows:
            tiles = tiles // extent[dim] * -(-extent[dim] // count)
        staged, again = [], 0.0
        for number, use in enumerate(uses):
            conflict_misses = use.conflict_misses(shape)
            parts = 0.0 if use.moves else self.line_parts(use, shape, steps)
            if use.is_staged(row, rows, vectors) or (use.copyable and tiles * (conflict_misses + parts) > use.copy):
                staged.append(number)
            else:
                again += conflict_misses
        loads, copied, conversions = 0.0, 0.0, 0.0
        for number, use in enumerate(uses):
            many = self.points * shape.points(use.operand.dims) * (vectors if use.moves else 1)
            loads += (distinct[number] if share else many) * (core.load if number in staged else use.load)
            if use.bytes < core.element and number not in staged:
                conversions += (distinct[number] if share else many) * CONVERSION * core.multiply_add
            copied += use.copy if number in staged else 0.0
        chains = accumulators * core.multiply_add / core.latency  # as long as one: twice as many also wait for loads, or fill two units
        latency = core.latency * self.points * (2 - chains / CHAINS) if chains < CHAINS else 0.0
        step = max(self.points * accumulators * self.update + conversions, loads, latency) + UNHIDDEN_LOADS * loads
        if self.points > 1 and accumulators + held + 1 + SPARE_REGISTERS > core.registers:
            step += SPILL * accumulators
        step += LOOP_OVERHEAD / extent[self.terms[-1]] if len(self.terms) > 1 else 0.0
        apart = any(use.moves and row in use.operand.dims for number, use in enumerate(uses) if number not in staged)
        step *= 1 + MORE_STREAMS * max(0, (max(rows, shape.columns) if apart else 1) - STREAMS)
        lane_panel = steps * self.points * sum(use.span(width, number in staged) for number, use in enumerate(uses) if use.moves)
        row_panel = steps * sum(use.row_span(shape, number in staged) for number, use in enumerate(uses) if not use.moves)
        if self.over_terms:
            read = sum(use.streamed(shape, steps * self.points * width) for use in uses)
        else:
            read = lane_panel if self.writes_apart(shape, row_panel) else self.streamed(lane_panel, row_panel)
        streamed = read / LINE * core.l2_line * UNHIDDEN_LINES
        cycles = tiles * (steps * step * self.partial(shape) + self.edge(shape) + streamed + again) + copied
        return Estimate(cycles, share, frozenset(staged), lane_panel, row_panel)

    def line_parts(self, use: _Use, shape: Shape, steps: int) -> float:
        """Cycles of a tile for what rows do not use of the lines that they read at its terms, where the first cache does not hold these."""
        lines = steps * use.row_span(shape, False)
        if lines <= self.core.l1 / 2:
            return 0.0
        return (lines - steps * use.row_span(shape, True)) / LINE * self.core.l2_line * UNHIDDEN_LINES

    @cached_property
    def memory(self) -> float:
        """Cycles in which a core reads all operands and writes the results, where the second cache does not hold them."""
        sizes = [use.bytes * min(use.elements, use.operand.flats[0].elements) for use in self.uses]
        read = self.results * self.core.element + sum(sizes)
        return read * self.core.beyond / MOVES / self.core.element if read > self.core.l2 else 0.0

    def bound(self, shape: Shape, cycles: float, moved: float = 0.0) -> float:
        """Cycles of a tile's plan, no less than what its loops have ``moved`` takes, and than memory does: longer where the rows of a tile,
        each read once, come from it in turns and are short, or stretches of rows, the more of them the shorter they are. Where lanes lie in
        terms, the first tile of several that read the same rows waits for memory while it computes, the others compute alone."""
        once = self.over_terms and shape.rows > 1 and all(use.results == 1 for use in self.uses)
        width, extent = shape.vectors * self.core.lanes, self.s.extents[self.lane]
        far = [use for use in self.uses if use.beyond and use.moves and use.step > width * use.bytes]
        apart = [use.bytes for use in far if not use.streams(shape)]  # whose rows blocks of terms read from end to end
        late = -(-extent // width) * LATE_LINES * LINE / (extent * min(apart)) if apart else 0.0
        long = self.results >= MANY_ROWS and all(extent * use.bytes >= LONG_ROWS * self.core.page for use in self.uses)
        passes = self.passes(shape) if self.over_terms else 1
        turns = FIRST_TILE if passes > 1 else (BESIDE if long and shape.rows >= STREAMS else IN_TURNS) if once else 0.0
        memory = self.memory * (1 + turns + late)
        alone = cycles * (1 - 1 / passes)
        return max(alone + max(cycles - alone, memory), moved)

    def passes(self, shape: Shape) -> int:
        """The tiles that read the same elements of the operand that memory's time is for."""
        use = max(self.uses, key=lambda use: use.bytes * use.elements)
        return prod(-(-self.s.extents[dim] // shape.points([dim])) for dim in self.s.outputs if dim not in use.operand.dims)

    def prefetched(self, shape: Shape, staged: Collection[int], loops: Sequence[str]) -> tuple[Prefetch, ...]:
        """Operands, by their number, whose rows come from beyond the second cache a few lines of each at a time, which the processor does
        not foresee: those of the next tile along the innermost of the ``loops`` over results that moves them."""
        if self.over_terms:
            return ()
        parts = [number for number, use in enumerate(self.uses) if number not in staged and use.fetches_pay(shape.vectors)]
        moving = {number: [dim for dim in loops if dim in self.uses[number].operand.dims] for number in parts}
        return tuple(Prefetch(number, dims[-1]) for number, dims in moving.items() if dims)

    def stalls(self, shape: Shape, staged: Collection[int], fetched: Collection[int]) -> float:
        """Cycles in which a core waits for operands that are neither ``staged`` nor ``fetched`` ahead, each term's on another page."""
        if self.over_terms:
            return 0.0
        others = [use for number, use in enumerate(self.uses) if number not in (*staged, *fetched)]
        apart = [use for use in others if use.beyond and use.turns_pages(shape)]
        return STALL / LINE * sum(use.bytes * min(use.elements, use.operand.flats[0].elements) for use in apart)

    def writes_apart(self, shape: Shape, row_panel: int) -> bool:
        """Whether results that the second cache does not hold lie on more pages than the TLB has, along the rows of one tile of lanes, and
        what these rows read stays in the first cache while lanes follow one another instead."""
        core, write = self.core, self.s.write
        if self.over_terms or write.stride(self.lane) != 1 or not shape.row:
            return False
        if self.results * core.element <= core.l2 or row_panel > core.l1 / 2:
            return False
        rows = self.results // self.s.extents[self.lane]
        return rows * min(core.page, abs(write.stride(shape.row)) * core.element) > core.tlb * core.page

    def panels_are_near(self, shape: Shape, estimate: Estimate) -> bool:
        """Whether the first cache holds what all tiles of a row of results read. These are written one after another then: threads that
        each have some of its lanes would take the lines from one another in which these end and begin."""
        write = self.s.write
        if self.over_terms or write.stride(self.lane) != 1 or not shape.row:
            return False
        row = prod(self.s.extents[dim] for dim in self.s.outputs if 0 < write.stride(dim) < write.stride(shape.row))
        tiles = -(-row // (shape.vectors * self.core.lanes))
        return tiles > 1 and estimate.lane_panel * tiles + estimate.row_panel <= self.core.l1

    def partial(self, shape: Shape) -> float:
        """What tiles at the ends of rows and lanes add to the mean tile's time, of which they are a share."""
        extent, width, more = self.s.extents, shape.vectors * self.core.lanes, 1.0
        for dim, count in shape.leaf_rows:
            if extent[dim] % count and not self.s.is_box:  # the last tile of a box overlaps the one before
                more += PARTIAL_ROWS / -(-extent[dim] // count)
        tile = {self.lane, shape.row, shape.column}
        if any(dims & set(shape.window) and not dims & tile for dims in self.s.joint_conditions):
            more += PARTIAL_WINDOW  # a loop over the term would have the values that count for all of the tile
        if extent[self.lane] % width:
            more += PARTIAL_LANES / -(-extent[self.lane] // width)
        return more

    def edge(self, shape: Shape) -> float:
        """Cycles before the first step of a tile and after the last."""
        core, masked = self.core, self.s.extents[self.lane] % (shape.vectors * self.core.lanes)
        scattered = not self.over_terms and self.s.write.stride(self.lane) != 1
        store = EDGE + (self.scatter(shape) if scattered else 0.0) + (MASK if masked else 0.0)
        across = ACROSS_LANES * core.latency * shape.rows * shape.columns if self.over_terms else 0.0
        return shape.accumulators * store + core.branch + across + (self.conflict_misses(shape) if scattered else 0.0)

    def conflict_misses(self, shape: Shape) -> float:
        """Cycles for the lines of a tile's results where these leave the first cache before their neighbours are written, or, where they
        meet in its sets, the second one."""
        core, write = self.core, self.s.write
        apart = abs(write.stride(self.lane)) * core.element
        if apart < LINE or self.results * core.element <= core.l1:
            return 0.0
        lanes, step = shape.vectors * core.lanes, abs(write.stride(shape.row)) if shape.row else 1
        lines = lanes * -(-shape.rows * min(step * core.element, LINE) // LINE)
        far = self.results * core.element > core.l2 and lanes > _conflict_capacity(apart, core.l2 // L2_WAYS, L2_WAYS)
        if far:
            return lines * core.beyond * LINE / core.element
        alone = not shape.row or step * core.element >= LINE  # each line has one result of the tile
        return lines * core.l2_line if alone or lanes > _conflict_capacity(apart, core.l1 // core.ways, core.ways) else 0.0

    def scatter(self, shape: Shape) -> float:
        """Cycles of the store of a vector whose lanes are apart: those of rows that are neighbours are interleaved and stored together."""
        core, together = self.core, STORED_TOGETHER // self.core.element
        if (step := self.s.write.stride(self.lane)) in SHUFFLED and core.lanes * core.element == LINE:
            return step * (INTERLEAVED + MASK)
        if not shape.row or self.s.write.stride(shape.row) != 1 or core.lanes < together:
            return core.scatter
        whole = shape.rows // together * together / shape.rows  # of rows
        return whole * (EXTRACTED * core.lanes / together + INTERLEAVED) + (1 - whole) * core.scatter

    def streamed(self, lane_panel: int, row_panel: int) -> int:
        """Bytes that a tile reads from the second cache: of two panels the first one holds the larger, or none."""
        if max(lane_panel, row_panel) < self.core.l1 / 2:
            return min(lane_panel, row_panel)
        return lane_panel + row_panel if lane_panel + row_panel > self.core.l2 else lane_panel


def _conflict_capacity(apart: int, way: int, ways: int) -> int:
    """How many lines so many bytes apart a cache holds at once, of so many ways of so many bytes."""
    return max(1, way // gcd(apart, way)) * ways


class _Use:
    """An operand in tiles of one kind: what its loads and its copy cost, whatever the rows and vectors are."""

    def __init__(self, costs: TileCosts, operand: Operand) -> None:
        s, core = costs.s, costs.core
        self.costs, self.operand = costs, operand
        self.moves = costs.lane in operand.dims
        stride = operand.stride(costs.lane)
        self.results = prod(s.extents[dim] for dim in s.outputs if dim not in operand.dims)  # that read one element
        self.elements = size = prod(s.extents[dim] for dim in operand.dims)
        self.bytes = DTYPES[operand.value.dtype].bytes  # of an element in memory
        before = all(part in costs.once for part in walk(operand.value) if isinstance(part, Access))
        every = size * self.bytes * (costs.iterations if costs.cold and not before else 1)  # bytes of all iterations
        self.beyond = every > core.l2
        more = core.far(every) if before or not costs.cold else core.far(every) / MOVES  # it is read from afar, and written near
        self.load = core.load
        if self.moves and (stride == 1 or stride in SHUFFLED and self.bytes == core.element):
            self.load *= SHUFFLED[stride]
            apart = [operand.stride(dim) * self.bytes % LINE for dim in operand.dims if dim != costs.lane]
            if stride == 1 and self.results > 1 and any(apart):  # vectors of rows that begin anywhere lie in two lines
                self.load *= 1 + core.lanes * self.bytes / LINE
        elif self.moves:  # each lane has a line of its own
            line = LINE / core.element * core.beyond / MOVES if self.beyond else core.l2_line if size * self.bytes > core.l1 else 0.0
            self.load = core.gather + core.lanes * min(1.0, stride * self.bytes / LINE) * line
        along = [costs.lane] if self.moves else s.terms if operand.single is None else []
        together = any(map(operand.is_contiguous, along))
        # rows of results are packed in vectors
        packed = operand.is_packed and (self.moves or not any(map(operand.is_contiguous, s.outputs)))
        transpose = core.transpose * (PACKED * len(operand.flats) if packed else 1)
        self.copy = size * ((core.copy if together else transpose) + more) / (costs.iterations if before else 1)
        extents = {**(costs.shared if costs.cold else {}), **s.extents}
        self.copyable = not costs.over_terms and operand.value not in costs.kept and operand.is_copyable(extents)
        loaded = 2 if self.bytes == core.element else 1  # the greatest stride of lanes that loads do not gather
        self.strided = operand.single is None or (self.moves and stride > loaded and self.results >= STRIDED_USES)
        self.cheap = (core.copy + more) * core.lanes <= COPY_SHARE * self.results
        last = costs.terms[-1] if costs.terms else None
        self.step = min(abs(flat.stride(last)) for flat in operand.flats) * self.bytes if last else 0
        self.window = tuple((step, s.extents[dim]) for dim in costs.window if (step := step_of(operand, dim)))
        self.rows: dict[str | None, int] = {None: 0, **{dim: step_of(operand, dim) for dim in s.outputs}}

    def span(self, width: int, staged: bool) -> int:
        """Bytes that so many lanes take from the caches at one term: whole lines, where the next term's do not follow."""
        apart = not staged and self.step > width * self.bytes and self.step % LINE
        return width * (self.costs.core.element if staged else self.bytes) + (LINE if apart else 0)

    def row_span(self, shape: Shape, staged: bool) -> int:
        """Bytes that all rows take from the caches at one term, window included: whole lines, where the next term's do not follow."""
        own = shape.rows * self.costs.points * self.bytes
        apart = self.rows[shape.row] * self.bytes  # from one row to the next
        if staged or self.costs.over_terms or self.step < LINE or apart * shape.rows < LINE:
            return own
        return max(own, -(-min(apart, LINE) * shape.rows // LINE) * LINE)

    def streamed(self, shape: Shape, elements: int) -> int:
        """Bytes that a tile with its lanes in terms, so many elements of a row, reads from the second cache: what moves with the rows stays
        in the first one while others come by, which that cache does not hold. What is read once takes memory's time."""
        size = elements * self.bytes * shape.points(self.operand.dims)
        kept = size if shape.row in self.operand.dims else self.elements * self.bytes
        return size if self.results > 1 and kept > self.costs.core.l1 // 2 else 0

    def distinct(self, shape: Shape) -> int:
        """Different elements that the rows and the window read, in one lane."""
        moves = tuple((step, count) for dim, count in shape.leaf_rows if (step := self.rows[dim]))
        return _distinct((*moves, *self.window))

    @cached_property
    def crowded(self) -> bool:
        """Whether lines that the terms are apart meet in so few sets of the first cache that they drive one another out."""
        core = self.costs.core
        sets = core.l1 // (core.ways * LINE)
        met = sets if self.step % LINE else sets // gcd(self.step // LINE, sets)
        return self.costs.trips > met * core.ways

    def conflict_misses(self, shape: Shape) -> float:
        """Cycles of a tile for lines that other tiles have read, where those of one tile meet in the second cache's sets and leave it."""
        costs, core, dims = self.costs, self.costs.core, self.operand.dims
        if not self.beyond or self.operand.single is None:
            return 0.0
        width = shape.vectors * core.lanes
        tile = {costs.lane: width, **({shape.row: shape.rows} if shape.row else {})}
        near = [tile.get(dim, costs.s.extents[dim] if dim in costs.s.terms else 1) for dim in dims if self.operand.stride(dim) == 1]
        readers = prod(costs.s.extents[dim] // min(tile.get(dim, 1), costs.s.extents[dim]) for dim in costs.s.outputs if dim not in dims)
        readers *= max(1, LINE // self.bytes // prod(near))  # of one line
        if readers < 2:
            return 0.0
        steps = [(self.operand.stride(dim) * self.bytes, costs.s.extents[dim]) for dim in costs.terms if dim != costs.lane]
        steps += [(self.operand.stride(shape.row) * self.bytes, shape.rows)] if shape.row else []
        far = [(step, count) for step, count in steps if step >= LINE]
        lines = prod(count for _, count in far)
        if lines <= _conflict_capacity(gcd(*(step for step, _ in far)), core.l2 // L2_WAYS, L2_WAYS):
            return 0.0
        beside = -(-width * self.bytes // LINE) if self.moves else 1
        return lines * beside * LINE / core.element * core.beyond / MOVES * (1 - 1 / readers)

    def streams(self, shape: Shape) -> bool:
        """Whether tiles read rows that lie apart from memory, each for few other tiles, of one matrix: threads share several of these. So
        do those from the last cache that meet in so few sets of the second one that other tiles would read them from afar again."""
        shared = shape.rows if shape.row and shape.row not in self.operand.dims else 1
        extents, operand = self.costs.s.extents, self.operand
        matrices = prod(extents[dim] for dim in self.costs.s.outputs if operand.stride(dim) * self.bytes > self.step)
        core = self.costs.core
        far = self.elements * self.bytes > core.last // 2  # of which others have a part
        far |= self.beyond and self.results > 1 and self.costs.trips > _conflict_capacity(self.step, core.l2 // L2_WAYS, L2_WAYS)
        alone = matrices < SHARED_MATRICES and self.moves and far
        return alone and self.has_separate_rows(shape.vectors) and self.results <= STREAM_USES * shared

    def has_separate_rows(self, vectors: int) -> bool:
        """Whether the lines that a tile reads along the lanes, and beside them in a window, are apart from those at the next term."""
        run = self.costs.core.lanes * vectors  # elements
        for step, count in sorted(self.window):
            run += step * (count - 1) if step <= run else 0
        return self.moves and self.step > 2 * run * self.bytes

    def fetches_pay(self, vectors: int) -> bool:
        """Whether tiles read parts of rows of what the second cache does not hold, and compute enough with each element to wait for it."""
        s, operand = self.costs.s, self.operand
        contiguous = operand.single is not None and operand.stride(self.costs.lane) == 1
        updates = prod(s.extents.values()) * self.costs.iterations // max(1, operand.flats[0].elements)  # with each element
        return updates >= UPDATES_OF_ELEMENT and self.beyond and contiguous and self.has_separate_rows(vectors)

    def turns_pages(self, shape: Shape) -> bool:
        """Whether a tile reads parts of rows, those of each value of some term on another page."""
        core, operand = self.costs.core, self.operand
        if operand.single is None or operand.stride(self.costs.lane) != 1:
            return False
        far = [dim for dim in self.costs.terms if operand.stride(dim) * self.bytes >= core.page]
        tile = {self.costs.lane: shape.vectors * core.lanes, **dict(shape.leaf_rows)}
        inside = {**dict.fromkeys(operand.dims, 1), **{dim: self.costs.s.extents[dim] for dim in self.costs.s.terms}, **tile}
        part = sum(operand.stride(dim) * (inside[dim] - 1) for dim in operand.dims if dim not in far)
        return bool(far) and part * self.bytes < core.page

    def is_staged(self, row: str | None, rows: int, vectors: int) -> bool:
        """Whether the operand is worth a copy: it is computed, its lanes are strided, or its rows lie on too many pages."""
        core, dims = self.costs.core, self.operand.dims
        if not self.copyable or self.strided:
            return self.copyable
        paged = self.costs.trips * min(self.step, core.page) > core.tlb * core.page
        shared = rows if row and row not in dims else 1
        if self.step > FOLLOWED * core.page and paged and self.results // shared >= PAGED_USES and self.beyond:
            return True
        if self.has_separate_rows(vectors) and self.cheap and (paged or self.crowded):
            return True
        if self.moves or row not in dims:
            return False
        meets = self.crowded and self.step > LINE and self.step % LINE == 0
        if self.cheap and (meets or paged and self.step > FOLLOWED * core.page):
            return True
        if rows < core.ways or self.results < CROWDED_USES:
            return False
        strides = [flat.stride(row) * self.bytes for flat in self.operand.flats] if row else []
        return any(stride and stride % core.page == 0 for stride in strides)


def step_of(operand: Operand, dim: str) -> int:
    """By how much the places of an operand's accesses move together."""
    return sum(abs(flat.stride(dim)) for flat in operand.flats)


@lru_cache(1 << 12)
def _distinct(moves: tuple[tuple[int, int], ...]) -> int:
    """How many values ``sum(step * number)`` has, each number below its count."""
    offsets = {0}
    for step, count in moves:
        offsets = {offset + step * number for offset in offsets for number in range(count)}
    return len(offsets)
