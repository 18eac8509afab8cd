"""Restrict products: on a GPU, a sum of ``c ? product : 0`` becomes one of products over the part of its domain in which ``c`` holds.

Tiles without a point are left out then, and those that lie inside have no condition in their loops. Exact also for NaN: no term is
computed that the program leaves out.
"""

from __future__ import annotations

from dataclasses import replace

from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.plan_chunks import product_sides
from tcjit.mapping.reduction import guarded_term, identity


def restrict_products(before: Assignments) -> Assignments:
    """The program with the conditions of such sums as constraints."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if a.operator != "+=" or a.start != identity(a.operator, temporaries.tensors[a.tensor].dtype):
            return [a]
        conditions, value = guarded_term(a.value, a.operator, before.values)
        restricted = replace(a, value=value, constraints=(*a.constraints, *conditions))
        return [restricted if conditions and product_sides(restricted) is not None else a]

    return rewrite(before, visit)
