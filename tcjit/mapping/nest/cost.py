"""The cost of a register tile, in cycles of a core: what the choice of a nest ranks by.

A tile step is bound by arithmetic, by loads, or by the latency of its accumulators, whichever is longest; what its operands stream from
beyond the first cache, the edges of tiles, and copies add to that. After Low et al., Analytical Modeling Is Enough for High-Performance
BLIS (2016), with terms for windows, strides and streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tcjit.grammar.ast import Access, Call, Cast, Const, Expr, Index
from tcjit.grammar.walk import children
from tcjit.mapping.machine import Machine
from tcjit.mapping.nest.operands import Operand
from tcjit.mapping.nest.statement import FlatStatement


@dataclass(frozen=True)
class Core:
    """Constants of one core of a machine. Cycles unless said otherwise; ``element``, caches and pages in bytes; ``lanes`` of elements in a
    vector."""

    lanes: int
    element: int
    registers: int
    multiply_add: float  # until the next one starts
    latency: float  # of a multiply-add
    load: float  # of a vector, or of an element to all lanes
    gather: float  # of a vector whose lanes are strided
    scatter: float  # of a vector to places that are apart
    copy: float  # of an element whose neighbours stay together
    transpose: float  # of an element whose neighbours part
    beyond: float  # the more of either beyond the second cache
    l2_line: float  # a line from the second cache
    branch: float  # a short loop's exit
    l1: int
    l2: int
    ways: int  # lines that are whole pages apart in the first cache
    page: int
    tlb: int  # entries of the first level


def core_of(machine: Machine, lanes: int, element: int) -> Core:
    """A core of a machine for elements of so many bytes, so many in a vector."""
    costs = machine.costs
    return Core(
        lanes=lanes,
        element=element,
        registers=machine.vector_registers,
        multiply_add=1 / costs.fma_rate,
        latency=costs.fma_latency,
        load=costs.vector_load,
        gather=costs.gather,
        scatter=costs.scatter * lanes,
        copy=costs.copy,
        transpose=costs.transpose,
        beyond=MOVES * element / costs.l3_load,
        l2_line=LINE / costs.l2_load,
        branch=costs.branch_miss,
        l1=machine.near_bytes,
        l2=machine.cache_bytes,
        ways=max(1, machine.near_bytes // int(costs.page)),
        page=int(costs.page),
        tlb=int(costs.tlb),
    )


LINE = 64  # bytes of a line of a cache
MOVES = 3  # of a copied element between caches: it is read, and its place is read before it is written

# Vector instructions of what is computed, by the text that is printed for it.
CALLS = {"fabs": 1.0, "abs": 1.0}
OTHER_CALL = 20.0
UPDATES = {"+=": 1.0, "*=": 1.0, "min=": 3.0, "max=": 3.0}  # of an update alone: a NaN must stay in minima and maxima
EDGE = 2.0  # of an accumulator's start and its store
MASK = 1.0  # the more of a store under a mask
ACROSS_LANES = 5.5  # dependent multiply-adds that the sum over the lanes of a row takes as long as: a shuffle and an addition for each half
PAIRS = 3.0  # loads that a vector of every second element takes as long as: two, and a shuffle
MAX_UPDATES = 256  # written out in one tile: more text than that leaves the caches of instructions

# Shares, fitted to tiles that were timed.
UNHIDDEN_LOADS = 0.05  # of loads, even where arithmetic takes longer: of tiles that are equal else, the one with fewer loads is faster
UNHIDDEN_LINES = 0.5  # of the time of lines from the second cache, which prefetchers do not hide
STREAMS = 4  # rows read along lanes at once that prefetchers follow
MORE_STREAMS = 0.08  # of a tile's time for each row more
PARTIAL_ROWS = 0.5  # of a tile's time for one with fewer rows: its points are tested
PARTIAL_LANES = 0.15  # of a tile's time for one with fewer lanes: its loads are masked

# Uses of an element that pay for its copy: each reason to copy saves something else.
STRIDED_USES = 8  # gathers
PAGED_USES = 16  # misses of the TLB
CROWDED_USES = 64  # lines of rows that drive one another out of the first cache, as some of them only
COPY_SHARE = 0.2  # of an operand's arithmetic that a copy into panels may cost where only the cache's ways ask for it


def instructions(body: Expr, operator: str) -> float:
    """Vector instructions of one update; a product is part of the multiply-add."""

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
    """A register tile: ``vectors`` along ``lane``, ``rows`` points of ``row``, the ``window`` of terms written out, other ``terms``."""

    lane: str
    vectors: int
    row: str | None
    rows: int
    window: tuple[str, ...]
    terms: tuple[str, ...]


def estimate(s: FlatStatement, shape: Shape, found: Sequence[Operand], body: Expr, core: Core) -> Estimate | None:
    """The cost of a register tile; None where registers do not suffice, or the text would be too long."""
    extent = s.extents
    lane, row, vectors, rows = shape.lane, shape.row, shape.vectors, shape.rows
    over_terms = lane in s.terms
    window, accumulators = prod(extent[dim] for dim in shape.window), vectors * rows
    in_lanes = [operand for operand in found if lane in operand.dims]
    if accumulators + min(vectors * len(in_lanes), vectors) + 1 > core.registers or window * accumulators > MAX_UPDATES:
        return None
    steps = prod(extent[dim] for dim in shape.terms)
    if over_terms:
        steps = steps // extent[lane] * -(-extent[lane] // (vectors * core.lanes))
    distinct = [_distinct(s, operand, shape, extent) * (vectors if operand in in_lanes else 1) for operand in found]
    share = window > 1 and accumulators + sum(distinct) <= core.registers - 2
    loads, copied, staged = 0.0, 0.0, set()
    for number, operand in enumerate(found):
        moves, use = operand in in_lanes, prod(extent[dim] for dim in s.outputs if dim not in operand.dims)
        size = prod(extent[dim] for dim in operand.dims)
        if not over_terms and operand.is_copyable and _staged(s, shape, operand, use, size, steps, extent, core):
            staged.add(number)
            together = moves and operand.single is not None and operand.stride(lane) == 1
            copied += size * ((core.copy if together else core.transpose) + (core.beyond if size * core.element > core.l2 else 0.0))
        count = distinct[number] if share else window * (rows if row in operand.dims else 1) * (vectors if moves else 1)
        if moves:
            stride = 1 if number in staged else operand.stride(lane)
            loads += count * (core.load if stride == 1 else PAIRS * core.load if stride == 2 else core.gather)
        else:
            loads += count * core.load
    work = window * accumulators * instructions(body, s.operator) * core.multiply_add
    latency = core.latency * window if accumulators * core.multiply_add < core.latency else 0.0
    step = max(work, loads, latency) + UNHIDDEN_LOADS * loads
    streams = rows if any(operand in in_lanes and row in operand.dims for n, operand in enumerate(found) if n not in staged) else 1
    step *= 1 + MORE_STREAMS * max(0, streams - STREAMS)
    width = vectors * core.lanes
    tile = {lane: width, **({row: rows} if row else {})}
    tiles = prod(-(-extent[dim] // tile.get(dim, 1)) for dim in s.outputs)
    partial = 1.0
    if row and extent[row] % rows:
        partial += PARTIAL_ROWS / -(-extent[row] // rows)
    if extent[lane] % width:
        partial += PARTIAL_LANES / -(-extent[lane] // width)
    scattered = not over_terms and s.write.stride(lane) != 1
    edge = accumulators * (EDGE + (core.scatter if scattered else 0.0) + (MASK if extent[lane] % width else 0.0)) + core.branch
    edge += ACROSS_LANES * core.latency * rows if over_terms else 0.0
    element = core.element
    lane_panel = sum(element * width * steps * window for _ in in_lanes)
    row_panel = sum(element * rows * steps * window for operand in found if operand not in in_lanes)
    streamed: float = lane_panel
    if max(lane_panel, row_panel) < core.l1 / 2:
        streamed = min(lane_panel, row_panel)
    elif lane_panel + row_panel > core.l2:
        streamed = lane_panel + row_panel
    cycles = tiles * (steps * step * partial + edge + streamed / LINE * core.l2_line * UNHIDDEN_LINES) + copied
    return Estimate(cycles, share, frozenset(staged), lane_panel, row_panel)


def _distinct(s: FlatStatement, operand: Operand, shape: Shape, extent: dict[str, int]) -> int:
    """Different elements of an operand that the rows and the window read, in one lane."""
    offsets = {0}
    for dim, count in [*([(shape.row, shape.rows)] if shape.row else []), *((dim, extent[dim]) for dim in shape.window)]:
        step = sum(flat.stride(dim) for flat in operand.flats)
        if step:
            offsets = {offset + step * number for offset in offsets for number in range(count)}
    return len(offsets)


def _staged(s: FlatStatement, shape: Shape, operand: Operand, use: int, size: int, steps: int, extent: dict[str, int], core: Core) -> bool:
    """Whether an operand is worth a copy: it is computed, its lanes are strided, or its rows lie on too many pages."""
    moves, element = shape.lane in operand.dims, core.element
    if operand.single is None or (moves and operand.stride(shape.lane) > 2 and use >= STRIDED_USES):
        return True
    step = min(abs(flat.stride(shape.terms[-1])) for flat in operand.flats) * element if shape.terms else 0
    rows = shape.rows if shape.row and shape.row not in operand.dims else 1
    if step >= core.page and steps > core.tlb and use // rows >= PAGED_USES and size * element > core.l2:
        return True
    apart = moves and bool(shape.terms) and step > 2 * core.lanes * shape.vectors * element and steps > core.tlb
    copy = core.copy + (core.beyond if size * element > core.l2 else 0.0)
    if apart and copy * core.lanes <= COPY_SHARE * use:
        return True  # lines of a panel are apart from one term to the next: prefetchers lose them, and they meet in few sets of a cache
    strides = [flat.stride(shape.row) * element for flat in operand.flats] if shape.row else []
    paged = any(stride and stride % core.page == 0 for stride in strides)
    return bool(not moves and shape.row in operand.dims and shape.rows > core.ways and paged and use >= CROWDED_USES)
