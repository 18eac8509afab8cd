"""How long a kernel takes on a GPU, of one group or of several: its instructions, waiting for memory, or what it moves.

The plans of a group, and those of groups with and without a kernel in common, are compared by this alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import field
from functools import cached_property
from math import log2, prod

from tcjit.dataclass import dataclass
from tcjit.mapping.footprint import WIDE, box, piece
from tcjit.mapping.gpu.statement_group import SECTOR, WARP, MemoryAccess, StatementGroup
from tcjit.mapping.gpu_nest import GroupPlan, StatementPlan
from tcjit.mapping.operations import operations
from tcjit.mapping.scop import ScopStatement
from tcjit.mapping.strides import KEPT
from tcjit.mapping.tile_time import LOAD, WARPS, BlockTile, overlapped

CALL = 10  # multiply-adds that a function takes as long as: an exponential, with its parts on the units for special functions
ISSUE = 2  # multiply-adds of a warp that an access takes beside what it moves: the instruction and its address
LOADS = 8  # of a loop that are under way at once; of a short one, which is unrolled, all
REGISTERS = 24  # of a thread beside the elements that it keeps
CACHE = 32 << 20  # bytes that the L2 cache keeps for what a group reads again
REREAD = 1 / 3  # of the latency of memory that caches take, which have what a group reads again
BARRIER = 50.0  # cycles of a block's barrier
EXCHANGE = 30.0  # cycles of a value's way to another thread of its warp, or through shared memory
COPY = 2.0  # cycles of a processor that a warp's copy to shared memory takes: the load, its address and its store
FILL = 64  # bytes of sectors that a processor gets from the L2 cache in a cycle


@dataclass
class Work:
    """What statements without products take: ``instructions``, in multiply-adds of a thread; the bytes of the sectors that they
    ``touch``; how long a block waits for them, in cycles; the elements of a lane that a thread keeps in ``registers``; and the bytes that
    later statements read ``again``, tensor by tensor."""

    instructions: float = 0.0
    touched: float = 0.0
    waiting: float = 0.0
    registers: int = 1
    again: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Copied:
    """What the copy of a piece to shared memory takes: accesses of warps, the sectors that they touch, and the elements."""

    requests: float = 0.0
    sectors: float = 0.0
    elements: int = 0



@dataclass(frozen=True, eq=False)
class Phase:
    """A group and its plan."""

    group: StatementGroup
    plan: GroupPlan

    @cached_property
    def product(self) -> StatementPlan | None:
        """The item of the main statement, if it is a product whose terms go through shared memory."""
        item = next(item for item in self.plan.items if item.statement == self.group.main.name)
        return item if item.steps and self.group.reuse else None

    @property
    def in_shared_memory(self) -> bool:
        """Whether all operands of the product lie in shared memory, or are copied to it."""
        s = self.group.main
        return all(a.tensor in self.group.kept or (s.name, a.access) in self.plan.shared for a in self.group.operands(s))

    @property
    def blocks(self) -> int:
        return prod(share.blocks for share in self.plan.columns)

    # ------------------------------------------------------------ products

    def product_cycles(self) -> float:
        """Of a product whose terms go through shared memory."""
        item, reuse, device = self.product, self.group.reuse, self.group.device
        if item is None or reuse is None:
            return 0.0
        across, down = (side[:1] if item.mma else side for side in reuse)
        sides = (down, across) if item.mma else (across, down)
        columns, along = self.plan.columns, [[self.plan.columns[c] for c in side] for side in sides]
        # threads that go on in the next row of an operand meet others in the banks of shared memory, of which there is a power of two
        level = [len(side) == 1 or (side[0].threads * side[0].vector).bit_count() == 1 for side in along]
        vectors = [side[0].vector if fits else 1 for side, fits in zip(along, level, strict=True)]
        # of rows that are kept a thread loads neighbouring terms
        vectors = [4 if self.group.along_rows(side[0]) else vector for side, vector in zip(sides, vectors, strict=True)]
        copies = [self._copied(item, a) for a in self.group.operands(self.group.main)]
        tile = BlockTile(
            [prod(share.per_thread for share in side) for side in along],
            prod(share.threads * share.warps for side in along for share in side),
            prod(min(share.tile, share.extent) for _, share in item.steps),
            sum(self._piece(item, a) * a.bytes for a in self.group.operands(self.group.main) if a.tensor not in self.group.kept),
            self.plan.stages,
            vectors,
            self.group.block.resident if self.group.block else device.resident_blocks,
            COPY * sum(copied.requests for copied in copies),
            SECTOR / FILL * sum(copied.sectors for copied in copies),
        )
        terms = prod(self.group.main.extent(dim) for dim in self.group.main.reduction) * prod(share.sequence for share in columns)
        return tile.cycles(self.blocks, terms, device, device.costs.mma_rate if item.mma else device.costs.fma_rate)

    def _copied(self, item: StatementPlan, a: MemoryAccess) -> Copied:
        """What a block's copy of an operand in a step takes."""
        storage = self.group.scop.tensor(a.tensor)
        found = None if a.tensor in self.group.kept else piece(storage, self.group.main, self.plan, item, a.access, self.group.scop.values)
        if found is None:
            return Copied()
        near, steps = found.contiguous, storage.strides
        run = found.sizes[near]
        others = [step or 1 for axis, step in enumerate(steps) if axis != near and storage.shape[axis] > 1]
        wide = WIDE // a.bytes
        while wide > 1 and any(fact % wide for fact in (run, storage.shape[near], *others)):
            wide //= 2
        apart = (steps[near] or SECTOR) * a.bytes
        ragged = wide == 1
        for axis in sorted(range(len(steps)), key=lambda axis: steps[axis] or 1 << 62):
            if axis != near and found.sizes[axis] > 1 and steps[axis] == run * (steps[near] or 0) and run == storage.shape[near]:
                run *= found.sizes[axis]
        rows = prod(found.sizes) / run
        sectors = rows * max(1.0, run * min(apart, SECTOR) / SECTOR + ragged * (apart < SECTOR) * 0.5)
        together = wide if steps[near] == 1 and found.fast == near else 1
        return Copied(prod(found.sizes) / together / WARP, sectors, prod(found.sizes))

    def _piece(self, item: StatementPlan, a: MemoryAccess) -> int:
        """The elements of an operand that a block uses in a step."""
        shares = {dim: item.share(dim, self.plan.columns) for dim in a.strides}
        spans = {dim: self.group.main.extent(dim) if share is None else min(share.tile, share.extent) for dim, share in shares.items()}
        return prod(box(a.forms, spans))

    def _read_again(self) -> float:
        """Bytes of the sectors that blocks read of the operands of the product, tile by tile."""
        if self.product is None:
            return 0.0
        pieces = prod(share.tiles for share in self.plan.columns) * prod(share.tiles for _, share in self.product.steps)
        return sum(self._copied(self.product, a).sectors for a in self.group.operands(self.group.main)) * pieces * SECTOR

    def _wasted(self) -> float:
        """Bytes of sectors of which a product uses a part, of operands that the cache does not hold until others use the rest."""
        total = 0.0
        for a in self.group.operands(self.group.main) if self.product else ():
            size = self.group.scop.tensor(a.tensor).elements * a.bytes
            copied = self._copied(self.product, a) if self.product and size > CACHE else Copied()
            total += max(0.0, copied.sectors * SECTOR / max(1, copied.elements * a.bytes) - 1) * size
        return total

    # ------------------------------------------------------------ other statements

    @cached_property
    def work(self) -> Work:
        """Of all statements but the product."""
        work, in_registers, read = Work(), set[Hashable](), set[str]()
        for item, s in zip(self.plan.items, self.group.statements, strict=True):
            if item is self.product:
                in_registers |= {self._place(item, s, a) for a in self.group.accesses(s)[:2]}
                continue
            work.instructions += self._instances(item, s) * (1 + operations(s.value, CALL))
            waits = 0.0
            for number, a in enumerate(self.group.accesses(s)):
                place = self._place(item, s, a)
                internal = place[0] == a.tensor in self.group.internal
                if item.lane and (place in in_registers or internal) and a.moves(item.lane[0]):
                    work.registers = max(work.registers, item.lane[1].per_thread)
                if place not in in_registers and not internal and not (number == 1 and s.operator != "="):
                    in_registers.add(place)
                    if number and a.tensor in read:
                        work.again.append(self.group.elements(s, a) * a.bytes)
                    waits = max(waits, self._access(work, item, s, a, a.tensor in read) * bool(number))
            read |= {a.tensor for a in self.group.accesses(s)}
            work.waiting += waits + self._combining(item, s)
        work.waiting *= prod(share.sequence for share in self.plan.columns)
        return work

    def _access(self, work: Work, item: StatementPlan, s: ScopStatement, a: MemoryAccess, cached: bool) -> float:
        """Adds what an access takes; the cycles that a read waits for memory, or for a cache that has it."""
        requests, sectors, fresh, width, per_thread = self._requests(item, s, a)
        latency = self.group.device.costs.load_latency
        if a.tensor in self.group.kept:
            work.instructions += requests * WARP * LOAD / 2 * max(1, sectors * SECTOR // (WARP * width))
            return _batches(per_thread) * EXCHANGE
        if (s.name, a.access) in self.plan.shared:  # read along its rows, and transposed in shared memory
            copied = self.group.elements(s, a) * a.bytes
            work.instructions += 3 * LOAD * copied / 4
            work.touched += copied
            return latency + BARRIER
        work.instructions += requests * WARP * (max(sectors, LOAD) + ISSUE)
        written = any(a.tensor == one.tensor for one in self.group.statements)  # the L1 cache passes it on
        work.touched += requests * (sectors if written else fresh) * SECTOR
        return _batches(per_thread) * latency * (REREAD if cached else 1)

    def _place(self, item: StatementPlan, s: ScopStatement, a: MemoryAccess) -> tuple[Hashable, ...]:
        """What is equal for accesses that are one register of a thread."""
        roles = list(map(item.role, a.strides))
        if a.shifted or None in roles or ("lane" in roles and item.lane and item.lane[1].per_thread > KEPT):
            return (s.name, a.access)
        return (a.tensor, tuple(sorted(map(str, roles))))

    def _instances(self, item: StatementPlan, s: ScopStatement) -> float:
        """Of a statement, those of threads beyond the ends and of idle ones counted in."""
        total = 1.0
        for dim in s.dims:
            share = item.share(dim, self.plan.columns)
            total *= s.extent(dim) if share is None else share.tiles * share.whole_tile
        return total * self._idle(item)

    def _idle(self, item: StatementPlan) -> float:
        """Threads of a warp for each that has work."""
        lanes = 1 if item.lane or self.plan.lane_first else min(self.plan.lane_threads, WARP)
        return lanes * WARP / min(WARP, self.plan.threads)

    def _requests(self, item: StatementPlan, s: ScopStatement, a: MemoryAccess) -> tuple[float, int, float, int, int]:
        """How often warps make an access, the sectors that it touches then and those that none of their accesses before did, the bytes of
        each thread, and how often one makes it."""
        threads, rounds, width = 1, 1, a.bytes
        spans = {dim: s.extent(dim) for dim in a.strides}  # values of a thread, neighbours
        for dim in s.dims:
            if (share := item.share(dim, self.plan.columns)) is None:
                continue
            threads *= share.tiles * share.threads * share.warps
            if a.moves(dim):
                rounds *= share.rounds
                spans[dim] = share.vector
            aligned = a.stride(dim) == 1 and not any((step or 0) % share.vector for d, step in a.strides.items() if d != dim)
            if share.vector > 1 and aligned:
                width, spans[dim] = share.vector * a.bytes, 1
        per_thread = rounds * prod(spans.values())
        if a.shifted and a.affine:  # neighbours share elements of their windows
            per_thread = min(per_thread, rounds * prod(box(a.forms, spans)))
        starts = [0]
        for dim, level, share in reversed(self.plan.digits(item)):
            (apart, count), step = share.levels[level], a.stride(dim)
            moved = apart * a.bytes * (step if step is not None else SECTOR)
            starts = [start + n * moved for n in range(min(count, -(-WARP // len(starts)))) for start in starts][:WARP]
        sectors = _sectors(starts, width)
        shares = {dim: item.share(dim, self.plan.columns) for dim in s.dims if a.stride(dim) == 1}
        near = [(share.levels["round"][0], share.rounds) if share else (1, s.extent(dim)) for dim, share in shares.items()]
        step, count = max(near, key=lambda loop: loop[1], default=(1, 1))  # of the loop in which a thread comes back to its sectors
        again = [n * step * a.bytes for n in range(min(count, KEPT))]
        fresh = len(_sectors([start + moved for moved in again for start in starts], width)) / len(again)
        return threads * per_thread * self._idle(item) / WARP, len(sectors), min(fresh, len(sectors)), width, per_thread

    def _combining(self, item: StatementPlan, s: ScopStatement) -> float:
        """Cycles in which the threads of a lane combine what they have of a reduction."""
        threads = self.plan.lane_threads
        if not item.lane or item.lane[0] not in s.reduction or threads == 1:
            return 0.0
        if self.plan.lane_first:
            return BARRIER + EXCHANGE + threads * EXCHANGE / 4
        return EXCHANGE * log2(threads) + (2 * BARRIER if threads > WARP else 0.0)

    @cached_property
    def resident(self) -> int:
        """Blocks of a processor at once, of what is no product."""
        if self.group.block:
            return self.group.block.resident
        device, threads = self.group.device, self.plan.threads
        registers = REGISTERS + self.work.registers * prod(share.per_thread for share in self.plan.columns)
        return max(1, min(device.resident_threads // threads, device.registers // registers // threads, device.resident_blocks))

    @property
    def waves(self) -> int:
        return -(-self.blocks // (self.group.device.processors * self.resident))

    def cycles(self, alone: bool = True) -> float:
        """Of the instructions and of waiting for memory; ``alone`` in its kernel, of which it then has the start."""
        costs = self.group.device.costs
        a_processor = -(-self.blocks // self.group.device.processors)
        busy = min(1.0, min(self.resident, a_processor) * self.plan.threads / (costs.fma_rate * WARPS))
        issue = a_processor * self.work.instructions / self.blocks / (costs.fma_rate * busy)
        if self.product:
            return self.product_cycles() + issue
        start = costs.block - costs.load_latency  # that of its first loads is among what statements wait for
        return overlapped(issue, self.waves * (self.work.waiting + (start if alone else 0)))

    def touched(self) -> float:
        """Bytes that go through the L2 cache."""
        return self._read_again() + self.work.touched

    def moved_again(self) -> float:
        """Bytes that are read from memory once more, as the cache has lost them since."""
        return sum(size for size in self.work.again if size > self.waves * CACHE) + self._wasted()


def cycles(phases: Sequence[Phase]) -> float:
    """Of a kernel of one or several groups."""
    costs = phases[0].group.device.costs
    computing = sum(phase.cycles(len(phases) == 1) for phase in phases)
    touched = sum(phase.touched() for phase in phases)
    moved = _moved(phases) + sum(phase.moved_again() for phase in phases)
    return overlapped(computing, moved / costs.memory, touched / costs.l2_load) + costs.launch


def _sectors(starts: Sequence[int], width: int) -> set[int]:
    """Those that so many bytes from some places on touch."""
    return {place for start in starts for place in range(start // SECTOR, (start + width - 1) // SECTOR + 1)}


def _batches(loads: int) -> int:
    """How often a thread waits that makes so many loads."""
    return 1 if loads <= KEPT else -(-loads // LOADS)


def _moved(phases: Sequence[Phase]) -> int:
    """Bytes that a kernel reads from memory and writes to it, each element once."""
    scop = phases[0].group.scop
    read, written = dict[str, int](), dict[str, int]()
    for phase in phases:
        for s in phase.group.statements:
            write, *reads = phase.group.accesses(s)
            for a in reads:
                if a.tensor not in written.keys() | phase.group.kept:
                    read[a.tensor] = max(read.get(a.tensor, 0), phase.group.elements(s, a) * a.bytes)
            if s.tensor not in phase.group.kept:
                written[s.tensor] = max(written.get(s.tensor, 0), phase.group.elements(s, write) * write.bytes)
    own = {s.name for phase in phases for s in phase.group.statements}
    last = max(number for number, s in enumerate(scop.statements) if s.name in own)
    needed = {a.tensor for s in scop.statements[last + 1 :] for a, _ in s.reads}
    stored = (size for name, size in written.items() if name in needed or scop.tensor(name).role == "output")
    return sum(read.values()) + sum(stored)
