"""Strip-mine copies: dimensions that subscripts divide by numbers, as those of ``unfold`` or of windows of pixels, become their digits.

``Y(p, l) = X(l / W + p % 3, l % W)`` moves through memory in rows of ``W`` elements; a loop over ``l`` would divide at each of them. Where
a digit has few values, as the numbers that are packed in a byte, ``unroll_dims`` makes statements of them.
"""

from __future__ import annotations

from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.machine import Machine
from tcjit.mapping.nest.strip_mine import split_divisions
from tcjit.mapping.passes.unroll_dims import innermost_points


def strip_mine_copies(before: Assignments, machine: Machine) -> Assignments:
    """The program in which what is no reduction has digits in the place of dimensions, where rows that fill a vector are left."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if a.operator != "=" or a.reduction or a.outer:
            return [a]
        split, strips = split_divisions(a, before.values)
        if not strips:
            return [a]
        lanes = machine.lanes(DTYPES[temporaries.tensors[a.tensor].dtype].bytes)
        fills = split.results[-1][2] >= lanes or split.results[-1] == a.results[-1]
        return [split] if fills or innermost_points(before, split) else [a]

    return rewrite(before, visit)
