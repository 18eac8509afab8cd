"""Memory dependences: which instance must stay before which.

All pairs of accesses to one element, at least one of them a write, in program order. (Last-writer flow would lose the chain from an
initialisation to the second update.) Instances of one reduction may be reordered among themselves: their dependences are kept apart.
"""

from __future__ import annotations

import islpy as isl

from tcjit.dataclass import dataclass
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
    reads, writes = scop.reads, scop.writes
    flow = _earlier(scop, writes.apply_range(reads.reverse()))
    anti = _earlier(scop, reads.apply_range(writes.reverse()))
    output = _earlier(scop, writes.apply_range(writes.reverse()))
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


def _earlier(scop: Scop, pairs: isl.UnionMap) -> isl.UnionMap:
    """The pairs of instances the first of which runs before the second, in program order: that of the statements, then of the dimensions.

    Of two statements either every instance of one is earlier or none; only within one the dimensions need comparing.
    """
    numbers = {s.name: number for number, s in enumerate(scop.statements)}
    found = isl.UnionMap.read_from_str(scop.ctx, "{ }")
    for piece in maps(pairs):
        first, second = (numbers[piece.get_tuple_name(kind)] for kind in (isl.dim_type.in_, isl.dim_type.out))
        if first == second:
            piece = piece.intersect(isl.Map.lex_lt(piece.get_space().domain()))
        if first <= second:
            found = found.union(piece.to_union_map())
    return found
