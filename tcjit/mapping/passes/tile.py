"""Tile: cut the shared loops of each group by its plan and order the loops inside a tile.

A loop whose extent is no multiple of its tile size is first split in two regions, the full tiles and the remainder with a tile size of
its own, so that inside a region every trip count is a constant and no guard is needed: with sizes known at compile time this
is cheaper and clearer than isolating full tiles. Where the extent depends on a dynamic size, the remainder is unknown: it is cut into
smaller and smaller tiles, so that there too every trip count is a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import islpy as isl

from tcjit.grammar.affine import isl_name
from tcjit.mapping.group import Group
from tcjit.mapping.isl import member, stack, union_set
from tcjit.mapping.marks import Tile, TileLoops
from tcjit.mapping.passes.fuse import filters, insert_band
from tcjit.mapping.passes.share import Shared, inside
from tcjit.mapping.plan import Plan
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.strides import accesses, moves_as_one
from tcjit.mapping.tree import insert_mark

# values of a column that are few enough to run through while one tile of the others is in cache
FEW = 32
# such a column's remainder is a tile of its own up to here
EXACT = 8


@dataclass(frozen=True)
class Cut:
    """One column in one region: values ``lower <= d < upper`` in tiles of ``size``; in isl's words where sizes are dynamic."""

    lower: int | str
    upper: int | str
    size: int
    only: str = ""  # for which dynamic sizes there is any

    @property
    def tiles(self) -> int:
        """How many; 2 where that is unknown."""
        if isinstance(self.lower, str) or isinstance(self.upper, str):
            return 2
        return -(-(self.upper - self.lower) // self.size)


def tile(
    scop: Scop, tree: isl.Schedule, groups: Sequence[Group], plans: Sequence[Plan], shares: Sequence[Shared], counter: Iterator[int]
) -> isl.Schedule:
    """A tree with, per group and region, a band of tile loops under the mark ``TileLoops``, then ``Tile`` and each statement's loops.

    Loops that groups share stand around theirs in the same form: a band under ``TileLoops``, then a mark like a tile's. ``counter``
    numbers these marks.
    """
    node = isl.Schedule.from_domain(tree.get_domain()).get_root().child(0)
    below_all = [tuple(name for group in groups[s.first : s.last + 1] for name in group.statements) for s in shares]
    if len(shares) > 1:
        node = node.insert_sequence(filters(scop, below_all))
    depth = node.get_tree_depth()
    for number, shared in enumerate(shares):
        below = node.child(number).child(0) if len(shares) > 1 else node
        if shared.columns:
            below = insert_band(scop, below, list(shared.columns), coincident=True)
            below = insert_mark(below, TileLoops()).child(0).child(0)
            below = insert_mark(below, Tile(next(counter))).child(0)
        below = _groups(scop, below, groups, plans, shared, counter)
        node = below.ancestor(below.get_tree_depth() - depth)
    return node.get_schedule()


def _groups(
    scop: Scop, node: isl.ScheduleNode, groups: Sequence[Group], plans: Sequence[Plan], shared: Shared, counter: Iterator[int]
) -> isl.ScheduleNode:
    """The groups that share loops, one after the other."""
    numbers = range(shared.first, shared.last + 1)
    if len(numbers) > 1:
        node = node.insert_sequence(filters(scop, [groups[number].statements for number in numbers]))
    depth = node.get_tree_depth()
    for position, number in enumerate(numbers):
        below = node.child(position).child(0) if len(numbers) > 1 else node
        plan = replace(plans[number], order=inside(groups[number], plans[number], shared))
        below = _regions(scop, below, groups[number], plan, counter)
        node = below.ancestor(below.get_tree_depth() - depth)
    return node


def _regions(scop: Scop, node: isl.ScheduleNode, group: Group, plan: Plan, counter: Iterator[int]) -> isl.ScheduleNode:
    per_column = [_cuts(scop, group, plan, column) for column in range(len(group.columns))]
    inner = _short(scop, group, plan, per_column)
    if inner is None:
        regions = list(product(*per_column))
        return _sequence(scop, node, group, regions, lambda below, region: _tiled(scop, below, group, plan, region, next(counter)))
    cuts = per_column[inner]
    # the filters of the outer sequence keep what the inner one parts
    per_column[inner] = [Cut(cuts[0].lower, cuts[-1].upper, cuts[0].size)]

    def around(below: isl.ScheduleNode, region: Sequence[Cut]) -> isl.ScheduleNode:
        outer = [c for c in plan.order if c != inner and region[c].tiles > 1]
        if not outer:
            return _sequence(scop, below, group, _with(region, inner, cuts), tiled)
        depth = below.get_tree_depth()
        below = _tile_band(scop, below, group, region, outer)
        below = insert_mark(below, TileLoops()).child(0).child(0)
        below = _sequence(scop, below, group, _with(region, inner, cuts), within)
        return below.ancestor(below.get_tree_depth() - depth)

    def tiled(below: isl.ScheduleNode, region: Sequence[Cut]) -> isl.ScheduleNode:
        return _tiled(scop, below, group, plan, region, next(counter))

    def within(below: isl.ScheduleNode, region: Sequence[Cut]) -> isl.ScheduleNode:
        depth = below.get_tree_depth()
        below = _tile_band(scop, below, group, region, [inner]).child(0)
        below = _one_tile(scop, below, group, plan, region, next(counter))
        return below.ancestor(below.get_tree_depth() - depth)

    return _sequence(scop, node, group, list(product(*per_column)), around)


def _short(scop: Scop, group: Group, plan: Plan, per_column: Sequence[Sequence[Cut]]) -> int | None:
    """The innermost column, where that is cut into tiles of falling sizes and takes few: all of them run while one tile of the others is
    in cache."""
    if len(plan.order) < 2 or len(per_column[plan.order[-1]]) == 1 or not isinstance(per_column[plan.order[-1]][0].upper, str):
        return None
    statement, dim = next(iter(group.columns[plan.order[-1]].items()))
    return plan.order[-1] if scop.statement(statement).extent(dim) <= FEW else None


def _with(region: Sequence[Cut], column: int, cuts: Sequence[Cut]) -> list[tuple[Cut, ...]]:
    """The region with other cuts of one column."""
    return [(*region[:column], cut, *region[column + 1 :]) for cut in cuts]


def _sequence(
    scop: Scop,
    node: isl.ScheduleNode,
    group: Group,
    regions: Sequence[Sequence[Cut]],
    tiled: Callable[[isl.ScheduleNode, Sequence[Cut]], isl.ScheduleNode],
) -> isl.ScheduleNode:
    """The regions one after the other, each as ``tiled`` makes it."""
    depth = node.get_tree_depth()
    if len(regions) > 1:
        node = node.insert_sequence(_region_filters(scop, group, regions))
    for number, region in enumerate(regions):
        below = tiled(node.child(number).child(0) if len(regions) > 1 else node, region)
        node = below.ancestor(below.get_tree_depth() - depth)
    return node


def _cuts(scop: Scop, group: Group, plan: Plan, column: int) -> list[Cut]:
    statement, dim = next(iter(group.columns[column].items()))
    lower, upper = next((lo, hi) for name, lo, hi in scop.statement(statement).bounds if name == dim)
    size = plan.tile[column] or upper - lower
    size = min(size, upper - lower)
    full = (upper - lower) // size * size
    if plan.patch is None:
        return [Cut(lower, upper, size)]
    least, greatest = scop.statement(statement).range(dim)
    if least == str(lower) and greatest != str(upper):
        width = plan.patch.width if column == plan.patch.lane else 1
        return _moving(lower, greatest, size, width, exact=width == 1 and upper - lower <= FEW)
    if full == upper - lower:
        return [Cut(lower, upper, size)]
    return [Cut(lower, lower + full, size), Cut(lower + full, upper, upper - lower - full)]


def _moving(lower: int, upper: str, size: int, width: int, *, exact: bool) -> list[Cut]:
    """Tiles of falling sizes up to an end that only the call knows; of lanes, in registers of ``width``, no fewer than a quarter of one.

    ``exact``: a short remainder is one tile, of a size of its own.
    """
    cuts: list[Cut] = []
    start: int | str = lower
    rest = f"({upper} - {lower})" if lower else f"({upper})"
    while True:
        if size == 1:
            return [*cuts, Cut(start, upper, 1)]
        end = f"({start} + {size}*floor({rest}/{size}))"
        cuts.append(Cut(start, end, size))
        start, rest = end, f"({rest} mod {size})"
        if exact and size <= EXACT:
            return [*cuts, *(Cut(start, upper, left, f"{rest} = {left}") for left in reversed(range(1, size)))]
        size = width if size > width > 1 else width // 4 if size == width > 1 else size // 2 if width == 1 else 1
        size = max(1, size)


def _region_filters(scop: Scop, group: Group, regions: Sequence[Sequence[Cut]]) -> isl.UnionSetList:
    made = []
    for region in regions:
        parts = []
        for name in group.statements:
            facts = [f"{cut.lower} <= {isl_name(group.columns[c][name])} < {cut.upper}" for c, cut in enumerate(region)]
            facts += [cut.only for cut in region if cut.only]
            parts.append(f"{scop.statement(name).tuple_text} : {' and '.join(facts)}")
        made.append(union_set(scop.ctx, parts, scop.parameters))
    result = isl.UnionSetList.from_union_set(made[0])
    for one in made[1:]:
        result = result.add(one)
    return result


def _tiled(scop: Scop, node: isl.ScheduleNode, group: Group, plan: Plan, region: Sequence[Cut], number: int) -> isl.ScheduleNode:
    """The tile band of one region and what stands inside a tile."""
    depth = node.get_tree_depth()
    outer = [c for c in plan.order if region[c].tiles > 1]
    if outer:
        node = _tile_band(scop, node, group, region, outer)
        node = insert_mark(node, TileLoops()).child(0).child(0)
    node = _one_tile(scop, node, group, plan, region, number)
    return node.ancestor(node.get_tree_depth() - depth)


def _tile_band(scop: Scop, node: isl.ScheduleNode, group: Group, region: Sequence[Cut], columns: Sequence[int]) -> isl.ScheduleNode:
    """The tile loops of some columns."""
    members = [
        member(
            scop.ctx,
            {s: (scop.statement(s).isl_dims, _tile_text(group.columns[c][s], region[c])) for s in group.statements},
            scop.parameters,
        )
        for c in columns
    ]
    node = node.insert_partial_schedule(stack(scop.ctx, members)).band_set_permutable(1)
    for position in range(len(columns)):
        node = node.band_member_set_coincident(position, 1)
    return node


def _one_tile(scop: Scop, node: isl.ScheduleNode, group: Group, plan: Plan, region: Sequence[Cut], number: int) -> isl.ScheduleNode:
    """What stands inside a tile, below a mark of its own."""
    depth = node.get_tree_depth()
    node = insert_mark(node, Tile(number)).child(0)
    if len(group.statements) > 1:
        node = node.insert_sequence(filters(scop, [(s,) for s in group.statements]))
    inner = node.get_tree_depth()
    for position, name in enumerate(group.statements):
        leaf = node.child(position).child(0) if len(group.statements) > 1 else node
        loops = _inside(scop, scop.statement(name), group, plan, region)
        if loops:
            leaf = leaf.insert_partial_schedule(
                stack(scop.ctx, [member(scop.ctx, {name: (scop.statement(name).isl_dims, t)}, scop.parameters) for _, t in loops])
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


def _inside(scop: Scop, s: ScopStatement, group: Group, plan: Plan, region: Sequence[Cut]) -> list[tuple[str, str]]:
    """The loops of a statement inside a tile, outermost first: (dimension, text); the vectorised dimension last.

    Dimensions that the group does not share come first, and among them those of a reduction last, next to the patch that it updates. Rows
    that the plan merges with the lanes are one loop with them where the statement moves along both as along one.
    """
    shared = {column[s.name]: c for c, column in enumerate(group.columns)}
    rest = [(d, isl_name(d)) for d in sorted(s.dims, key=lambda d: d in s.reduction) if d not in shared]
    points = [(d, _point_text(d, region[c])) for d, c in shared.items() if region[c].size > 1]
    loops = rest + points
    lane = plan.lane(s.name)
    loops = [x for x in loops if x[0] != lane] + [x for x in loops if x[0] == lane]
    if plan.merged is None or lane is None or rest or [d for d, _ in loops[-2:]] != [group.columns[plan.merged][s.name], lane]:
        return loops
    (row, outer), (_, inner) = loops[-2:]
    extent = s.extent(lane)
    whole = region[shared[lane]].tiles == 1 and all(moves_as_one(scop, a, row, lane, extent) for a in accesses(s))
    return [*loops[:-2], (lane, f"{extent}*{outer} + {inner}")] if whole else loops
