"""The first schedule tree, by isl's scheduler.

Every statement, or with maximal fusion every connected component, gets a permutable band with its parallel dimensions marked
coincident; fusing the outer ones is a pass of its own, because isl's fusion would shift statements against each other.
"""

from __future__ import annotations

import islpy as isl

from tcjit.errors import MappingError
from tcjit.mapping.dependences import Dependences
from tcjit.mapping.isl import maps, union_map
from tcjit.mapping.options import Options
from tcjit.mapping.scop import Scop


def schedule(scop: Scop, deps: Dependences, options: Options) -> isl.Schedule:
    """A legal schedule tree: a sequence of bands, coincidence marked."""
    ctx = scop.ctx
    ctx.set_schedule_whole_component(0)
    ctx.set_schedule_maximize_band_depth(1)
    constraints = isl.ScheduleConstraints.on_domain(scop.domain).set_validity(deps.strict).set_coincidence(deps.all)
    if options.fusion == "maximal":
        made = _fused(ctx, constraints.set_proximity(_near(deps.flow)))
        if made is not None:
            return made
    ctx.set_schedule_serialize_sccs(1)
    try:
        return constraints.compute_schedule()
    except isl.Error as error:
        raise MappingError(
            f"no schedule found within the compile budget: {error}", hint="split the def into several smaller ones"
        ) from None


def _fused(ctx: isl.Context, constraints: isl.ScheduleConstraints) -> isl.Schedule | None:
    """A tree that fuses what can be fused without shifting; None where isl gives up.

    Shifts would cost the tiles their guards, and the search for them can take isl minutes: its numbers grow, not its count of
    operations, so that no budget stops it. So can the search for schedules that cannot be coalesced, which plain loops are not.
    """
    ctx.set_schedule_serialize_sccs(0)
    ctx.set_schedule_treat_coalescing(0)
    ctx.set_schedule_max_constant_term(0)
    try:
        return constraints.compute_schedule()
    except isl.Error:
        ctx.reset_operations()
        return None
    finally:
        ctx.set_schedule_treat_coalescing(1)
        ctx.set_schedule_max_constant_term(-1)


def _near(flow: isl.UnionMap) -> isl.UnionMap:
    """The flow that is worth bringing together: what goes through a modulus is not, for no loops in common make its way short."""
    result = union_map(flow.get_ctx(), [])
    for piece in maps(flow):
        parts = piece.get_basic_map_list()
        if all(parts.get_at(i).dim(isl.dim_type.div) == 0 for i in range(parts.n_basic_map())):
            result = result.union(piece.to_union_map())
    return result
