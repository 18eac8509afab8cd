"""Restrict products: on a GPU, a sum of ``c ? product : 0`` becomes one of products over the part of its domain in which ``c`` holds.

Tiles without a point are left out then, and those that lie inside have no condition in their loops. Exact also for NaN: no term is
added that the program leaves out. A sum whose conditions are on its results alone goes to a temporary, of which they pick the results:
its tiles may then compute more than that. So does a sum that is added to what the results hold.
"""

from __future__ import annotations

from dataclasses import replace

from tcjit.grammar.affine import isl_name
from tcjit.grammar.ast import Access, Expr, Select
from tcjit.grammar.polynomial import names
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.isl import context, points
from tcjit.mapping.plan_chunks import product_sides
from tcjit.mapping.reduction import guarded_term, identity


def restrict_products(before: Assignments) -> Assignments:
    """The program with the conditions of such sums as constraints."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        zero = identity("+=", temporaries.tensors[a.tensor].dtype)
        if a.operator != "+=" or a.start not in (None, zero):
            return [a]
        conditions, value = guarded_term(a.value, a.operator, before.values)
        restricted = replace(a, value=value, constraints=(*a.constraints, *(text for text, _ in conditions)))
        if not conditions or a.dynamic or product_sides(restricted) is None or _without_terms(restricted):
            return [a]
        terms = {name for name, _, _ in a.terms}
        of_results = not a.constraints and not any(terms & set(names(condition)) for _, condition in conditions)
        if a.start is not None and not of_results:
            return [restricted]
        return _picked(restricted, [condition for _, condition in conditions if of_results], temporaries)

    return rewrite(before, visit)


def _without_terms(a: Assignment) -> bool:
    """Whether no result has a term: there is nothing to schedule then."""
    facts = [f"{lower} <= {isl_name(name)} < {upper}" for name, lower, upper in a.bounds]
    return bool(points(context(), (isl_name(name) for name, _, _ in a.bounds), [*facts, *a.constraints]).is_empty())


def _picked(a: Assignment, conditions: list[Expr], temporaries: Temporaries) -> list[Assignment]:
    """A sum in a temporary, and the assignment of its results where conditions on them hold, else of zeros, or their addition."""
    storage = temporaries.tensors[a.tensor]
    whole = temporaries.add(a.source, f"{a.tensor}_whole", storage.dtype, storage.shape)
    zero = identity(a.operator, storage.dtype)
    value: Expr = Access(whole.name, a.subscripts, dtype=storage.dtype)
    for condition in reversed(conditions):
        value = Select(condition, value, zero, dtype=storage.dtype)
    operator = "=" if a.start is not None else a.operator
    return [replace(a, tensor=whole.name, start=zero), Assignment(a.tensor, a.subscripts, operator, value, a.results, a.source)]
