"""Memory dependences: which instance must stay before which.

All pairs of accesses to one element, at least one of them a write, in program order. (Last-writer flow would lose the chain from an
initialisation to the second update.) Instances of one reduction may be reordered among themselves: their dependences are kept apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import islpy as isl

from tcjit.mapping.isl import maps
from tcjit.mapping.scop import Scop


@dataclass(frozen=True)
class Dependences:
    """``strict`` must be kept in order; ``reduction`` only forbids running two instances at once."""

    strict: isl.UnionMap
    reduction: isl.UnionMap
    flow: isl.UnionMap  # write to read, reduction ones included: what locality is about

    @property
    def all(self) -> isl.UnionMap:
        return self.strict.union(self.reduction)


def dependences(scop: Scop) -> Dependences:
    """The dependences of a scop, exact for affine accesses, over-approximated for gathers."""
    before = scop.order.lex_lt_union_map(scop.order)
    reads, writes = scop.reads, scop.writes
    flow = writes.apply_range(reads.reverse()).intersect(before)
    anti = reads.apply_range(writes.reverse()).intersect(before)
    output = writes.apply_range(writes.reverse()).intersect(before)
    every = flow.union(anti).union(output).coalesce()
    empty = isl.UnionMap.read_from_str(scop.ctx, "{ }")
    strict, reduction = empty, empty
    for piece in maps(every):
        source = piece.get_tuple_name(isl.dim_type.in_)
        same = source == piece.get_tuple_name(isl.dim_type.out)
        if same and scop.statement(source).reduction:
            reduction = reduction.union(piece.to_union_map())
        else:
            strict = strict.union(piece.to_union_map())
    return Dependences(strict, reduction, flow.coalesce())
