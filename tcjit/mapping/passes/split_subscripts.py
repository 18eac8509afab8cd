"""Split subscripts: elements at clamped indices are elements at linear ones, under conditions that loops and sums are split by.

``X(i, min(j + 2, N - 1))`` is ``X(i, j + 2)`` for ``j < N - 2`` and ``X(i, N - 1)`` elsewhere, which no loop asks, and which nothing checks
when it runs. Borders of windows, as ``max(h + r - 1, 0)``, and elements of products are left to copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from tcjit.grammar.affine import affine
from tcjit.grammar.ast import Access, Expr
from tcjit.grammar.walk import with_elements
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.linear_pieces import Ranges, split_access
from tcjit.mapping.reduction import is_reused
from tcjit.mapping.storage import Storage

MOST = 3  # linear parts of a subscript

def split_subscripts(before: Assignments) -> Assignments:
    """The program with elements at linear subscripts in the place of those at minima and maxima of one index and numbers."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if before.program.dynamic or a.empty or a.dynamic or a.constraints or a.reduction and is_reused(a.results, a.reads):
            return [a]
        change = partial(_split, ranges=a.ranges, tensors=temporaries.tensors, values=before.values)
        return [replace(a, value=with_elements(a.value, change))]

    return rewrite(before, visit)


def _split(access: Access, ranges: Ranges, tensors: Mapping[str, Storage], values: Mapping[str, int]) -> Expr:
    """An element, or a choice of those where subscripts are not affine."""
    axes = {axis: extent for axis, extent in enumerate(tensors[access.tensor].shape) if affine(access.subscripts[axis], values) is None}
    return split_access(access, ranges, axes, ranges, MOST, values)
