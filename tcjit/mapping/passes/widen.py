"""Widen: let reductions of halves and bools run in a wider type than their tensor's, in a temporary.

Half-precision sums lose bits, and bools have no addition. The results are narrowed once, at the end. Terms are converted inside what
conditions choose, so that a sum of ``condition ? product : 0`` is still one of products.
"""

from __future__ import annotations

from dataclasses import replace

from tcjit.grammar.ast import Access, Cast, Const, Expr, Select
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.reduction import identity, needs_wide


def widen(before: Assignments) -> Assignments:
    """The program with wide temporaries where the def's statement asks for them."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        s, narrow = before.statement(a), temporaries.tensors[a.tensor]
        if a.operator == "=" or not needs_wide(s, narrow.dtype):
            return [a]
        dtype = s.accumulate
        wide = temporaries.add(a.source, f"{a.tensor}_wide", dtype, narrow.shape, narrow.dynamic_extents)
        element = Access(narrow.name, a.subscripts, dtype=narrow.dtype)
        start = Cast(element, dtype=dtype) if a.start is None else identity(a.operator, dtype)
        result = Cast(Access(wide.name, a.subscripts, dtype=dtype), dtype=narrow.dtype)
        return [
            replace(a, tensor=wide.name, value=_converted(a.value, dtype), start=start),
            Assignment(narrow.name, a.subscripts, "=", result, a.results, a.source, dynamic=a.dynamic),
        ]

    return rewrite(before, visit)


def _converted(value: Expr, dtype: str) -> Expr:
    """A value in a type that holds it."""
    if value.dtype == dtype:
        return value
    if isinstance(value, Select):
        return Select(value.condition, _converted(value.then, dtype), _converted(value.other, dtype), dtype=dtype)
    if isinstance(value, Const) and DTYPES[value.dtype].kind == DTYPES[dtype].kind == "float":
        return replace(value, dtype=dtype)
    if isinstance(value, Const) and isinstance(value.value, bool):
        return Const(int(value.value), dtype=dtype)
    return Cast(value, dtype=dtype)
