"""Transpose operands: read what lies across the lanes of an elementwise assignment through a copy that lies along them.

A vector that is read with a stride costs a memory access for each of its lanes, at every mention. The copy is made tile by tile: ``fuse``
gives it the loops of its reader, ``contract`` a buffer of one tile, and vectors transpose it in registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access, Expr, Index
from tcjit.grammar.walk import rebuild
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.storage import Bounds
from tcjit.mapping.strides import stride_in

LEAST = 4  # rows, and lanes, from which on a tile is worth transposing


def transpose_operands(before: Assignments) -> Assignments:
    """The program with the copies before the assignments that read them."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if a.operator != "=" or a.empty or a.dynamic or a.constraints or a.outer is not None or isinstance(a.value, Access):
            return [a]
        bounds = _outermost_first(a, temporaries, before.values)
        reads = dict.fromkeys(access for access, guards in guarded_accesses(a.value) if not guards and access.tensor != a.tensor)
        across = [access for access in reads if _is_across(bounds, access, temporaries, before.values)]
        order = tuple(Index(name, dtype="int64") for name, _, _ in bounds)
        shape = tuple(upper for _, _, upper in bounds)
        copies = {}
        assignments = []
        for access in across:
            copy = temporaries.add(a.source, f"{access.tensor}_transposed", access.dtype, shape)
            copies[access] = Access(copy.name, order, dtype=access.dtype)
            assignments.append(Assignment(copy.name, order, "=", access, bounds, a.source))
        return [*assignments, replace(a, value=_replaced(a.value, copies))]

    return rewrite(before, visit)


def _outermost_first(a: Assignment, temporaries: Temporaries, values: Mapping[str, int]) -> Bounds:
    """The dimensions in the order in which the result lies in memory; none where that is not known."""
    target = temporaries.tensors[a.tensor]
    steps = {name: stride_in(target, a.subscripts, name, values) for name, _, _ in a.bounds}
    if not all(steps.values()):
        return ()
    return tuple(sorted(a.bounds, key=lambda bound: -(steps[bound[0]] or 0)))


def _is_across(bounds: Bounds, access: Access, temporaries: Temporaries, values: Mapping[str, int]) -> bool:
    """Whether neighbours of a result along its last dimension are apart in an operand, and its neighbours are apart in the result."""
    if not bounds:
        return False
    storage = temporaries.tensors[access.tensor]
    steps = [stride_in(storage, access.subscripts, name, values) for name, _, _ in bounds]
    extents = [upper - lower for _, lower, upper in bounds]
    if None in steps or steps[-1] in (0, 1) or extents[-1] < LEAST:
        return False
    return any(step == 1 and extent >= LEAST for step, extent in zip(steps[:-1], extents[:-1], strict=True))


def _replaced(value: Expr, copies: Mapping[Access, Access]) -> Expr:
    if isinstance(value, Access):
        return copies.get(value, value)
    return rebuild(value, lambda child: _replaced(child, copies))
