"""Vectorise: mark the loop that runs in vector lanes, and the patches of results that stay in vector registers.

``Simd`` stands above a loop whose iterations may run at once: parallel ones, or those of a reduction with one result. ``RegisterTile``
stands above a contraction's loops, ``Unroll`` above the patch that its innermost iteration updates:

    RegisterTile -> [reduction loops] -> Unroll -> [patch] -> Simd -> [lane loop]

A reduction that is itself the lane runs in pieces of whole registers; what is left over follows as ordinary loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import islpy as isl

from tcjit.grammar.affine import isl_name
from tcjit.mapping.group import Group
from tcjit.mapping.isl import member, stack, union_set
from tcjit.mapping.marks import RegisterTile, Simd, TileLoops, Unroll
from tcjit.mapping.match import band, leaf, match
from tcjit.mapping.plan import Patch, Plan
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.tree import insert_mark, mark_of, rewrite, statements_below


def vectorise(scop: Scop, tree: isl.Schedule, groups: Sequence[Group], plans: Sequence[Plan]) -> isl.Schedule:
    """The tree with marks ``Simd``, ``RegisterTile`` and ``Unroll``."""
    by_statement = {name: (group, plan) for group, plan in zip(groups, plans, strict=True) for name in group.statements}

    def visit(node: isl.ScheduleNode) -> isl.ScheduleNode:
        names = statements_below(node) if match(node, band(leaf())) is not None else ()
        if len(names) != 1 or mark_of(node.parent()) == TileLoops():
            return node
        group, plan = by_statement[names[0]]
        s = scop.statement(names[0])
        if plan.patch and plan.patch.statement == s.name:
            return _patch(scop, node, s, group, plan.patch)
        return _lanes(scop, node, plan.lane(s.name))

    return rewrite(tree, visit)


def _last_dims(scop: Scop, made: isl.ScheduleNode) -> list[str]:
    """The dimensions that the last member runs over (points of a tile included)."""
    name = statements_below(made)[0]
    s = scop.statement(name)
    piece = made.band_get_partial_schedule().get_at(made.band_n_member() - 1)
    return [d for position, d in enumerate(s.dims) if _depends(piece, position)]


def _depends(expression: isl.UnionPwAff, position: int) -> bool:
    pieces = expression.get_pw_aff_list()
    return any(pieces.get_at(i).involves_dims(isl.dim_type.in_, position, 1) for i in range(pieces.n_pw_aff()))


def _lanes(scop: Scop, made: isl.ScheduleNode, lane: str | None) -> isl.ScheduleNode:
    if lane is None or lane not in _last_dims(scop, made):
        return made
    count = made.band_n_member()
    if count == 1:
        return insert_mark(made, Simd())
    return insert_mark(made.band_split(count - 1).child(0), Simd()).parent()


def _patch(scop: Scop, made: isl.ScheduleNode, s: ScopStatement, group: Group, patch: Patch) -> isl.ScheduleNode:
    shared = {column[s.name] for column in group.columns}
    if isinstance(patch.lane, str):
        return _reduction_patch(scop, made, s, shared, patch)
    apart = sum(d not in shared and d not in s.reduction for d in s.dims)
    reductions = len(s.reduction)
    lane = group.columns[patch.lane][s.name]
    if _last_dims(scop, made) != [lane] or made.band_n_member() <= apart + reductions:
        return made
    return _below(made, apart, lambda node: _marked(scop, node, reductions))


def _below(made: isl.ScheduleNode, members: int, change: Callable[[isl.ScheduleNode], isl.ScheduleNode]) -> isl.ScheduleNode:
    """A band whose first members stay outside while the rest is changed."""
    return change(made.band_split(members).child(0)).parent() if members else change(made)


def _marked(scop: Scop, made: isl.ScheduleNode, reductions: int) -> isl.ScheduleNode:
    """RegisterTile -> the first members -> Unroll -> the patch -> Simd -> the last member."""
    node = made.band_split(reductions) if 0 < reductions < made.band_n_member() else made
    inner = node.child(0) if reductions else node
    points = inner.band_n_member()
    if points > 1:
        inner = inner.band_split(points - 1)
        inner = insert_mark(inner.child(0), Simd()).parent()
    else:
        inner = insert_mark(inner, Simd())
    inner = insert_mark(inner, Unroll())
    if reductions:
        return insert_mark(inner.parent(), RegisterTile())
    return insert_mark(inner, RegisterTile())


def _reduction_patch(scop: Scop, made: isl.ScheduleNode, s: ScopStatement, shared: set[str], patch: Patch) -> isl.ScheduleNode:
    """Split the lane's reduction into whole registers and a rest, and bring the register loop outside the patch."""
    dim = str(patch.lane)
    lower, upper = next((lo, hi) for name, lo, hi in s.bounds if name == dim)
    piece = patch.width * patch.vectors
    least, greatest = s.range(dim)
    full: int | str = lower + (upper - lower) // piece * piece
    if (least, greatest) != (str(lower), str(upper)):  # between the limits, whole pieces from the constant below them on
        full = f"({lower} + {piece}*floor(({greatest} - {lower})/{piece}))"
    ctx = scop.ctx
    partial = made.band_get_partial_schedule()
    texts = [partial.get_at(i) for i in range(made.band_n_member())]
    order = _dims_of(s, made)
    if order.count("") or order[-1] != dim:
        return made
    reductions = [t for t, d in zip(texts[:-1], order[:-1], strict=True) if d in s.reduction]
    apart = [t for t, d in zip(texts[:-1], order[:-1], strict=True) if d not in s.reduction and d not in shared]
    points = [t for t, d in zip(texts[:-1], order[:-1], strict=True) if d not in s.reduction and d in shared]
    moved = f"({isl_name(dim)} - {lower})" if lower else isl_name(dim)
    chunk = member(ctx, {s.name: (s.isl_dims, f"floor({moved}/{piece})")})
    within = member(ctx, {s.name: (s.isl_dims, f"{moved} mod {piece}")})

    def whole(node: isl.ScheduleNode) -> isl.ScheduleNode:
        node = node.insert_partial_schedule(stack(ctx, [*apart, *reductions, chunk, *points, within])).band_set_permutable(1)
        return _below(node, len(apart), lambda inner: _marked(scop, inner, len(reductions) + 1))

    def rest(node: isl.ScheduleNode) -> isl.ScheduleNode:
        node = node.insert_partial_schedule(stack(ctx, [*apart, *points, *reductions, texts[-1]])).band_set_permutable(1)
        return _lanes(scop, node, dim)

    node = made.delete()
    if full == upper:
        return whole(node)
    depth = node.get_tree_depth()
    parts = [union_set(ctx, [f"{s.tuple_text} : {isl_name(dim)} {side} {full}"], scop.parameters) for side in ("<", ">=")]
    listed = isl.UnionSetList.from_union_set(parts[0]).add(parts[1])
    node = node.insert_sequence(listed)
    node = whole(node.child(0).child(0))
    node = node.ancestor(node.get_tree_depth() - depth)
    node = rest(node.child(1).child(0))
    return node.ancestor(node.get_tree_depth() - depth)


def _dims_of(s: ScopStatement, made: isl.ScheduleNode) -> list[str]:
    partial = made.band_get_partial_schedule()
    result = []
    for position in range(made.band_n_member()):
        moving = [d for number, d in enumerate(s.dims) if _depends(partial.get_at(position), number)]
        result.append(moving[0] if len(moving) == 1 else "")
    return result
