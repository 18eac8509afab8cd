"""Tile: cut the shared loops of each group by its plan and order the loops inside a tile.

A loop whose extent is no multiple of its tile size is first split in two regions, the full tiles and the remainder with a tile size of
its own, so that inside a region every trip count is a constant and no guard is needed: with sizes known at compile time this
is cheaper and clearer than isolating full tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, product

import islpy as isl

from tcjit.grammar.affine import isl_name
from tcjit.mapping.isl import identifier, member, stack
from tcjit.mapping.passes.fuse import Group, filters
from tcjit.mapping.plan import Plan
from tcjit.mapping.scop import Scop, ScopStatement


@dataclass(frozen=True)
class Cut:
    """One column in one region: values ``lower <= d < upper`` in tiles of ``size``."""

    lower: int
    upper: int
    size: int

    @property
    def tiles(self) -> int:
        return -(-(self.upper - self.lower) // self.size)


def tile(scop: Scop, tree: isl.Schedule, groups: Sequence[Group], plans: Sequence[Plan]) -> isl.Schedule:
    """A tree with, per group and region, a band of tile loops under the mark ``tiles``, then ``tile0``... and each statement's loops."""
    node = isl.Schedule.from_domain(tree.get_domain()).get_root().child(0)
    counter = count()
    if len(groups) > 1:
        node = node.insert_sequence(filters(scop, [g.statements for g in groups]))
    depth = node.get_tree_depth()
    for number, (group, plan) in enumerate(zip(groups, plans, strict=True)):
        below = node.child(number).child(0) if len(groups) > 1 else node
        below = _regions(scop, below, group, plan, counter)
        node = below.ancestor(below.get_tree_depth() - depth)
    return node.get_schedule()


def _regions(scop: Scop, node: isl.ScheduleNode, group: Group, plan: Plan, counter: Iterator[int]) -> isl.ScheduleNode:
    per_column = [_cuts(scop, group, plan, column) for column in range(len(group.columns))]
    regions = list(product(*per_column))
    depth = node.get_tree_depth()
    if len(regions) > 1:
        node = node.insert_sequence(_region_filters(scop, group, regions))
    for number, region in enumerate(regions):
        below = node.child(number).child(0) if len(regions) > 1 else node
        below = _tiled(scop, below, group, plan, region, next(counter))
        node = below.ancestor(below.get_tree_depth() - depth)
    return node


def _cuts(scop: Scop, group: Group, plan: Plan, column: int) -> list[Cut]:
    statement, dim = next(iter(group.columns[column].items()))
    lower, upper = next((lo, hi) for name, lo, hi in scop.statement(statement).bounds if name == dim)
    size = plan.tile[column] or upper - lower
    size = min(size, upper - lower)
    full = (upper - lower) // size * size
    if plan.patch is None or full == upper - lower:
        return [Cut(lower, upper, size)]
    return [Cut(lower, lower + full, size), Cut(lower + full, upper, upper - lower - full)]


def _region_filters(scop: Scop, group: Group, regions: Sequence[Sequence[Cut]]) -> isl.UnionSetList:
    made = []
    for region in regions:
        parts = []
        for name in group.statements:
            facts = [f"{cut.lower} <= {isl_name(group.columns[c][name])} < {cut.upper}" for c, cut in enumerate(region)]
            parts.append(f"{scop.statement(name).tuple_text} : {' and '.join(facts)}")
        made.append(isl.UnionSet.read_from_str(scop.ctx, "{ " + "; ".join(parts) + " }"))
    result = isl.UnionSetList.from_union_set(made[0])
    for one in made[1:]:
        result = result.add(one)
    return result


def _tiled(scop: Scop, node: isl.ScheduleNode, group: Group, plan: Plan, region: Sequence[Cut], number: int) -> isl.ScheduleNode:
    """The tile band of one region and what stands inside a tile."""
    depth = node.get_tree_depth()
    outer = [c for c in plan.order if region[c].tiles > 1]
    if outer:
        columns = [
            member(scop.ctx, {s: (scop.statement(s).isl_dims, _tile_text(group.columns[c][s], region[c])) for s in group.statements})
            for c in outer
        ]
        node = node.insert_partial_schedule(stack(scop.ctx, columns)).band_set_permutable(1)
        for position in range(len(outer)):
            node = node.band_member_set_coincident(position, 1)
        node = node.insert_mark(identifier(scop.ctx, "tiles")).child(0).child(0)
    node = node.insert_mark(identifier(scop.ctx, f"tile{number}")).child(0)
    if len(group.statements) > 1:
        node = node.insert_sequence(filters(scop, [(s,) for s in group.statements]))
    inner = node.get_tree_depth()
    for position, name in enumerate(group.statements):
        leaf = node.child(position).child(0) if len(group.statements) > 1 else node
        loops = _inside(scop.statement(name), group, plan, region)
        if loops:
            leaf = leaf.insert_partial_schedule(
                stack(scop.ctx, [member(scop.ctx, {name: (scop.statement(name).isl_dims, t)}) for _, t in loops])
            )
            leaf = leaf.band_set_permutable(1)
            reduced = scop.statement(name).reduction
            for place, (dim, _) in enumerate(loops):
                leaf = leaf.band_member_set_coincident(place, int(dim not in reduced))
        node = leaf.ancestor(leaf.get_tree_depth() - inner)
    return node.ancestor(node.get_tree_depth() - depth)


def _tile_text(dim: str, cut: Cut) -> str:
    moved = isl_name(dim) if cut.lower == 0 else f"{isl_name(dim)} - {cut.lower}"
    return moved if cut.size == 1 else f"floor(({moved})/{cut.size})"


def _point_text(dim: str, cut: Cut) -> str:
    if cut.tiles == 1:
        return isl_name(dim)
    moved = isl_name(dim) if cut.lower == 0 else f"({isl_name(dim)} - {cut.lower})"
    return f"({moved} mod {cut.size})"


def _inside(s: ScopStatement, group: Group, plan: Plan, region: Sequence[Cut]) -> list[tuple[str, str]]:
    """The loops of a statement inside a tile, outermost first: (dimension, text); the vectorised dimension last.

    Dimensions that the group does not share come first, and among them those of a reduction last, next to the patch that it updates.
    """
    shared = {column[s.name]: c for c, column in enumerate(group.columns)}
    rest = [(d, isl_name(d)) for d in sorted(s.dims, key=lambda d: d in s.reduction) if d not in shared]
    points = [(d, _point_text(d, region[c])) for d, c in shared.items() if region[c].size > 1]
    loops = rest + points
    lane = plan.lane(s.name)
    return [x for x in loops if x[0] != lane] + [x for x in loops if x[0] == lane]
