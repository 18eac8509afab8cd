"""Pad operands: materialise a guarded read of a sum of products once, so that the sum itself reads without a condition.

``(h + kh >= 1 && h + kh <= H) ? I(c, h + kh - 1) : 0.0`` depends on ``h`` and ``kh`` only through the subscript. Over the values ``y``
that the subscripts take it is one tensor, ``y >= 0 && y < H ? I(c, y) : 0.0``, a padded copy; each element is computed once instead of
at every point that uses it, and a contraction over plain reads can run on vectors. The values are the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import islpy as isl

from tcjit.grammar.affine import affine, isl_name, linear
from tcjit.grammar.affine import condition as affine_condition
from tcjit.grammar.arithmetic import index, plus, total
from tcjit.grammar.ast import Access, Binary, Const, Expr, Index, Select, Unary
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import replaced, walk, with_indices
from tcjit.layout import memory_order
from tcjit.mapping.assignment import Assignment, Assignments, DynamicRanges, Temporaries, rewrite
from tcjit.mapping.isl import context, points, sizes_in
from tcjit.mapping.machine import Machine
from tcjit.mapping.nest.narrow_factors import is_narrow_product, with_conditions_inside
from tcjit.mapping.passes.expand_operands import LONG
from tcjit.mapping.plan_chunks import product_sides
from tcjit.mapping.reduction import is_plain_product, is_product
from tcjit.mapping.scop import OuterLoops
from tcjit.mapping.storage import Bounds, Storage
from tcjit.mapping.strides import affine_form

# uses of each padded element that pay for computing it ahead: where conditions only cost time, and where they keep a sum from nests
WORTH_PADDING = 8
WORTH_NEST = 2


def pad_operands(before: Assignments, machine: Machine | None) -> Assignments:
    """The program with the copies before the sums that read their elements often enough; register tiles of a CPU take products of narrow
    integers too. On a GPU, without a ``machine``, products of halves have copies as well, for tensor cores, and sums whose operands are not
    read again for other results have none."""
    on_gpu = machine is None

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if a.operator != "+=" or not a.reduction or a.empty:
            return [a]
        value = a.value if on_gpu or a.dynamic else with_conditions_inside(a.value)
        padded = paddings(value, a.bounds, temporaries.tensors, before.values, a.dynamic, WORTH_PADDING if on_gpu else WORTH_NEST)
        reads: dict[Expr, Expr] = {p.select: p.read_of("") for p in padded}
        plain = replaced(value, reads)
        narrow = is_plain_product(plain) if on_gpu else is_narrow_product(plain)
        if not padded or not (is_product(plain) or narrow):
            return [a]
        if on_gpu and product_sides(replace(a, value=plain)) is None:
            return [a]  # results share no element but those of neighbouring windows, which caches hold: a copy would be traffic alone
        copies = []
        for p in padded:
            moving = {name for axis in p.axes for name in names(axis.subscript)}
            alone = not on_gpu and sum(isinstance(node, Access) for node in walk(plain)) == 1  # results may be in its order, too
            storage = temporaries.tensors[p.read.tensor]
            order = memory_order(storage.layout, len(storage.shape))
            if (long := _long_axis(a, p, temporaries.tensors[a.tensor], machine)) is not None:
                order = *(other for other in range(len(p.axes)) if other != long), long
            elif not (alone or moving.isdisjoint(names(_along_lanes(a, temporaries.tensors[a.tensor])))):
                order = None
            p = replace(p, axes=tuple(p.axes[place] for place in order)) if order else p  # elements that all lanes read lie as they did
            copy = temporaries.copy(a, f"{p.read.tensor}_padded", p.value, [(axis.index, axis.size, axis.extent) for axis in p.axes])
            copies.append(replace(copy, outer=_outer_loops(a, p)))
            reads[p.select] = p.read_of(copy.tensor)
        return [*copies, replace(a, value=replaced(value, reads))]

    padded = rewrite(before, visit)
    return replace(padded, assignments=_copies_first(before, padded)) if on_gpu else padded


def _copies_first(before: Assignments, padded: Assignments) -> tuple[Assignment, ...]:
    """The assignments, with copies before what results start from, so that these and the sum that goes on with them share a kernel."""
    copies = {storage.name for _, storage in padded.temporaries[len(before.temporaries) :]}
    found: list[Assignment] = []
    for a in padded.assignments:
        place = len(found)
        if a.tensor in copies:
            read = {access.tensor for access in walk(a.value) if isinstance(access, Access)}
            while place and found[place - 1].operator == "=" and not {found[place - 1].tensor} & {*read, a.tensor}:
                place -= 1
        found.insert(place, a)
    return tuple(found)


def _along_lanes(a: Assignment, result: Storage) -> Expr:
    """The subscript along which results are neighbours in memory."""
    order = memory_order(result.layout, len(result.shape))
    return a.subscripts[order[-1]] if order else Const(0, dtype="int64")


def _long_axis(a: Assignment, p: Padding, result: Storage, machine: Machine | None) -> int | None:
    """The axis of a copy that moves with a long dimension of the results, where these have few neighbours in memory, and all of their
    dimensions move the copy: others have lanes in what does not."""
    if machine is None or a.dynamic:
        return None
    extents = {name: upper - lower for name, lower, upper in a.results if upper - lower > 1}
    near, width = _along_lanes(a, result), machine.lanes(DTYPES[a.value.dtype].bytes)
    moving = [extents.keys() & names(axis.subscript) for axis in p.axes]
    if not isinstance(near, Index) or extents.get(near.name, 1) > width // 2 or extents.keys() - set().union(*moving):
        return None
    longest = max((extents[dim], place) for place, dims in enumerate(moving) for dim in dims)
    return longest[1] if longest[0] >= LONG * width else None


def _outer_loops(a: Assignment, padding: Padding) -> OuterLoops | None:
    """Those that a copy shares as the assignment does, along axes that are not padded."""
    if a.outer is None:
        return None
    ranges = {name: (lower, upper - 1) for name, lower, upper in a.bounds}
    found = {
        sub.name: axis.index.name
        for axis in padding.axes
        if isinstance(sub := axis.subscript, Index) and (axis.least, axis.greatest) == ranges[sub.name]
    }
    return OuterLoops(a.outer.number, tuple(found[dim] for dim in a.outer.dims)) if set(a.outer.dims) <= found.keys() else None


# ---------------------------------------------------------------- padded copies


@dataclass(frozen=True)
class PaddedAxis:
    """An axis of a padded copy: the ``subscript`` of the read along it, between two values, and its linear ``form``; the ``index`` that
    counts the copy's elements from 0 on; their number where it depends on dynamic sizes, for the greatest of which ``greatest`` is."""

    subscript: Expr
    form: tuple[dict[str, int], int]
    least: int
    greatest: int
    index: Index
    extent: Expr | None

    @property
    def size(self) -> int:
        return self.greatest - self.least + 1

    @property
    def place(self) -> Expr:
        """The subscript of the element that the copy has at its index."""
        return plus(self.index, self.least)

    @property
    def element(self) -> Expr:
        """The index at which the copy has what is read."""
        return plus(self.subscript, -self.least)


@dataclass(frozen=True)
class Padding:
    """A guarded read, the axes of its padded copy, outermost first, and the copy's value over their indices."""

    select: Select
    read: Access
    axes: tuple[PaddedAxis, ...]
    value: Select

    def read_of(self, copy: str) -> Access:
        """The read of the copy that stands for the guarded read."""
        return Access(copy, tuple(axis.element for axis in self.axes), dtype=self.read.dtype)


def paddings(
    value: Expr, bounds: Bounds, tensors: Mapping[str, Storage], values: Mapping[str, int], moving: DynamicRanges | None = None,
    worth: int = WORTH_PADDING,
) -> list[Padding]:  # fmt: skip
    """The guarded reads of a value that can be materialised and are used often enough, ``worth`` times for each element.

    ``moving`` are the ranges that depend on dynamic sizes; copies begin at places that do not.
    """
    moving = moving or {}
    boxes = {name: (lower, upper - 1) for name, lower, upper in bounds}
    count = prod(upper - lower + 1 for lower, upper in boxes.values())
    found = []
    for node in dict.fromkeys(n for n in walk(value) if isinstance(n, Select)):
        if not isinstance(node.then, Access) or not isinstance(node.other, Const):
            continue
        storage, taken = tensors[node.then.tensor], set(tensors) | set(boxes)
        subscripts = zip(node.then.subscripts, storage.shape, strict=True)
        axes = [_axis(sub, extent, boxes, values, moving, _index(axis, taken)) for axis, (sub, extent) in enumerate(subscripts)]
        known = tuple(axis for axis in axes if axis is not None)
        condition = _in_terms_of(node.condition, known, values) if len(known) == len(axes) else None
        if condition is None:
            continue
        moved = replace(node.then, subscripts=tuple(axis.place for axis in known))
        made = Padding(node, node.then, known, replace(node, condition=condition, then=moved))
        if not _reads_inside(made, storage, values) or moving and not _holds_reads(made, boxes, moving, values):
            continue
        if count >= worth * prod(axis.size for axis in known):
            found.append(made)
    return found


def _index(axis: int, taken: Collection[str]) -> Index:
    name = f"y{axis}"
    while name in taken:
        name += "_"
    return index(name)


def _axis(
    sub: Expr, extent: int, boxes: Mapping[str, tuple[int, int]], values: Mapping[str, int], moving: DynamicRanges, own: Index
) -> PaddedAxis | None:
    form = affine_form(sub, values)
    if form is None:  # an axis with a division, which no condition may be about
        fixed = moving.keys().isdisjoint(names(sub)) and _stays_inside(sub, extent, boxes, values)
        return PaddedAxis(sub, ({"": 1}, 0), 0, extent - 1, own, None) if fixed else None
    ends = [sorted((factor * boxes[dim][0], factor * boxes[dim][1])) for dim, factor in form[0].items()]
    least, greatest = form[1] + sum(end[0] for end in ends), form[1] + sum(end[1] for end in ends)
    dynamic = {dim: factor for dim, factor in form[0].items() if dim in moving}
    if any(factor < 0 or moving[dim][0] != Const(boxes[dim][0], dtype="int64") for dim, factor in dynamic.items()):
        return None
    missing = sum(factor * (boxes[dim][1] + 1) for dim, factor in dynamic.items())  # of the greatest extent, where the dynamic ends are 0
    size = total([(factor, moving[dim][1]) for dim, factor in dynamic.items()], greatest - least + 1 - missing)
    return PaddedAxis(sub, form, least, greatest, own, size if dynamic else None)


def _stays_inside(sub: Expr, extent: int, boxes: Mapping[str, tuple[int, int]], values: Mapping[str, int]) -> bool:
    """Whether a subscript is inside its axis for all values of the indices."""
    place = affine(sub, values)
    if place is None:
        return False
    dims = names(sub)
    facts = [f"{boxes[name][0]} <= {isl_name(name)} <= {boxes[name][1]}" for name in dims]
    return bool(points(context(), map(isl_name, dims), [*facts, f"({place} < 0 or {place} >= {extent})"]).is_empty())


def _reads_inside(padding: Padding, storage: Storage, values: Mapping[str, int]) -> bool:
    """Whether the copy reads only elements that exist, whatever dynamic sizes are: its box may hold values that the subscripts never take
    together."""
    assert isinstance(padding.value.then, Access)
    held = affine_condition(padding.value.condition, values)
    places = [affine(sub, values) for sub in padding.value.then.subscripts]
    if held is None or None in places:
        return False
    extents = [axis.extent for axis in padding.axes]
    sizes = sizes_in([padding.value.condition, *filter(None, (*extents, *storage.dynamic_extents))], values)
    outside = " or ".join(f"{place} < 0 or {place} >= {extent}" for place, extent in zip(places, storage.extent_texts, strict=True))
    indices = [axis.index.name for axis in padding.axes]
    return bool(points(context(), indices, [*_facts(padding, indices, values), held, f"({outside})"], sizes).is_empty())


def _holds_reads(
    padding: Padding, boxes: Mapping[str, tuple[int, int]], moving: DynamicRanges, values: Mapping[str, int]
) -> bool:
    """Whether the copy has an element for each read, under the read's condition, for all values of dynamic sizes."""
    select = padding.select
    places = [axis.element for axis in padding.axes]
    there = with_indices(padding.value.condition, {axis.index.name: axis.element for axis in padding.axes})
    texts = [affine_condition(condition, values) for condition in (select.condition, there)]
    found = [affine(place, values) for place in places]
    dims = {name: None for expr in (select.condition, *padding.read.subscripts) for name in names(expr)}
    limits = {name: [affine(end, values) for end in moving[name]] for name in dims if name in moving}
    if None in (*texts, *found, *(text for ends in limits.values() for text in ends)):
        return False
    facts = [f"{lower} <= {isl_name(name)} < {upper}" for name, (lower, upper) in limits.items()]
    facts += [f"{boxes[name][0]} <= {isl_name(name)} <= {boxes[name][1]}" for name in dims if name not in moving]
    own = [end for name in dims for end in moving.get(name, ())]
    sizes = sizes_in([select.condition, there, *own, *(axis.extent for axis in padding.axes if axis.extent)], values)
    ctx = context()

    def where(text: str | None) -> isl.Set:
        return points(ctx, map(isl_name, dims), [*facts, str(text)], sizes)

    inside = " and ".join(_facts(padding, [str(place) for place in found], values)) or "0 = 0"
    return bool(where(texts[0]).is_equal(where(texts[1])) and where("0 = 0").is_equal(where(inside)))


def _facts(padding: Padding, places: Sequence[str], values: Mapping[str, int]) -> list[str]:
    """That places along the axes of a copy are some of its own, in isl's words."""
    ends = [axis.size if axis.extent is None else affine(axis.extent, values) for axis in padding.axes]
    return [f"0 <= {place} < {end}" for place, end in zip(places, ends, strict=True)]


def _in_terms_of(condition: Expr, axes: Sequence[PaddedAxis], values: Mapping[str, int]) -> Expr | None:
    """A condition over the subscripts' values instead of the indices; None where it depends on more than they do."""
    if isinstance(condition, Binary) and condition.op in ("&&", "||"):
        left, right = (_in_terms_of(side, axes, values) for side in (condition.left, condition.right))
        return None if left is None or right is None else replace(condition, left=left, right=right)
    if isinstance(condition, Unary) and condition.op == "!":
        inner = _in_terms_of(condition.operand, axes, values)
        return None if inner is None else replace(condition, operand=inner)
    if not isinstance(condition, Binary) or condition.op not in ("<", ">", "<=", ">=", "==", "!="):
        return None
    difference = linear(Binary("-", condition.left, condition.right, dtype="int64"), values)
    if difference is None or not all(isinstance(factor, int) for factor in difference[0].values()):
        return None
    factors, constant = {dim: factor for dim, factor in difference[0].items() if factor}, difference[1]
    rest: Expr | None = None  # what depends on dynamic sizes alone
    if not isinstance(constant, int):
        zeros = {dim: Const(0, dtype="int64") for dim in names(condition)}
        rest, constant = with_indices(Binary("-", condition.left, condition.right, dtype="int64"), zeros), 0
    for axis in axes:
        for sign in (1, -1):
            if factors == {dim: sign * factor for dim, factor in axis.form[0].items() if factor}:
                # left - right = sign * (y - start) + constant
                scaled: Expr = axis.place if sign == 1 else Unary("-", axis.place, dtype="int64")
                scaled = scaled if rest is None else plus(scaled, rest)
                return Binary(condition.op, plus(scaled, constant - sign * axis.form[1]), Const(0, dtype="int64"), dtype="bool")
    return None
