"""Transpose operands: read what lies across the lanes of an elementwise assignment through a copy that lies along them.

A vector that is read with a stride costs a memory access for each of its lanes, at every mention. The copy is made tile by tile: ``fuse``
gives it the loops of its reader, ``contract`` a buffer of one tile, and vectors transpose it in registers. So is a plain copy that would
write parts of lines. Where rows of a result in a
half type are too short for vectors, it is the result that is computed along its operands' neighbours, and transposed: C compilers convert
what is left behind whole vectors of halves one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access, Cast, Expr
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import factors, replaced
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.machine import LINE, Machine
from tcjit.mapping.passes.expand_operands import LONG
from tcjit.mapping.storage import Bounds
from tcjit.mapping.strides import strides_in

LEAST = 2  # rows, and lanes, from which on a tile is worth transposing


def transpose_operands(before: Assignments, machine: Machine) -> Assignments:
    """The program with the copies before the assignments that read them."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if not a.is_elementwise_in_loops or any(lower < 0 for _, lower, _ in a.bounds):
            return [a]
        in_nest = a.fuse_outer_only or any(other.tiled and a.tensor in other.inputs for other in before.assignments)
        if temporaries.tensors[a.tensor].role == "temporary" and not (in_nest and _is_product(a.value)):
            return [a]  # a tile has its own, in any order, and words are copied along the rows of their parts
        near = strides_in(temporaries.tensors[a.tensor], a.subscripts, a.bounds, before.values)
        guarded = list(guarded_accesses(a.value))
        reads = dict.fromkeys(access for access, guards in guarded if not guards and access.tensor != a.tensor)
        read = {access.tensor for access, _ in guarded}
        across = []
        along = False  # whether another operand's neighbours are those of the result
        for access in reads:
            storage = temporaries.tensors[access.tensor]
            steps = strides_in(storage, access.subscripts, a.bounds, before.values)
            if storage.role != "temporary" and all(near) and None not in steps and _is_across(a.bounds, near, steps):
                across.append((access, steps))
            else:
                along |= bool(steps[near.index(1)]) if 1 in near else True
        is_copy = isinstance(a.value, Access)
        if is_copy and not any(_writes_parts_of_lines(a.bounds, near, steps, DTYPES[a.value.dtype].bytes) for _, steps in across):
            return [a]
        # the loops of a reduction whose result is read are none that a tile could be cut from
        apart = any(other.reduction and other.tensor in read for other in before.assignments if not other.tiled)

        def copied(name: str, value: Expr, steps: Sequence[int | None], dims: Collection[str]) -> Assignment:
            """A value in a temporary over some dimensions, that along which steps are least innermost."""
            ordered = sorted(zip(steps, a.bounds, strict=True), key=lambda pair: -(pair[0] or 0))
            box = tuple(bound for _, bound in ordered if bound[0] in dims)
            return replace(temporaries.stored(a, f"{name}_transposed", value, box), fuse_outer_only=apart, outer=a.outer)

        every = {name for name, _, _ in a.bounds}
        alone = across and not along and reads.keys() == {access for access, _ in guarded}
        halves = DTYPES[a.value.dtype].kind == "float" and DTYPES[a.value.dtype].bytes == 2 and not is_copy
        if halves and alone and _has_short_rows(a.bounds, near, [steps for _, steps in across], machine.lanes(DTYPES[a.value.dtype].bytes)):
            made = copied(a.tensor, a.value, across[0][1], every)  # computed along its operands' neighbours, and then transposed
            return [made, replace(a, value=made.element)]
        copies: dict[Expr, Expr] = {}
        assignments = []
        for access, _ in across:
            if a.outer and not set(a.outer.dims) <= names(access).keys():
                continue  # a copy in no loop of its own
            assignments.append(copied(access.tensor, access, near, set(names(access))))
            copies[access] = assignments[-1].element
        return [*assignments, replace(a, value=replaced(a.value, copies))] if copies else [a]

    return rewrite(before, visit)


def _is_product(value: Expr) -> bool:
    return all(isinstance(factor.operand if isinstance(factor, Cast) else factor, Access) for factor in factors(value))


def _is_across(bounds: Bounds, near: Sequence[int | None], steps: Sequence[int | None]) -> bool:
    """Whether neighbours of a result, whose strides are ``near``, are apart in an operand, whose strides are ``steps``, and the
    operand's neighbours are apart in the result."""
    extents = _extents(bounds, near, steps)
    lane, row = (next((place for place in extents if place[side] == 1), (1, 1)) for side in (0, 1))
    return lane[1] not in (0, 1) and row[0] != 1 and min(_together(extents, lane), _together(extents, row)) >= LEAST


def _has_short_rows(bounds: Bounds, near: Sequence[int | None], operands: Sequence[Sequence[int | None]], width: int) -> bool:
    """Whether rows of a result fill vectors badly, and all operands have the same order."""
    row = _row(bounds, near, operands[0])
    return row < LONG * width and row % width > 0 and all(steps == operands[0] for steps in operands)


def _writes_parts_of_lines(bounds: Bounds, near: Sequence[int | None], steps: Sequence[int | None], size: int) -> bool:
    """Whether rows that a copy writes are shorter than a line, and those behind them are read from elsewhere."""
    row = _row(bounds, near, steps)
    return row * size < LINE and any(own == row and step != 1 for own, step in _extents(bounds, near, steps))


def _row(bounds: Bounds, near: Sequence[int | None], steps: Sequence[int | None]) -> int:
    """The neighbours in a row of a result, whose strides are ``near``, that are equally far apart in an operand."""
    extents = _extents(bounds, near, steps)
    return _together(extents, next(place for place in extents if place[0] == 1))


def _extents(bounds: Bounds, *strides: Sequence[int | None]) -> dict[tuple[int, ...], int]:
    """The extents of dimensions by their strides in several tensors."""
    places = [tuple(step or 0 for step in steps) for steps in zip(*strides, strict=True)]
    return {place: upper - lower for place, (_, lower, upper) in zip(places, bounds, strict=True) if upper - lower > 1}


def _together(extents: Mapping[tuple[int, ...], int], place: tuple[int, ...]) -> int:
    """The extent of the dimension that the one with these strides and those around it are merged to (see ``collapse``)."""
    extent = extents.get(place, 1)
    return extent * _together(extents, tuple(step * extent for step in place)) if extent > 1 else 1
