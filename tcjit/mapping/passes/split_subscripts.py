"""Split subscripts: elements at clamped indices are elements at linear ones, under conditions that loops and sums are split by.

``X(i, min(j + 2, N - 1))`` is ``X(i, j + 2)`` for ``j < N - 2`` and ``X(i, N - 1)`` elsewhere, which no loop asks, and which nothing checks
when it runs. Borders of windows, as ``max(h + r - 1, 0)``, and elements of products are left to copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from tcjit.grammar.affine import affine
from tcjit.grammar.arithmetic import index, total
from tcjit.grammar.ast import Access, Binary, Expr, Select
from tcjit.grammar.polynomial import names, number
from tcjit.grammar.walk import with_accesses
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.linear_pieces import are_inside, linear_pieces
from tcjit.mapping.reduction import is_reused

MOST = 3  # linear parts of a subscript

def split_subscripts(before: Assignments) -> Assignments:
    """The program with elements at linear subscripts in the place of those at minima and maxima of one index and numbers."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if a.empty or a.dynamic or a.constraints or a.reduction and is_reused(a.results, a.reads):
            return [a]
        shapes = {name: storage.shape for name, storage in temporaries.tensors.items()}
        change = partial(_split, ranges=a.ranges, shapes=shapes, values=before.values)
        return [replace(a, value=with_accesses(a.value, change))]

    return before if before.program.dynamic else rewrite(before, visit)


def _split(access: Access, ranges: Mapping[str, tuple[int, int]], shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, int]) -> Expr:
    """An element, or a choice of elements where a subscript is not linear, but in parts of one index's range that lie inside the tensor."""
    for axis, sub in enumerate(access.subscripts):
        dims = list(names(sub))
        if affine(sub, values) is not None or len(dims) != 1 or dims[0] not in ranges:
            continue
        lower, upper = ranges[dims[0]]
        pieces = linear_pieces(sub, lower, upper - 1, values)
        if pieces is None or len(pieces) > MOST or not are_inside(pieces, shapes[access.tensor][axis]):
            continue
        own, parts = index(dims[0]), list[Expr]()
        for _, _, factor, constant in pieces:
            place = total([(factor, own)], constant)
            part = replace(access, subscripts=(*access.subscripts[:axis], place, *access.subscripts[axis + 1 :]))
            parts.append(_split(part, ranges, shapes, values))
        value: Expr = parts.pop()
        for (_, last, _, _), element in zip(reversed(pieces[:-1]), reversed(parts), strict=True):
            value = Select(Binary("<=", own, number(last), dtype="bool"), element, value, dtype=access.dtype)
        return value
    return access
