"""How long a kernel takes on a GPU, of one group or of several: its arithmetic, or what it moves, whichever is longer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.gpu_nest import GroupPlan, StatementPlan
from tcjit.mapping.operations import operations
from tcjit.mapping.plan_contraction import classes, tile_cycles
from tcjit.mapping.plan_facts import Facts
from tcjit.mapping.strides import accesses
from tcjit.mapping.tile_time import LOAD, WARPS

CALL = 10  # multiply-adds that a function takes as long as: an exponential, with its parts on the units for special functions


@dataclass(frozen=True, eq=False)
class Phase:
    """A group and its plan."""

    facts: Facts
    plan: GroupPlan

    @property
    def product(self) -> StatementPlan | None:
        """The item of the main statement, if it is a product whose terms go through shared memory."""
        item = next(item for item in self.plan.items if item.statement == self.facts.main.name)
        return item if item.steps and classes(self.facts) else None

    @property
    def kept(self) -> frozenset[str]:
        """Temporaries in shared memory all the while."""
        return self.facts.block.kept if self.facts.block else frozenset()

    @property
    def in_shared_memory(self) -> bool:
        """Whether all operands of the product lie in shared memory, or are copied to it."""
        s = self.facts.main
        copied = {a.tensor for name, a in self.plan.shared if name == s.name}
        return all(a.tensor in self.kept | copied for a in accesses(s)[2:])

    @property
    def blocks(self) -> int:
        return prod(share.blocks for share in self.plan.columns)

    # ------------------------------------------------------------ what takes time

    def arithmetic(self) -> float:
        """Cycles of the arithmetic and the loads from shared memory."""
        main = self.product.statement if self.product else None
        work = sum(s.points * (1 + operations(s.value, CALL)) for s in self.facts.statements if s.name != main)
        return self._of_product() + self._of_others(work + LOAD / 2 * self._kept_elements(main))

    def _of_product(self) -> float:
        item, found = self.product, classes(self.facts)
        if item is None or found is None:
            return 0.0
        across, down = found
        rate = self.facts.device.costs.mma_rate if item.mma else self.facts.device.costs.fma_rate
        sides = ([down.columns[0]], [across.columns[0]]) if item.mma else (across.columns, down.columns)
        shares = {c: self.plan.columns[c] for side in sides for c in side}
        terms = prod(min(share.tile, share.extent) for _, share in item.steps)
        return tile_cycles(self.facts, shares, sides, (terms, self.plan.stages), rate)

    def _kept_elements(self, main: str | None) -> int:
        """Reads and writes of what lies in shared memory by statements that are no product, each element once, several at a time."""
        others = [s for s in self.facts.statements if s.name != main]
        read = {a.tensor for s in others for a, _ in s.reads()} & self.kept
        written = {s.tensor for s in self.facts.statements} & self.kept
        return sum(self.facts.scop.tensor(name).elements for name in [*read, *written])

    def _of_others(self, work: float) -> float:
        """Cycles of so many operations outside of products."""
        costs, processors = self.facts.device.costs, self.facts.device.processors
        resident = self.facts.block.resident if self.facts.block else self.facts.device.resident_blocks
        together = min(resident, -(-self.blocks // processors))
        busy = min(1.0, together * self.plan.threads / (costs.fma_rate * WARPS))
        return -(-self.blocks // processors) * work / self.blocks / (costs.fma_rate * busy)

    def read_again(self) -> float:
        """Bytes that blocks read of the operands of the product, tile by tile."""
        s = self.facts.main
        if self.product is None:
            return 0.0
        total = 0.0
        for a in dict.fromkeys(accesses(s)[2:]):
            columns = zip(self.plan.columns, self.facts.dims(s), strict=True)
            tiles = [share.tiles for share, dim in columns if not self.facts.moves_with(a, dim)]
            if a.tensor not in self.kept:
                total += self.facts.scop.tensor(a.tensor).elements * DTYPES[a.dtype].bytes * prod(tiles)
        return total


def cycles(phases: Sequence[Phase]) -> float:
    """Of a kernel of one or several groups."""
    device = phases[0].facts.device
    moved = _moved(phases) / device.costs.memory
    again = sum(phase.read_again() for phase in phases) / device.costs.l2_load
    return max(sum(phase.arithmetic() for phase in phases), moved, again) + device.costs.launch


def _moved(phases: Sequence[Phase]) -> int:
    """Bytes that a kernel reads from memory and writes to it, each element once."""
    scop = phases[0].facts.scop
    read, written = set[str](), set[str]()
    for phase in phases:
        for s in phase.facts.statements:
            read |= {a.tensor for a, _ in s.reads()} - written - phase.kept
            written |= {s.tensor} - phase.kept
    own = {s.name for phase in phases for s in phase.facts.statements}
    last = max(number for number, s in enumerate(scop.statements) if s.name in own)
    needed = {a.tensor for s in scop.statements[last + 1 :] for a, _ in s.reads()}
    stored = [name for name in written if name in needed or scop.tensor(name).role == "output"]
    return sum(scop.tensor(name).elements * DTYPES[scop.tensor(name).dtype].bytes for name in [*read, *stored])
