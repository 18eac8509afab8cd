"""Promote counts: integers that comparisons of other elements count are added in the type compared, in a temporary.

``R(i) +=! X(j) < X(i) ? 1 : 0`` adds lanes of the width of its masks: floats hold every partial sum exactly up to 2^24, doubles up to 2^53.
The results are converted once, at the end.
"""

from __future__ import annotations

from dataclasses import replace

from tcjit.grammar.ast import Access, Cast
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.counts import compared, counted, holds_counts
from tcjit.mapping.operations import may_fail
from tcjit.mapping.reduction import identity, is_reused


def promote_counts(before: Assignments) -> Assignments:
    """The program with counts in the types compared, where elements are compared for several results."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        dtype, narrow = compared(a.value), temporaries.tensors[a.tensor]
        known = a.reduction and not (a.outer or a.dynamic or a.empty) and a.start == identity("+=", a.value.dtype)
        if a.operator != "+=" or not known or dtype is None or not holds_counts(a, dtype, narrow.dtype) or may_fail(a.value):
            return [a]
        if not any(is_reused(a.results, [access]) for access in a.reads):
            return [a]
        wide = temporaries.add(a.source, f"{a.tensor}_{dtype}", dtype, narrow.shape, narrow.dynamic_extents)
        result = Cast(Access(wide.name, a.subscripts, dtype=dtype), dtype=narrow.dtype)
        return [
            replace(a, tensor=wide.name, value=counted(a.value, dtype), start=identity("+=", dtype)),
            Assignment(narrow.name, a.subscripts, "=", result, a.results, a.source, dynamic=a.dynamic),
        ]

    return rewrite(before, visit)
