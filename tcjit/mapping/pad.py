"""Pad: materialise a guarded read of a contraction once, so that the contraction itself reads without a condition.

``(h + kh >= 1 && h + kh <= H) ? I(c, h + kh - 1) : 0.0`` depends on ``h`` and ``kh`` only through the subscript. Over the values ``y``
that the subscripts take it is one tensor, ``y >= 0 && y < H ? I(c, y) : 0.0``, a padded copy; each element is computed once instead of
at every point that uses it, and a contraction over plain reads can run on vectors. The values are the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import islpy as isl

from tcjit.grammar.affine import affine, isl_name
from tcjit.grammar.affine import condition as affine_condition
from tcjit.grammar.ast import Access, Binary, Const, Expr, Index, Select, Unary
from tcjit.grammar.polynomial import names as index_names
from tcjit.grammar.walk import rebuild, walk
from tcjit.layout import memory_order
from tcjit.mapping.isl import context
from tcjit.mapping.storage import Bounds, Storage
from tcjit.mapping.strides import affine_form

# uses of each padded element that pay for computing it ahead: where conditions only cost time, and where they keep a sum from nests
WORTH_PADDING = 8
WORTH_NEST = 2


@dataclass(frozen=True)
class Padding:
    """A guarded read, its padded copy's box (per subscript: least, greatest), and the copy's value over fresh indices.

    ``dims``: the dimension that a subscript is where its range depends on dynamic sizes, else nothing. ``subscripts`` are those of the
    read, in the order of the copy's axes.
    """

    select: Select
    read: Access
    box: tuple[tuple[int, int], ...]
    indices: tuple[str, ...]
    value: Expr
    dims: tuple[str, ...]
    subscripts: tuple[Expr, ...]


def in_order(padding: Padding, storage: Storage) -> Padding:
    """The padding whose copy has its axes in the order in which the tensor that is read has them in memory."""
    order = memory_order(storage.layout, len(storage.shape))
    if order is None:
        return padding
    box = tuple(padding.box[axis] for axis in order)
    indices, dims = (tuple(names[axis] for axis in order) for names in (padding.indices, padding.dims))
    return replace(padding, box=box, indices=indices, dims=dims, subscripts=tuple(padding.subscripts[axis] for axis in order))


def paddings(
    value: Expr, bounds: Bounds, tensors: Mapping[str, Storage], values: Mapping[str, int], moving: Container[str] = (),
    worth: int = WORTH_PADDING,
) -> list[Padding]:  # fmt: skip
    """The guarded reads of a value that can be materialised and are used often enough, ``worth`` times for each element.

    ``moving`` are the dimensions whose range depends on dynamic sizes: a copy has the range of one only where a subscript is that one.
    """
    boxes = {name: (lower, upper - 1) for name, lower, upper in bounds}
    points = 1
    for lower, upper in boxes.values():
        points *= upper - lower + 1
    found = []
    for node in dict.fromkeys(n for n in walk(value) if isinstance(n, Select)):
        if not isinstance(node.then, Access):
            continue
        made = _padding(node, node.then, tensors[node.then.tensor].shape, boxes, values, set(tensors) | set(boxes), moving)
        if made is None or not _reads_inside(made, tensors[made.read.tensor].shape):
            continue
        elements = 1
        for least, greatest in made.box:
            elements *= greatest - least + 1
        if points >= worth * elements:
            found.append(made)
    return found


def _padding(
    node: Select, read: Access, shape: Sequence[int], boxes: Mapping[str, tuple[int, int]], values: Mapping[str, int],
    taken: set[str], moving: Container[str],
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
    dims = [next((d for d in factors if d in moving), "") for factors, _ in axes]
    if any(dim and (form != ({dim: 1}, 0) or boxes[dim][0] != 0) for dim, form in zip(dims, axes, strict=True)):
        return None
    names = []
    for axis in range(len(axes)):
        name = f"y{axis}"
        while name in taken:
            name += "_"
        names.append(name)
    # index y counts from 0 in the copy; its element is read at y + least
    places = [_plus(Index(name, dtype="int64"), least) for name, (least, _) in zip(names, box, strict=True)]
    condition = _in_terms_of(node.condition, axes, places, values)
    if condition is None:
        return None
    moved = replace(read, subscripts=tuple(places))
    return Padding(node, read, tuple(box), tuple(names), replace(node, condition=condition, then=moved), tuple(dims), read.subscripts)


def _stays_inside(sub: Expr, extent: int, boxes: Mapping[str, tuple[int, int]], values: Mapping[str, int]) -> bool:
    """Whether a subscript is inside its axis for all values of the indices."""
    place = affine(sub, values)
    if place is None:
        return False
    names = [*index_names(sub)]
    facts = [f"{boxes[name][0]} <= {isl_name(name)} <= {boxes[name][1]}" for name in names]
    text = f"{{ [{', '.join(map(isl_name, names))}] : {' and '.join([*facts, f'({place} < 0 or {place} >= {extent})'])} }}"
    return bool(isl.Set.read_from_str(context(), text).is_empty())


def _reads_inside(padding: Padding, shape: tuple[int, ...]) -> bool:
    """Whether the copy reads only elements that exist: its box may hold values that the subscripts never take together."""
    assert isinstance(padding.value, Select) and isinstance(padding.value.then, Access)
    held = affine_condition(padding.value.condition, {})
    places = [affine(sub, {}) for sub in padding.value.then.subscripts]
    if held is None or None in places:
        return False
    facts = [f"0 <= {name} <= {greatest - least}" for name, (least, greatest) in zip(padding.indices, padding.box, strict=True)]
    outside = " or ".join(f"{place} < 0 or {place} >= {extent}" for place, extent in zip(places, shape, strict=True))
    text = f"{{ [{', '.join(padding.indices)}] : {' and '.join([*facts, held, f'({outside})'])} }}"
    return bool(isl.Set.read_from_str(context(), text).is_empty())


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
    left_form, right_form = affine_form(condition.left, values), affine_form(condition.right, values)
    if left_form is None or right_form is None:
        return None
    factors = {d: f for d in {**left_form[0], **right_form[0]} if (f := left_form[0].get(d, 0) - right_form[0].get(d, 0))}
    constant = left_form[1] - right_form[1]
    for (axis, start), place in zip(axes, places, strict=True):
        for sign in (1, -1):
            if factors == {d: sign * f for d, f in axis.items() if f}:
                # left - right = sign * (y - start) + constant
                scaled = place if sign == 1 else Unary("-", place, dtype="int64")
                return Binary(condition.op, _plus(scaled, constant - sign * start), Const(0, dtype="int64"), dtype="bool")
    return None


def _plus(expr: Expr, constant: int) -> Expr:
    return Binary("+", expr, Const(constant, dtype="int64"), dtype="int64") if constant else expr


def with_padded(value: Expr, made: Mapping[Expr, Access]) -> Expr:
    """The value reading padded copies."""
    if value in made:
        return made[value]
    return rebuild(value, lambda child: with_padded(child, made))


def padded_read(padding: Padding, copy: str) -> Access:
    """The read of the copy that stands for the guarded read."""
    subscripts = tuple(_plus(sub, -least) for sub, (least, _) in zip(padding.subscripts, padding.box, strict=True))
    return Access(copy, subscripts, dtype=padding.read.dtype)
