"""Stage operands: copy what a register tile would read with strides, or compute for each result again, into panels in its order.

A copy is an assignment like any other, which later passes vectorise. Where an operand moves with a dimension of the tile that has several
blocks, that dimension is strip-mined: the panel of one block, terms outside and the points of the block inside, is contiguous. What is
computed from neighbours in a term and does not move with the lanes keeps its order: rows of terms, which are copied at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from math import gcd, prod

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import affine, guarded_accesses, linear
from tcjit.grammar.arithmetic import plus
from tcjit.grammar.ast import Access, Binary, Cast, Const, Expr, Index
from tcjit.grammar.dtypes import converted
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import factors, rebuild, walk
from tcjit.mapping.assignment import Assignment, DynamicRanges, Temporaries, to_statement
from tcjit.mapping.cases import joined
from tcjit.mapping.isl import context, points, sizes_in
from tcjit.mapping.machine import LINE, Core
from tcjit.mapping.nest.nest import Leaf, Nest
from tcjit.mapping.nest.operands import Operand
from tcjit.mapping.nest.plan_nest import Plan
from tcjit.mapping.nest.strip_mine import Strip, strip_mine, strip_mined
from tcjit.mapping.nest.vector_forms import is_converted
from tcjit.mapping.scop import OuterLoops
from tcjit.mapping.storage import Bounds, Storage

SPARE = 1.25  # times the points of a dimension that blocks of it may have, where it would be one with others else
ROW_BLOCK = 64  # points of a block of rows at least whose neighbours are copied at once: a vector's elements
_Part = tuple[Expr, Bounds, DynamicRanges]  # of a copy: a value, and the points that have it


@dataclass(frozen=True)
class Staging:
    """``copies`` of operands, the dimensions that are in blocks for them, and for each value that is copied the element that has it."""

    copies: tuple[Assignment, ...]
    strips: tuple[Strip, ...]
    reads: Mapping[Expr, Access]

    def rewritten(self, a: Assignment) -> Assignment:
        """An assignment over the same dimensions that reads the copies."""
        for strip in self.strips:
            a = strip_mined(a, strip)
        return replace(a, value=_reading(a.value, self.reads))


def unstageable(a: Assignment, plan: Plan, tensors: Mapping[str, Storage]) -> frozenset[Expr]:
    """Of the operands that the plan wants staged the values of those that cannot be."""
    wanted = [plan.operands[number] for number in sorted(plan.estimate.staged)]
    return frozenset(one.value for one in wanted if not (one.is_copyable(a.extents) and _stays_inside(a, one.value, tensors)))


def stage_operands(
    a: Assignment, plan: Plan, merged: Mapping[str, tuple[str, ...]], core: Core, temporaries: Temporaries
) -> Staging:
    """The operands that the plan wants staged, as far as they can be; ``merged``: dimensions of the assignment for which one of the plan's
    stands."""
    leaf, refused = plan.nest.leaf, unstageable(a, plan, temporaries.tensors)
    staged = [plan.operands[number] for number in sorted(plan.estimate.staged) if plan.operands[number].value not in refused]
    strips: list[Strip] = []
    tile = [(dim, leaf.tile(dim, core.lanes)) for dim in (*(row for row, _ in leaf.rows), leaf.lane)]
    for dim, size in tile:
        extent = a.extents.get(dim, 0)
        panels = [operand for operand in staged if dim in operand.dims and not _row_term(operand, leaf, a)]
        if dim != leaf.lane and any(operand.single is None and operand.is_contiguous(dim) for operand in panels):
            size *= -(-ROW_BLOCK // size)
        one = len(merged.get(dim, (dim,))) > 1 and -(-extent // size) * size > SPARE * extent  # blocks would be loops of few lanes each
        filled = dim == leaf.lane and size <= SPARE * extent  # a single block's last vector
        if panels and 1 < size and (size < extent or (leaf.depth or filled) and extent < size) and not one:
            strips.append(strip_mine(a, dim, size))
            a = strip_mined(a, strips[-1])
    copies: list[Assignment] = []
    reads: dict[Expr, Access] = {}
    for operand in staged:
        value = operand.value
        for strip in strips:
            value = strip.rewritten(value)
        if value in reads:
            continue
        row_term = _row_term(operand, leaf, a)
        dims = _order(a, value, strips, [dim for dim, _ in tile], plan.nest, merged, row_term)
        if leaf.depth and leaf.lane not in operand.dims:  # rows of a matrix unit's registers
            dims = [*(dim for dim in dims if dim != leaf.depth[0]), leaf.depth[0]]
        shape = [a.ranges[dim][1] - a.ranges[dim][0] for dim in dims]
        open_extents = tuple(plus(a.dynamic[dim][1], -a.ranges[dim][0]) if dim in a.dynamic else None for dim in dims)
        if (row_term or leaf.depth) and dims[-1] in (row_term, *(leaf.depth or ())) and dims[-1] not in a.dynamic:
            shape[-1] += _padding(shape[-1], prod(rows for _, rows in leaf.rows), core)
        copy = temporaries.add(a.source, f"{operand.flats[0].tensor}_staged", a.value.dtype, shape, open_extents)
        subscripts = tuple(plus(Index(dim, dtype="int64"), -a.ranges[dim][0]) for dim in dims)
        moving: DynamicRanges = {dim: limits for dim, limits in a.dynamic.items() if dim in dims}
        zero: Expr = Const(converted(0, copy.dtype), dtype=copy.dtype)
        outer = a.outer if a.outer and set(a.outer.dims) <= set(dims) else None
        every = tuple((dim, *a.ranges[dim]) for dim in _loops(operand, dims, strips))
        boxes = list[_Part]()
        for first, ended in _last_apart(every, strips, outer):
            parts: list[_Part] = [(value, first, moving)]
            for strip in ended:  # tiles compute with what lies beyond the extent: there must be no denormals, which take long
                padding = [(zero, *part) for _, box, dynamic in parts for part in strip.padding(box, dynamic)]
                parts = [*((what, *part) for what, box, dynamic in parts for part in strip.parts(box, dynamic)), *padding]
            boxes += parts
        for what, whole, dynamic in boxes:
            for box, part in joined(what, whole, {}, dynamic):
                part = part if part.dtype == copy.dtype else Cast(part, dtype=copy.dtype)
                made = Assignment(copy.name, subscripts, "=", part, box, a.source, fuse_outer_only=True, outer=outer, dynamic=dynamic)
                copies.append(made)
        reads[value] = Access(copy.name, subscripts, dtype=a.value.dtype)
    return Staging((*copies,), (*strips,), reads)


def _last_apart(box: Bounds, strips: Sequence[Strip], outer: OuterLoops | None) -> list[tuple[Bounds, Sequence[Strip]]]:
    """A box of a copy without the last iteration of shared loops, and that iteration, where it has fewer points of a dimension; with how
    the dimensions are in blocks there."""
    if outer is None or outer.rest is None or outer.rest[0] not in {name for name, _, _ in box}:
        return [(box, strips)]
    block, (dim, points_left) = outer.dims[-1], outer.rest
    last = next(end - 1 for name, _, end in box if name == block)
    ended = [replace(strip, extent=points_left) if strip.dim == dim else strip for strip in strips]
    blocks = {strip.outer: -(-points_left // strip.block) for strip in ended if strip.dim == dim} or {dim: points_left}
    before = tuple((name, lower, last if name == block else end) for name, lower, end in box)
    after = tuple((name, last if name == block else lower, blocks.get(name, end)) for name, lower, end in box)
    return [(before, strips), (after, ended)]


def _padding(row: int, rows: int, core: Core) -> int:
    """Elements between rows of a copy: a line where those that a tile reads at once would meet in too few sets of the first cache."""
    way = core.l1 // core.ways
    held = way // gcd(row * core.element, way) * core.ways
    return LINE // core.element if held < 2 * rows else 0


def _row_term(operand: Operand, leaf: Leaf, a: Assignment) -> str:
    """The term whose neighbours an operand is computed from, which does not move with the lanes; nothing where there is none, or rows
    are those of a matrix unit."""
    if operand.single is not None or leaf.lane in operand.dims or leaf.depth:
        return ""
    return next((dim for dim, _, _ in a.terms if operand.is_contiguous(dim)), "")


def _stays_inside(a: Assignment, value: Expr, tensors: Mapping[str, Storage]) -> bool:
    """Whether an operand can be read at all points of the assignment's box, whatever dynamic sizes are, those included where a condition
    keeps it from being read."""
    kept = a.constraints if a.outer and a.outer.rest else ()  # of the last iteration of shared loops
    box, ends = to_statement("S", replace(a, constraints=kept), {}), [end for limits in a.dynamic.values() for end in limits]
    for access, guards in guarded_accesses(value):
        storage, texts = tensors[access.tensor], [affine(sub, {}) for sub in access.subscripts]
        if guards or not texts:
            continue  # they are part of the copy
        if None in texts or not a.dynamic and any(linear(sub) is None for sub in access.subscripts):
            return False
        outside = " or ".join(f"{text} < 0 or {text} >= {end}" for text, end in zip(texts, storage.extent_texts, strict=True))
        sizes = sizes_in((*ends, *access.subscripts, *filter(None, storage.dynamic_extents)), {})
        if not points(context(), box.isl_dims, [*box.facts, f"({outside})"], sizes).is_empty():
            return False
    return True


def _loops(operand: Operand, dims: Sequence[str], strips: Sequence[Strip]) -> list[str]:
    """The loops around a copy, outermost first: where neighbours stay together whole rows of what is read, otherwise block by block."""
    if not operand.is_contiguous(dims[-1]):
        return list(dims)
    blocks = [strip.outer for strip in strips if strip.outer in dims]
    return [*(dim for dim in dims[:-1] if dim not in blocks), *blocks, dims[-1]]


def _order(
    a: Assignment, value: Expr, strips: Sequence[Strip], tile: Sequence[str], nest: Nest, merged: Mapping[str, tuple[str, ...]],
    row_term: str,
) -> list[str]:  # fmt: skip
    """The dimensions of a copy: blocks, what both share, terms as loops run over them, and last what is inside the register tile; or a
    term whose rows stay."""
    accesses = [node for node in walk(value) if isinstance(node, Access)]
    used = {name for access in accesses for name in names(access)} | set(a.outer.dims if a.outer and a.outer.private else ())
    if row_term:
        return [*(dim for dim, _, _ in a.bounds if dim in used and dim != row_term), row_term]
    shared = a.outer.dims if a.outer else ()
    blocks, parted = [strip.outer for strip in strips], [strip.dim for strip in strips]
    tile = [part for dim in tile for part in ((dim,) if dim in parted else merged.get(dim, (dim,)))]
    batch = [*shared, *(dim for dim, _, _ in a.results if dim not in (*blocks, *tile, *shared))]
    loops = {part: at for at, loop in enumerate(nest.loops) for part in merged.get(loop.dim, (loop.dim,))}
    terms = sorted((dim for dim, _, _ in a.terms), key=lambda dim: loops.get(dim, len(loops)))  # a window's are written out inside
    rest = [dim for dim in (*terms, *(dim for dim, _, _ in a.results)) if dim not in (*blocks, *tile, *batch)]
    return [dim for dim in (*batch, *blocks, *rest, *tile) if dim in used]


def _reading(value: Expr, reads: Mapping[Expr, Access]) -> Expr:
    """A value from copies; a copy of a product stands for those factors of a longer one."""
    if value in reads:
        return reads[value]
    if isinstance(value, Binary) and value.op == "*":
        left = list(factors(value))
        for product, copy in reads.items():
            own = list(factors(product))
            if len(own) > 1 and not Counter(own) - Counter(left):
                left = [copy, *(Counter(left) - Counter(own)).elements()]
        if len(left) < len(list(factors(value))):
            return reduce(lambda one, other: Binary("*", one, other, dtype=value.dtype), (_reading(factor, reads) for factor in left))
    made = rebuild(value, lambda part: _reading(part, reads))
    return made.operand if is_converted(value) and isinstance(made, Cast) and made.operand.dtype == made.dtype else made
