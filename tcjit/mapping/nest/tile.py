"""Tile: the domain of a statement in digits, and its tiles, full and partial.

A dimension is ``sum(block * digit) + r``: a digit for each loop over it, and the point ``r`` inside the tile. Digits are explicit, so that
no division reaches isl. A *full* tile has all its points in the domain and is computed without a check; a *partial* one has some. Where the
last tile along a dimension of a box would be partial, it begins earlier and *overlaps* the one before: what both compute only one stores.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace

import islpy as isl

from tcjit.dataclass import dataclass
from tcjit.errors import MappingError, VerifyError
from tcjit.grammar.ast import Access
from tcjit.mapping.isl import images, points
from tcjit.mapping.nest.nest import Nest
from tcjit.mapping.nest.statement import DIM, FlatAccess, FlatStatement, parameter_names, parameters


@dataclass(frozen=True)
class PointCheck:
    """``sum(coefficients[d] * d) + sum(sizes[s] * s) + constant >= 0``, or ``== 0``, over dimensions and dynamic sizes: a constraint that a
    partial tile does not imply; ``least``: the least value of the sum at the origins of partial tiles, where that is known."""

    coefficients: Mapping[str, int]
    constant: int
    equality: bool
    sizes: Mapping[str, int] = field(default_factory=dict)
    least: int | None = field(default=None, compare=False)

    def holds(self, *inside: Mapping[str, int]) -> bool:
        """Whether it is known to hold at all of some points inside a partial tile, wherever that is."""
        ends = (sum(c * point.get(dim, 0) for dim, c in self.coefficients.items()) for point in inside)
        return self.least is not None and not self.equality and all(self.least + end >= 0 for end in ends)

    def text(self) -> str:
        """In isl's words."""
        terms = [f"{coefficient} * {dim}" for dim, coefficient in (*self.coefficients.items(), *self.sizes.items())]
        return f"{' + '.join([*terms, str(self.constant)])} {'=' if self.equality else '>='} 0"

    @property
    def as_inequalities(self) -> list[PointCheck]:
        """An equality as no less and no more."""
        more = {dim: -coefficient for dim, coefficient in self.coefficients.items()}
        less = replace(self, equality=False, least=None)
        return [less, replace(less, coefficients=more, constant=-self.constant, sizes={name: -by for name, by in self.sizes.items()})]


@dataclass(frozen=True)
class Overlap:
    """Tiles along ``dim`` begin at ``first``, in isl's words over the digits, or at ``greatest``, over dynamic sizes, whichever is less,
    and store no result before ``first``."""

    dim: str
    first: str
    greatest: str


@dataclass(frozen=True)
class Tiles:
    """The tiles of a statement.

    ``counts``: the values of each digit, from 0 on, for the greatest sizes; ``lasts``: the last of them for those of a call, in isl's words
    and C's; ``own``: the digits of results; ``points``: from digits and the points inside a tile, ``digits`` then ``inside``, to the
    dimensions; ``box``: the values that those take; ``full`` and ``partial``: sets of digits; ``checks``: what must hold of a point of
    a partial tile to be in the domain, ``load_checks`` what must hold of it for a read to be inside its tensor; ``edges``: what must hold
    of a tile's result to be one; ``result_checks``: what must hold of a result to have terms, where tiles compute sums for others too,
    which start again in their place. ``overlaps``: the dimensions whose last tile overlaps the one before.
    """

    digits: tuple[str, ...]
    counts: tuple[int, ...]
    lasts: tuple[str, ...]
    own: tuple[str, ...]
    inside: tuple[str, ...]
    points: isl.PwMultiAff
    box: isl.Set
    full: isl.Set
    partial: isl.Set
    checks: tuple[PointCheck, ...]
    load_checks: Mapping[Access, tuple[PointCheck, ...]]
    edges: tuple[PointCheck, ...]
    result_checks: tuple[PointCheck, ...]
    overlaps: tuple[Overlap, ...]


def tile(s: FlatStatement, nest: Nest, width: int) -> Tiles:
    """The tiles of a statement for vectors of ``width`` lanes; the nest is one of the statement's."""
    if wrong := nest.problem(s, width):
        raise MappingError(wrong)
    block = nest.block_loop(s)
    if block is not None and not s.is_sum(nest.loops[block].dim):
        raise MappingError("blocks of terms whose number is no sum of sizes")
    ctx = s.domain.get_ctx()
    prefix = "c"
    while any(dim.startswith(prefix) and dim[len(prefix) :].isdigit() for dim in s.dims):
        prefix += "c"
    digits = tuple(f"{prefix}{number}" for number in range(len(nest.loops)))
    inside = [dim for dim in s.dims if dim in nest.leaf.window or nest.leaf.tile(dim, width) > 1]
    shifted = _overlapping(s, nest, width)
    overlaps = []
    parts: dict[str, list[str]] = {dim: [] for dim in s.dims}
    facts, counts, lasts, around = [], [], [], {dim: s.extent(dim) for dim in s.dims}
    for digit, loop in zip(digits, nest.loops, strict=True):
        counts.append(-(-around[loop.dim] // loop.block))
        facts.append(f"0 <= {digit} < {counts[-1]}")
        open_ended = loop.dim in s.dynamic and not parts[loop.dim]
        lasts.append(f"({s.dynamic[loop.dim]} - 1) / {loop.block}" if open_ended else str(counts[-1] - 1))
        parts[loop.dim].append(f"{loop.block} * {digit}")
        around[loop.dim] = min(around[loop.dim], loop.block)
    ended = {dim: parts[dim] for dim in s.dynamic if parts[dim] and dim not in shifted}
    facts += [f"{' + '.join(terms)} < {s.dynamic[dim]}" for dim, terms in ended.items()]
    for dim in shifted:
        end, lanes = s.dynamic.get(dim), nest.leaf.tile(dim, width)
        overlap = Overlap(dim, " + ".join(parts[dim]), f"{end} - {lanes}" if end else str(s.extent(dim) - lanes))
        facts.append(f"{overlap.first} < {s.extent_text(dim)}")
        parts[dim] = [f"min({overlap.first}, {overlap.greatest})"]
        overlaps.append(overlap)
    for dim in inside:
        least, greatest = s.range(dim) if dim in nest.leaf.window else (0, nest.leaf.tile(dim, width) - 1)
        facts.append(f"{least} <= r_{dim} <= {greatest}")
        parts[dim].append(f"r_{dim}")
    names, sizes = [*digits, *(f"r_{dim}" for dim in inside)], parameters(s.domain)
    to = ", ".join(" + ".join(parts[dim]) or "0" for dim in s.dims)
    place = isl.PwMultiAff.read_from_str(ctx, f"{sizes}{{ [{', '.join(names)}] -> [{to}] }}")
    box = points(ctx, names, facts, sizes).intersect_params(s.results.params())
    count, rest = len(digits), len(inside)

    def tiles_of(where: isl.Set) -> isl.Set:
        return box.intersect(where.preimage_pw_multi_aff(place)).project_out(DIM.set, count, rest)

    domain = _computed(s, nest, width, shifted)
    some = tiles_of(domain).coalesce()
    having = isl.Set.universe(s.results.get_space())
    if not s.is_box:
        domain, having = _without_result_conditions(s, nest, domain)
    every = box.intersect(some.insert_dims(DIM.set, count, rest))  # all points of those tiles
    partial = every.subtract(domain.preimage_pw_multi_aff(place)).project_out(DIM.set, count, rest).coalesce()
    full = some.subtract(partial).coalesce()
    reached = every.apply(isl.Map.from_pw_multi_aff(place))
    checks = _checks(domain, s.dims, reached, nest.leaf.lane, None if s.dynamic else _origins(partial, place, rest))
    beside = box.intersect(partial.insert_dims(DIM.set, count, rest)).apply(isl.Map.from_pw_multi_aff(place))
    load_checks = {access: _load_checks(s, flat, checks, beside) for access, flat in s.reads.items()}
    terms = len(s.dims) - len(s.terms), len(s.terms)
    edges = _checks(s.results, s.outputs, box.apply(isl.Map.from_pw_multi_aff(place)).project_out(DIM.set, *terms), nest.leaf.lane)
    result_checks = _checks(having, s.outputs, reached.project_out(DIM.set, *terms), nest.leaf.lane)
    own = tuple(digit for digit, loop in zip(digits, nest.loops, strict=True) if loop.dim in s.outputs)
    numbers = tuple(counts), tuple(lasts)
    return Tiles(
        digits, *numbers, own, tuple(inside), place, box, full, partial, checks, load_checks, edges, result_checks, tuple(overlaps)
    )


def _overlapping(s: FlatStatement, nest: Nest, width: int) -> list[str]:
    """The dimensions of results whose last tile would be partial, and read outside a tensor if it were computed as a full one."""
    found = []
    for dim in s.outputs if s.is_box else [dim for dim in s.outputs if dim in s.free_dims]:
        size, extent = nest.leaf.tile(dim, width), s.extent(dim)
        if not s.is_sum(dim) or size == 1 or (extent % size == 0 and dim not in s.dynamic) or s.least_extent(dim) < size:
            continue
        others = [name for name in s.outputs if name != dim]
        if s.is_box:
            inside = all(stays_inside(flat, s, nest, width, others) for flat in s.reads.values())
        else:
            extended = _with_whole_tiles(s, nest, width, [dim])
            inside = all(extended.is_subset(_read_inside(s, flat)) for flat in s.reads.values())
        if not inside:
            found.append(dim)
    return found


def stays_inside(
    flat: FlatAccess, s: FlatStatement, nest: Nest, width: int, overlaps: Collection[str] = (), *, stored: bool = False
) -> bool:
    """Whether an access is inside its tensor at all points of all tiles, those outside the domain included; of what is read where results
    are ``stored``, also in those behind the last result, which parts of a dimension of several sizes end with."""
    if flat.runtime or any(dim in s.dynamic for dim in flat.form):
        return False
    least = greatest = flat.constant
    for dim, step in flat.form.items():
        single = dim in nest.leaf.window or dim in overlaps
        size = 1 if single else nest.leaf.tile(dim, width)
        last = -(-s.extent(dim) // size) * size - 1
        if stored and not single:
            blocks = [s.extent(dim), *(loop.block for loop in nest.loops if loop.dim == dim)]
            last = sum((-(-outer // inner) - 1) * inner for outer, inner in zip(blocks, blocks[1:])) + size - 1
        least, greatest = least + min(0, step * last), greatest + max(0, step * last)
    return least >= 0 and greatest < flat.elements


def _computed(s: FlatStatement, nest: Nest, width: int, overlaps: Collection[str]) -> isl.Set:
    """The points that tiles compute: the domain, and beyond its box those of results that are never stored, where all reads may happen."""
    if s.dynamic:
        return s.domain
    if not s.is_box:
        extended = _with_whole_tiles(s, nest, width, [dim for dim in s.dims if dim not in overlaps])
        return extended if all(extended.is_subset(_read_inside(s, flat)) for flat in s.reads.values()) else s.domain
    if not all(stays_inside(flat, s, nest, width, overlaps) for flat in s.reads.values()):
        return s.domain
    sizes = {dim: nest.leaf.tile(dim, width) if dim in s.outputs and dim not in overlaps else 1 for dim in s.dims}
    facts = [f"0 <= {dim} < {-(-s.extent(dim) // size) * size}" for dim, size in sizes.items()]
    return points(s.domain.get_ctx(), s.dims, facts)


def _with_whole_tiles(s: FlatStatement, nest: Nest, width: int, dims: Collection[str]) -> isl.Set:
    """The domain, to the end of the last tile along those dimensions that no condition joins with others."""
    ctx, extended = s.domain.get_ctx(), s.domain
    for at, dim in enumerate(s.dims):
        size = nest.leaf.tile(dim, width)
        if dim in dims and dim in s.free_dims and s.extent(dim) % size:
            last = isl.Val(-(-s.extent(dim) // size) * size - 1, ctx)
            free = extended.drop_constraints_involving_dims(DIM.set, at, 1)
            extended = free.lower_bound_val(DIM.set, at, isl.Val(0, ctx)).upper_bound_val(DIM.set, at, last)
    return extended


def _read_inside(s: FlatStatement, flat: FlatAccess) -> isl.Set:
    """The points at which an access is known to be inside its tensor."""
    if flat.runtime or not flat.elements:  # where it is at another point, or in the same row as one
        inside = s.domain
        for at, dim in enumerate(s.dims):
            if dim not in flat.dims or dim in flat.axes:
                inside = inside.project_out(DIM.set, at, 1).insert_dims(DIM.set, at, 1)
            if dim in flat.axes:
                inside = inside.lower_bound_val(DIM.set, at, isl.Val(0, inside.get_ctx()))
                inside = inside.upper_bound_val(DIM.set, at, isl.Val(flat.axes[dim] - 1, inside.get_ctx()))
        return inside
    place = " + ".join([*(f"{step} * {dim}" for dim, step in flat.form.items()), str(flat.constant)])
    return points(s.domain.get_ctx(), s.dims, [f"0 <= {place} < {flat.elements}"])


def _without_result_conditions(s: FlatStatement, nest: Nest, domain: isl.Set) -> tuple[isl.Set, isl.Set]:
    """What tiles compute without its conditions on results alone, and the results that fulfil them.

    Nothing changes where a sum does not start from the identity, in whose place it could be thrown away, or a read would leave its tensor.
    """
    outputs, ctx, count = len(s.outputs), s.domain.get_ctx(), len(s.dims)
    every = isl.Set.universe(s.results.get_space())
    if s.is_box or s.start is None or nest.leaf.lane in s.terms or len(domain.get_basic_sets()) != 1:
        return domain, every
    (basic,) = domain.get_basic_sets()
    facts = [f"0 <= {dim} <= {domain.dim_max_val(at) if dim in s.free_dims else s.range(dim)[1]}" for at, dim in enumerate(s.dims)]
    facts += [f"{dim} < {extent}" for dim, extent in s.dynamic.items()]
    box = points(ctx, s.dims, facts, parameters(s.domain)).intersect_params(s.results.params())
    kept, dropped = isl.BasicSet.universe(s.domain.get_space()), isl.BasicSet.universe(s.domain.get_space())
    for constraint in basic.get_constraints():
        if constraint.involves_dims(DIM.set, outputs, count - outputs):
            kept = kept.add_constraint(constraint)
        else:
            dropped = dropped.add_constraint(constraint)
    computed = box.intersect(kept.to_set())
    if not all(computed.is_subset(_read_inside(s, flat)) for flat in s.reads.values()):
        return domain, every
    return computed, dropped.to_set().project_out(DIM.set, outputs, count - outputs)


def _origins(some: isl.Set, place: isl.PwMultiAff, inside: int) -> isl.Set:
    """The origins of tiles, in a statement's dimensions, of which so many are points inside."""
    at = some.dim(DIM.set)
    first = some.insert_dims(DIM.set, at, inside)
    for number in range(at, at + inside):
        first = first.fix_val(DIM.set, number, isl.Val(0, some.get_ctx()))
    return first.apply(isl.Map.from_pw_multi_aff(place))


def _checks(
    where: isl.Set, dims: tuple[str, ...], reached: isl.Set, lane: str, origins: isl.Set | None = None
) -> tuple[PointCheck, ...]:
    """The constraints of a convex set that the points reached do not imply; a MappingError where one has no test or mask. ``origins``:
    those of partial tiles."""
    parts = where.coalesce().get_basic_sets()
    if len(parts) != 1:
        raise MappingError("conditions that are not those of a convex set")
    (basic,) = parts
    space = where.get_space()
    found = []
    for constraint in basic.get_constraints():
        if any(not constraint.get_coefficient_val(DIM.div, at).is_zero() for at in range(basic.dim(DIM.div))):
            raise MappingError("a condition takes an index modulo something")
        if reached.is_subset(isl.BasicSet.universe(space).add_constraint(constraint).to_set()):
            continue
        coefficients = {dim: constraint.get_coefficient_val(DIM.set, at).to_python() for at, dim in enumerate(dims)}
        kept = {dim: coefficient for dim, coefficient in coefficients.items() if coefficient}
        sizes = {name: constraint.get_coefficient_val(DIM.param, at).to_python() for at, name in enumerate(parameter_names(where))}
        sizes = {name: coefficient for name, coefficient in sizes.items() if coefficient}
        least = None if origins is None else origins.min_val(constraint.get_aff())
        known = int(least.to_python()) if least is not None and least.is_int() else None
        check = PointCheck(kept, constraint.get_constant_val().to_python(), constraint.is_equality(), sizes, known)
        found += check.as_inequalities if check.equality and lane in kept else [check]  # of which masks of lanes are made
    return tuple(found)


def _load_checks(s: FlatStatement, flat: FlatAccess, checks: tuple[PointCheck, ...], reached: isl.Set) -> tuple[PointCheck, ...]:
    """Those of the checks on points reached that keep a read inside its tensor: none, those on what it moves with, or all."""
    own = tuple(check for check in checks if flat.dims & check.coefficients.keys())
    inside = _read_inside(s, flat)
    return next((some for some in ((), own) if reached.intersect(_where(s, some)).is_subset(inside)), checks)


def _where(s: FlatStatement, checks: tuple[PointCheck, ...]) -> isl.Set:
    return points(s.domain.get_ctx(), s.dims, [check.text() for check in checks], parameters(s.domain))


def verify_tiles(s: FlatStatement, tiles: Tiles) -> None:
    """Prove that every point of the domain is computed once, and no other of a result that is stored."""
    ctx, sizes = s.domain.get_ctx(), parameters(s.domain)
    place = isl.Map.from_pw_multi_aff(tiles.points).intersect_domain(tiles.box)
    if not s.domain.is_subset(place.range()) or not (tiles.overlaps or place.is_injective()):
        raise VerifyError(f"tile: {s.name}: digits miss points, or meet one twice")

    def of(some: isl.Set) -> isl.Set:
        return tiles.box.intersect(some.insert_dims(DIM.set, len(tiles.digits), len(tiles.inside))).apply(place)

    having = points(ctx, s.outputs, [check.text() for check in tiles.result_checks], sizes)
    unstored = s.results.intersect(having).complement().insert_dims(DIM.set, len(s.outputs), len(s.terms))
    allowed = s.domain.union(unstored)
    if not s.domain.project_out(DIM.set, len(s.outputs), len(s.terms)).is_subset(having):
        raise VerifyError(f"tile: {s.name}: sums of results that have terms are thrown away")
    if not tiles.full.is_disjoint(tiles.partial) or not of(tiles.full).is_subset(allowed):
        raise VerifyError(f"tile: {s.name}: a full tile has a point outside the domain")
    checked = _where(s, tiles.checks)
    computed = of(tiles.partial).intersect(checked)
    if not computed.is_subset(allowed) or not s.domain.is_subset(of(tiles.full).union(computed)):
        raise VerifyError(f"tile: {s.name}: the checks of partial tiles are not its domain")
    origins = _origins(tiles.partial, tiles.points, len(tiles.inside))
    for check in tiles.checks:
        if check.least is not None:
            least = replace(check, constant=check.constant - check.least, equality=False)
            if not origins.is_subset(points(ctx, s.dims, [least.text()], sizes)):
                raise VerifyError(f"tile: {s.name}: a check has a value at a partial tile that is less than its least")
    for access, flat in s.reads.items():
        loaded = of(tiles.full).union(of(tiles.partial).intersect(_where(s, tiles.load_checks[access])))
        if not loaded.subtract(s.domain).is_subset(_read_inside(s, flat)):
            raise VerifyError(f"tile: {s.name}: a tile reads outside {flat.tensor}")
    stored = tiles.box.apply(isl.Map.from_pw_multi_aff(tiles.points)).project_out(DIM.set, len(s.outputs), len(s.terms))
    kept = stored.intersect(points(ctx, s.outputs, [check.text() for check in tiles.edges], sizes))
    if not kept.is_equal(s.results):
        raise VerifyError(f"tile: {s.name}: what tiles store are not the results")
    if tiles.overlaps:
        _verify_overlaps(s, tiles, place, checked)


def _verify_overlaps(s: FlatStatement, tiles: Tiles, place: isl.Map, checked: isl.Set) -> None:
    """Prove that one tile stores each result, and that it computes all of its terms, each once."""
    ctx, own, terms = s.domain.get_ctx(), len(tiles.own), len(s.terms)
    names = [*tiles.digits, *(f"r_{dim}" for dim in tiles.inside)]
    # from digits and the point inside to the digits of results and the point of the domain
    met = images(ctx, names, tiles.own).flat_range_product(place)
    if not met.is_injective():
        raise VerifyError(f"tile: {s.name}: a tile meets a point twice")
    places = [*tiles.own, *s.outputs]
    facts = [*(check.text() for check in tiles.edges), *(f"{overlap.first} <= {overlap.dim}" for overlap in tiles.overlaps)]
    kept = points(ctx, places, facts, parameters(s.domain))
    stored = met.range().project_out(DIM.set, own + len(s.outputs), terms).intersect(kept)
    result_of = images(ctx, places, s.outputs).intersect_domain(stored)
    if not result_of.is_injective() or not result_of.range().is_equal(s.results):
        raise VerifyError(f"tile: {s.name}: a result is stored by two tiles, or by none")

    def of(some: isl.Set, where: isl.Set) -> isl.Set:
        inside = some.insert_dims(DIM.set, len(tiles.digits), len(tiles.inside))
        return met.intersect_domain(inside).range().intersect(where.insert_dims(DIM.set, 0, own))

    computed = of(tiles.full, isl.Set.universe(s.domain.get_space())).union(of(tiles.partial, checked))
    needed = stored.insert_dims(DIM.set, own + len(s.outputs), terms).intersect(s.domain.insert_dims(DIM.set, 0, own))
    if not needed.is_subset(computed):
        raise VerifyError(f"tile: {s.name}: a tile stores a result without all of its terms")
