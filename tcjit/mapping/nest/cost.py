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
from tcjit.mapping.nest.vector_forms import PAIR_DOT


@dataclass(frozen=True)
class Core:
    """Constants of one core. Cycles unless said otherwise; ``element``, caches and pages in bytes; ``lanes`` of elements in a vector."""

    lanes: int = 16
    element: int = 4
    registers: int = 32
    latency: float = 4.0  # of a multiply-add
    vector_load: float = 1.0
    scalar_load: float = 1.0  # and to all lanes
    copy: float = 0.3  # of an element whose neighbours stay together
    transpose: float = 1.2  # of an element whose neighbours part
    beyond: float = 1.0  # the more of either beyond the second cache
    scatter: float = 3.0  # of an element from a vector to memory
    gather: float = 16.0  # of one vector
    l2_line: float = 2.5  # 64 bytes from the second cache
    branch: float = 12.0  # a short loop's exit
    l1: int = 32 << 10
    l2: int = 1 << 20
    l3: int = 16 << 20
    page: int = 4096
    tlb: int = 64  # entries of the first level
    threads: int = 2


def core_of(machine: Machine, lanes: int, element: int) -> Core:
    """A core of a machine for elements of so many bytes, so many in a vector."""
    return Core(
        lanes=lanes,
        element=element,
        registers=machine.vector_registers,
        l1=machine.near_bytes,
        l2=machine.cache_bytes,
        threads=machine.threads,
    )


COPY_SHARE = 0.2  # of an operand's arithmetic that a copy into panels may cost where only the cache's ways ask for it
CALLS = {"fabs": 1.0, "abs": 1.0, "sqrt": 8.0, "exp": 20.0}  # vector instructions of built-ins; others count as 20
UPDATES = {"+=": 1.0, "*=": 1.0, "min=": 3.0, "max=": 3.0}  # of an update alone: a NaN must stay in minima and maxima


def instructions(body: Expr, operator: str) -> float:
    """Vector instructions of one update; a product is part of the multiply-add."""

    if isinstance(body, Call) and body.function == PAIR_DOT:
        return 1.0

    def count(expr: Expr) -> float:
        if isinstance(expr, (Access, Const, Index)):
            return 0.0
        own = 0.0 if isinstance(expr, Cast) else CALLS.get(expr.function, 20.0) if isinstance(expr, Call) else 1.0
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
    if accumulators + min(vectors * len(in_lanes), vectors) + 1 > core.registers or window * accumulators > 256:
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
            loads += count * core.vector_load * (1.0 if stride == 1 else 3.0 if stride == 2 else core.gather)
        else:
            loads += count * core.scalar_load
    work = window * accumulators * instructions(body, s.operator)
    latency = core.latency * window if accumulators < core.latency else 0.0
    step = max(work, loads, latency) + 0.05 * loads
    streams = rows if any(operand in in_lanes and row in operand.dims for n, operand in enumerate(found) if n not in staged) else 1
    step *= 1 + 0.08 * max(0, streams - 4)
    width = vectors * core.lanes
    tile = {lane: width, **({row: rows} if row else {})}
    tiles = prod(-(-extent[dim] // tile.get(dim, 1)) for dim in s.outputs)
    partial = 1.0
    if row and extent[row] % rows:
        partial += 0.5 / -(-extent[row] // rows)
    if extent[lane] % width:
        partial += 0.15 / -(-extent[lane] // width)
    scattered = not over_terms and s.write.stride(lane) != 1
    edge = accumulators * (2.0 + (core.scatter * core.lanes if scattered else 0.0) + (1.0 if extent[lane] % width else 0.0)) + core.branch
    edge += 22.0 * rows if over_terms else 0.0
    element = core.element
    lane_panel = sum(element * width * steps * window for _ in in_lanes)
    row_panel = sum(element * rows * steps * window for operand in found if operand not in in_lanes)
    streamed: float = lane_panel
    if max(lane_panel, row_panel) < core.l1 / 2:
        streamed = min(lane_panel, row_panel)
    elif lane_panel + row_panel > core.l2:
        streamed = lane_panel + row_panel
    cycles = tiles * (steps * step * partial + edge + streamed / 64 * core.l2_line * 0.5) + copied
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
    if operand.single is None or (moves and operand.stride(shape.lane) > 2 and use >= 8):
        return True
    step = min(abs(flat.stride(shape.terms[-1])) for flat in operand.flats) * element if shape.terms else 0
    rows = shape.rows if shape.row and shape.row not in operand.dims else 1
    if step >= core.page and steps > core.tlb and use // rows >= 16 and size * element > core.l2:
        return True
    apart = moves and bool(shape.terms) and step > 2 * core.lanes * shape.vectors * element and steps > core.tlb
    copy = core.copy + (core.beyond if size * element > core.l2 else 0.0)
    if apart and copy * core.lanes <= COPY_SHARE * use:
        return True  # lines of a panel are apart from one term to the next: prefetchers lose them, and they meet in few sets of a cache
    strides = [flat.stride(shape.row) * element for flat in operand.flats] if shape.row else []
    paged = any(stride and stride % core.page == 0 for stride in strides)
    return bool(not moves and shape.row in operand.dims and shape.rows > 8 and paged and use >= 64)
