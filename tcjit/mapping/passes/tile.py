"""Tile: cut the shared loops of each group by its plan and order the loops inside a tile.

Where results stay in registers along a loop whose extent is no multiple of its tile size, that is first split in two regions, the full
tiles and the remainder with a tile size of its own, so that inside a region every trip count is a constant. ``Simd`` stands above a loop
whose iterations may run at once: parallel ones, or those of a reduction with one result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import islpy as isl

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import isl_name
from tcjit.grammar.ast import Const
from tcjit.mapping.isl import union_set
from tcjit.mapping.marks import Simd, Tile, TileLoops
from tcjit.mapping.plan_loops import LoopPlan
from tcjit.mapping.scop import Group, Scop, ScopStatement
from tcjit.mapping.strides import INTERLEAVED, accesses, moves_as_one, stride
from tcjit.mapping.tree import filters, insert_band, insert_mark, insert_sequence


@dataclass(frozen=True)
class Cut:
    """One column in one region: values ``lower <= d < upper`` in tiles of ``size``."""

    lower: int
    upper: int
    size: int

    @property
    def tiles(self) -> int:
        return -(-(self.upper - self.lower) // self.size)


def tile(scop: Scop, groups: Sequence[Group], plans: Sequence[LoopPlan], counter: Iterator[int]) -> isl.Schedule:
    """A tree with, per group and region, a band of tile loops under the mark ``TileLoops``, then ``Tile`` and each statement's loops, of
    which the one in lanes is under ``Simd``. ``counter`` numbers the tiles."""
    node = isl.Schedule.from_domain(scop.domain).get_root().child(0)

    def regions(node: isl.ScheduleNode, number: int) -> isl.ScheduleNode:
        """The regions of a group one after the other."""
        group, plan = groups[number], plans[number]
        cut = list(product(*(_cuts(scop, group, plan, column) for column in range(len(group.columns)))))
        parts = [_region_filter(scop, group, region) for region in cut]
        return insert_sequence(node, parts, lambda leaf, at: _tiled(scop, leaf, group, plan, cut[at], next(counter)))

    return insert_sequence(node, filters(scop, [group.statements for group in groups]), regions).get_schedule()


def _cuts(scop: Scop, group: Group, plan: LoopPlan, column: int) -> list[Cut]:
    statement, dim = next(iter(group.columns[column].items()))
    lower, upper = next((lo, hi) for name, lo, hi in scop.statement(statement).bounds if name == dim)
    size = min(plan.tile[column] or upper - lower, upper - lower)
    rest = (upper - lower) % size if size else 0
    is_fixed = scop.statement(statement).range(dim) == (str(lower), str(upper))
    if column != plan.accumulated or not rest or not is_fixed:
        return [Cut(lower, upper, size)]
    return [Cut(lower, upper - rest, size), Cut(upper - rest, upper, rest)]


def _region_filter(scop: Scop, group: Group, region: Sequence[Cut]) -> isl.UnionSet:
    parts = []
    for name in group.statements:
        facts = [f"{cut.lower} <= {isl_name(group.columns[c][name])} < {cut.upper}" for c, cut in enumerate(region)]
        parts.append(f"{scop.statement(name).tuple_text} : {' and '.join(facts) or '0 = 0'}")
    return union_set(scop.ctx, parts, scop.parameters)


def _tiled(scop: Scop, node: isl.ScheduleNode, group: Group, plan: LoopPlan, region: Sequence[Cut], number: int) -> isl.ScheduleNode:
    """The tile band of one region, and what stands inside a tile below a mark of its own."""
    outer = [c for c in plan.order if region[c].tiles > 1]
    if outer:
        texts = [{s: _tile_text(group.columns[c][s], region[c]) for s in group.statements} for c in outer]
        node = insert_band(scop, node, texts, range(len(texts)))
        node = insert_mark(node, TileLoops()).child(0).child(0)

    inside = {name: _inside(scop, scop.statement(name), group, plan, region) for name in group.statements}
    parts = _sharing_lanes(scop, group, plan, inside)

    def statements(leaf: isl.ScheduleNode, position: int) -> isl.ScheduleNode:
        names = parts[position]
        s = scop.statement(names[0])
        loops = inside[s.name]
        if not loops:
            return leaf
        coincident = [place for place, (dim, _) in enumerate(loops) if dim not in s.reduction]
        texts = [{name: inside[name][place][1] for name in names} for place in range(len(loops))]
        leaf = insert_band(scop, leaf, texts, coincident)
        in_lanes = loops[-1][0] == plan.lane(s.name)
        leaf = leaf.band_split(len(loops) - 1).child(0) if in_lanes and len(loops) > 1 else leaf
        if len(names) > 1:
            leaf = insert_sequence(leaf.child(0), filters(scop, [(name,) for name in names]), lambda one, _: one).parent()
        return insert_mark(leaf, Simd()) if in_lanes else leaf

    return insert_sequence(insert_mark(node, Tile(number)).child(0), filters(scop, parts), statements)


def _sharing_lanes(
    scop: Scop, group: Group, plan: LoopPlan, inside: Mapping[str, Sequence[tuple[str, str]]]
) -> list[tuple[str, ...]]:
    """The statements of a group that are one loop inside a tile: those that have only one, which they all share, or over the same
    dimension of all of which none uses what another one writes, and whose elements lie between one another in memory, where one alone
    would load and store a part of each line."""
    columns = [{(name, dim) for name, dim in column.items()} for column in group.columns]

    def key(name: str) -> tuple[int | str, bool] | None:
        s, loops = scop.statement(name), inside[name]
        if s.reduction or len(loops) != 1:
            return None
        ((dim, _),) = loops
        shared = next((c for c, column in enumerate(columns) if (name, dim) in column), dim)
        interleaved = any(1 < (stride(scop, access, dim) or 0) <= INTERLEAVED for access in accesses(s))
        return (shared, plan.lane(name) == dim) if interleaved else None

    parts: list[tuple[str, ...]] = []
    for name in group.statements:
        own = key(name)
        fits = own is not None and bool(parts) and own == key(parts[-1][-1])
        if fits and own and (isinstance(own[0], int) or all(_lie_between(scop, name, other) for other in parts[-1])):
            parts[-1] += (name,)
        else:
            parts.append((name,))
    return parts


def _lie_between(scop: Scop, name: str, other: str) -> bool:
    """Whether two statements over the same points write one tensor at places that differ in fixed subscripts alone, and read none of it."""
    first, second = scop.statement(name), scop.statement(other)
    if (first.tensor, first.bounds) != (second.tensor, second.bounds) or first.dynamic_bounds or second.dynamic_bounds:
        return False
    if any(access.tensor == first.tensor for s in (first, second) for access, _ in s.reads):
        return False
    places = list(zip(accesses(first)[0].subscripts, accesses(second)[0].subscripts, strict=True))
    return all(a == b or isinstance(a, Const) and isinstance(b, Const) for a, b in places) and any(a != b for a, b in places)


def _tile_text(dim: str, cut: Cut) -> str:
    moved = isl_name(dim) if cut.lower == 0 else f"{isl_name(dim)} - {cut.lower}"
    return moved if cut.size == 1 else f"floor(({moved})/{cut.size})"


def _point_text(dim: str, cut: Cut) -> str:
    if cut.tiles == 1:
        return isl_name(dim)
    moved = isl_name(dim) if cut.lower == 0 else f"({isl_name(dim)} - {cut.lower})"
    return f"({moved} mod {cut.size})"


def _merged_with_lanes(scop: Scop, s: ScopStatement, loops: list[tuple[str, str]], own: Mapping[str, str]) -> list[tuple[str, str]]:
    """The loops with few lanes and the loop around them as one, where a statement moves along both as along one: pairs of a row that are
    its terms, too. ``own``: the loops that the group does not share."""
    *others, (row, outer), (lane, inner) = loops if len(loops) > 1 else [("", ""), *loops]
    extent = s.extent(lane)
    whole = row in own and (row in s.reduction) == (lane in s.reduction) and s.ranges[lane][0] == 0
    if not whole or extent > INTERLEAVED or s.dynamic_bounds or s.constraints:
        return loops
    return [*others, (lane, f"{extent}*{outer} + {inner}")] if all(moves_as_one(scop, a, row, lane, extent) for a in accesses(s)) else loops


def _inside(scop: Scop, s: ScopStatement, group: Group, plan: LoopPlan, region: Sequence[Cut]) -> list[tuple[str, str]]:
    """The loops of a statement inside a tile, outermost first: (dimension, text); the vectorised dimension last.

    Dimensions that the group does not share come first, and among them those of a reduction last, next to the results that it updates. Rows
    that the plan merges with the lanes are one loop with them where the statement moves along both as along one.
    """
    shared = {group.columns[c][s.name]: c for c in plan.order}
    rest = [(d, isl_name(d)) for d in sorted(s.dims, key=lambda d: d in s.reduction) if d not in shared]
    points = [(d, _point_text(d, region[c])) for d, c in shared.items() if region[c].size > 1]
    loops = rest + points
    lane = plan.lane(s.name)
    loops = [x for x in loops if x[0] != lane] + [x for x in loops if x[0] == lane]
    if rest and lane in dict(rest):
        return _merged_with_lanes(scop, s, loops, dict(rest))
    if plan.merged is None or rest:
        return loops
    row = group.columns[plan.merged][s.name]
    if lane is not None and [d for d, _ in loops[-2:]] == [row, lane] and region[shared[lane]].tiles == 1:
        (_, outer), (_, inner) = loops[-2:]
        extent = s.extent(lane)
        if all(moves_as_one(scop, a, row, lane, extent) for a in accesses(s)):
            return [*loops[:-2], (lane, f"{extent}*{outer} + {inner}")]
    return sorted(loops, key=lambda x: x[0] != row)  # next to the lanes is what a copy transposes with them
