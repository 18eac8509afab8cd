"""What an operand costs in register tiles of one kind: its loads and its copy, the lines that it shares, whether it is streamed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from functools import cached_property, lru_cache
from math import gcd, prod

from tcjit.dataclass import dataclass
from tcjit.grammar.ast import Access, Expr
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import walk
from tcjit.mapping.machine import LINE, MOVES, Core
from tcjit.mapping.nest.operands import Operand
from tcjit.mapping.nest.statement import FlatStatement

PACKED = 3.0  # times a transposed element that each part of a word takes whose neighbours part: vectors transpose what one load reads
SHUFFLED = {1: 1.0, 2: 3.0, 3: 5.0, 4: 7.0}  # loads that a vector of elements so far apart takes as long as: loads, and shuffles of two
CACHED = 0.75  # of the second cache that what tiles read again takes at most: its sets fill unevenly, and results pass through it
L2_WAYS = 16  # lines of the second cache that its sets hold: of processors of today 8 to 20

# Uses of an element that pay for its copy: each reason to copy saves something else at a use.
STRIDED_USES = 8  # gathers
PAGED_USES = 16  # misses of the TLB
FOLLOWED = 0.5  # of a page: steps that are longer prefetchers do not follow
UPDATES_OF_ELEMENT = 8  # that is fetched for a tile to come, at least, in multiply-adds
CROWDED_USES = 64  # lines that rows a page apart drive out of the first cache: of those that rows share, so not at every use
SHARED_MATRICES = 4  # that threads take one of each, rather than parts of the rows of all
STREAM_USES = 16  # tiles that read an element as it comes from memory, at most
CONFLICTS = 0.75  # of the lines that a cache's sets hold may be one operand's: others lie there, too
COPY_SHARE = 0.2  # of an operand's arithmetic that a copy into panels may cost where only the cache's ways ask for it


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
class TileSpace:
    """What register tiles of one statement with the same lanes and window run over: one iteration of loops that other statements share, so
    many points of ``shared`` dimensions; what reads ``once`` alone is copied before these. Where they are ``cold``, no cache holds what all
    of them read. The operands of ``kept`` values are read where they are. ``block``: the terms that all tiles sum before the next ones, 0
    where each tile sums all of them."""

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
    block: int = 0

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
    def blocks(self) -> int:
        """Of the terms, around all tiles."""
        return -(-self.trips * self.points // self.block) if self.block else 1

    @property
    def block_trips(self) -> int:
        """Values of the terms of one block."""
        return -(-self.trips // self.blocks)

    @cached_property
    def results(self) -> int:
        """Of the statement."""
        return prod(self.s.extents[dim] for dim in self.s.outputs)

    @cached_property
    def over_terms(self) -> bool:
        return self.lane in self.s.terms


def conflict_capacity(apart: int, way: int, ways: int) -> int:
    """How many lines so many bytes apart a cache holds at once, of so many ways of so many bytes."""
    return max(1, way // gcd(apart, way)) * ways


class OperandUse:
    """An operand in tiles of one kind: what its loads and its copy cost, whatever the rows and vectors are."""

    def __init__(self, costs: TileSpace, operand: Operand) -> None:
        s, core = costs.s, costs.core
        self.costs, self.operand = costs, operand
        self.moves = costs.lane in operand.dims
        stride = operand.stride(costs.lane)
        self.results = prod(s.extents[dim] for dim in s.outputs if dim not in operand.dims)  # that read one element
        self.elements = size = prod(s.extents[dim] for dim in operand.dims)
        self.bytes = DTYPES[operand.value.dtype].bytes  # of an element in memory
        before = all(part in costs.once for part in walk(operand.value) if isinstance(part, Access))
        others = prod(count for dim, count in costs.shared.items() if dim in names(operand.value))  # iterations, with their own elements
        every = size * self.bytes * (others if costs.cold and not before else 1)  # bytes of all iterations
        self.beyond, self.is_large = every > core.l2, every > core.l1
        self.evicted = every > CACHED * core.l2  # from the second cache, while others come by
        more = core.far(every) if before or not costs.cold else core.far(every) / MOVES  # it is read from afar, and written near
        self.is_gathered = self.moves and stride != 1 and not (stride in SHUFFLED and self.bytes == core.element)
        self.load = core.gather if self.is_gathered else core.load
        if self.moves and not self.is_gathered:
            self.load *= SHUFFLED[stride]
            apart = [operand.stride(dim) * self.bytes % LINE for dim in operand.dims if dim != costs.lane]
            if stride == 1 and self.results > 1 and any(apart):  # vectors of rows that begin anywhere lie in two lines
                self.load *= 1 + core.lanes * self.bytes / LINE
        along = [costs.lane] if self.moves else s.terms if operand.single is None else []
        together = any(map(operand.is_contiguous, along))
        # rows of results are packed in vectors
        packed = operand.is_packed and (self.moves or not any(map(operand.is_contiguous, s.outputs)))
        transpose = core.transpose * (PACKED * len(operand.flats) if packed else 1)
        together_made = self.is_large and (before or not costs.shared)  # by all threads, each of which reads what others wrote
        passed = core.threads * core.passed_cycles(every * (1 - 1 / core.threads)) if together_made else 0.0
        element = core.copy if together else transpose
        self.copy = (size * (element + more) + passed) / (costs.iterations if before else 1)
        # cycles that blocks of it save, which each core packs by itself and then has near
        self.saved_by_blocks = size * core.far(every) / MOVES + passed if self.beyond and not (costs.shared or costs.block) else 0.0
        extents = {**(costs.shared if costs.cold else {}), **s.extents}
        self.copyable = not costs.over_terms and operand.value not in costs.kept and operand.is_copyable(extents)
        loaded = 2 if self.bytes == core.element else 1  # the greatest stride of lanes that loads do not gather
        self.strided = operand.single is None or (self.moves and stride > loaded and self.results >= STRIDED_USES)
        self.cheap = (core.copy + more) * core.lanes <= COPY_SHARE * self.results
        last = costs.terms[-1] if costs.terms else None
        self.step = min(abs(flat.stride(last)) for flat in operand.flats) * self.bytes if last else 0
        self.is_invariant = not any(dim in operand.dims for dim in costs.s.terms)  # at the terms
        self.window = tuple((step, s.extents[dim]) for dim in costs.window if (step := step_of(operand, dim)))
        self.rows: dict[str | None, int] = {None: 0, **{dim: step_of(operand, dim) for dim in s.outputs}}

    def span(self, width: int, staged: bool) -> int:
        """Bytes that so many lanes take from the caches at one term: whole lines, where the next term's do not follow."""
        apart = not staged and self.step > width * self.bytes and self.step % LINE
        return width * (self.costs.core.element if staged else self.bytes) + (LINE if apart else 0)

    def width(self, shape: Shape) -> int:
        """Bytes of a tile's lanes, or from the first of its rows to the last, at one term."""
        return (shape.vectors * self.costs.core.lanes if self.moves else shape.rows * self.rows[shape.row]) * self.bytes

    def row_span(self, shape: Shape, staged: bool) -> int:
        """Bytes that all rows take from the caches at one term, window included: whole lines, where the next term's do not follow, which
        rows begin anywhere in."""
        own = shape.rows * self.costs.points * self.bytes
        apart = self.rows[shape.row] * self.bytes  # from one row to the next
        if staged or self.costs.over_terms or self.step < LINE or not own % LINE and not self.step % LINE and apart == self.bytes:
            return own
        return max(own, LINE + min(apart, LINE) * (shape.rows - 1))

    def streamed(self, shape: Shape, elements: int) -> int:
        """Bytes that a tile with its lanes in terms, so many elements of a row, reads from the second cache: what moves with the rows stays
        in the first one while others come by, which that cache does not hold. What is read once takes memory's time."""
        size = elements * self.bytes * shape.points(self.operand.dims)
        kept = size if shape.row in self.operand.dims else self.elements * self.bytes
        return size if self.results > 1 and kept > self.costs.core.l1 // 2 else 0

    def distinct(self, shape: Shape) -> int:
        """Different elements that the rows and the window read, in one lane."""
        return len(_offsets(self._moves(shape)))

    def _moves(self, shape: Shape) -> tuple[tuple[int, int], ...]:
        """The steps of rows and of the window in elements, and how many there are."""
        return *((step, count) for dim, count in shape.leaf_rows if (step := self.rows[dim])), *self.window

    def lines_of_lanes(self, shape: Shape) -> float:
        """Cycles of the lines that a vector of gathered lanes reads at one term, in all rows and the window, where the first cache does not
        hold these: each line once."""
        core, stride = self.costs.core, self.operand.stride(self.costs.lane)
        if not self.is_large or not self.is_gathered:
            return 0.0
        moves = tuple((step * self.bytes, count) for step, count in self._moves(shape))
        lines = min(core.lanes * _lines(moves), (core.lanes * stride * self.bytes + sum(step * (n - 1) for step, n in moves)) / LINE)
        return lines * (LINE / core.element * core.beyond / MOVES if self.beyond else core.l2_line)

    @cached_property
    def crowded(self) -> bool:
        """Whether lines that the terms are apart meet in so few sets of the first cache that they drive one another out."""
        core = self.costs.core
        sets = core.l1 // (core.ways * LINE)
        met = sets if self.step % LINE else sets // gcd(self.step // LINE, sets)
        return self.costs.block_trips > met * core.ways

    def conflict_misses(self, shape: Shape) -> float:
        """Cycles of a tile for lines that other tiles have read, where those of one tile meet in the second cache's sets and leave it."""
        costs, core, dims = self.costs, self.costs.core, self.operand.dims
        if not self.is_large or self.operand.single is None:
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
        lines = prod(count for _, count in far) // costs.blocks
        if lines <= CONFLICTS * conflict_capacity(gcd(*(step for step, _ in far)), core.l2 // L2_WAYS, L2_WAYS):
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
        far |= self.beyond and self.results > 1 and self.costs.block_trips > conflict_capacity(self.step, core.l2 // L2_WAYS, L2_WAYS)
        alone = matrices < SHARED_MATRICES and self.moves and far
        return alone and self.has_separate_rows(shape.vectors) and self.results <= STREAM_USES * shared

    def has_separate_rows(self, vectors: int) -> bool:
        """Whether the lines that a tile reads along the lanes, and beside them in a window, are apart from those at the next term."""
        run = self.costs.core.lanes * vectors  # elements
        for step, count in sorted(self.window):
            run += step * (count - 1) if step <= run else 0
        return self.moves and self.step > 2 * run * self.bytes

    def fetches_pay(self, vectors: int, update: float) -> bool:
        """Whether tiles read parts of rows of what the second cache does not hold, and compute enough with each element to wait for it;
        ``update``: cycles of an update."""
        s, operand = self.costs.s, self.operand
        contiguous = operand.single is not None and operand.stride(self.costs.lane) == 1
        points = prod(s.extents.values()) * self.costs.iterations // max(1, operand.flats[0].elements)  # with each element
        busy = points * update >= UPDATES_OF_ELEMENT * self.costs.core.multiply_add
        return busy and self.beyond and contiguous and self.has_separate_rows(vectors)

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
        paged = self.costs.block_trips * min(self.step, core.page) > core.tlb * core.page
        shared = rows if row and row not in dims else 1
        if self.step > FOLLOWED * core.page and paged and self.results // shared >= PAGED_USES and self.beyond:
            return True
        if self.costs.block:
            return False
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
def _offsets(moves: tuple[tuple[int, int], ...]) -> frozenset[int]:
    """The values of ``sum(step * number)``, each number below its count."""
    offsets = {0}
    for step, count in moves:
        offsets = {offset + step * number for offset in offsets for number in range(count)}
    return frozenset(offsets)


@lru_cache(1 << 12)
def _lines(moves: tuple[tuple[int, int], ...]) -> int:
    """The lines that hold what lies so many bytes apart."""
    return len({offset // LINE for offset in _offsets(moves)})
