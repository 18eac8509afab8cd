"""The bytes that a nest moves into a cache: what its operands and results take between two uses against what the cache holds.

The loops of a nest are walked from the outermost one: the first at whose iterations everything that is touched fits into a cache begins
with that cache as others left it, and from there on each line is read once. What one iteration shares with the one before, all of an
operand that does not move with the loop or the part of a window that overlaps, is there still. After Wolf and Lam, A Data Locality
Optimizing Algorithm (PLDI 1991), with footprints as of Agarwal, Kranz and Natarajan, Automatic Partitioning of Parallel Loops (1995).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from tcjit.dataclass import dataclass
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.machine import LINE, Core
from tcjit.mapping.nest.cost import LATE_LINES
from tcjit.mapping.nest.nest import Nest
from tcjit.mapping.nest.operands import Operand
from tcjit.mapping.nest.statement import FlatStatement


@dataclass(frozen=True)
class Moved:
    """What moves with some dimensions by so many elements of so many bytes; no others lie between them where it is ``packed``;
    ``result``: what is read and written."""

    form: Mapping[str, int]
    bytes: int
    packed: bool
    result: bool = False

    def footprint(self, sizes: Mapping[str, int]) -> int:
        """Bytes of all lines of which some element is touched in a box of so many points along each dimension."""
        run, runs = self.runs(sizes)
        return run * runs if self.packed else runs * -(-run // LINE) * LINE

    def runs(self, sizes: Mapping[str, int]) -> tuple[int, int]:
        """Bytes between which no line is missing, and how many times there are so many in a box."""
        steps = sorted((abs(step), sizes[dim]) for dim, step in self.form.items() if sizes[dim] > 1)
        if self.packed:
            return self.bytes * prod(size for _, size in steps), 1
        run = self.bytes
        runs, unit, count = 1, 0, 1  # progressions of ``count`` runs, ``unit`` bytes apart: the one at hand, and how many of it
        for number, size in steps:
            step = number * self.bytes
            if not unit and step < run + LINE:
                run += step * (size - 1)
            elif unit and step % unit == 0 and step <= unit * count:
                count += step // unit * (size - 1)
            else:
                runs, unit, count = runs * count, step, size
        return run, runs * count


class Traffic:
    """The loops of a nest of a statement, and what moves with them."""

    def __init__(self, s: FlatStatement, nest: Nest, found: Sequence[Operand], staged: Collection[int], element: int) -> None:
        self.moved = [
            Moved(flat.form, element if number in staged else DTYPES[operand.value.dtype].bytes // parts, number in staged)
            for number, operand in enumerate(found)
            for parts in (1 if operand.single or number in staged else len(operand.flats),)  # of a word that is loaded as it is
            for flat in (operand.flats[:1] if number in staged or parts > 1 else operand.flats)
        ]
        self.moved.append(Moved(s.write.form, element, False, result=True))
        self.loops, self.terms = nest.loops, s.terms
        sizes = {dim: s.extent(dim) for dim in s.dims}
        self.trips, self.sizes = [], [dict(sizes)]  # of each loop; of the points of each dimension inside so many loops
        for loop in nest.loops:
            self.trips.append(-(-sizes[loop.dim] // loop.block))
            sizes[loop.dim] = min(sizes[loop.dim], loop.block)
            self.sizes.append(dict(sizes))
        self.footprints = [[moved.footprint(sizes) for moved in self.moved] for sizes in self.sizes]

    def into(self, capacity: int) -> float:
        """Bytes that come into a cache of so many."""
        return sum(self.into_of(capacity, number) for number in range(len(self.moved)))

    def into_of(self, capacity: int, number: int) -> float:
        """Those of one operand, or of the results, which are the last; they are read for each block of terms but the first."""
        depth = next((at for at, held in enumerate(self.footprints) if sum(held) <= capacity), len(self.loops))
        moved, at = self.moved[number], depth
        while at and self.footprints[at - 1][number] == self.footprints[at][number]:
            at -= 1  # it does not move with the loop, whose next iteration finds it
        at -= 1 if at == depth > 0 else 0  # what an iteration shares with the one before
        passes = prod(trips for trips, loop in zip(self.trips[:at], self.loops) if loop.dim in self.terms) if moved.result else 1
        return self.footprints[at][number] * prod(self.trips[:at]) * (2 - 1 / passes)

    @property
    def written_late(self) -> float:
        """Bytes more that short stretches of results, which the innermost loop over them writes, take as long as."""
        moving = (number for number, loop in enumerate(self.loops) if loop.dim not in self.terms and self.trips[number] > 1)
        at = max(moving, default=0)
        run, _ = self.moved[-1].runs(self.sizes[at])
        return self.footprints[0][-1] * LATE_LINES * LINE / run

    def cycles(self, core: Core) -> float:
        """Those in which one core reads all that comes into its second cache, and its part of what comes from memory once more."""
        once = sum(self.footprints[0])
        if once <= core.l2:
            return 0.0
        again = max(0.0, self.into(core.last) - once)
        return self.into(core.l2) * core.l3_byte + again * (core.memory_byte - core.l3_byte)
