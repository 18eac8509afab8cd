"""Scans: reductions whose results share terms along a dimension, as prefix sums do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import islpy as isl

from tcjit.dataclass import dataclass
from tcjit.errors import MappingError
from tcjit.grammar.affine import isl_name
from tcjit.grammar.ast import Access, Expr, Index, Select
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import rebuild
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.isl import context, has, images, points
from tcjit.mapping.nest.affine_statement import affine_statement
from tcjit.mapping.nest.restrict import restrict, verify_restrict
from tcjit.mapping.nest.statement import DIM, AffineStatement, parameter_names, parameters
from tcjit.mapping.reduction import casts_inside, conjunction, guarded_term, identity
from tcjit.mapping.scop import ScopStatement
from tcjit.mapping.storage import Bounds


def scan_candidate(a: Assignment, before: Assignments) -> AffineStatement | None:
    """A reduction of one dimension, over the exact domain that conditions leave it; None where there are none, or it starts elsewhere than
    at the identity."""
    if not a.reduction or a.empty or a.start is None or a.start != identity(a.operator, a.value.dtype):
        return None
    if len(a.terms) != 1 or not all(isinstance(sub, Index) for sub in a.subscripts):
        return None
    conditions, term = guarded_term(casts_inside(a.value), a.operator, before.values)
    if not conditions:
        return None
    # what a term is does not matter here: any value that is not the identity stands for it
    neutral, any_other = (identity(operator, term.dtype) for operator in (a.operator, "max=" if a.operator == "min=" else "min="))
    value = Select(conjunction([test for _, test in conditions]), any_other, neutral, dtype=term.dtype)
    try:
        whole = affine_statement("S", replace(a, value=value), before.storages, before.program, context())
    except MappingError:
        return None
    s = restrict(whole, a.value.dtype, before.values)
    if s is whole:
        return None
    verify_restrict(whole, s, before.values)
    s = replace(s, body=term)
    return _for_all_sizes(s) or s


def recurrence(s: ScopStatement) -> tuple[Expr | None, Access, Expr]:
    """Of a scan: what its first result reads in place of its neighbour's, None where it has one; the read of the neighbour's result; and
    the value with that read alone."""
    found: list[tuple[Expr | None, Access]] = []

    def visit(expr: Expr) -> Expr:
        read = expr.then if isinstance(expr, Select) else expr
        if isinstance(read, Access) and read.tensor == s.tensor:
            found.append((expr.other if isinstance(expr, Select) else None, read))
            return read
        return rebuild(expr, visit)

    value = visit(s.value)
    ((start, read),) = found
    return start, read, value


@dataclass(frozen=True)
class Triangle:
    """The terms of a result ``i``: those from ``least`` to ``most``, up to ``i + offset``, or from there on where ``step`` is -1."""

    step: int
    offset: int
    least: int
    most: int


def triangle(s: AffineStatement, dim: str, bounds: Bounds) -> Triangle | None:
    """The terms of a candidate's results, which have these ``bounds``, if only a dimension decides on them, and on their end."""
    if parameter_names(s.domain) or dim in names(s.body):
        return None
    own, term = isl_name(dim), s.dims[-1]
    ends = s.domain.apply(images(s.domain.get_ctx(), s.dims, (term, f"{term} - {own}")))
    (least, most), (first, last) = ((ends.dim_min_val(n).to_python(), ends.dim_max_val(n).to_python()) for n in range(2))
    facts = [f"{lower} <= {isl_name(name)} < {upper}" for name, lower, upper in bounds] + [f"{least} <= {term} <= {most}"]
    for step, offset, fact in ((1, last, f"{term} <= {own} + {last}"), (-1, first, f"{own} + {first} <= {term}")):
        if points(s.domain.get_ctx(), s.dims, [*facts, fact]).is_equal(s.domain):
            return Triangle(step, offset, least, most)
    return None


def has_empty_results(s: AffineStatement) -> bool:
    """Whether some results of a candidate may have no terms."""
    return not s.results.is_subset(s.domain.project_out(DIM.set, len(s.outputs), len(s.terms)))


def _for_all_sizes(s: AffineStatement) -> AffineStatement | None:
    """The statement for the greatest sizes, where for others it has fewer results, and these the same terms; None where terms depend on
    dynamic sizes, as those of a sum from a result to the end do."""
    domain, results = (where.project_out(DIM.param, 0, where.dim(DIM.param)) for where in (s.domain, s.results))
    ends = [f"{dim} < {extent}" for dim, extent in s.dynamic.items() if dim in s.outputs]
    here = points(s.domain.get_ctx(), s.dims, ends, parameters(s.domain)).intersect(domain).intersect_params(s.results.params())
    return replace(s, domain=domain, results=results) if here.is_equal(s.domain) else None


def added_term(s: AffineStatement, dim: str, step: int) -> tuple[dict[str, int], int] | None:
    """The term that a result has beside those of the result ``step`` before it along a dimension, as a linear form over the results'
    dimensions; None where that is not one and the same form for all of them."""
    count = len(s.outputs)

    def shifted(where: isl.Set, dims: Sequence[str]) -> isl.Set:
        return where.apply(images(where.get_ctx(), dims, (f"{name} + {step}" if name == isl_name(dim) else name for name in dims)))

    inner = s.results.intersect(shifted(s.results, s.outputs))
    rest = inner.insert_dims(DIM.set, count, len(s.terms))
    before, now = shifted(s.domain, s.dims).intersect(rest), s.domain.intersect(rest)
    added = now.subtract(before).coalesce()
    if not before.is_subset(now):
        return None
    form = isl.Map.from_domain(added).move_dims(DIM.out, 0, DIM.in_, count, 1)
    if not form.is_single_valued() or not form.domain().is_equal(inner):
        return None
    pieces = isl.PwMultiAff.from_map(form).get_pw_aff(0).coalesce().get_pieces()
    if len(pieces) != 1 or any(has(pieces[0][1], kind) for kind in (DIM.div, DIM.param)):
        return None
    aff = pieces[0][1]
    coefficients = {name: aff.get_coefficient_val(DIM.in_, n).to_python() for n, name in enumerate(s.outputs)}
    return {name: c for name, c in coefficients.items() if c}, aff.get_constant_val().to_python()
