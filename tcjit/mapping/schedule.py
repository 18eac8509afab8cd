"""The first schedule tree, by isl's scheduler.

Every statement gets a permutable band with its parallel dimensions marked coincident; which of them share loops is a pass of its own.
isl's own fusion shifts statements against each other, and for programs with subscripts through a modulus its search can take minutes
that no budget stops: the numbers grow, not the count of operations.
"""

from __future__ import annotations

import islpy as isl

from tcjit.errors import MappingError
from tcjit.mapping.dependences import Dependences
from tcjit.mapping.scop import Scop


def schedule(scop: Scop, deps: Dependences) -> isl.Schedule:
    """A legal schedule tree: a sequence of bands, coincidence marked."""
    scop.ctx.set_schedule_serialize_sccs(1)
    scop.ctx.set_schedule_whole_component(0)
    scop.ctx.set_schedule_maximize_band_depth(1)
    try:
        return isl.ScheduleConstraints.on_domain(scop.domain).set_validity(deps.strict).set_coincidence(deps.all).compute_schedule()
    except isl.Error as error:
        raise MappingError(
            f"no schedule found within the compile budget: {error}", hint="split the def into several smaller ones"
        ) from None
