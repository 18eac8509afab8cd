"""Widen: let reductions of halves and bools run in a wider type than their tensor's, in a temporary.

Half-precision sums lose bits, and bools have no addition. The results are narrowed once, at the end.
"""

from __future__ import annotations

from dataclasses import replace

from tcjit.grammar.ast import Access, Cast
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.reduction import identity, needs_wide


def widen(before: Assignments) -> Assignments:
    """The program with wide temporaries where the def's statement asks for them."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        s, narrow = before.statement(a), temporaries.tensors[a.tensor]
        if a.operator == "=" or not needs_wide(s, narrow.dtype):
            return [a]
        dtype = s.accumulate
        value = a.value if a.value.dtype == dtype else Cast(a.value, dtype=dtype)
        wide = temporaries.add(a.source, f"{a.tensor}_wide", dtype, narrow.shape, narrow.dynamic_extents)
        element = Access(narrow.name, a.subscripts, dtype=narrow.dtype)
        start = Cast(element, dtype=dtype) if a.start is None else identity(a.operator, dtype)
        result = Cast(Access(wide.name, a.subscripts, dtype=dtype), dtype=narrow.dtype)
        return [
            replace(a, tensor=wide.name, value=value, start=start),
            Assignment(narrow.name, a.subscripts, "=", result, a.results, a.source, dynamic=a.dynamic),
        ]

    return rewrite(before, visit)
