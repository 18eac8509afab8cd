"""The order of a contraction's tile loops: what the inner ones sweep again and again should stay in cache.

For an order of the loops, everything that happens inside the outermost ones touches some part of the operands. From the depth on at which
that part fits the cache, each operand is brought in once for every round of the loops around, but for those rounds of the last of
them that it does not change with. The order is the one with the least of that traffic, if its outermost loop leaves no thread idle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tcjit.grammar.ast import Access
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names
from tcjit.mapping.machine import Machine
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.strides import accesses, affine_form, involves, stride

STREAMED = 8  # products for each element of operands and results, below which memory sets the time
IN_CACHE = 1 << 20  # elements that caches hold
LINE = 64  # bytes that come from memory together
PACE = 32  # bytes a core gets in a cycle from beyond its own cache
START, SLOW = 1500, 4  # cycles until a stretch of memory comes at that pace; short ones take so many times as long at most
WORTH_CHANGING = 1.02  # times as long as the best order before that one is taken


@dataclass(frozen=True)
class Nest:
    """The tile loops of a contraction: ``tile`` is the size per column, ``cycles`` what all patches take with operands at hand."""

    scop: Scop
    statement: ScopStatement
    columns: tuple[str, ...]
    tile: tuple[int, ...]
    cycles: float
    machine: Machine

    def order(self) -> tuple[int, ...]:
        """The columns, outermost first."""
        usual = self._usual()
        moving = [c for c in usual if self._trips(c) > 1]
        # one loop to the outside, one to the inside: more would be many orders that hardly differ; of equal ones that most like the usual
        orders = dict.fromkeys(
            (first, *(c for c in usual if c not in (first, last)), last) for first in moving for last in reversed(moving) if first != last
        )
        times = {order: self._time(order) for order in (usual, *orders)}
        best = min(times, key=lambda order: times[order])
        return best if times[usual] > WORTH_CHANGING * times[best] else usual

    # ---------------------------------------------------------------- where traffic does not tell

    def _usual(self) -> tuple[int, ...]:
        """The order of memory for what is read once; otherwise the innermost loop streams the least."""
        columns = range(len(self.columns))
        large = streamed(self.scop, self.statement)
        steps = [stride(self.scop, large, d) if large else None for d in self.columns]
        if None in steps:
            return tuple(sorted(columns, key=self._rank))
        return tuple(sorted(columns, key=lambda c: -(steps[c] or 0)))

    def _rank(self, column: int) -> tuple[bool, int, int]:
        moved = [a for a in self._reads if uses(a, self.columns[column])]
        whole = sum(self.scop.tensor(a.tensor).elements for a in moved)
        extents = {d: self.statement.extent(d) for d in self.statement.reduction} | dict(zip(self.columns, self.tile, strict=True))
        swept = sum(prod(extent for d, extent in extents.items() if uses(a, d)) for a in moved)
        return self.tile[column] > 1, -whole, -swept

    # ---------------------------------------------------------------- traffic

    @property
    def _reads(self) -> list[Access]:
        return accesses(self.statement)[2:]

    def _trips(self, column: int) -> int:
        return -(-self.statement.extent(self.columns[column]) // self.tile[column])

    def _time(self, order: Sequence[int]) -> float:
        """Cycles of the busiest thread."""
        loops = [c for c in order if self._trips(c) > 1]
        threads = self.machine.threads
        rounds = max(1, self.statement.extent(self.columns[loops[0]]) // self.tile[loops[0]]) if loops else 1
        traffic, waiting = self._traffic(loops)
        return (self.cycles + traffic / PACE + waiting) * -(-rounds // threads) / rounds

    def _traffic(self, loops: Sequence[int]) -> tuple[int, float]:
        """Bytes from beyond the cache, and the cycles that it takes to begin with each stretch of those that are read."""
        operands = list(dict.fromkeys(accesses(self.statement)))
        extents = {d: self.statement.extent(d) for d in self.statement.dims}
        for depth in range(len(loops) + 1):
            if depth:
                extents[self.columns[loops[depth - 1]]] = self.tile[loops[depth - 1]]
            parts = [self._bytes(a, extents) for a in operands]
            if 2 * sum(parts) <= self.machine.cache_bytes:
                break
        else:
            depth = len(loops) + 1  # not even one tile stays
        total, waiting = 0, 0.0
        for access, part in zip(operands, parts, strict=True):
            around = list(loops[:depth])
            while around and depth <= len(loops) and not uses(access, self.columns[around[-1]]):
                around.pop()
            rounds = prod(self._trips(c) for c in around)
            total += part * rounds
            if access in self._reads:  # nobody waits for what is written
                stretches = rounds * self._stretches(access, extents)
                if around:  # the innermost loop may go on where its last round ended
                    whole = {**extents, self.columns[around[-1]]: self.statement.extent(self.columns[around[-1]])}
                    stretches = min(stretches, rounds // self._trips(around[-1]) * self._stretches(access, whole))
                waiting += min(START * stretches, SLOW * part * rounds / PACE)
        return total, waiting

    def _stretches(self, access: Access, extents: Mapping[str, int]) -> int:
        """Of memory without gaps, which an access touches."""
        touched, shape = widths(self.scop, access, extents), self.scop.tensor(access.tensor).shape
        whole = next((axis for axis in reversed(range(len(shape))) if touched[axis] < shape[axis]), 0)
        return prod(touched[:whole])

    def _bytes(self, access: Access, extents: Mapping[str, int]) -> int:
        """Whole lines that hold what an access touches."""
        size = DTYPES[self.scop.tensor(access.tensor).dtype].bytes
        *outer, last = widths(self.scop, access, extents) or [1]
        return prod(outer) * -(-last * size // LINE) * LINE if access.subscripts else size


def widths(scop: Scop, access: Access, extents: Mapping[str, int]) -> list[int]:
    """How many elements of each axis an access touches while dimensions run over so many values."""
    found = []
    for sub, extent in zip(access.subscripts, scop.tensor(access.tensor).shape, strict=True):
        form = affine_form(sub, scop.values)
        if form is None:  # one element for every value of the indices, at most
            width = prod(extents.get(d, 1) for d in names(sub))
        else:
            width = 1 + sum(abs(factor) * (extents.get(d, 1) - 1) for d, factor in form[0].items())
        found.append(min(width, extent))
    return found


def streamed(scop: Scop, s: ScopStatement) -> Access | None:
    """The largest operand of a contraction that waits for memory, not for its arithmetic; None where it is the other way round."""
    reads = accesses(s)[2:]
    sizes = [scop.tensor(a.tensor).elements for a in reads]
    if s.points >= STREAMED * (sum(sizes) + scop.tensor(s.tensor).elements) or sum(sizes) < IN_CACHE:
        return None
    return reads[sizes.index(max(sizes))]


def uses(access: Access, dim: str) -> bool:
    """Whether any subscript mentions a dimension."""
    return any(involves(sub, dim) for sub in access.subscripts)
