"""Tiles of a matrix unit: registers of 16 rows of 64 bytes, of which one instruction multiplies two and adds the product to a third.

Of a sum of dot products ``sum_k dot(x(m, k), y(k, n))`` one register has words of ``x``, their neighbours in ``k`` along its rows, another
words of ``y``, their neighbours in ``n``, and a third 16 x 16 sums. A tile has several registers of sums, so that what is loaded is used
again. Its rows and lanes are whole: operands are zero, or are not results' terms, beyond the extents.
"""

from __future__ import annotations

from collections.abc import Iterator

from tcjit.mapping.machine import LINE, Core
from tcjit.mapping.nest.cost import EDGE, UNHIDDEN_LINES, UNHIDDEN_LOADS, Estimate, Shape, TileCosts
from tcjit.mapping.nest.statement import FlatStatement
from tcjit.mapping.nest.vector_forms import is_dot_product

ROWS = 16  # of a register
DEPTH = 16  # words in a row: terms that one instruction sums, of each word all
REGISTERS = 8
TYPES = {("dot2", "float32"): "bfloat16", ("dot4", "int32"): "int8"}  # of the elements, by function and type of the sums
SIZES = (1, 2, 3)  # registers along the rows, and along the lanes


def is_summed(s: FlatStatement, core: Core) -> bool:
    """Whether the core has a matrix unit for the terms of a statement, none of which a condition leaves out."""
    if not is_dot_product(s.body) or TYPES.get((s.body.function, s.body.dtype)) not in core.matrix_types:
        return False
    conditional = frozenset[str]().union(*s.joint_conditions) & set(s.terms)
    return s.operator == "+=" and core.lanes == ROWS and not (conditional or s.dynamic) and len(s.domain.get_basic_sets()) == 1


def matrix_shapes(costs: TileCosts) -> Iterator[Shape]:
    """The tiles that a matrix unit computes with some lanes."""
    s, lane, found = costs.s, costs.lane, costs.operands
    if costs.over_terms or costs.window or len(found) != 2 or not is_summed(s, costs.core):
        return
    across, along = found  # the second one has the lanes
    if lane in across.dims or lane not in along.dims:
        return
    for row in (dim for dim in s.outputs if dim in across.dims - along.dims):
        for depth in (dim for dim in s.terms if dim in across.dims & along.dims):
            if s.range(depth)[0] or s.extent(depth) % DEPTH:
                continue
            for rows in SIZES:
                for vectors in SIZES:
                    if rows * vectors + rows + vectors <= REGISTERS:
                        yield Shape(lane, vectors, row, rows * ROWS, (), costs.terms, depth=depth)


def estimate_matrix(costs: TileCosts, shape: Shape) -> Estimate | None:
    """The cost of such a tile; None where an operand would have to be copied, and cannot be."""
    core, extent = costs.core, costs.s.extents
    assert shape.row is not None
    lines, vectors = shape.rows // ROWS, shape.vectors
    width, steps = vectors * core.lanes, costs.trips // DEPTH
    tiles = costs.results // extent[shape.lane] * -(-extent[shape.lane] // width)
    tiles = tiles // extent[shape.row] * -(-extent[shape.row] // shape.rows)
    staged, copied = [], 0.0
    for number, (use, along) in enumerate(zip(costs.uses, (shape.depth, shape.lane), strict=True)):
        rows = use.operand.single is not None and use.operand.stride(along) == 1
        if not rows or use.is_staged(shape.row, shape.rows, vectors):
            if not use.copyable:
                return None
            staged.append(number)
            copied += use.copy
    loads = (lines + vectors) * ROWS * core.load
    step = max(lines * vectors * core.matrix_multiply, loads) + UNHIDDEN_LOADS * loads
    lane_panel, row_panel = (DEPTH * steps * size * core.element for size in (width, shape.rows))
    streamed = costs.streamed(lane_panel, row_panel) / LINE * core.l2_line * UNHIDDEN_LINES
    edge = shape.accumulators * (EDGE + 2 * core.load) + core.branch  # sums go through memory into vectors
    cycles = tiles * (steps * step + edge + streamed) + copied
    return Estimate(cycles, False, frozenset(staged), lane_panel, row_panel)
