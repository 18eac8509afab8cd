"""The cost of a register tile, in cycles of a core: what the choice of a nest ranks by.

A tile step is bound by arithmetic, by loads, or by the latency of its accumulators, whichever is longest; what its operands stream from
beyond the first cache, the edges of tiles, and copies add to that. After Low et al., Analytical Modeling Is Enough for High-Performance
BLIS (2016), with terms for windows, strides and streams.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from math import prod

from tcjit.dataclass import dataclass
from tcjit.grammar.ast import Access, Call, Cast, Const, Expr, Index
from tcjit.grammar.walk import children, walk
from tcjit.mapping.machine import LINE, MOVES
from tcjit.mapping.nest.nest import Prefetch
from tcjit.mapping.nest.operand_use import L2_WAYS, SHUFFLED, OperandUse, Shape, TileSpace, conflict_capacity
from tcjit.mapping.nest.statement import FlatAccess
from tcjit.mapping.nest.vector_forms import MASKED_BYTES, STORED_TOGETHER, is_dot_product, predicated

# Vector instructions of what is computed, by the text that is printed for it.
CALLS = {"fabs": 1.0, "abs": 1.0, "fmin": 4.0, "fmax": 4.0}
OTHER_CALL = 20.0  # of float32, as of exp; of float64 twice as many
LONG_CALLS = {"sigmoid": 2.0, "tanh": 2.0, "erf": 2.0, "pow": 5.0}  # which take as long as several
DIVISION = 20.0  # as long as so many others
BFLOAT16_DOT = 4.0  # the same of one that adds the products of pairs of bfloat16; those of integers take as long as a multiply-add
UPDATES = {"+=": 1.0, "*=": 1.0, "min=": 3.0, "max=": 3.0}  # of an update alone: a NaN must stay in minima and maxima
EDGE = 2.0  # of an accumulator's start and its store
INTERLEAVED = 2.0  # shuffles of each row where neighbours in several rows are stored together,
EXTRACTED = 2.0  # and for the place of each lane what it takes to extract and to store what belongs there
MASK = 1.0  # the more of a store under a mask
ACROSS_LANES = 5.5  # dependent multiply-adds that the sum over the lanes of a row takes as long as: a shuffle and an addition for each half
CONVERSION = 2.0  # of a vector of narrower elements as it is loaded
CHAINS = 2.0  # times the sums that one multiply-add's latency asks for, at which none of it shows
SPILL = 0.2  # cycles of a step for each accumulator, where a window that is written out leaves few registers: some go through memory
MASK_REGISTERS = 2  # for a mask that is a vector, and what makes it
SPARE_REGISTERS = 2  # that the compiler wants for such a window
LOOP_OVERHEAD = 3.0  # cycles in which a loop over a term ends and begins again
WALK, MANY_PAGES = 25.0, 4096  # cycles of each of so many pages that a tile reads one after the other: of fewer the second TLB has some
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
LANE_MASKS = 2.0  # of a tile's time for one whose sums are updated under masks that are vectors, where a processor has no others



def instructions(body: Expr, operator: str) -> float:
    """Vector instructions of one update; a product is part of the multiply-add."""
    if is_dot_product(body):
        return BFLOAT16_DOT if body.dtype == "float32" else 1.0

    def count(expr: Expr) -> float:
        if isinstance(expr, (Access, Const, Index)):
            return 0.0
        own = 0.0 if isinstance(expr, Cast) else DIVISION if getattr(expr, "op", "") == "/" else 1.0
        if isinstance(expr, Call):
            own = CALLS.get(expr.function, OTHER_CALL * LONG_CALLS.get(expr.function, 1.0) * (1 + (expr.dtype == "float64")))
        return own + sum(map(count, children(expr)))

    if (term := predicated(body, operator)) is not None:
        return count(term.condition) + instructions(term.then, operator)
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


class TileCosts(TileSpace):
    """The costs of register tiles of one statement with the same lanes and window, whose vectors and rows differ."""

    @cached_property
    def update(self) -> float:
        """Cycles of one update of all accumulators, for each of them, but for the mask of a row."""
        return (instructions(self.body, self.s.operator) + self.masks_vectors - self.row_mask) * self.core.multiply_add

    @cached_property
    def masks_vectors(self) -> bool:
        """Whether the mask of an update is a vector, with which a factor is masked, and no register of another kind."""
        return predicated(self.body, self.s.operator) is not None and self.core.lanes * self.core.element < MASKED_BYTES

    @cached_property
    def row_mask(self) -> float:
        """Instructions that make the mask of an update, where all vectors of a row have the same."""
        term = predicated(self.body, self.s.operator)
        read = set(walk(term.condition)) if term else set[Expr]()
        moves = any(isinstance(part, Access) and self.lane in self.operands[int(part.tensor[1:])].dims for part in read)
        if term is None or moves:
            return 0.0
        return instructions(self.body, self.s.operator) - instructions(term.then, self.s.operator) + self.masks_vectors

    @cached_property
    def uses(self) -> tuple[OperandUse, ...]:
        return tuple(OperandUse(self, operand) for operand in self.operands)

    def operand_registers(self, shape: Shape) -> int:
        """Operands that rows share."""
        moving = sum(use.moves for use in self.uses)
        return shape.vectors * shape.columns if moving and shape.rows > 1 else min(1, moving)

    def has_room(self, shape: Shape) -> bool:
        """Whether registers suffice, and the text is not too long."""
        accumulators, masks = shape.accumulators, MASK_REGISTERS if self.masks_vectors else 0
        used = accumulators + self.operand_registers(shape) + 1 + masks
        return used <= self.core.registers and self.points * accumulators <= MAX_UPDATES

    def tiles(self, shape: Shape) -> tuple[int, int]:
        """How many tiles there are, and the steps of each."""
        extent, width, tiles, steps = self.s.extents, shape.vectors * self.core.lanes, self.results, self.trips
        if self.over_terms:
            steps = steps // extent[self.lane] * -(-extent[self.lane] // width)
        else:
            tiles = tiles // extent[self.lane] * -(-extent[self.lane] // width)
        for dim, count in shape.leaf_rows:
            tiles = tiles // extent[dim] * -(-extent[dim] // count)
        return tiles, steps

    def arithmetic(self, shape: Shape) -> float:
        """Cycles of the updates of a step."""
        return self.points * shape.accumulators * self.update

    def latency(self, shape: Shape) -> float:
        """Cycles in which a step's sums follow those of the step before: twice as many as it takes to hide one also wait for loads, or fill
        two units."""
        core = self.core
        chains = shape.accumulators * core.multiply_add / core.latency
        return core.latency * self.points * (2 - chains / CHAINS) if chains < CHAINS else 0.0

    def least(self, shape: Shape) -> float | None:
        """Cycles that a tile takes at least, whatever is copied; None where it has no room."""
        if not self.has_room(shape):
            return None
        tiles, steps = self.tiles(shape)
        loads = self.core.load * sum(self.elements_of(use, shape, once=True) for use in self.uses)
        step = max(self.arithmetic(shape), self.latency(shape), loads)
        return max(1.0, tiles * (steps * step + shape.accumulators * EDGE + self.core.branch))

    def elements_of(self, use: OperandUse, shape: Shape, *, once: bool) -> int:
        """Vectors of an operand, or single elements, that a step reads, those that points of a window have in common ``once``."""
        vectors = shape.vectors if use.moves else 1
        return vectors * (use.distinct(shape) if once and self.points > 1 else self.points * shape.points(use.operand.dims))

    def estimate(self, shape: Shape, turned: Collection[int] = ()) -> Estimate | None:
        """The cost of a tile; None where registers do not suffice, or the text would be too long. Each of the ``turned`` operands, by their
        numbers, is copied where the rules alone (``OperandUse.is_staged``) would read it where it lies, and the other way round."""
        if not self.has_room(shape):
            return None
        core, extent, uses = self.core, self.s.extents, self.uses
        row, vectors, rows, accumulators = shape.row, shape.vectors, shape.rows, shape.accumulators
        width = vectors * core.lanes
        tiles, steps = self.tiles(shape)
        in_window = sum(self.elements_of(use, shape, once=True) for use in uses)
        share = self.points > 1 and accumulators + in_window <= core.registers - SPARE_REGISTERS
        staged, again, blocks = [], 0.0, self.blocks
        for number, use in enumerate(uses):
            conflict_misses = use.conflict_misses(shape)
            parts = 0.0 if use.moves else self.line_parts(use, shape, steps // blocks)
            pays = use.is_staged(row, rows, vectors) or (use.copyable and tiles * blocks * (conflict_misses + parts) > use.copy)
            if pays != (number in turned):
                staged.append(number)
            else:
                again += conflict_misses
        loads, copied, conversions, first = 0.0, 0.0, 0.0, 0.0
        for number, use in enumerate(uses):
            many = self.elements_of(use, shape, once=False)
            read = self.elements_of(use, shape, once=True) if share else many
            each = core.load if number in staged else use.load
            lines = 0.0 if number in staged else vectors * use.lines_of_lanes(shape)
            if use.is_invariant:  # what a tile loads once lies in registers, or on the stack, from where it is loaded again
                first += many * max(0.0, each - core.load) + lines
                each, lines = min(each, core.load), 0.0
            loads += read * each + lines
            if use.bytes < core.element and number not in staged:
                conversions += read * CONVERSION * core.multiply_add
            copied += use.copy if number in staged else 0.0
        copied -= max((uses[number].saved_by_blocks for number in staged), default=0.0)  # of one operand: it has the loop around
        masks = self.points * rows * shape.columns * self.row_mask * core.multiply_add
        step = max(self.arithmetic(shape) + masks + conversions, loads, self.latency(shape)) + UNHIDDEN_LOADS * loads
        if self.points > 1 and accumulators + self.operand_registers(shape) + 1 + SPARE_REGISTERS > core.registers:
            step += SPILL * accumulators
        step += LOOP_OVERHEAD / extent[self.terms[-1]] if len(self.terms) > 1 else 0.0
        apart = any(use.moves and row in use.operand.dims for number, use in enumerate(uses) if number not in staged)
        step *= 1 + MORE_STREAMS * max(0, (max(rows, shape.columns) if apart else 1) - STREAMS)
        lane_panel = steps // blocks * self.points * sum(use.span(width, number in staged) for number, use in enumerate(uses) if use.moves)
        row_panel = steps // blocks * sum(use.row_span(shape, number in staged) for number, use in enumerate(uses) if not use.moves)
        if self.over_terms:
            panels = sum(use.streamed(shape, steps * self.points * width) for use in uses)
        else:
            panels = lane_panel if self.writes_apart(shape, row_panel) else self.streamed(lane_panel, row_panel)
        streamed = panels / LINE * core.l2_line * UNHIDDEN_LINES
        edges = (2 * blocks - 1) * self.edge(shape)  # each block but the first loads what the one before stored
        cycles = tiles * (steps * step * self.partial(shape) + edges + blocks * (streamed + again + first)) + copied
        return Estimate(cycles, share, frozenset(staged), lane_panel, row_panel)

    def line_parts(self, use: OperandUse, shape: Shape, steps: int) -> float:
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
        not foresee: those of the next tile along the innermost of the ``loops`` over results that moves them. Where that is not the
        innermost of all, each of whose iterations fetches the same, the first cache has to have room for it."""
        if self.over_terms:
            return ()
        parts = [number for number, use in enumerate(self.uses) if number not in staged and use.fetches_pay(shape.vectors, self.update)]
        moving = {number: [dim for dim in loops if dim in self.uses[number].operand.dims] for number in parts}
        width, most = shape.vectors * self.core.lanes, self.core.l1 / 2
        near = {number for number in parts if self.block_trips * self.uses[number].span(width, False) <= most}
        return tuple(Prefetch(number, dims[-1]) for number, dims in moving.items() if dims and (dims[-1] == loops[-1] or number in near))

    def stalls(self, shape: Shape, staged: Collection[int], fetched: Collection[int], waiting: Sequence[float]) -> float:
        """Cycles in which a core waits for operands that are neither ``staged`` nor ``fetched`` ahead, each term's on another page;
        ``waiting``: for each operand, the part of its lines that no prefetcher asks for."""
        if self.over_terms:
            return 0.0
        numbered = enumerate(zip(self.uses, waiting, strict=True))
        others = [pair for number, pair in numbered if number not in (*staged, *fetched)]
        apart = [(use, part) for use, part in others if use.beyond and use.turns_pages(shape)]
        return STALL / LINE * sum(part * use.bytes * min(use.elements, use.operand.flats[0].elements) for use, part in apart)

    @cached_property
    def either_way(self) -> tuple[int, ...]:
        """Operands, by their number, that may be copied or not: what the first cache does not hold, and several results read."""
        some = (number for number, use in enumerate(self.uses) if use.copyable and not use.strided)
        return tuple(number for number in some if self.uses[number].is_large and self.uses[number].results > 1)

    @cached_property
    def gains_by_blocks(self) -> bool:
        """Whether blocks of terms around all tiles keep near what these read, whose terms lie in lines apart. Of rows along the terms
        prefetchers would begin again for each block, and what comes from memory has blocks of its own."""
        far = [use for use in self.uses if use.beyond]
        return bool(far) and all(use.step >= LINE and use.elements * use.bytes <= self.core.last // 2 for use in far)

    def tlb_misses(self, shape: Shape, number: int, terms: int) -> float:
        """Cycles of all tiles, which sum so many terms before the next one, for the pages that an operand's terms lie on, where the TLB
        does not have them: the more, the longer each."""
        core, use = self.core, self.uses[number]
        terms = min(terms, self.s.extents[self.terms[-1]])  # of the innermost loop
        rows = prod(max(1.0, count * min(use.rows[dim], core.page) / core.page) for dim, count in shape.leaf_rows if use.rows[dim])
        pages = terms * rows * min(use.step, core.page) / core.page
        tiles = self.results / prod((shape.vectors * core.lanes, *(count for _, count in shape.leaf_rows)))
        return tiles * self.trips / terms * pages * WALK * min(1.0, pages / MANY_PAGES) if pages > core.tlb else 0.0

    def is_strided(self, use: OperandUse, shape: Shape, staged: bool) -> bool:
        """Whether an operand that others evict from the second cache is read a line or two at each term. What one tile alone reads may lie
        in the caches of all cores."""
        if staged or use.operand.single is None or self.over_terms:
            return False
        overlaps = len(self.s.terms) > 1 and use.elements > use.operand.flats[0].elements  # windows read again what lies near
        if overlaps or use.step < LINE or any(step * use.bytes < LINE for step, _ in use.window):
            return False
        tile = prod(count for dim, count in shape.leaf_rows if dim not in use.operand.dims)
        again = use.results > tile * (1 if use.moves else shape.vectors * self.core.lanes)
        return use.evicted if again else use.beyond

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

    def dims_in_rows(self, shape: Shape) -> tuple[str, ...]:
        """Dimensions of results that lie between one row of a tile and the next; none where lanes do not follow one another."""
        write = self.s.write
        if self.over_terms or write.stride(self.lane) != 1 or not shape.row:
            return ()
        return tuple(dim for dim in self.s.outputs if 0 < write.stride(dim) < write.stride(shape.row))

    def panels_are_near(self, shape: Shape, estimate: Estimate) -> bool:
        """Whether the first cache holds what all tiles of a row of results read. These are written one after another then: threads that
        each have some of its lanes would take the lines from one another in which these end and begin."""
        row = prod(self.s.extents[dim] for dim in self.dims_in_rows(shape))
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
        if self.core.lanes * self.core.element < LINE and any(self.lane in dims for dims in self.s.joint_conditions):
            cut = 1 + bool(extent[self.lane] % width)  # the first tile or the last along a bound, and the one that ends with the lanes
            more += LANE_MASKS * min(1.0, cut * width / extent[self.lane])
        return more

    def edge(self, shape: Shape) -> float:
        """Cycles before the first step of a tile and after the last."""
        core, masked = self.core, self.s.extents[self.lane] % (shape.vectors * self.core.lanes)
        store = EDGE + self.scattered(shape) + (MASK if masked else 0.0)
        across = ACROSS_LANES * core.latency * shape.rows * shape.columns if self.over_terms else 0.0
        misses = sum(self.conflict_misses(flat, shape) for flats in self.strided_accesses for flat in flats)
        return shape.accumulators * store + core.branch + across + misses

    def scattered(self, shape: Shape) -> float:
        """Cycles in which a vector of results, and what follows it, is written and read where its lanes are apart."""
        stored, read = self.strided_accesses
        return sum(self.scatter(flat, shape) for flat in stored) + len(read) * self.core.gather

    @cached_property
    def strided_accesses(self) -> tuple[list[FlatAccess], list[FlatAccess]]:
        """What is stored once a result is complete, and read by what follows it, element by element: lanes are not neighbours there."""
        s = self.s
        if self.over_terms:
            return [], []
        stored = [*([s.write] if s.stored or not s.epilogue else []), *(e.write for e in s.epilogue)]
        read = [flat for e in s.epilogue for flat in e.reads.values()]
        return [flat for flat in stored if flat.stride(self.lane) != 1], [flat for flat in read if flat.stride(self.lane) not in (0, 1)]

    def conflict_misses(self, flat: FlatAccess, shape: Shape) -> float:
        """Cycles for the lines of a tile's results, or of what is read beside them, where these leave the first cache before their
        neighbours are at hand, or, where they meet in its sets, the second one."""
        core = self.core
        apart = abs(flat.stride(self.lane)) * core.element
        if apart < LINE or self.results * core.element <= core.l1:
            return 0.0
        lanes, step = shape.vectors * core.lanes, abs(flat.stride(shape.row)) if shape.row else 1
        lines = lanes * -(-shape.rows * min(step * core.element, LINE) // LINE)
        far = self.results * core.element > core.l2 and lanes > conflict_capacity(apart, core.l2 // L2_WAYS, L2_WAYS)
        if far:
            return lines * core.beyond * LINE / core.element
        alone = not shape.row or step * core.element >= LINE  # each line has one result of the tile
        return lines * core.l2_line if alone or lanes > conflict_capacity(apart, core.l1 // core.ways, core.ways) else 0.0

    def scatter(self, flat: FlatAccess, shape: Shape) -> float:
        """Cycles of the store of a vector whose lanes are apart: those of rows that are neighbours are interleaved and stored together."""
        core, together = self.core, STORED_TOGETHER // self.core.element
        if (step := flat.stride(self.lane)) in SHUFFLED and core.lanes * core.element == LINE:
            return step * (INTERLEAVED + MASK)
        if not shape.row or flat.stride(shape.row) != 1 or core.lanes < together:
            return core.scatter
        whole = shape.rows // together * together / shape.rows  # of rows
        return whole * (EXTRACTED * core.lanes / together + INTERLEAVED) + (1 - whole) * core.scatter

    def streamed(self, lane_panel: int, row_panel: int) -> int:
        """Bytes that a tile reads from the second cache: of two panels the first one holds the larger, or none."""
        if max(lane_panel, row_panel) < self.core.l1 / 2:
            return min(lane_panel, row_panel)
        neither = min(lane_panel, row_panel) > self.core.l1 or lane_panel + row_panel > self.core.l2
        return lane_panel + row_panel if neither else lane_panel
