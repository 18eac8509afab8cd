"""Fuse parallel regions: small assignments that follow one another run in one region of threads, each with a block of a dimension.

Where all that a program uses is in the caches, what takes its time is to start and end regions, and to pass on to a thread what another one
has written. A block of rows for each thread goes through all layers of a perceptron, or a head's scores through all of attention, without
a barrier; what is packed for a product, each thread packs for itself. This is the fusion of parallel loops of Allen and Kennedy,
Optimizing Compilers for Modern Architectures (2001), which removes the barriers between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from tcjit.grammar.ast import Select
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import walk
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries
from tcjit.mapping.fused_run import FusedRun, Uses, bytes_of, may_have_nest
from tcjit.mapping.machine import TORN, Machine, core_of, torn_lines
from tcjit.mapping.operations import operations
from tcjit.mapping.options import Options
from tcjit.mapping.passes.chunk_reductions import number_of_chunks
from tcjit.mapping.passes.fuse_outer_loops import under_loops
from tcjit.mapping.passes.parallelise import worth_region

MARGIN = 0.1  # of the time of all that is to be gained at least
REUSE = 8  # results of a block that use an element of an operand at least, or as many as in all of them: register tiles need them

Loops = Mapping[int, tuple[str, int]]  # of assignments, by their place, the dimension that is shared, and the points of a block


def fuse_parallel_regions(before: Assignments, options: Options, machine: Machine) -> Assignments:
    """The program with the loops over blocks, one for each thread, that its small assignments share."""
    if not options.parallel or machine.threads < 2:
        return before.with_parts((a,) for a in before.assignments)
    program, temporaries = before.assignments, Temporaries(before)
    number = 1 + max((a.outer.number for a in program if a.outer), default=-1)
    chunks = [number_of_chunks(a, temporaries, before, options, machine) > 1 if a.reduction else False for a in program]
    regions, assignments = _Regions(before, machine), list[Assignment]()
    while (first := len(assignments)) < len(program):
        end = next((at for at in range(first, len(program)) if program[at].outer or chunks[at]), len(program))
        loops = regions.longest(first, end) if end - first > 1 else {}
        for at in range(first, 1 + max(loops, default=first)):
            a = program[at]
            assignments.append(under_loops(a, number, [loops[at]], private=True) if at in loops else a)
        number += bool(loops)
    return before.with_parts((new,) for new in assignments)


class _Regions:
    """A program, and what its assignments take in one region of threads or in several."""

    def __init__(self, before: Assignments, machine: Machine) -> None:
        self.machine, self.tensors = machine, before.storages
        self.uses = [Uses(a) for a in before.assignments]
        self.cycles, self.more = cache(self._cycles), cache(self._more)

    def longest(self, first: int, end: int) -> Loops:
        """The loops that assignments from the first on share, those before the ``end`` at most. What uses nothing of theirs stands before
        them (``settle_outer_loops``)."""
        uses = self.uses[first]
        run = FusedRun.of(uses.a, uses.accesses)
        if run is None or not may_have_nest(uses):
            return {}
        members, best = {first: uses}, dict[int, tuple[str, int]]()
        for at in range(first + 1, end):
            uses = self.uses[at]
            if not may_have_nest(uses):
                break
            if not run.take(uses.a, uses.accesses):
                if uses.a.final or uses.a.tensor in run.axes or run.written & {access.tensor for access in uses.accesses}:
                    break
                continue
            if not run.possible:
                break
            members[at] = uses
            costs = {loop: self.cost([*members.values()], run, loop) for loop in run.possible}
            loop = min(costs, key=lambda loop: costs[loop])
            if costs[loop] < self.gain([*members.values()], run) - MARGIN * self.time(members.values()):
                size = -(-run.extents[loop] // self.machine.threads)
                best = {place: (dim, size) for place, (dim,) in zip(members, run.shared([loop]))}
        return best

    def gain(self, members: Sequence[Uses], run: FusedRun) -> float:
        """Cycles in which threads start and end again, one thread computes what is not worth a region alone, and what one wrote comes to
        others; nothing where caches do not hold it all, or all of it is not worth a region."""
        costs, threads = self.machine.costs, self.machine.threads
        used = {access.tensor for uses in members for access in uses.accesses}
        if sum(bytes_of(self.tensors[name]) for name in used) > self.machine.cache_bytes // 2:
            return 0.0
        cycles = list(map(self.cycles, members))
        if not any(uses.is_contraction or uses.slides for uses in members) or not worth_region(sum(cycles), costs):
            return 0.0
        alone = [worth_region(own, costs) for own in cycles]
        regions = (sum(alone) - 1) * costs.parallel_region * costs.frequency
        small = sum(own for own, worth in zip(cycles, alone) if not worth) * (threads - 1) / threads
        written = sum(bytes_of(self.tensors[name]) for name in run.written if self.tensors[name].role == "temporary")
        return regions + small + core_of(self.machine, 1, 1).passed_cycles(written / 2)

    def cost(self, members: Sequence[Uses], run: FusedRun, loop: int) -> float:
        """Cycles that blocks of a loop take more: threads pack the same operands, have blocks of different sizes, or write parts of the
        same lines; infinite where there is not a block for each thread."""
        threads, extent = self.machine.threads, run.extents[loop]
        size = -(-extent // threads)
        if -(-extent // size) < threads:
            return float("inf")
        more = sum(self.more(uses, dim, size) for uses, (dim,) in zip(members, run.shared([loop])))
        uneven = size * threads / extent - 1
        return more + uneven * self.time(members)

    def _more(self, uses: Uses, dim: str, size: int) -> float:
        """Cycles that blocks of so many points of a dimension take more in one assignment."""
        costs, threads = self.machine.costs, self.machine.threads
        if any(isinstance(part, Select) and dim in names(part.condition) for part in walk(uses.a.value)):
            return float("inf")
        if not uses.keeps_reuse([dim], size, least=REUSE):
            return float("inf")
        packed = 0.0
        for access, moving in uses.reads.items() if uses.is_contraction else ():
            storage = self.tensors[access.tensor]
            last = next((sub for sub, step in zip(access.subscripts, storage.strides) if step == 1), None)
            if dim not in moving and last is not None and set(names(last)) & set(uses.a.reduction):
                packed += costs.transpose * storage.elements * (threads - 1) / threads
        return packed + TORN * costs.passed_line * self.torn(uses.a, dim, size) + self.in_rows(uses) / threads

    def time(self, members: Iterable[Uses]) -> float:
        """Cycles of assignments that threads share evenly."""
        return sum(map(self.cycles, members)) / self.machine.threads

    def _cycles(self, uses: Uses) -> float:
        """Those of an assignment in whole vectors, on one core."""
        lanes = self.machine.lanes(DTYPES[uses.a.value.dtype].bytes)
        return uses.a.points * max(1, operations(uses.a.value)) / lanes / self.machine.costs.fma_rate

    def in_rows(self, uses: Uses) -> float:
        """Cycles that what is computed point by point takes more row by row than as one loop: rows end, the last vectors of some are not
        whole."""
        if uses.a.reduction:
            return 0.0
        lanes, (_, lower, upper) = self.machine.lanes(DTYPES[uses.a.value.dtype].bytes), uses.a.bounds[-1]
        vectors = -(-(upper - lower) // lanes)
        rows = uses.a.points // (upper - lower)
        return self.machine.costs.branch_miss * rows + self.cycles(uses) * (vectors * lanes / (upper - lower) - 1)

    def torn(self, a: Assignment, dim: str, size: int) -> int:
        """Lines of a result of which two threads have parts, where each thread has a block of a dimension."""
        storage = self.tensors[a.tensor]
        element = DTYPES[storage.dtype].bytes
        axes = zip(a.subscripts, storage.strides, storage.shape)
        steps = [(sub, step * element, extent) for sub, step, extent in axes if step is not None]
        own = next((step for sub, step, _ in steps if dim in names(sub)), 0)
        return torn_lines(own * size, [(step, extent) for _, step, extent in steps if step > own], self.machine.threads)
