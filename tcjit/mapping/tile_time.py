"""How long the blocks of a contraction take on a GPU: by their arithmetic and their loads from shared memory, or by waiting for memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tcjit.dataclass import dataclass
from tcjit.mapping.machine import Device

# threads along rows and columns of a block's tile, and results of one thread along them
TILES = ((16, 16, 8, 8), (16, 16, 4, 4), (8, 16, 4, 4), (16, 16, 2, 2), (8, 16, 2, 2), (8, 8, 2, 2), (16, 16, 1, 1), (8, 8, 1, 1))
# warps down and across a block's tile on tensor cores, and instructions of one warp down and across
MMA_TILES = ((2, 2, 4, 8), (2, 4, 4, 4), (2, 2, 2, 4), (2, 2, 1, 2), (1, 2, 1, 2))
MMA_STAGES = (3, 2, 1)  # of the copies: asynchronous ones keep the next steps out of the registers, which the results fill
MMA_STEPS = (64, 32, 16)  # terms that pass through shared memory at once: 128 bytes of a row, or what divides it; at least an instruction's
WARPS = 2.5  # of a scheduler, on average, of which one computes while others wait for shared memory
LOAD = 4  # multiply-adds of a warp that take as long as a load from shared memory
VECTOR_LOADS = {1: 4.5, 2: 5.0, 4: 5.0}  # the same for the operands of a tile, of so many neighbours at once
OVERLAP = 0.9  # of what takes less time that the longest hides
BARRIER = 60  # cycles in which a block waits for its last warp, each step
ADDRESSES = 32  # registers of a thread beside its results and operands
STEP_ELEMENTS = 4096  # of both operands that pass through shared memory at once where copies run ahead
STEPS = (8, 64)  # terms that these are, at least and at most
STAGES = 3  # of copies that run ahead


@dataclass(frozen=True)
class BlockTile:
    """A block's tile: results of a thread along its sides, its ``threads``; terms of a ``step``, and ``bytes`` of the operands in one, as
    many times as there are ``stages`` in shared memory at once; ``vectors``: the neighbours that a thread loads at once along the sides;
    ``most``: blocks of a processor at once, at most; ``copying``: cycles of a processor that the copies of a step take,
    and ``filling``, those in which their sectors arrive."""

    per_thread: Sequence[int]
    threads: int
    step: int
    bytes: int
    stages: int = 1
    vectors: Sequence[int] = (4, 4)
    most: int = 32
    copying: float = 0.0
    filling: float = 0.0

    def cycles(self, blocks: int, terms: int, device: Device, rate: float) -> float:
        """Of all blocks, each with so many terms; ``rate`` is the multiply-adds of a processor in a cycle."""
        resident = self.resident(device)
        together = min(resident, -(-blocks // device.processors))
        loaded = sum(each * VECTOR_LOADS[vector] / vector for each, vector in zip(self.per_thread, self.vectors, strict=True))
        loads = 1 + loaded / prod(self.per_thread)
        lanes = device.costs.fma_rate * (WARPS if rate == device.costs.fma_rate else 1)  # an instruction of tensor cores takes long
        threads = -(-self.threads // device.warp) * device.warp
        busy = min(1.0, together * threads / lanes)  # a processor with few warps is not
        term = threads * prod(self.per_thread) * loads / (rate * busy)
        steps, latency = -(-terms // self.step), device.costs.load_latency
        step = max(self.step * term + self.copying + BARRIER, self.filling)
        whole = max(terms * term + steps * (self.copying + BARRIER), steps * self.filling)
        waves = -(-blocks // (device.processors * resident))
        alone = step + latency if self.stages == 1 else max(step, latency / (self.stages - 1))
        waiting = waves * ((steps - 1) * alone + step)  # the first wait is part of a block's start
        computing = -(-blocks // device.processors) * whole
        return overlapped(computing, waiting) + waves * device.costs.block

    def resident(self, device: Device) -> int:
        """Blocks of a processor at once."""
        registers = prod(self.per_thread) + 2 * sum(self.per_thread) + ADDRESSES
        shared = max(1, self.stages * self.bytes)
        threads = min(device.resident_threads, device.registers // registers)
        return max(1, min(threads // self.threads, device.max_shared_bytes // shared, device.resident_blocks, self.most))


def overlapped(*times: float) -> float:
    """What takes less time is hidden by the longest for the most part."""
    return OVERLAP * max(times) + (1 - OVERLAP) * sum(times)


def step_of(lines: int) -> int:
    """The terms that pass through shared memory at once, where copies run ahead, of a tile with so many rows and columns together."""
    least, most = STEPS
    return max(least, min(most, 1 << (STEP_ELEMENTS // lines).bit_length() - 1))


def mma_extent(tile: tuple[int, int, int, int]) -> tuple[int, int]:
    """The rows and columns of one of ``MMA_TILES``: an instruction computes 16 by 8 results."""
    return tile[0] * tile[2] * 16, tile[1] * tile[3] * 8
