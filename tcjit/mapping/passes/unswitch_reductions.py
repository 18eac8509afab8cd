"""Unswitch reductions: conditions on data leave sums of products, which nests compute, and what they guard is stored with zeros.

``S(b,t) +=! t < Len(b) ? Q(b,d) * K(Page(b,t), d) : 0`` gathers the rows of ``K`` once, zeros beyond the lengths, sums all products, and
chooses behind the sum, as the condition does not move with ``d``. Where all factors are 0 without the condition, so is their product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from math import prod

from tcjit.grammar.affine import affine, condition
from tcjit.grammar.ast import Access, Binary, Cast, Const, Expr, Select
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import walk
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.equality import reads_inside
from tcjit.mapping.operations import may_fail
from tcjit.mapping.passes.hoist_invariants import TYPES, USES
from tcjit.mapping.reduction import guarded_factors, identity, is_reused

USES_OF_ELEMENTS = 16  # of an element that nests read where it is, at least: a copy saves no gather, and loops leave terms out, too


def unswitch_reductions(before: Assignments) -> Assignments:
    """The program with sums of products that conditions on data have left."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        plain = a.operator == "+=" and a.reduction and not (a.outer or a.dynamic or a.constraints or a.empty or a.tensor in a.inputs)
        if not plain or a.value.dtype not in TYPES or a.start != identity("+=", a.value.dtype):
            return [a]
        conditions, factors = guarded_factors(a.value)
        guards = [one for one in conditions if condition(one, before.values) is None]
        known = {name for guard in guards for name in names(guard)} & a.ranges.keys()
        stored = [factor for factor in factors if _is_stored(a, factor, known, before.values)]
        if not guards or len(factors) < 2 or any(lower for _, lower, _ in a.bounds) or any(map(may_fail, guards)):
            return [a]
        everywhere = len(stored) == len(factors)
        apart = known.isdisjoint(a.reduction) and is_reused(a.results, [factor for factor in factors if factor not in stored])
        if not (everywhere or apart) or not is_reused(a.results, factors):
            return [a]
        elements: dict[Expr, Expr] = {}
        made = []
        for factor in dict.fromkeys(stored):
            if not everywhere and _is_plain(factor, before.values):
                continue
            bounds = tuple((name, *a.ranges[name]) for name in names(factor) if name in a.ranges)
            copy = temporaries.stored(a, f"{a.tensor}_guarded", _chosen(guards, factor), bounds)
            if not reads_inside(before.with_parts([[copy]], temporaries), copy):  # some elements are there under more conditions only
                own = [one for one in conditions if one in guards or names(one).keys() & a.ranges.keys() <= {*copy.dims}]
                copy = replace(copy, value=_chosen(own, factor))
                if not reads_inside(before.with_parts([[copy]], temporaries), copy):
                    return [a]
            made.append(copy)
            elements[factor] = copy.element
        product = reduce(partial(Binary, "*", dtype=a.value.dtype), (elements.get(factor, factor) for factor in factors))
        value = _chosen([one for one in conditions if one not in guards], product)
        if everywhere:
            return [*made, replace(a, value=value)]
        sums = temporaries.stored(a, f"{a.tensor}_sum", Const(0.0, dtype=a.value.dtype), a.results)
        update = replace(a, tensor=sums.tensor, subscripts=sums.subscripts, value=value)
        if may_fail(product) or not reads_inside(before.with_parts([[update]], temporaries), update):
            return [a]
        return [*made, update, replace(a, operator="=", value=_chosen(guards, sums.element), bounds=a.results, reduction=(), start=None)]

    return rewrite(before, visit)


def _chosen(guards: Sequence[Expr], value: Expr) -> Expr:
    """A value where conditions hold, 0 elsewhere."""
    zero = Const(0.0, dtype=value.dtype)
    return reduce(lambda inner, guard: Select(guard, inner, zero, dtype=value.dtype), reversed(guards), value)


def _is_stored(a: Assignment, factor: Expr, known: set[str], values: Mapping[str, int]) -> bool:
    """Whether a factor moves with all that conditions do, and is used often enough to be stored."""
    dims = a.ranges.keys() & names(factor)
    least = USES_OF_ELEMENTS if _is_plain(factor, values) else USES
    used = a.points >= least * prod(a.extents[name] for name in dims)
    return known <= dims and used and factor.dtype in TYPES and not any(isinstance(part, Select) for part in walk(factor))


def _is_plain(factor: Expr, values: Mapping[str, int]) -> bool:
    """Whether a factor is an element that nests read where it is."""
    access = factor.operand if isinstance(factor, Cast) else factor
    return isinstance(access, Access) and all(affine(sub, values) is not None for sub in access.subscripts)
