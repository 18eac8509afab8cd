"""Strip-mine copies: dimensions that subscripts divide by numbers, as those of ``unfold`` or of windows of pixels, become their digits; so
do those of reductions that no nest has, as the errors of what is quantised in groups.

``Y(p, l) = X(l / W + p % 3, l % W)`` moves through memory in rows of ``W`` elements; a loop over ``l`` would divide at each of them. Where
a digit has few values, as the numbers that are packed in a byte, ``unroll_dims`` makes statements of them.
"""

from __future__ import annotations

from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.machine import Machine
from tcjit.mapping.nest.strip_mine import split_divisions
from tcjit.mapping.nest.vector_forms import has_lane_form, has_vector_form
from tcjit.mapping.operations import computed_bytes
from tcjit.mapping.passes.unroll_dims import innermost_points
from tcjit.mapping.reduction import guarded_term


def strip_mine_copies(before: Assignments, machine: Machine) -> Assignments:
    """The program in which what is no reduction has digits in the place of dimensions, where rows that fill a vector are left."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if (a.operator != "=" or a.reduction) and not _has_loops(a, before) or a.outer:
            return [a]
        split, strips = split_divisions(a, before.values, terms=bool(a.reduction))
        if not strips or a.reduction and split.constraints:  # results start in whole blocks
            return [a]
        lanes = machine.lanes(max(computed_bytes(a.value), DTYPES[temporaries.tensors[a.tensor].dtype].bytes))
        fills = split.bounds[-1][2] >= lanes or split.bounds[-1] == a.bounds[-1]
        return [split] if fills or innermost_points(before, split) else [a]

    return rewrite(before, visit)


def _has_loops(a: Assignment, before: Assignments) -> bool:
    """Whether a reduction has no nest, since its terms are neither computed in vectors nor in lanes."""
    _, term = guarded_term(a.value, a.operator, before.values)
    return bool(a.reduction) and not (a.constraints or a.final or has_vector_form(term) or has_lane_form(term))
