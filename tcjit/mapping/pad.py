"""Pad: materialise a guarded read of a contraction once, so that the contraction itself reads without a condition.

``(h + kh >= 1 && h + kh <= H) ? I(c, h + kh - 1) : 0.0`` depends on ``h`` and ``kh`` only through the subscript. Over the values ``y``
that the subscripts take it is one tensor, ``y >= 0 && y < H ? I(c, y) : 0.0``, a padded copy; each element is computed once instead of
at every point that uses it, and a contraction over plain reads can run on vectors. The values are the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import islpy as isl

from tcjit.grammar.affine import affine, isl_name, linear
from tcjit.grammar.affine import condition as affine_condition
from tcjit.grammar.arithmetic import plus, times
from tcjit.grammar.ast import Access, Binary, Const, Expr, Index, Select, Unary
from tcjit.grammar.polynomial import names as index_names
from tcjit.grammar.walk import walk, with_indices
from tcjit.mapping.assignment import DynamicRanges
from tcjit.mapping.isl import context, points, sizes_in
from tcjit.mapping.storage import Bounds, Storage
from tcjit.mapping.strides import affine_form

# uses of each padded element that pay for computing it ahead: where conditions only cost time, and where they keep a sum from nests
WORTH_PADDING = 8
WORTH_NEST = 2


@dataclass(frozen=True)
class Padding:
    """A guarded read, its padded copy's box (per subscript: least, greatest), and the copy's value over fresh indices.

    ``extents`` are those of the box that depend on dynamic sizes, for the greatest of which ``box`` is. ``subscripts`` are those of the
    read, in the order of the copy's axes.
    """

    select: Select
    read: Access
    box: tuple[tuple[int, int], ...]
    indices: tuple[str, ...]
    value: Select
    extents: tuple[Expr | None, ...]
    subscripts: tuple[Expr, ...]


def in_order(padding: Padding, order: Sequence[int]) -> Padding:
    """The padding whose copy has its axes in another order, outermost first."""
    box = tuple(padding.box[axis] for axis in order)
    indices, extents = tuple(padding.indices[axis] for axis in order), tuple(padding.extents[axis] for axis in order)
    return replace(padding, box=box, indices=indices, extents=extents, subscripts=tuple(padding.subscripts[axis] for axis in order))


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
        if not isinstance(node.then, Access):
            continue
        made = _padding(node, node.then, tensors[node.then.tensor].shape, boxes, values, set(tensors) | set(boxes), moving)
        if made is None or not _reads_inside(made, tensors[made.read.tensor], values):
            continue
        if moving and not _holds_reads(made, boxes, moving, values):
            continue
        if count >= worth * prod(greatest - least + 1 for least, greatest in made.box):
            found.append(made)
    return found


def _padding(
    node: Select, read: Access, shape: Sequence[int], boxes: Mapping[str, tuple[int, int]], values: Mapping[str, int],
    taken: set[str], moving: DynamicRanges,
) -> Padding | None:  # fmt: skip
    if not isinstance(node.other, Const):
        return None
    axes: list[tuple[dict[str, int], int]] = []
    box: list[tuple[int, int]] = []
    for sub, extent in zip(read.subscripts, shape, strict=True):
        form = affine_form(sub, values)
        if form is not None:
            ends = [sorted((f * boxes[d][0], f * boxes[d][1])) for d, f in form[0].items()]
            box.append((form[1] + sum(e[0] for e in ends), form[1] + sum(e[1] for e in ends)))
            axes.append(form)
        elif _stays_inside(sub, extent, boxes, values) and not any(d in moving for d in index_names(sub)):
            box.append((0, extent - 1))  # an axis with a division, which no condition may be about
            axes.append(({"": 1}, 0))
        else:
            return None
    extents: list[Expr | None] = []
    for (factors, _), (least, greatest) in zip(axes, box, strict=True):
        total: Expr | None = None
        missing = 0  # of the greatest extent, where the dynamic ends are 0
        for dim, factor in factors.items():
            if dim not in moving:
                continue
            lower, upper = moving[dim]
            if factor < 0 or lower != Const(boxes[dim][0], dtype="int64"):
                return None
            total = times(factor, upper) if total is None else plus(total, times(factor, upper))
            missing += factor * (boxes[dim][1] + 1)
        extents.append(None if total is None else plus(total, greatest - least + 1 - missing))
    names = []
    for axis in range(len(axes)):
        name = f"y{axis}"
        while name in taken:
            name += "_"
        names.append(name)
    # index y counts from 0 in the copy; its element is read at y + least
    places = [plus(Index(name, dtype="int64"), least) for name, (least, _) in zip(names, box, strict=True)]
    condition = _in_terms_of(node.condition, axes, places, values)
    if condition is None:
        return None
    moved = replace(read, subscripts=tuple(places))
    return Padding(node, read, tuple(box), tuple(names), replace(node, condition=condition, then=moved), tuple(extents), read.subscripts)


def _stays_inside(sub: Expr, extent: int, boxes: Mapping[str, tuple[int, int]], values: Mapping[str, int]) -> bool:
    """Whether a subscript is inside its axis for all values of the indices."""
    place = affine(sub, values)
    if place is None:
        return False
    names = [*index_names(sub)]
    facts = [f"{boxes[name][0]} <= {isl_name(name)} <= {boxes[name][1]}" for name in names]
    return bool(points(context(), map(isl_name, names), [*facts, f"({place} < 0 or {place} >= {extent})"]).is_empty())


def _reads_inside(padding: Padding, storage: Storage, values: Mapping[str, int]) -> bool:
    """Whether the copy reads only elements that exist, whatever dynamic sizes are: its box may hold values that the subscripts never take
    together."""
    assert isinstance(padding.value.then, Access)
    held = affine_condition(padding.value.condition, values)
    places = [affine(sub, values) for sub in padding.value.then.subscripts]
    if held is None or None in places:
        return False
    sizes = sizes_in([padding.value.condition, *filter(None, (*padding.extents, *storage.dynamic_extents))], values)
    outside = " or ".join(f"{place} < 0 or {place} >= {extent}" for place, extent in zip(places, storage.extent_texts, strict=True))
    facts = [*_facts(padding, padding.indices, values), held, f"({outside})"]
    return bool(points(context(), padding.indices, facts, sizes).is_empty())


def _holds_reads(
    padding: Padding, boxes: Mapping[str, tuple[int, int]], moving: DynamicRanges, values: Mapping[str, int]
) -> bool:
    """Whether the copy has an element for each read, under the read's condition, for all values of dynamic sizes."""
    select = padding.select
    places = [plus(sub, -least) for sub, (least, _) in zip(padding.subscripts, padding.box, strict=True)]
    there = with_indices(padding.value.condition, dict(zip(padding.indices, places, strict=True)))
    texts = [affine_condition(condition, values) for condition in (select.condition, there)]
    found = [affine(place, values) for place in places]
    dims = {name: None for expr in (select.condition, *padding.subscripts) for name in index_names(expr)}
    limits = {name: [affine(end, values) for end in moving[name]] for name in dims if name in moving}
    if None in (*texts, *found, *(text for ends in limits.values() for text in ends)):
        return False
    facts = [f"{lower} <= {isl_name(name)} < {upper}" for name, (lower, upper) in limits.items()]
    facts += [f"{boxes[name][0]} <= {isl_name(name)} <= {boxes[name][1]}" for name in dims if name not in moving]
    own = [end for name in dims for end in moving.get(name, ())]
    sizes = sizes_in([select.condition, there, *own, *filter(None, padding.extents)], values)
    ctx, names = context(), [*map(isl_name, dims)]

    def where(text: str | None) -> isl.Set:
        return points(ctx, names, [*facts, str(text)], sizes)

    inside = " and ".join(_facts(padding, [str(place) for place in found], values)) or "0 = 0"
    return bool(where(texts[0]).is_equal(where(texts[1])) and where("0 = 0").is_equal(where(inside)))


def _facts(padding: Padding, places: Sequence[str], values: Mapping[str, int]) -> list[str]:
    """That places along the axes of a copy are some of its own, in isl's words."""
    ends = [
        str(greatest - least + 1) if extent is None else str(affine(extent, values))
        for extent, (least, greatest) in zip(padding.extents, padding.box, strict=True)
    ]
    return [f"0 <= {place} < {end}" for place, end in zip(places, ends, strict=True)]


def _in_terms_of(
    condition: Expr, axes: Sequence[tuple[dict[str, int], int]], places: Sequence[Expr], values: Mapping[str, int]
) -> Expr | None:
    """A condition over the subscripts' values instead of the indices; None where it depends on more than they do."""
    if isinstance(condition, Binary) and condition.op in ("&&", "||"):
        left, right = (_in_terms_of(side, axes, places, values) for side in (condition.left, condition.right))
        return None if left is None or right is None else replace(condition, left=left, right=right)
    if isinstance(condition, Unary) and condition.op == "!":
        inner = _in_terms_of(condition.operand, axes, places, values)
        return None if inner is None else replace(condition, operand=inner)
    if not isinstance(condition, Binary) or condition.op not in ("<", ">", "<=", ">=", "==", "!="):
        return None
    difference = linear(Binary("-", condition.left, condition.right, dtype="int64"), values)
    if difference is None or not all(isinstance(factor, int) for factor in difference[0].values()):
        return None
    factors, constant = {dim: factor for dim, factor in difference[0].items() if factor}, difference[1]
    rest: Expr | None = None  # what depends on dynamic sizes alone
    if not isinstance(constant, int):
        zeros = {dim: Const(0, dtype="int64") for dim in index_names(condition)}
        rest, constant = with_indices(Binary("-", condition.left, condition.right, dtype="int64"), zeros), 0
    for (axis, start), place in zip(axes, places, strict=True):
        for sign in (1, -1):
            if factors == {d: sign * f for d, f in axis.items() if f}:
                # left - right = sign * (y - start) + constant
                scaled: Expr = place if sign == 1 else Unary("-", place, dtype="int64")
                scaled = scaled if rest is None else plus(scaled, rest)
                return Binary(condition.op, plus(scaled, constant - sign * start), Const(0, dtype="int64"), dtype="bool")
    return None


def padded_read(padding: Padding, copy: str) -> Access:
    """The read of the copy that stands for the guarded read."""
    subscripts = tuple(plus(sub, -least) for sub, (least, _) in zip(padding.subscripts, padding.box, strict=True))
    return Access(copy, subscripts, dtype=padding.read.dtype)
