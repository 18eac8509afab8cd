"""Reading and making schedule trees: their marks, the statements below a node, bands and sequences, the tree as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import cast

import islpy as isl

from tcjit.errors import MappingError
from tcjit.grammar.affine import isl_name
from tcjit.mapping.isl import identifier, member, names, stack, union_set
from tcjit.mapping.marks import Mark, Parallel, TileLoops, parse
from tcjit.mapping.nest.tiled_statement import KINDS
from tcjit.mapping.scop import Scop, ScopStatement

KIND = isl.schedule_node_type


def show(schedule: isl.Schedule) -> str:
    """A schedule tree as indented text, which ``read`` reads back."""
    # 0 is ISL_YAML_STYLE_BLOCK: one node a line
    return str(isl.Printer.to_str(schedule.get_ctx()).set_yaml_style(0).print_schedule(schedule).get_str())


def read(ctx: isl.Context, text: str) -> isl.Schedule:
    try:
        return isl.Schedule.read_from_str(ctx, text)
    except isl.Error as error:
        raise MappingError(f"not a schedule tree: {error}") from None


def kind(node: isl.ScheduleNode) -> isl.schedule_node_type:
    """The type of a node (islpy's stubs call it an int)."""
    return cast(isl.schedule_node_type, node.get_type())


def statements_below(node: isl.ScheduleNode) -> tuple[str, ...]:
    """The statements that reach a node, in the order of their numbers."""
    return tuple(sorted(names(node.get_domain()), key=statement_number))


def statement_number(name: str) -> int:
    return int(name[1:])


def mark_of(node: isl.ScheduleNode) -> Mark | None:
    """The mark of a mark node, None for any other node."""
    return parse(str(node.mark_get_id().get_name())) if kind(node) == KIND.mark else None


def insert_mark(node: isl.ScheduleNode, mark: Mark) -> isl.ScheduleNode:
    """A mark node above a node."""
    return node.insert_mark(identifier(node.get_ctx(), str(mark)))


def rewrite(tree: isl.Schedule, visit: Callable[[isl.ScheduleNode], isl.ScheduleNode]) -> isl.Schedule:
    """The tree with every node replaced by ``visit`` of it, bottom up; an exception in ``visit`` comes out as itself."""
    raised: list[BaseException] = []

    def guarded(node: isl.ScheduleNode) -> isl.ScheduleNode:
        try:
            return visit(node)
        except BaseException as error:  # isl prints and swallows what a callback raises
            raised.append(error)
            return node

    result = tree.map_schedule_node_bottom_up(guarded)
    if raised:
        raise raised[0]
    return result


def partial_schedule(scop: Scop, texts: Iterable[Mapping[str, str]]) -> isl.MultiUnionPwAff:
    """The members of a band, outermost first: for each of its statements an expression over the dimensions."""
    members = [{name: (scop.statement(name).isl_dims, text) for name, text in one.items()} for one in texts]
    return stack(scop.ctx, [member(scop.ctx, one, scop.parameters) for one in members])


def insert_band(
    scop: Scop, node: isl.ScheduleNode, texts: Iterable[Mapping[str, str]], coincident: Iterable[int] = ()
) -> isl.ScheduleNode:
    """A permutable band above a node; ``coincident``: the positions of the members whose iterations may run at once."""
    node = node.insert_partial_schedule(partial_schedule(scop, texts)).band_set_permutable(1)
    for position in coincident:
        node = node.band_member_set_coincident(position, 1)
    return node


def nested_bands(scop: Scop, s: ScopStatement, bands: Iterable[tuple[Mark | None, Sequence[str], bool]], tile: Mark) -> isl.Schedule:
    """The tree of a statement by itself, bands inside one another: for each the mark above it, its expressions, of which there may be
    none, and whether their iterations may run at once. Below the first, which threads share, stands the mark of a tile."""
    node = isl.Schedule.from_domain(scop.domain).get_root().child(0)
    for number, (mark, texts, coincident) in enumerate(bands):
        if texts:
            node = insert_band(scop, node, [{s.name: text} for text in texts], range(len(texts)) if coincident else ())
            node = (insert_mark(node, mark).child(0) if mark else node).child(0)
        if not number:
            node = insert_mark(node, tile).child(0)
    return node.get_schedule()


def insert_sequence(
    node: isl.ScheduleNode, filters: Sequence[isl.UnionSet], grow: Callable[[isl.ScheduleNode, int], isl.ScheduleNode]
) -> isl.ScheduleNode:
    """A sequence of filters above a leaf, if there are several; ``grow`` has the leaf below each of them, and its number, and returns a
    node of what it puts there."""
    if len(filters) > 1:
        node = node.insert_sequence(reduce(isl.UnionSetList.add, filters[1:], isl.UnionSetList.from_union_set(filters[0])))
    depth = node.get_tree_depth()
    for number in range(len(filters)):
        below = grow(node.child(number).child(0) if len(filters) > 1 else node, number)
        node = below.ancestor(below.get_tree_depth() - depth)
    return node


def filters(scop: Scop, parts: Iterable[Iterable[str]]) -> list[isl.UnionSet]:
    """All instances of some statements, for each part."""
    return [union_set(scop.ctx, [scop.statement(name).tuple_text for name in part]) for part in parts]


def outer_tree(scop: Scop, inside: isl.Schedule, mark: Mark, *, parallel: bool) -> isl.Schedule:
    """The tree ``inside`` under the outer loops of a scop whose statements share them; ``mark`` stands above one iteration."""
    levels: list[dict[str, tuple[tuple[str, ...], str]]] = []
    depth = max(len(s.outer.dims) for s in scop.statements if s.outer)
    for level in range(depth):
        values: dict[str, tuple[tuple[str, ...], str]] = {}
        for s in scop.statements:
            assert s.outer is not None
            if not s.tiled and not s.fused:
                values[s.name] = s.isl_dims, isl_name(s.outer.dims[level])
            for tiled in s.tiled:
                digits, count = tiled.tiles.digits, tiled.nest.accumulated(tiled.statement)
                for kind in KINDS:
                    own = digits if kind in ("full", "partial") else digits[:count]
                    values[tiled.tile_statement(kind)] = own, own[level]
        levels.append(values)
    loops = [member(scop.ctx, level) for level in levels]
    node, shared = insert_mark(inside.get_root().child(0), mark), min(len(s.outer.shared) for s in scop.statements if s.outer)
    for band in (loops[shared:], loops[:shared]):
        node = insert_mark(node.insert_partial_schedule(stack(scop.ctx, band)), TileLoops()) if band else node
    return (insert_mark(node, Parallel()) if parallel and shared else node).get_schedule()
