"""Simplify reductions: a result that shares all terms but one with its neighbour is that neighbour's and one term more.

A prefix sum, written as a sum over all terms up to a bound, takes a step for each result instead of one for each term of each. After
Gautam and Rajopadhye, Simplifying Reductions (POPL 2006), for the case in which nothing has to be taken away again.
"""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from tcjit.grammar.affine import affine, isl_name
from tcjit.grammar.arithmetic import index, plus, total
from tcjit.grammar.ast import Access, Binary, Const, Expr, Index, Select, Size
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import rebuild, with_indices
from tcjit.mapping.assignment import Assignment, Assignments, DynamicRanges, Temporaries, rewrite
from tcjit.mapping.isl import has, points
from tcjit.mapping.nest.statement import DIM, AffineStatement, parameter_names, parameters
from tcjit.mapping.reduction import combined
from tcjit.mapping.scans import added_term, scan_candidate

LEAST = 4  # results along the dimension that pay for a recurrence


def simplify_reductions(before: Assignments) -> Assignments:
    """The program with scans in the place of reductions whose results share their terms along a dimension."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        s = scan_candidate(a, before)
        if s is None:
            return [a]
        for dim, lower, upper in a.results:
            for step in (1, -1) if upper - lower >= LEAST and dim not in names(s.body) else ():
                term = added_term(s, dim, step)
                first = None if term is None else _first(a, s, dim, step)
                if term is not None and first is not None:
                    others = _others(a, s.body, dim, step, term)
                    return [_with_first(a, others, dim)] if _is_like_others(a, s, dim, step, term) else [first, others]
        return [a]

    return rewrite(before, visit)


def _first(a: Assignment, s: AffineStatement, dim: str, step: int) -> Assignment | None:
    """The results at one end of a dimension, over the terms that they have; None where these have no affine ends."""
    bounds, dynamic = dict(a.ranges), dict(_without(a, dim))
    if dim in a.dynamic and step < 0:
        at = plus(a.dynamic[dim][1], -1)
        dynamic[dim] = at, a.dynamic[dim][1]
    else:
        place = bounds[dim][0] if step > 0 else bounds[dim][1] - 1
        at, bounds[dim] = Const(place, dtype="int64"), (place, place + 1)
    ctx, term, last = s.domain.get_ctx(), a.terms[0][0], len(s.dims) - 1
    here = s.domain.intersect(points(ctx, s.dims, [f"{isl_name(dim)} = {affine(at, {})}"], parameters(s.domain)))
    if here.is_empty():
        assert a.start is not None
        results = tuple((one, *bounds[one]) for one, _, _ in a.results)
        return replace(a, operator="=", value=a.start, reduction=(), start=None, bounds=results, dynamic=dynamic)
    if not parameter_names(here):
        bounds[term] = here.dim_min_val(last).to_python(), here.dim_max_val(last).to_python() + 1
        return replace(a, bounds=tuple((one, *bounds[one]) for one, _, _ in a.bounds), dynamic=dynamic)
    terms = here.project_out(DIM.set, 0, last).coalesce()
    ends = [_over_sizes(end, a) for end in (terms.dim_min(0), terms.dim_max(0))]
    if ends[0] is None or ends[1] is None:
        return None
    dynamic[term] = ends[0], plus(ends[1], 1)
    return replace(a, bounds=tuple((one, *bounds[one]) for one, _, _ in a.bounds), dynamic=dynamic)


def _is_like_others(a: Assignment, s: AffineStatement, dim: str, step: int, term: tuple[dict[str, int], int]) -> bool:
    """Whether the first result has one term, that of the others' form, and results that follow one another lie side by side: one loop over
    them then begins at the start."""
    if a.dynamic or a.subscripts[-1] != index(dim) or a.value.dtype != s.body.dtype:
        return False
    lower, upper = a.ranges[dim]
    ctx, at, last = s.domain.get_ctx(), lower if step > 0 else upper - 1, isl_name(s.dims[-1])
    place = " + ".join([f"{factor} * {name}" for name, factor in term[0].items()] + [str(term[1])])
    own = s.results.insert_dims(DIM.set, len(s.outputs), 1)
    facts = [f"{isl_name(dim)} = {at}"]
    only = points(ctx, s.dims, [*facts, f"{last} = {place}"], parameters(s.domain))
    return bool(s.domain.intersect(points(ctx, s.dims, facts, parameters(s.domain))).is_equal(own.intersect(only)))


def _with_first(a: Assignment, others: Assignment, dim: str) -> Assignment:
    """A scan of all results: the first one reads the start where the others read their neighbours."""
    start, (lower, _) = a.start, a.ranges[dim]
    assert start is not None
    bounds = tuple((name, lower if name == dim else low, high) for name, low, high in others.bounds)
    later = Binary(">", index(dim), Const(lower, dtype="int64"), dtype="bool")

    def visit(expr: Expr) -> Expr:
        if isinstance(expr, Access) and expr.tensor == a.tensor:
            return Select(later, expr, start, dtype=expr.dtype)
        return rebuild(expr, visit)

    return replace(others, bounds=bounds, value=visit(others.value))


def _over_sizes(value: isl.PwAff, a: Assignment) -> Expr | None:
    """An expression over dynamic sizes as one of the language; None where it is in pieces."""
    pieces = value.coalesce().get_pieces()
    if len(pieces) != 1 or has(pieces[0][1], DIM.div) or not pieces[0][1].get_denominator_val().is_one():
        return None
    aff = pieces[0][1]
    sizes = {isl_name(name): name for ends in a.dynamic.values() for end in ends for name in names(end, Size)}
    terms: list[tuple[int, Expr]] = []
    for n in range(aff.dim(DIM.param)):
        factor = aff.get_coefficient_val(DIM.param, n).to_python()
        name = sizes.get(str(aff.get_dim_name(DIM.param, n)))
        if factor and name is None:
            return None
        if factor and name is not None:
            terms.append((factor, Size(name, dtype="int64")))
    return total(terms, aff.get_constant_val().to_python())


def _without(a: Assignment, dim: str) -> DynamicRanges:
    """The dynamic ranges of the results, but along a dimension."""
    return {name: limits for name, limits in a.dynamic.items() if name not in (dim, *a.reduction)}


def _others(a: Assignment, body: Expr, dim: str, step: int, term: tuple[dict[str, int], int]) -> Assignment:
    """The other results, each from its neighbour; where that is the next one, the dimension counts backwards."""
    place = total([(term[0].get(isl_name(name), 0), index(name)) for name, _, _ in a.results], term[1])
    neighbour = tuple(plus(sub, -step) if isinstance(sub, Index) and sub.name == dim else sub for sub in a.subscripts)
    value = combined(a.operator, Access(a.tensor, neighbour, dtype=a.value.dtype), with_indices(body, {a.terms[0][0]: place}))
    subscripts = a.subscripts
    if step < 0:
        lower, upper = a.ranges[dim]
        last = plus(a.dynamic[dim][1], lower - 1) if dim in a.dynamic else Const(lower + upper - 1, dtype="int64")
        mirrored: Expr = Binary("-", last, Index(dim, dtype="int64"), dtype="int64")
        value, subscripts = with_indices(value, {dim: mirrored}), tuple(with_indices(sub, {dim: mirrored}) for sub in subscripts)
    bounds = tuple((name, lower + (name == dim), upper) for name, lower, upper in a.results)
    dynamic = dict(_without(a, dim))
    if dim in a.dynamic:
        dynamic[dim] = plus(a.dynamic[dim][0], 1), a.dynamic[dim][1]
    form = replace(a, operator="=", subscripts=subscripts, value=value, reduction=(), start=None, bounds=bounds)
    return replace(form, scan=dim, dynamic=dynamic)
