"""Transpose operands: read what lies across the lanes of an elementwise assignment through a copy that lies along them.

A vector that is read with a stride costs a memory access for each of its lanes, at every mention. The copy is made tile by tile: ``fuse``
gives it the loops of its reader, ``contract`` a buffer of one tile, and vectors transpose it in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access, Expr
from tcjit.grammar.walk import replaced
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.storage import Bounds
from tcjit.mapping.strides import strides_in

LEAST = 4  # rows, and lanes, from which on a tile is worth transposing


def transpose_operands(before: Assignments) -> Assignments:
    """The program with the copies before the assignments that read them."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if not a.is_elementwise or isinstance(a.value, Access) or any(lower < 0 for _, lower, _ in a.bounds):
            return [a]
        if temporaries.tensors[a.tensor].role == "temporary":  # a tile has its own, in any order
            return [a]
        near = strides_in(temporaries.tensors[a.tensor], a.subscripts, a.bounds, before.values)
        bounds = tuple(bound for _, bound in sorted(zip(near, a.bounds, strict=True), key=lambda pair: -(pair[0] or 0)))
        reads = dict.fromkeys(access for access, guards in guarded_accesses(a.value) if not guards and access.tensor != a.tensor)
        read = a.inputs
        copies: dict[Expr, Expr] = {}
        assignments = []
        for access in reads:
            storage = temporaries.tensors[access.tensor]
            steps = strides_in(storage, access.subscripts, a.bounds, before.values)
            if storage.role == "temporary" or not all(near) or None in steps or not _is_across(a.bounds, near, steps):
                continue
            copy = temporaries.stored(a, f"{access.tensor}_transposed", access, bounds)
            copies[access] = copy.element
            # the loops of a reduction whose result is read are none that a tile could be cut from
            apart = any(other.reduction and other.tensor in read for other in before.assignments if not other.tiled)
            assignments.append(replace(copy, fuse_outer_only=apart))
        return [*assignments, replace(a, value=replaced(a.value, copies))]

    return rewrite(before, visit)


def _is_across(bounds: Bounds, near: Sequence[int | None], steps: Sequence[int | None]) -> bool:
    """Whether neighbours of a result, whose strides are ``near``, are apart in an operand, whose strides are ``steps``, and the
    operand's neighbours are apart in the result."""
    moving = zip(near, steps, bounds, strict=True)
    extents = {(to or 0, step or 0): upper - lower for to, step, (_, lower, upper) in moving if upper - lower > 1}

    def together(place: tuple[int, int]) -> int:
        """The extent of the dimension that the one with these strides and those around it are merged to (see ``collapse``)."""
        extent = extents.get(place, 1)
        return extent * together((place[0] * extent, place[1] * extent)) if extent > 1 else 1

    lane, row = (next((place for place in extents if place[side] == 1), (1, 1)) for side in (0, 1))
    return lane[1] not in (0, 1) and row[0] != 1 and min(together(lane), together(row)) >= LEAST
