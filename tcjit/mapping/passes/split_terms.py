"""Split terms: a reduction whose terms are one value where a condition on indices holds, and another elsewhere, is a reduction for each.

``Y(i) +=! (j <= i ? A(i,j) : A(j,i)) * X(j)`` sums the one over ``j <= i``, and goes on with the other over ``j > i``.
"""

from __future__ import annotations

from dataclasses import replace

from tcjit.grammar.affine import condition
from tcjit.grammar.ast import Access, Const, Expr, Select, Unary
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import replaced, walk
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.convex_parts import MOST
from tcjit.mapping.nest.vector_forms import NARROW, has_lane_form, has_vector_form
from tcjit.mapping.passes.eliminate_conditions import simplified
from tcjit.mapping.passes.hoist_invariants import WORTH_HOISTING
from tcjit.mapping.passes.split_unions import OPERATORS
from tcjit.mapping.reduction import conjunction, guarded_term, identity

Case = tuple[list[Expr], Expr]  # conditions, and the term where they hold


def split_terms(before: Assignments) -> Assignments:
    """The program with sums and extremes of terms that nests compute in the place of those that conditions on indices keep from it."""

    def visit(a: Assignment, _: Temporaries) -> list[Assignment]:
        simple = a.operator in OPERATORS and a.reduction and not (a.outer or a.constraints or a.empty or a.tensor in a.inputs)
        if not simple or a.start not in (None, identity(a.operator, a.value.dtype)) or a.points < WORTH_HOISTING:
            return [a]
        conditions, term = guarded_term(a.value, a.operator, before.values)
        cases: list[Case] = [([], term)]
        while (at := next((n for n, (_, value) in enumerate(cases) if not _has_form(value)), None)) is not None:
            tests, value = cases[at]
            test = _test(a, value, before)
            if test is None or len(cases) == MOST:
                return [a]
            holding, failing = (simplified(replaced(value, {test: Const(truth, dtype="bool")}), {}, {}) for truth in (True, False))
            cases[at : at + 1] = [([*tests, test], holding), ([*tests, Unary("!", test, dtype="bool")], failing)]
        if len(cases) < 2:
            return [a]
        guards, neutral = [test for _, test in conditions], identity(a.operator, term.dtype)
        values = [Select(conjunction([*guards, *tests]), value, neutral, dtype=term.dtype) for tests, value in cases]
        return [replace(a, value=value, start=None if number else a.start) for number, value in enumerate(values)]

    return rewrite(before, visit)


def _has_form(value: Expr) -> bool:
    return has_vector_form(value) or has_lane_form(value)


def _test(a: Assignment, value: Expr, before: Assignments) -> Expr | None:
    """The first condition on indices alone in a term that chooses between parts of it, or is a part of what does."""
    choices = [part for part in walk(value) if isinstance(part, Select)]
    own = {value.dtype, "bool", *NARROW.get(value.dtype, ())}  # of others that are compared no nest makes sums
    inside = all(access.dtype in own for part in choices for access in walk(part.condition) if isinstance(access, Access))
    chosen = (test for part in choices for test in (walk(part.condition) if inside else (part.condition,)) if test.dtype == "bool")
    indices = (test for test in chosen if 0 < len(names(test)) and names(test).keys() <= {*a.dims})
    return next((test for test in indices if condition(test, before.values) is not None), None)
