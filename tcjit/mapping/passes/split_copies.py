"""Split copies: what is copied with borders that repeat, reflect or go round is copied in linear pieces along the lanes.

``X_padded(y) = X((y + 68) % 69)`` is ``X(y + 68)`` for ``y <= 0``, ``X(y - 1)`` up to 69 and ``X(y - 70)`` behind it: loops over lanes copy
vectors, and neither divide nor check an element. Along other dimensions a subscript is computed once for each row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from tcjit.grammar.ast import Access, Expr, Index
from tcjit.grammar.walk import with_elements
from tcjit.layout import memory_order
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.linear_pieces import Ranges, split_access
from tcjit.mapping.storage import Storage
from tcjit.mapping.strides import affine_form

MOST = 3  # pieces of a row: two borders and what lies between


def split_copies(before: Assignments) -> Assignments:
    """The program with copies in linear pieces."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if before.program.dynamic:
            return [a]
        result = temporaries.tensors[a.tensor]
        order = memory_order(result.layout, len(result.shape))
        lane = a.subscripts[order[-1]] if order else None
        if result.role != "temporary" or a.operator != "=" or a.dynamic or a.constraints or a.empty or not isinstance(lane, Index):
            return [a]
        change = partial(_split, lane=lane.name, ranges=a.ranges, tensors=temporaries.tensors, values=before.values)
        return [replace(a, value=with_elements(a.value, change))]

    return rewrite(before, visit)


def _split(access: Access, lane: str, ranges: Ranges, tensors: Mapping[str, Storage], values: Mapping[str, int]) -> Expr:
    """An element, or a choice of those at linear subscripts."""
    extents = enumerate(tensors[access.tensor].shape)
    axes = {axis: extent for axis, extent in extents if affine_form(access.subscripts[axis], values) is None}
    return split_access(access, (lane,), axes, ranges, MOST, values)
