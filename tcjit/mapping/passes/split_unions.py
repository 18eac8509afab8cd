"""Split unions: reductions over terms of several convex sets as one reduction for each, so that a nest runs over either.

``Y(i,d) +=! j != i ? A(i,j) * X(j,d) : 0`` is a sum over ``j < i``, and one that goes on with it over ``j > i``: two triangular products.
A window beside some first columns, as attention with sinks has it, is a part that is no wider than the window, and those columns.
"""

from __future__ import annotations

from dataclasses import replace

from tcjit.grammar.ast import Access, Select
from tcjit.grammar.walk import walk
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.convex_parts import convex_parts
from tcjit.mapping.passes.hoist_invariants import WORTH_HOISTING
from tcjit.mapping.reduction import EXTREMES, guarded_term, identity, is_reused

OPERATORS = ("+=", *EXTREMES)


def split_unions(before: Assignments) -> Assignments:
    """The program with sums and extremes over convex parts of their terms."""

    def visit(a: Assignment, _: Temporaries) -> list[Assignment]:
        simple = a.operator in OPERATORS and a.reduction and not (a.outer or a.constraints or a.empty or a.tensor in a.inputs)
        if not simple or a.start not in (None, identity(a.operator, a.value.dtype)) or a.points < WORTH_HOISTING:
            return [a]
        term = guarded_term(a.value, a.operator, before.values)[1]
        parts = convex_parts(a, before.values) if is_reused(a.results, (part for part in walk(term) if isinstance(part, Access))) else None
        if parts is None or len(parts) < 2:
            return [a]
        values = [Select(test, term, identity(a.operator, term.dtype), dtype=term.dtype) for test in parts]
        return [replace(a, value=value, start=None if number else a.start) for number, value in enumerate(values)]

    return rewrite(before, visit)
