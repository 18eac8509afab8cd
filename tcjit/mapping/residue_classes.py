"""Residue classes of the indices of a sum whose conditions take them modulo a number."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from itertools import product
from math import prod

from tcjit.dataclass import dataclass
from tcjit.errors import MappingError
from tcjit.grammar.affine import isl_name
from tcjit.grammar.arithmetic import index, total
from tcjit.grammar.ast import Expr
from tcjit.grammar.polynomial import number
from tcjit.grammar.walk import with_index
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.isl import context, points
from tcjit.mapping.nest.split_residues import MAX_CLASSES, MAX_RESIDUES, moduli
from tcjit.mapping.reduction import guarded_term
from tcjit.mapping.storage import Bounds


@dataclass(frozen=True)
class ResidueClass:
    """The place of each index of a sum in terms of those of a class, and their bounds; ``terms``: whether its results have any."""

    places: Mapping[str, Expr]
    bounds: Bounds
    terms: bool


def residue_classes(a: Assignment, values: Mapping[str, int]) -> list[ResidueClass]:
    """Those of a reduction, each result in one of them; none where there is no modulus, or where a result has terms in several. A
    MappingError where there are too many."""
    conditions, _ = guarded_term(a.value, a.operator, values)
    if a.operator == "=" or not a.reduction or not conditions or a.dynamic or a.empty or a.constraints or a.outer:
        return []
    facts = [f"{lower} <= {isl_name(name)} < {upper}" for name, lower, upper in a.bounds]
    domain = points(context(), map(isl_name, a.dims), [*facts, *(text for text, _ in conditions)])
    counts = moduli(domain, a.dims)
    if prod(counts.values()) == 1:
        return []
    if prod(counts.values()) > MAX_RESIDUES:
        raise MappingError(f"{prod(counts.values())} combinations of residues: more than {MAX_RESIDUES}")
    found: dict[tuple[int, ...], ResidueClass] = {}
    results = [name for name, _, _ in a.results if name in counts]
    for residues in product(*(range(count) for count in counts.values())):
        of = dict(zip(counts, residues, strict=True))
        held = [f"({isl_name(name)} - {residue}) mod {counts[name]} = 0" for name, residue in of.items()]
        here = points(domain.get_ctx(), map(isl_name, a.dims), held)
        one = _class(a, counts, of, terms=not domain.intersect(here).is_empty())
        known = found.get(key := tuple(of[name] for name in results))
        if known is not None and known.terms and one.terms:
            return []
        if not any(upper <= lower for name, lower, upper in one.bounds if name not in a.reduction) and (known is None or one.terms):
            found[key] = one
    if len(found) > MAX_CLASSES:
        raise MappingError(f"{len(found)} residue classes: more than {MAX_CLASSES}")
    return list(found.values())


def _class(a: Assignment, counts: Mapping[str, int], residues: Mapping[str, int], *, terms: bool) -> ResidueClass:
    bounds: list[tuple[str, int, int]] = []
    places: dict[str, Expr] = {}
    for name, lower, upper in a.bounds if terms else a.results:
        count, residue = counts.get(name, 1), residues.get(name, 0)
        first, end = -((residue - lower) // count), -((residue - upper) // count)
        bounds.append((name, 0, end - first))
        if end - first == 1:
            places[name] = number(count * first + residue)
        elif (count, first, residue) != (1, 0, 0):
            places[name] = total([(count, index(name))], count * first + residue)
    return ResidueClass(places, tuple(bounds), terms)


def placed(expr: Expr, one: ResidueClass) -> Expr:
    """An expression over the indices of a class."""
    return reduce(lambda found, name: with_index(found, name, one.places[name]), one.places, expr)
