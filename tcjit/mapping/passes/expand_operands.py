"""Expand operands: repeat small operands of an elementwise assignment, so that dimensions too short for vectors can be merged.

``O(a,c,d) = X(a,c,d) * U(d)`` has vectors along ``d`` alone; with ``W(c,d) = U(d)``, computed once, ``c`` and ``d`` become one dimension
(see ``collapse``). An operand that would become as large as the result, ``U(a,c)``, is expanded tile by tile: ``fuse`` gives its copy the
loops of its reader, ``contract`` a buffer of one tile, and ``tile`` takes the points of a tile as one loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access, Expr, Index
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import children, replaced
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.machine import Machine
from tcjit.mapping.operations import computed_bytes
from tcjit.mapping.storage import Bounds, Storage
from tcjit.mapping.strides import strides_in

LONG = 4  # vectors along a dimension that needs no merging
SMALL = 8  # results for each element of an expanded operand, at least


def expand_operands(before: Assignments, machine: Machine, in_tiles: bool) -> Assignments:
    """The program with the expanded operands before the assignments that read them; ``in_tiles``: also those that only tiles can hold."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if not a.is_elementwise:
            return [a]
        width = machine.lanes(computed_bytes(a.value))
        copies: dict[Expr, Expr] = {}
        assignments = []
        for access, bounds in _expansions(a, width, temporaries, before.values, in_tiles).items():
            box = tuple(bound for bound in a.bounds if bound in bounds or bound[0] in names(access))  # also along one value
            assignments.append(temporaries.stored(a, f"{access.tensor}_expanded", access, box))
            copies[access] = assignments[-1].element
        return [*assignments, replace(a, value=replaced(a.value, copies))]

    return rewrite(before, visit)


def _expansions(
    a: Assignment, width: int, temporaries: Temporaries, values: Mapping[str, int], in_tiles: bool
) -> dict[Access, Bounds]:
    """The operands in the way of merging the innermost dimensions of the result, and the dimensions that they are expanded to."""
    bounds = tuple(bound for bound in a.bounds if bound[2] - bound[1] > 1)
    extents = [upper - lower for _, lower, upper in bounds]
    near = strides_in(temporaries.tensors[a.tensor], a.subscripts, bounds, values)
    guarded = list(guarded_accesses(a.value))
    steps = {access: strides_in(temporaries.tensors[access.tensor], access.subscripts, bounds, values) for access, _ in guarded}
    unknown = None in near or any(None in step for step in steps.values())
    if unknown or 1 not in near or any(lower < 0 for _, lower, _ in a.bounds):
        return {}
    inside = {access for access, guards in guarded if not guards or _stays_inside(access, a.bounds, temporaries.tensors[access.tensor])}
    fixed = {access for access in steps if access not in inside or access.tensor == a.tensor}
    counted = set(_counted(a.value))
    inner = [near.index(1)]
    found: dict[Access, Bounds] = {}
    while True:
        lanes = prod(extents[d] for d in inner)
        if lanes >= LONG * width or lanes % width == 0 or lanes not in near:
            return found
        inner.insert(0, near.index(lanes))
        in_the_way = [access for access, step in steps.items() if not _merges(step, extents, inner)]
        expanded = {access: tuple(b for d, b in enumerate(bounds) if steps[access][d] or d in inner) for access in in_the_way}
        sizes = [prod(upper - lower for _, lower, upper in box) for box in expanded.values()]
        if fixed & set(in_the_way) or counted & {bounds[d][0] for d in inner}:
            return found
        if any(size * SMALL > prod(extents) for size in sizes):
            few = in_tiles and not found and 2 * lanes <= width and temporaries.tensors[a.tensor].role != "temporary"
            repeated = all(steps[access][inner[-1]] == 0 for access in in_the_way) and not isinstance(a.value, Access)
            return dict.fromkeys(in_the_way, bounds) if few and repeated else found
        found = expanded


def _merges(steps: Sequence[int | None], extents: Sequence[int], inner: Sequence[int]) -> bool:
    """Whether an operand with these strides moves along some dimensions, outermost first, as along one."""
    return all(steps[outer] == (steps[d] or 0) * extents[d] for outer, d in zip(inner, inner[1:]))


def _stays_inside(access: Access, bounds: Bounds, storage: Storage) -> bool:
    """Whether an access that a condition guards may happen without it: each subscript is an index whose values are all inside."""
    ranges = {name: (lower, upper) for name, lower, upper in bounds}
    return all(
        isinstance(sub, Index) and sub.name in ranges and ranges[sub.name][0] >= 0 and ranges[sub.name][1] <= extent
        for sub, extent in zip(access.subscripts, storage.shape, strict=True)
    )


def _counted(value: Expr) -> Iterator[str]:
    """The indices that a value depends on other than by what it reads."""
    if isinstance(value, Index):
        yield value.name
    for part in () if isinstance(value, Access) else children(value):
        yield from _counted(part)
