"""Block panels: products run block by block of their results, so that the packed operand of one block stays in a core's cache.

An operand that is packed as a whole goes to memory and comes back, for each thread again. Under a loop over blocks of columns, which
threads share, its copy is one block's, in the slice of a thread (``contract_slices``). This is the loop over NC columns of Goto and van de
Geijn, Anatomy of High-Performance Matrix Multiplication (2008), with what is packed inside it.

Of a small product the packing takes as long as the rest, and so does what one thread packs until another one reads it. There each thread
has one block of columns, or of rows where it would share lines of results with others, and packs all that it needs by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tcjit.dataclass import dataclass
from tcjit.errors import MappingError
from tcjit.grammar.ast import Index
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries
from tcjit.mapping.machine import LINE, MOVES, TORN, Core, Machine, torn_lines
from tcjit.mapping.nest.epilogue import epilogue_of
from tcjit.mapping.nest.nest import Leaf
from tcjit.mapping.nest.operands import Operand
from tcjit.mapping.nest.plan_nest import Plan
from tcjit.mapping.nest.statement import FlatStatement
from tcjit.mapping.nest.traffic import Moved
from tcjit.mapping.options import Options
from tcjit.mapping.passes.chunk_reductions import number_of_chunks
from tcjit.mapping.passes.fuse_outer_loops import UNEVEN, Loops, under_loops, unevenness
from tcjit.mapping.passes.parallelise import worth_region
from tcjit.mapping.passes.tile_reductions import ReductionTiling, Setting

WORK = 1 << 22  # terms of all results together that are worth the time of a second plan
SLOWER = 2  # times that a small product takes longer than its multiply-adds, at most
WORTH = 0.95  # of the time without blocks that they may take


@dataclass(frozen=True)
class Blocking:
    """The loops over blocks around a reduction, none where they are of no use; its register tile; and whether each iteration packs all
    operands."""

    loops: Loops = ()
    leaf: Leaf | None = None
    private: bool = False


def block_panels(before: Assignments, options: Options, machine: Machine) -> Assignments:
    """The program with the loops over blocks that its reductions are worth."""
    program, temporaries, setting = before.assignments, Temporaries(before), Setting(before, options, machine, prove=False)
    number = 1 + max((a.outer.number for a in program if a.outer), default=-1)
    parts: list[tuple[Assignment, ...]] = []
    while len(parts) < len(program):
        at = len(parts)
        a, following = program[at], program[at + 1 :]
        found = Blocking()
        if _is_large(a, before, machine):
            epilogue = epilogue_of(a, following, program[:at], temporaries.tensors)
            with temporaries.trial():
                found = _blocking(ReductionTiling(f"B{at}", a, epilogue, alone=True, by_rows=False, setting=setting), temporaries)
        if not found.loops:
            parts.append((a,))
            continue
        parts.append((under_loops(a, number, found.loops, found.leaf, private=found.private),))
        for e, naming in zip(following, epilogue.namings):
            parts.append((under_loops(e, number, [(naming[dim], size) for dim, size in found.loops]),))
        number += 1
    return before.with_parts(parts)


def _is_large(a: Assignment, before: Assignments, machine: Machine) -> bool:
    """Whether a reduction by itself has much to do with an operand that a core's cache does not hold, or enough for threads with one that
    is copied for lanes of results."""
    alone = a.reduction and not (a.final or a.empty or a.outer or a.dynamic or a.constraints)
    terms = prod(upper - lower for _, lower, upper in a.bounds)
    reads = [(access, before.storages[access.tensor]) for access in a.reads]
    if not alone or len(reads) < 2:
        return False
    if terms >= WORK and any(storage.elements * DTYPES[storage.dtype].bytes > machine.cache_bytes for _, storage in reads):
        return True
    if not worth_region(SLOWER * terms / machine.lanes(DTYPES[a.value.dtype].bytes) / machine.costs.fma_rate, machine.costs):
        return False
    last = (sub for access, storage in reads for sub, stride in zip(access.subscripts, storage.strides) if stride == 1)
    return any(isinstance(sub, Index) and sub.name in a.reduction for sub in last)


def _blocking(tiling: ReductionTiling, temporaries: Temporaries) -> Blocking:
    """The loops around a reduction, those over all points of dimensions first, then one over blocks."""
    a, setting = tiling.a, tiling.setting
    if number_of_chunks(a, temporaries, setting.program, setting.options, setting.machine) > 1:
        return Blocking()
    try:
        planned = tiling.planned(temporaries)
    except MappingError:
        return Blocking()  # it has no nest, or not this one
    if len(planned.rewritten.statements) > 1 or planned.before or planned.sums or planned.after or not setting.options.parallel:
        return Blocking()  # what is copied as a whole is read from memory anyway
    (s,), (plan,) = planned.rewritten.statements, planned.plans
    staged = [plan.operands[number] for number in sorted(plan.estimate.staged)]
    extents = {name: upper - lower for name, lower, upper in a.results if lower == 0 and len(s.merged.get(name, (name,))) == 1}
    blocks = _Blocks(s, plan, staged, extents, tiling.core, setting.machine)
    if plan.nest.leaf.block:
        return blocks.parts()
    if tiling.core.element * sum(prod(map(s.extent, flat.dims)) for flat in s.accesses) > tiling.core.l2:
        found = blocks.far()
        return found if found.loops else blocks.matrices()
    made = [storage for access in a.reads if (storage := temporaries.tensors[access.tensor]).role == "temporary"]
    if any(storage.elements * DTYPES[storage.dtype].bytes > setting.machine.near_bytes for storage in made):
        return Blocking()  # threads had other blocks when they computed it
    found = blocks.matrices()
    return found if found.loops else blocks.near()


@dataclass(frozen=True)
class _Blocks:
    """Loops over blocks of a statement's results, and what they cost. ``extents``: of the dimensions that can be in blocks."""

    s: FlatStatement
    plan: Plan
    staged: Sequence[Operand]
    extents: Mapping[str, int]
    core: Core
    machine: Machine

    def far(self) -> Blocking:
        """Blocks whose panels stay in the cache of a core, which does not hold all of them."""
        s, core, threads, leaf = self.s, self.core, self.machine.threads, self.plan.nest.leaf
        best: tuple[int, Loops] = (core.l2, ())
        for dim in (leaf.lane, *(row for row, _ in leaf.rows)):
            size, moving = leaf.tile(dim, core.lanes), [operand for operand in self.staged if dim in operand.dims]
            if not moving or dim not in self.extents:
                continue
            inside = {leaf.lane, *(row for row, _ in leaf.rows)}
            batch = [name for name in s.outputs if name not in inside and all(name in operand.dims for operand in moving)]
            if any(name not in self.extents for name in batch):
                continue
            whole = sum(map(self.bytes, moving))
            count = prod(self.extents[name] for name in batch)
            tiles = -(-self.extents[dim] // size)
            most = core.l2 // 2 * tiles * count // whole  # tiles whose panels stay in the cache
            if whole <= best[0] or most < 1:
                continue
            around = [(name, 1) for name in self.by_lines(batch)]
            in_lines = self.in_lines(around, most // tiles)
            blocks = prod(-(-self.extents[name] // size) for name, size in in_lines)
            if most >= tiles and blocks > 1 and unevenness(blocks, 1, threads) <= UNEVEN:
                best = whole, in_lines
            elif sizes := [n for n in range(min(most, tiles // threads), 0, -1) if unevenness(tiles, n, threads) <= UNEVEN]:
                best = whole, [*around, (dim, sizes[0] * size)]
        loops = best[1]
        return Blocking(loops, leaf) if loops and self.reread(loops) <= self.plan.moved + self.moved(loops) else Blocking()

    def by_lines(self, batch: Sequence[str]) -> list[str]:
        """The dimensions of a batch, those last whose next matrix lies in the lines of the one before."""
        s, element = self.s, self.core.element
        moved = [Moved(s.write.form, element, False), *(Moved(flat.form, DTYPES[a.dtype].bytes, False) for a, flat in s.reads.items())]
        one = {**s.extents, **dict.fromkeys(batch, 1)}
        lines = {dim: sum(each.footprint({**one, dim: 2}) for each in moved) for dim in batch}
        return sorted(batch, key=lambda dim: -lines[dim])

    def in_lines(self, loops: Loops, most: int) -> list[tuple[str, int]]:
        """The loops over a batch, with equal blocks of at most so many matrices of the last dimension where these lie in the same lines:
        each packs most of its lines at once."""
        if not loops:
            return []
        (last, _), s = loops[-1], self.s
        reads = [(flat, DTYPES[access.dtype].bytes) for access, flat in s.reads.items() if any(flat in o.flats for o in self.staged)]
        together = min((LINE // size for flat, size in reads if flat.stride(last) == 1), default=1)
        size = max(size for size in range(1, max(1, min(most, together)) + 1) if self.extents[last] % size == 0)
        return [*loops[:-1], (last, size)] if size < self.extents[last] else list(loops)

    def matrices(self) -> Blocking:
        """The matrices of a batch, each of which is packed where it is used: its panels are not written before, and read from afar."""
        core, cycles, leaf, threads = self.core, self.plan.estimate.cycles, self.plan.nest.leaf, self.machine.threads
        if not self.staged or not self.s.is_box or not worth_region(cycles, self.machine.costs):
            return Blocking()
        whole = sum(map(self.bytes, self.staged))
        best, least = Blocking(), MOVES * whole * core.far_byte(whole) / threads + core.passed_cycles(whole) + core.region
        inside = {leaf.lane, *(row for row, _ in leaf.rows)}
        for dim in (name for name in self.extents if name not in inside and all(name in operand.dims for operand in self.staged)):
            count = self.extents[dim]
            torn = TORN * core.passed_line * self.torn(dim, -(-count // threads))
            more = cycles * unevenness(count, 1, threads) / threads + torn + self.reread([(dim, 1)])
            if count >= threads and more < least:
                best, least = Blocking([(dim, 1)], leaf), more
        return best

    def near(self) -> Blocking:
        """Blocks, one for each thread, which packs what it needs: no thread reads lines that another one has written."""
        core, cycles, leaf, threads = self.core, self.plan.estimate.cycles, self.plan.nest.leaf, self.machine.threads
        if not self.staged or not self.s.is_box or not worth_region(cycles, self.machine.costs):
            return Blocking()
        packing = [(operand, core.transpose * prod(map(self.s.extent, operand.dims))) for operand in self.staged]
        passed = core.passed_cycles(sum(map(self.bytes, self.staged)))
        best, least = Blocking(), WORTH * (sum(cost for _, cost in packing) + passed + cycles / threads)
        for dim in (leaf.lane, *(row for row, _ in leaf.rows)):
            tiles = -(-self.extents.get(dim, 0) // (size := leaf.tile(dim, core.lanes)))
            block = -(-tiles // threads)
            if block == tiles or -(-tiles // block) < threads:
                continue
            if leaf.depth and self.extents[dim] % (block * size):
                continue  # a matrix unit has no partial tiles, and none overlap where the last block is shorter
            own = sum(cost / threads if dim in operand.dims else cost for operand, cost in packing)
            torn = TORN * core.passed_line * self.torn(dim, block * size)
            loops = [(dim, block * size)]
            time = own + cycles * (1 + unevenness(tiles, block, threads)) / threads + torn + self.reread(loops)
            if time < least:
                best, least = Blocking(loops, leaf, private=True), time
        return best

    def parts(self) -> Blocking:
        """Blocks, one for each thread, around those of terms: threads start once, and none waits for others between blocks of terms."""
        cycles, leaf, threads = self.plan.estimate.cycles, self.plan.nest.leaf, self.machine.threads
        found: list[tuple[float, Loops]] = []
        for dim in (leaf.lane, *(row for row, _ in leaf.rows)):
            tiles = -(-self.extents.get(dim, 0) // (size := leaf.tile(dim, self.core.lanes)))
            block = -(-tiles // threads)
            if block < tiles and -(-tiles // block) == threads:
                loops = [(dim, block * size)]
                torn = TORN * self.core.passed_line * self.torn(dim, block * size)
                found.append((cycles * (1 + unevenness(tiles, block, threads)) / threads + torn + self.reread(loops), loops))
        return Blocking(min(found)[1], leaf) if found else Blocking()

    def torn(self, dim: str, block: int) -> int:
        """Lines of results of which two threads have parts, where each thread has a block of a dimension."""
        write, element = self.s.write, self.core.element
        step = abs(write.stride(dim)) * element
        steps = [(abs(write.stride(other)) * element, self.s.extent(other)) for other in self.s.outputs]
        return torn_lines(step * block, [(other, extent) for other, extent in steps if other > step], self.machine.threads)

    def bytes(self, operand: Operand) -> int:
        return self.core.element * prod(map(self.s.extent, operand.dims))

    def reread(self, loops: Loops) -> float:
        """Cycles in which a core reads again for each block what does not move with it: as blocks are, of all terms."""
        s, blocks, cycles = self.s, {dim: -(-self.s.extent(dim) // size) for dim, size in loops}, 0.0
        for access, flat in s.reads.items():
            element, batch = DTYPES[access.dtype].bytes, [dim for dim, size in loops if size == 1 and dim in flat.dims]
            again = prod(count for dim, count in blocks.items() if dim not in flat.dims) - 1
            inside = element * prod(s.extent(dim) for dim in flat.dims if dim not in batch)
            cycles += again * inside * prod(s.extent(dim) for dim in batch) * self.core.far_byte(inside)
        return cycles

    def moved(self, loops: Loops) -> float:
        """Cycles in which panels go to where all of them have room, and come back."""
        dims = {dim for dim, _ in loops}
        whole = sum(self.bytes(operand) for operand in self.staged if dims <= operand.dims)
        return MOVES * whole * self.core.far_byte(whole)
