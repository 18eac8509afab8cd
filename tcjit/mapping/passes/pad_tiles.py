"""Pad tiles: sums of products compute whole tiles, so that no condition stands in the loops of those at the edges.

The domain of such a sum grows to whole tiles. Beyond the old domain it writes elements of its accumulator that stand for no result and are
never stored, or adds products of the zeros that ``promote_to_shared`` puts behind the last term.
"""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from tcjit.errors import MappingError
from tcjit.grammar.affine import isl_name
from tcjit.mapping.gpu.statement_group import over_columns
from tcjit.mapping.gpu_nest import GroupPlan, StatementPlan
from tcjit.mapping.isl import constraint_text, images, points
from tcjit.mapping.scop import ScopStatement
from tcjit.mapping.scop_builder import LoweredScop, ScopBuilder, plain_dims
from tcjit.mapping.storage import Bounds, Storage
from tcjit.mapping.strides import accesses


def pad_tiles(lowered: LoweredScop) -> LoweredScop:
    """The scop with the statements that its plans pad; those whose results have no accumulator keep their domain."""
    draft = ScopBuilder(lowered)
    plans = []
    for plan in lowered.plans:
        items = tuple(_padded(draft, plan, item) if item.padded else item for item in plan.items)
        plans.append(replace(plan, items=items))
    return draft.done(plans)


def _padded(draft: ScopBuilder, plan: GroupPlan, item: StatementPlan) -> StatementPlan:
    """An item whose statement, and the one that starts its results, have grown; or the item without that."""
    s = draft.statements[item.statement]
    storage = next(t for t in draft.tensors if t.name == s.tensor)
    dims = plain_dims(s.subscripts)
    users = [u for u in draft.statements.values() if any(a.tensor == storage.name for a in accesses(u))]
    own = {each.statement: each for each in plan.items}
    # elements outside the domain of what is held are results, too
    results = storage.name in draft.aliases and over_columns(s, item.columns)
    alone = dims is not None and set(dims) <= set(item.columns) and all(u.name in own for u in users)
    if dims is None or storage.role != "temporary" or results or not alone:
        if item.mma:
            raise MappingError(f"the product {s.tensor} on tensor cores has no accumulator of its own", hint="Options(shared=False)")
        return replace(item, padded=False)
    grown = _whole(s, plan, item)
    ends = {dim: upper for dim, _, upper in grown}
    shape = tuple(max(extent, ends[dim]) for dim, extent in zip(dims, storage.shape, strict=True))
    _give_room(draft, storage, shape, users)
    constraints = _tiles_with_points(draft, plan, item, s, grown) if over_columns(s, item.columns) else s.constraints
    draft.statements[s.name] = replace(draft.statements[s.name], bounds=grown, constraints=constraints)
    for user in users:
        if user.tensor == storage.name and user.operator == "=" and not user.reads and not user.constraints:
            draft.statements[user.name] = replace(draft.statements[user.name], bounds=_whole(user, plan, own[user.name]))
    return item


def _whole(s: ScopStatement, plan: GroupPlan, item: StatementPlan) -> Bounds:
    """The bounds of a statement, to the end of the last tile."""
    bounds = []
    for dim, lower, upper in s.bounds:
        share = item.share(dim, plan.columns)
        whole = share is not None and (lower, upper) == (share.lower, share.lower + share.extent)
        bounds.append((dim, lower, lower + share.tiles * share.whole_tile if share is not None and whole else upper))
    return tuple(bounds)


def _tiles_with_points(draft: ScopBuilder, plan: GroupPlan, item: StatementPlan, s: ScopStatement, grown: Bounds) -> tuple[str, ...]:
    """The constraints of a statement that computes every tile in which it has a point."""
    ctx = draft.scop.ctx
    columns = [(isl_name(dim), share) for dim, share in zip(item.columns, plan.columns, strict=True)]
    dims = [dim for dim, _ in columns]
    tiles = [f"floor(({dim} - {share.lower})/{share.whole_tile})" for dim, share in columns]

    def where(bounds: Bounds, constraints: tuple[str, ...]) -> isl.Set:
        facts = [f"{lower} <= {isl_name(dim)} < {upper}" for dim, lower, upper in bounds if dim in item.columns]
        return points(ctx, dims, [*facts, *constraints])

    tile = images(ctx, dims, tiles)
    box = where(grown, ())
    wanted = where(s.bounds, s.constraints).apply(tile).apply(tile.reverse()).intersect(box)
    if box.is_subset(wanted):
        return ()
    return (constraint_text(wanted.gist(box)),)


def _give_room(draft: ScopBuilder, storage: Storage, shape: tuple[int, ...], users: list[ScopStatement]) -> None:
    """A larger accumulator: that of a pass before, or one that stands for a temporary of the program."""
    if storage.name in draft.aliases:
        draft.tensors[draft.tensors.index(storage)] = replace(storage, shape=shape)
        return
    larger = draft.copy_of(storage, shape)
    for user in users:
        draft.change(user.name, lambda a: replace(a, tensor=larger.name) if a.tensor == storage.name else a)
    draft.tensors.remove(storage)
