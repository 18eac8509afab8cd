"""Tiles of a matrix unit: registers of 16 rows of 64 bytes, of which one instruction multiplies two and adds the product to a third.

Of a sum of dot products ``sum_k dot(x(m, k), y(k, n))`` one register has words of ``x``, their neighbours in ``k`` along its rows, another
words of ``y``, their neighbours in ``n``, and a third 16 x 16 sums. A tile has several registers of sums, so that what is loaded is used
again. Its rows and lanes are whole: operands are zero, or are not results' terms, beyond the extents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tcjit.grammar.ast import Call
from tcjit.mapping.machine import LINE, Core
from tcjit.mapping.nest.cost import EDGE, UNHIDDEN_LINES, UNHIDDEN_LOADS, Estimate, TileCosts
from tcjit.mapping.nest.nest import Leaf
from tcjit.mapping.nest.operand_use import CROWDED_USES, Shape
from tcjit.mapping.nest.operands import Operand
from tcjit.mapping.nest.statement import FlatAccess, FlatStatement
from tcjit.mapping.nest.vector_forms import ADJACENT, DOT_PRODUCTS, is_dot_product

ROWS = 16  # of a register
DEPTH = 16  # words in a row: terms that one instruction sums, of each word all
REGISTERS = 8
SIZES = (1, 2, 3)  # registers along the rows, and along the lanes


def elements(body: Call) -> str:
    """The type of the elements of which a dot product's words are made, bytes of both kinds by the name of one."""
    if body.dtype == "float32":
        return "bfloat16"
    return "int8" if body.function != DOT_PRODUCTS[2] else "int16"


def has_rows_of_words(operand: Operand, dim: str) -> bool:
    """Whether the words of an operand are neighbours along a dimension as memory has them, so that a row of a register can be loaded."""
    if not isinstance(operand.value, Call) or operand.value.function != ADJACENT:
        return False
    return all(flat.stride(dim) == len(operand.flats) and not flat.runtime for flat in operand.flats)


def is_direct(operand: Operand, leaf: Leaf) -> bool:
    """Whether a tile loads an operand that is made of several elements."""
    return leaf.depth is not None and leaf.lane not in operand.dims and has_rows_of_words(operand, leaf.depth[0])


def _has_room(flat: FlatAccess, extents: Mapping[str, int], dim: str, points: int) -> bool:
    """Whether tiles of so many points of a dimension read elements that are there, beyond the extent too."""
    furthest = flat.constant + sum(max(0, step) * (extents[name] - 1) for name, step in flat.form.items())
    return not flat.runtime and furthest + flat.stride(dim) * (-extents[dim] % points) < flat.elements


def is_summed(s: FlatStatement, core: Core) -> bool:
    """Whether the core has a matrix unit for the terms of a statement, none of which a condition leaves out."""
    if not is_dot_product(s.body) or elements(s.body) not in core.matrix_types:
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
    # the dimension along a register's rows, and that along several registers, whose last tile overlaps the one before
    along = (shape.depth, shape.row, shape.rows), (shape.lane, shape.lane, width)
    for number, (use, (dim, outer, points)) in enumerate(zip(costs.uses, along, strict=True)):
        fits = extent[outer] >= points or all(_has_room(flat, extent, outer, points) for flat in use.operand.flats)
        if dim == shape.depth and has_rows_of_words(use.operand, dim):
            conflicts = use.operand.stride(shape.row) * use.bytes // len(use.operand.flats) % core.page == 0 and use.results >= CROWDED_USES
            as_it_is = fits and not (conflicts and use.copyable)
        else:
            in_rows = use.operand.single is not None and use.operand.stride(dim) == 1
            as_it_is = in_rows and fits and not use.is_staged(shape.row, shape.rows, vectors)
        if not as_it_is:
            if not use.copyable:
                return None
            staged.append(number)
            copied += use.copy
    loads = (lines + vectors) * ROWS * core.load
    step = max(lines * vectors * core.matrix_multiply, loads) + UNHIDDEN_LOADS * loads
    lane_panel, row_panel = (DEPTH * steps * size * core.element for size in (width, shape.rows))
    streamed = costs.streamed(lane_panel, row_panel) / LINE * core.l2_line * UNHIDDEN_LINES
    edge = shape.accumulators * (EDGE + 2 * core.load + costs.scattered(shape)) + core.branch  # sums go through memory into vectors
    cycles = tiles * (steps * step + edge + streamed) + copied
    return Estimate(cycles, False, frozenset(staged), lane_panel, row_panel)
