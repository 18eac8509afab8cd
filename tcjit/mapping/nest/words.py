"""Words: 32 bits that hold neighbours of narrower integers, or of bfloat16, as expressions that copies compute."""

from __future__ import annotations

from dataclasses import dataclass

from tcjit.grammar.arithmetic import total
from tcjit.grammar.ast import Binary, Call, Const, Expr, Index, Select
from tcjit.grammar.walk import with_indices
from tcjit.mapping.nest.vector_forms import ADJACENT, FLIP_SIGNS, PACK


@dataclass(frozen=True)
class TermGroup:
    """The terms of a word: ``ways`` neighbours in a dimension of ``count``; without a dimension a single term."""

    dim: str
    count: int
    ways: int

    @property
    def extent(self) -> int:
        return -(-self.count // self.ways)

    @property
    def missing(self) -> int:
        """Terms beyond the last, whose bits are 0."""
        return self.extent * self.ways - self.count if self.dim else 0


def word(value: Expr, group: TermGroup, adjacent: bool, flip: bool) -> Expr:
    """The word of each group of values, with ``group.dim`` counting groups; ``adjacent``: values are elements in the order of memory."""
    dim, ways = Index(group.dim, dtype="int64"), group.ways
    dtype, zero = ("float32", Const(0.0, dtype="bfloat16")) if value.dtype == "bfloat16" else ("int32", Const(0, dtype="int32"))
    if not group.dim:
        return _word(PACK, [value, *[zero] * (ways - 1)], dtype, flip)
    values = [with_indices(value, {group.dim: total([(ways, dim)], number)}) for number in range(ways)]
    whole = _word(ADJACENT if adjacent else PACK, values, dtype, flip)
    if not group.missing:
        return whole
    last = _word(PACK, [*values[: ways - group.missing], *[zero] * group.missing], dtype, flip)
    inside = Binary("<", dim, Const(group.extent - 1, dtype="int64"), dtype="bool")
    return Select(inside, whole, last, dtype=dtype)


def _word(function: str, values: list[Expr], dtype: str, flip: bool) -> Expr:
    made = Call(function, tuple(values), dtype=dtype)
    return Call(FLIP_SIGNS, (made,), dtype="int32") if flip else made
