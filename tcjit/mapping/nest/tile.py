"""Tile: the domain of a statement in digits, and its tiles, full and partial.

A dimension is ``sum(block * digit) + r``: a digit for each loop over it, and the point ``r`` inside the tile. Digits are explicit, so that
no division reaches isl. A *full* tile has all its points in the domain and is computed without a check; a *partial* one has some.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import islpy as isl

from tcjit.errors import MappingError, VerifyError
from tcjit.mapping.nest.nest import Nest
from tcjit.mapping.nest.statement import DIM, FlatAccess, FlatStatement


@dataclass(frozen=True)
class PointCheck:
    """``sum(coefficients[d] * d) + constant >= 0``, or ``== 0``: a constraint that a partial tile does not imply."""

    coefficients: Mapping[str, int]
    constant: int
    equality: bool

    def text(self) -> str:
        """In isl's words."""
        terms = [f"{coefficient} * {dim}" for dim, coefficient in self.coefficients.items()]
        return f"{' + '.join([*terms, str(self.constant)])} {'=' if self.equality else '>='} 0"


@dataclass(frozen=True)
class Tiles:
    """The tiles of a statement.

    ``counts``: the values of each digit, from 0 on; ``points``: from digits and the points inside a tile, ``digits`` then ``inside``, to
    the dimensions; ``box``: the values that those take; ``full`` and ``partial``: sets of digits; ``checks``: what must hold of a point of
    a partial tile to be in the domain; ``edges``: what must hold of a tile's result to be one.
    """

    digits: tuple[str, ...]
    counts: tuple[int, ...]
    inside: tuple[str, ...]
    points: isl.MultiAff
    box: isl.Set
    full: isl.Set
    partial: isl.Set
    checks: tuple[PointCheck, ...]
    edges: tuple[PointCheck, ...]


def tile(s: FlatStatement, nest: Nest, width: int) -> Tiles:
    """The tiles of a statement for vectors of ``width`` lanes; the nest is one of the statement's."""
    if wrong := nest.problem(s, width):
        raise MappingError(wrong)
    ctx = s.domain.get_ctx()
    digits = tuple(f"c{number}" for number in range(len(nest.loops)))
    inside = [dim for dim in s.dims if dim in nest.leaf.window or nest.leaf.tile(dim, width) > 1]
    parts: dict[str, list[str]] = {dim: [] for dim in s.dims}
    facts, counts, around = [], [], {dim: s.extent(dim) for dim in s.dims}
    for digit, loop in zip(digits, nest.loops, strict=True):
        counts.append(-(-around[loop.dim] // loop.block))
        facts.append(f"0 <= {digit} < {counts[-1]}")
        parts[loop.dim].append(f"{loop.block} * {digit}")
        around[loop.dim] = min(around[loop.dim], loop.block)
    for dim in inside:
        least, greatest = s.range(dim) if dim in nest.leaf.window else (0, nest.leaf.tile(dim, width) - 1)
        facts.append(f"{least} <= r_{dim} <= {greatest}")
        parts[dim].append(f"r_{dim}")
    names = ", ".join([*digits, *(f"r_{dim}" for dim in inside)])
    images = ", ".join(" + ".join(parts[dim]) or "0" for dim in s.dims)
    points = isl.MultiAff.read_from_str(ctx, f"{{ [{names}] -> [{images}] }}")
    box = isl.Set.read_from_str(ctx, f"{{ [{names}] : {' and '.join(facts) or '0 = 0'} }}")
    count, rest = len(digits), len(inside)

    def tiles_of(where: isl.Set) -> isl.Set:
        return box.intersect(where.preimage_multi_aff(points)).project_out(DIM.set, count, rest)

    domain = _computed(s, nest, width)
    some = tiles_of(domain).coalesce()
    every = box.intersect(some.insert_dims(DIM.set, count, rest))  # all points of those tiles
    partial = every.subtract(domain.preimage_multi_aff(points)).project_out(DIM.set, count, rest).coalesce()
    full = some.subtract(partial).coalesce()
    reached = every.apply(isl.Map.from_multi_aff(points))
    checks = _checks(domain, s.dims, reached, nest.leaf.lane)
    terms = len(s.dims) - len(s.terms), len(s.terms)
    edges = _checks(s.results, s.outputs, box.apply(isl.Map.from_multi_aff(points)).project_out(DIM.set, *terms), nest.leaf.lane)
    return Tiles(digits, tuple(counts), tuple(inside), points, box, full, partial, checks, edges)


def stays_inside(flat: FlatAccess, s: FlatStatement, nest: Nest, width: int) -> bool:
    """Whether an access is inside its tensor at all points of all tiles, those outside the domain included."""
    least = greatest = flat.constant
    for dim, step in flat.form.items():
        size = 1 if dim in nest.leaf.window else nest.leaf.tile(dim, width)
        reach = step * (-(-s.extent(dim) // size) * size - 1)
        least, greatest = least + min(0, reach), greatest + max(0, reach)
    return least >= 0 and greatest < flat.elements


def _computed(s: FlatStatement, nest: Nest, width: int) -> isl.Set:
    """The points that tiles compute: the domain, and beyond its box those of results that are never stored, where all reads may happen."""
    if not s.is_box or not all(stays_inside(flat, s, nest, width) for flat in s.reads.values()):
        return s.domain
    sizes = {dim: nest.leaf.tile(dim, width) if dim in s.outputs else 1 for dim in s.dims}
    facts = [f"0 <= {dim} < {-(-s.extent(dim) // size) * size}" for dim, size in sizes.items()]
    return isl.Set.read_from_str(s.domain.get_ctx(), f"{{ [{', '.join(s.dims)}] : {' and '.join(facts) or '0 = 0'} }}")


def _checks(where: isl.Set, dims: tuple[str, ...], reached: isl.Set, lane: str) -> tuple[PointCheck, ...]:
    """The constraints of a convex set that the points reached do not imply; a MappingError where one has no test or mask."""
    (basic,) = where.get_basic_sets()  # others were refused before
    space = where.get_space()
    found = []
    for constraint in basic.get_constraints():
        if any(not constraint.get_coefficient_val(DIM.div, at).is_zero() for at in range(basic.dim(DIM.div))):
            raise MappingError("a condition takes an index modulo something")
        if reached.is_subset(isl.BasicSet.universe(space).add_constraint(constraint).to_set()):
            continue
        coefficients = {dim: constraint.get_coefficient_val(DIM.set, at).to_python() for at, dim in enumerate(dims)}
        kept = {dim: coefficient for dim, coefficient in coefficients.items() if coefficient}
        equality = constraint.is_equality()
        if abs(kept.get(lane, 0)) > 1 or (equality and lane in kept):
            raise MappingError("a condition that no mask of lanes is")
        found.append(PointCheck(kept, constraint.get_constant_val().to_python(), equality))
    return tuple(found)


def verify_tiles(s: FlatStatement, tiles: Tiles) -> None:
    """Prove that every point of the domain is computed once, and no other of a result that is stored."""
    ctx = s.domain.get_ctx()
    points = isl.Map.from_multi_aff(tiles.points).intersect_domain(tiles.box)
    if not points.is_injective() or not s.domain.is_subset(points.range()):
        raise VerifyError(f"tile: {s.name}: digits miss points, or meet one twice")

    def of(some: isl.Set) -> isl.Set:
        return tiles.box.intersect(some.insert_dims(DIM.set, len(tiles.digits), len(tiles.inside))).apply(points)

    unstored = s.results.complement().insert_dims(DIM.set, len(s.outputs), len(s.terms))
    allowed = s.domain.union(unstored)
    if not tiles.full.is_disjoint(tiles.partial) or not of(tiles.full).is_subset(allowed):
        raise VerifyError(f"tile: {s.name}: a full tile has a point outside the domain")
    facts = " and ".join(check.text() for check in tiles.checks) or "0 = 0"
    checked = isl.Set.read_from_str(ctx, f"{{ [{', '.join(s.dims)}] : {facts} }}")
    computed = of(tiles.partial).intersect(checked)
    if not computed.is_subset(allowed) or not s.domain.is_subset(of(tiles.full).union(computed)):
        raise VerifyError(f"tile: {s.name}: the checks of partial tiles are not its domain")
    beyond = of(tiles.full).subtract(s.domain)
    for flat in s.reads.values() if not beyond.is_empty() else ():
        place = " + ".join([*(f"{step} * {dim}" for dim, step in flat.form.items()), str(flat.constant)])
        inside = isl.Set.read_from_str(ctx, f"{{ [{', '.join(s.dims)}] : 0 <= {place} < {flat.elements} }}")
        if not beyond.is_subset(inside):
            raise VerifyError(f"tile: {s.name}: a full tile reads outside {flat.tensor}")
    stored = tiles.box.apply(isl.Map.from_multi_aff(tiles.points)).project_out(DIM.set, len(s.outputs), len(s.terms))
    facts = " and ".join(check.text() for check in tiles.edges) or "0 = 0"
    kept = stored.intersect(isl.Set.read_from_str(ctx, f"{{ [{', '.join(s.outputs)}] : {facts} }}"))
    if not kept.is_equal(s.results):
        raise VerifyError(f"tile: {s.name}: what tiles store are not the results")
