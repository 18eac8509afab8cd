"""Split residues: one statement for each residue class of dimensions that a condition or an access divides.

A transposed convolution of stride 2 computes ``(h + 1 - kh) % 2 == 0`` for a quarter of its terms: in the four statements of the parities
of ``h`` and ``w`` the kernel's dimensions run over the terms that there are, without a condition.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import product
from math import gcd, lcm, prod

import islpy as isl

from tcjit.errors import MappingError, VerifyError
from tcjit.mapping.nest.statement import DIM, AffineStatement

MAX_CLASSES = 32  # statements that one may become: each is code of its own
MAX_RESIDUES = 1024  # combinations of residues that are tried: most have no point, since those of results decide on those of terms


def moduli(domain: isl.Set, dims: tuple[str, ...]) -> dict[str, int]:
    """For each dimension that an equality takes modulo something, the number of its residue classes."""
    found: dict[str, int] = {}
    for basic in domain.get_basic_sets():
        for constraint in basic.get_constraints():
            if not constraint.is_equality():
                continue
            modulus = gcd(*(constraint.get_coefficient_val(DIM.div, at).to_python() for at in range(basic.dim(DIM.div))))
            for at, dim in enumerate(dims) if modulus > 1 else ():
                coefficient = constraint.get_coefficient_val(DIM.set, at).to_python()
                if coefficient % modulus:
                    found[dim] = lcm(found.get(dim, 1), modulus // gcd(coefficient, modulus))
    return found


def divisors(s: AffineStatement) -> dict[str, int]:
    """For each dimension that an access divides, the number of residue classes in which its quotients are linear forms."""
    found: dict[str, int] = {}
    for place in (s.write, *s.reads.values(), *s.start_reads.values()):
        for form in (place.fixed, *(subscript for _, _, subscript in place.runtime)):
            for _, aff in form.intersect_domain(s.domain).gist(s.domain).coalesce().get_pieces():
                for quotient in (aff.get_div(at) for at in range(aff.dim(DIM.div))):
                    for at, dim in enumerate(s.dims):
                        count = quotient.get_coefficient_val(DIM.in_, at).get_den_val().to_python()
                        found[dim] = lcm(found.get(dim, 1), count)
    return {dim: count for dim, count in found.items() if count > 1}


def split_residues(s: AffineStatement) -> list[tuple[AffineStatement, isl.MultiAff]]:
    """The statements of all classes with a point, each with the map from its points to the whole's.

    One, the whole, where there is no modulus, or where a result has terms in several classes: then of what conditions divide, if accesses
    divide by other numbers. Results without a class have no terms. A MappingError where loops over the classes would have to be shared with
    other statements, whose loops are over all points.
    """
    counts, divided = moduli(s.domain, s.dims), divisors(s)
    if any(counts.get(dim, 1) > 1 for dim in s.shared):
        raise MappingError("residue classes of a dimension whose loop other statements share")
    both = {dim: lcm(counts.get(dim, 1), divided.get(dim, 1)) for dim in {**counts, **divided}}
    parts = _of_counts(s, both) if divided and not any(dim in divided for dim in s.shared) else []
    return parts if len(parts) > 1 else _of_counts(s, counts)


def _of_counts(s: AffineStatement, counts: dict[str, int]) -> list[tuple[AffineStatement, isl.MultiAff]]:
    """The statements of the residue classes of some dimensions, of so many each; the whole where there are too many, or none."""
    ctx = s.domain.get_ctx()
    total = prod(counts.values())
    if not 1 < total <= MAX_RESIDUES:
        return [(s, embedding(ctx, s.dims, {}, {}))]
    found: list[tuple[AffineStatement, isl.MultiAff]] = []
    results_of: dict[tuple[int, ...], int] = {}
    for residues in product(*(range(count) for count in counts.values())):
        of = dict(zip(counts, residues, strict=True))
        points = embedding(ctx, s.dims, counts, of)
        domain = s.domain.preimage_multi_aff(points)
        if domain.is_empty():
            continue
        if len(found) == MAX_CLASSES:
            return [(s, embedding(ctx, s.dims, {}, {}))]
        domain = domain.coalesce()
        results = embedding(ctx, s.outputs, counts, of)
        part = replace(
            s,
            name=f"{s.name}_{''.join(map(str, residues))}",
            domain=domain,
            results=s.results.preimage_multi_aff(results),
            write=s.write.pullback(points),
            reads={access: place.pullback(points) for access, place in s.reads.items()},
            start_reads={access: place.pullback(points) for access, place in s.start_reads.items()},
            dynamic={dim: f"floor(({text} + {counts.get(dim, 1) - 1 - of.get(dim, 0)})/{counts.get(dim, 1)})" if dim in counts else text
                     for dim, text in s.dynamic.items()},
        )
        result = tuple(of[dim] for dim in s.outputs if dim in counts)
        results_of[result] = results_of.get(result, 0) + 1
        found.append((part, points))
    if any(classes > 1 for classes in results_of.values()):
        return [(s, embedding(ctx, s.dims, {}, {}))]
    return found


def embedding(ctx: isl.Context, dims: tuple[str, ...], counts: dict[str, int], residues: dict[str, int]) -> isl.MultiAff:
    """From the points of a class to those of the whole: ``d -> count * d + residue``."""
    image = ", ".join(f"{counts[dim]} * {dim} + {residues[dim]}" if dim in counts else dim for dim in dims)
    return isl.MultiAff.read_from_str(ctx, f"{{ [{', '.join(dims)}] -> [{image}] }}")


def verify_split_residues(before: AffineStatement, after: list[tuple[AffineStatement, isl.MultiAff]]) -> None:
    """Prove that every point is in one class, and no result in two."""
    left, results = before.domain, before.results
    for s, points in after:
        image = s.domain.apply(isl.Map.from_multi_aff(points))
        if not image.is_subset(left) or replace(s, domain=before.domain).body is not before.body:
            raise VerifyError(f"split_residues: {before.name}: classes overlap, or leave the domain")
        left = left.subtract(image)
        started = s.results.apply(_of_results(before, points))
        if not started.is_subset(results):
            raise VerifyError(f"split_residues: {before.name}: results of two classes")
        results = results.subtract(started)
    if not left.is_empty():
        raise VerifyError(f"split_residues: {before.name}: points without a class")


def covers_results(before: AffineStatement, after: list[tuple[AffineStatement, isl.MultiAff]]) -> bool:
    """Whether every result has a class, which starts and stores it."""
    started = [s.results.apply(_of_results(before, points)) for s, points in after]
    return bool(reduce(isl.Set.union, started).is_equal(before.results))


def _of_results(s: AffineStatement, points: isl.MultiAff) -> isl.Map:
    """What a map from the points of a class does to the results' dimensions, which come first."""
    count, terms = len(s.outputs), len(s.terms)
    return isl.Map.from_multi_aff(points).project_out(DIM.in_, count, terms).project_out(DIM.out, count, terms)
