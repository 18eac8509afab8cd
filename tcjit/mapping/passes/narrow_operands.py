"""Narrow operands: what a product of halves converts is converted once, before the product, so that tensor cores can load it."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Binary, Cast, Expr
from tcjit.grammar.polynomial import names
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite

WORTH = 8  # uses of a converted element that pay for storing it


def narrow_operands(before: Assignments) -> Assignments:
    """The program with copies of such operands before the sums that read them."""
    return rewrite(before, _visit)


def _visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
    product = a.value.operand if isinstance(a.value, Cast) else a.value
    halves = isinstance(product, Binary) and product.op == "*" and product.dtype in ("float16", "bfloat16")
    if a.operator != "+=" or not a.reduction or a.empty or a.dynamic or not halves or a.value.dtype != "float32":
        return [a]
    assert isinstance(a.value, Cast) and isinstance(product, Binary)
    copies = []
    operands = []
    for operand in (product.left, product.right):
        copy = _copy(a, operand, temporaries)
        copies += [copy] if copy else []
        operands.append(copy.element if copy else operand)
    value = replace(a.value, operand=replace(product, left=operands[0], right=operands[1]))
    return [*copies, replace(a, value=value)] if copies else [a]


def _copy(a: Assignment, operand: Expr, temporaries: Temporaries) -> Assignment | None:
    """The assignment that stores an operand; None for one that is stored already, or used too seldom."""
    if not isinstance(operand, Cast):
        return None
    used = dict.fromkeys(name for access, _ in guarded_accesses(operand) for sub in access.subscripts for name in names(sub))
    bounds = tuple(bound for name in used for bound in a.bounds if bound[0] == name)
    if not bounds or prod(upper - lower for _, lower, upper in a.bounds) < WORTH * prod(upper - lower for _, lower, upper in bounds):
        return None
    source = next(access.tensor for access, _ in guarded_accesses(operand))
    return temporaries.stored(a, f"{source}_narrow", operand, bounds)
