"""The convex parts of the domain that conditions on indices leave of a reduction: nests run over one each."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod

import islpy as isl

from tcjit.grammar.affine import affine, isl_name
from tcjit.grammar.arithmetic import divided, index, modulo, plus, total
from tcjit.grammar.ast import Binary, Expr, Scalar, Size
from tcjit.grammar.polynomial import number
from tcjit.grammar.walk import walk, with_indices
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.isl import context, points, sizes_in
from tcjit.mapping.nest.split_residues import MAX_RESIDUES, embedding, moduli
from tcjit.mapping.nest.strip_mine import split_divisions
from tcjit.mapping.reduction import conjunction, guarded_term

MOST = 4  # parts that a nest each is made of


def convex_parts(a: Assignment, values: Mapping[str, int]) -> list[Expr] | None:
    """The conditions of disjoint convex parts of the terms that count, one where they are convex by themselves; None where there are more
    than nests are made of, or no conditions on indices say which terms those are."""
    undivided, strips = split_divisions(a, values)
    conditions, _ = guarded_term(undivided.value, a.operator, values)
    if not conditions:
        return None
    dims, ends = [isl_name(dim) for dim in undivided.dims], [end for limits in undivided.dynamic.values() for end in limits]
    tests, sizes = [test for _, test in conditions], dict[str, Expr]()
    sizes |= {isl_name(part.name): part for expr in (*tests, *ends) for part in walk(expr) if isinstance(part, (Size, Scalar))}
    open_sizes = sizes_in([*tests, *ends], values)
    limits = {dim: (str(affine(lower, values)), str(affine(upper, values))) for dim, (lower, upper) in undivided.dynamic.items()}
    limits = {dim: (str(lower), str(upper)) for dim, lower, upper in undivided.bounds} | limits
    box = points(context(), dims, [f"{lower} <= {isl_name(dim)} < {upper}" for dim, (lower, upper) in limits.items()], open_sizes)
    counted = box.intersect(points(box.get_ctx(), dims, [text for text, _ in conditions], open_sizes)).coalesce()
    if counted.n_basic_set() <= 1:
        return [conjunction(tests)] if _is_convex(counted, dims) else None
    digits = {strip.dim: modulo(index(strip.dim), strip.block) for strip in strips}
    digits |= {strip.outer: divided(index(strip.dim), strip.block) for strip in strips}
    if len({strip.dim for strip in strips}) < len(strips):
        return None  # blocks of blocks
    found = []
    for basic in counted.make_disjoint().coalesce().make_disjoint().get_basic_sets():
        constraints = basic.to_set().gist(box).get_basic_sets()[0].get_constraints()
        if any(map(_divides, constraints)):
            return None
        found.append(with_indices(conjunction([_test(constraint, undivided.dims, sizes) for constraint in constraints]), digits))
    return found if len(found) <= MOST else None


def _is_convex(domain: isl.Set, dims: list[str]) -> bool:
    """Whether a nest runs over a domain, or over each of its residue classes, as over the first of them."""
    counts = moduli(domain, (*dims,))
    if prod(counts.values()) > MAX_RESIDUES:
        return False
    classes = (dict(zip(counts, residues, strict=True)) for residues in product(*map(range, counts.values())))
    parts = (domain.preimage_multi_aff(embedding(domain.get_ctx(), (*dims,), counts, residues)).coalesce() for residues in classes)
    first = next((part for part in parts if not part.is_empty()), domain)
    return first.n_basic_set() <= 1 and not any(_divides(one) for basic in first.get_basic_sets() for one in basic.get_constraints())


def _divides(constraint: isl.Constraint) -> bool:
    """Whether a constraint has quotients."""
    div = isl.dim_type.div
    return any(not constraint.get_coefficient_val(div, at).is_zero() for at in range(constraint.dim(div)))


def _test(constraint: isl.Constraint, dims: tuple[str, ...], sizes: Mapping[str, Expr]) -> Expr:
    """A constraint without quotients as a comparison."""
    kinds = isl.dim_type
    terms: list[tuple[int, Expr]] = [(constraint.get_coefficient_val(kinds.set, at).to_python(), index(dim)) for at, dim in enumerate(dims)]
    names = [str(constraint.get_dim_name(kinds.param, at)) for at in range(constraint.dim(kinds.param))]
    terms += [(constraint.get_coefficient_val(kinds.param, at).to_python(), sizes[name]) for at, name in enumerate(names)]
    value = plus(total(terms), constraint.get_constant_val().to_python())
    return Binary("==" if constraint.is_equality() else ">=", value, number(0), dtype="bool")
