"""Strip-mine gathers: dimensions that divide what reductions gather, as blocks of queries do that share their keys, become their digits.

``P(t,s,j) +=! Q(t,d) * K(16 * Block(t/16, s) + j, d)`` gathers rows for ``t / 16`` alone: in digits they move with the blocks of ``t``, and
``hoist_invariants`` has them gathered once for all results of a block.
"""

from __future__ import annotations

from tcjit.grammar.affine import is_gather
from tcjit.grammar.ast import Access, Binary
from tcjit.grammar.walk import walk
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.nest.strip_mine import split_divisions


def strip_mine_gathers(before: Assignments) -> Assignments:
    """The program with reductions that gather at quotients of their indices over the digits of these."""

    def visit(a: Assignment, _: Temporaries) -> list[Assignment]:
        gathers = [sub for access in a.reads for sub in access.subscripts if is_gather(sub)]
        inside = (part for sub in gathers for access in walk(sub) if isinstance(access, Access) for part in walk(access))
        if not a.reduction or a.outer or a.constraints or a.dynamic or not any(isinstance(p, Binary) and p.op == "/" for p in inside):
            return [a]
        split = split_divisions(a, before.values)[0]
        return [a] if split.constraints else [split]  # results start in whole blocks

    return rewrite(before, visit)
