"""GPU kernels as data: how loops are shared out over blocks, uniform steps and threads, before they become a schedule tree.

Everything here is text that isl reads, over a statement's dimensions; ``map_to_blocks`` and ``map_to_threads`` turn it into bands and
marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tcjit.grammar.affine import isl_name
from tcjit.grammar.ast import Access
from tcjit.mapping.marks import Launch
from tcjit.mapping.storage import Buffer


@dataclass(frozen=True)
class Distribution:
    """How ``extent`` values from ``lower`` on are shared out. Blocks take ``tile`` values each; a place in a tile is

        ((warp * rounds + round) * threads + thread) * vector + neighbour

    so that a thread has ``vector`` neighbours, ``rounds`` times over. ``warp`` and ``thread`` are digits of the thread's number. A block
    takes ``sequence`` tiles, one after the other.
    """

    lower: int
    extent: int
    tile: int
    threads: int = 1
    vector: int = 1
    warps: int = 1
    sequence: int = 1

    @property
    def tiles(self) -> int:
        return -(-self.extent // self.tile)

    @property
    def blocks(self) -> int:
        return -(-self.tiles // self.sequence)

    @property
    def rounds(self) -> int:
        return -(-self.tile // (self.warps * self.threads * self.vector))

    @property
    def whole_tile(self) -> int:
        """Values of a tile in which every thread has a value in each of its rounds."""
        return self.warps * self.rounds * self.threads * self.vector

    @property
    def per_thread(self) -> int:
        """Values of one thread."""
        return self.rounds * self.vector

    @property
    def shared_out(self) -> bool:
        """Whether several threads have a part."""
        return self.threads * self.warps > 1

    @property
    def digits(self) -> tuple[tuple[int, int], ...]:
        """A value less ``lower`` as digits of a mixed radix: the weight and the count of each, most significant first."""
        unit, whole = self.threads * self.vector, self.whole_tile
        if self.tiles > 1 and self.tile != whole:
            return ((1, self.extent),)
        tiles = ((whole * self.sequence, self.blocks), (whole, min(self.sequence, self.tiles)))
        digits = (*tiles, (self.rounds * unit, self.warps), (unit, self.rounds), (self.vector, self.threads), (1, self.vector))
        return tuple((weight, count) for weight, count in digits if count > 1) or ((1, 1),)

    def tile_text(self, dim: str) -> str:
        return f"floor(({self._moved(dim)})/{self.tile})"

    def block_text(self, dim: str) -> str:
        return f"floor(({self._moved(dim)})/{self.tile * self.sequence})"

    def sequence_text(self, dim: str) -> str:
        """Which of its block's tiles a value lies in."""
        return self.tile_text(dim) if self.blocks == 1 else f"({self.tile_text(dim)}) mod {self.sequence}"

    def warp_text(self, dim: str) -> str:
        return f"floor(({self.local_text(dim)})/{self.per_thread * self.threads})"

    def thread_text(self, dim: str) -> str:
        place = self.local_text(dim) if self.vector == 1 else f"floor(({self.local_text(dim)})/{self.vector})"
        return place if self.rounds * self.warps == 1 else f"({place}) mod {self.threads}"

    def round_text(self, dim: str) -> str:
        place = f"floor(({self.local_text(dim)})/{self.threads * self.vector})"
        return place if self.warps == 1 else f"({place}) mod {self.rounds}"

    def vector_text(self, dim: str) -> str:
        return f"({self.local_text(dim)}) mod {self.vector}"

    def local_text(self, dim: str) -> str:
        """The place in the tile."""
        return self._moved(dim) if self.tiles == 1 else f"({self._moved(dim)}) mod {self.tile}"

    def _moved(self, dim: str) -> str:
        return f"{isl_name(dim)} - {self.lower}" if self.lower else isl_name(dim)


@dataclass(frozen=True)
class StatementPlan:
    """A statement of a group on its way to a region: the dimension that runs along each column of the group, the one of its other
    dimensions that threads share (the lane), and the reduction dimensions that a block takes in steps."""

    statement: str
    columns: tuple[str, ...]
    lane: tuple[str, Distribution] | None = None
    steps: tuple[tuple[str, Distribution], ...] = ()
    reduce: bool = False  # combines partial results of the lane's threads
    mma: bool = False  # the threads of a warp compute together, on tensor cores
    padded: bool = False  # computes whole tiles, of zeros beyond the last term

    def share(self, dim: str, columns: tuple[Distribution, ...]) -> Distribution | None:
        """How a dimension is shared out, None for one that each thread runs through."""
        if dim in self.columns:
            return columns[self.columns.index(dim)]
        if self.lane and self.lane[0] == dim:
            return self.lane[1]
        return dict(self.steps).get(dim)


@dataclass(frozen=True)
class GroupPlan:
    """What the model decides for a group of statements that share ``columns``.

    ``order`` lists the columns that threads share, slowest first; the lane, if any statement has one, comes after them, or before them
    where ``lane_first``. ``shared`` lists reads that are worth a copy in shared memory, by statement.
    """

    columns: tuple[Distribution, ...]
    order: tuple[int, ...]
    items: tuple[StatementPlan, ...]
    lane_threads: int = 1
    lane_first: bool = False
    shared: tuple[tuple[str, Access], ...] = ()
    use_registers: bool = True  # keep what is used again in registers
    stages: int = 1  # of the copies to shared memory; 1: filled, then read
    vector: int = 0  # elements that a thread copies at once, at most; 0: as many as an access can have
    fused: bool = False  # its blocks go on with what those of the plan before it left in shared memory

    @property
    def steps(self) -> bool:
        """Whether a statement takes the terms of a reduction in several steps."""
        return any(share.tiles > 1 for item in self.items for _, share in item.steps)

    @property
    def ahead_over_tiles(self) -> int:
        """How many tiles a block takes in a loop over which copies run ahead, the last column's; 1: they do that over steps, or not."""
        last = [share.sequence for share in self.columns if share.tiles > 1][-1:]
        return 1 if self.steps or not last else last[0]

    @property
    def radices(self) -> tuple[int, ...]:
        warps = tuple(self.columns[c].warps for c in self.order if self.columns[c].warps > 1)
        columns = (*warps, *(self.columns[c].threads for c in self.order if self.columns[c].threads > 1))
        if self.lane_threads == 1:
            return columns or (1,)
        return (self.lane_threads, *columns) if self.lane_first else (*columns, self.lane_threads)

    @property
    def threads(self) -> int:
        return prod(self.radices)


@dataclass(frozen=True)
class MappedStatement:
    """A statement on the threads of a block: ``members`` give the digits of the thread's number, ``loops`` what one thread runs through,
    outermost first; the last ``unrolled`` of them are unrolled, and the very last one, if ``vector``, is one vector access."""

    statement: str
    radices: tuple[int, ...]
    members: tuple[str, ...]
    loops: tuple[str, ...]
    unrolled: int = 0
    vector: bool = False
    reduce: bool = False
    mma: bool = False
    async_copy: bool = False  # its copies may arrive later, at a ``WaitGroup``
    shares: tuple[tuple[str, Distribution], ...] = ()  # of its dimensions, those that are shared out


@dataclass(frozen=True)
class SequentialLoops:
    """Loops that all threads of a block run together; per loop, statement -> its step.

    With ``stages`` of 2 and more the copies of the body run that many steps less one ahead of what reads them.
    """

    loops: tuple[dict[str, str], ...]
    body: tuple[BlockNode, ...]
    stages: int = 1


BlockNode = MappedStatement | SequentialLoops


@dataclass(frozen=True)
class StagedCopy:
    """``fills`` fill a piece of shared memory for ``reader``; ``blocks`` and ``steps`` are their dimensions for the uniform loops: numbers
    of tiles."""

    fills: tuple[MappedStatement, ...]
    reader: str
    blocks: tuple[tuple[str, Distribution], ...]
    steps: tuple[str, ...]
    buffer: Buffer


@dataclass(frozen=True)
class LaunchBounds:
    """The kernel below the mark ``mark`` runs on blocks of ``threads``."""

    mark: Launch
    threads: int


@dataclass(frozen=True)
class GpuKernel:
    """One launch: block loops (statement -> the block's number), what a block does, threads of a block, its small buffers."""

    blocks: tuple[dict[str, str], ...]
    body: tuple[BlockNode, ...]
    threads: int
    buffers: tuple[Buffer, ...]

    @property
    def statements(self) -> tuple[str, ...]:
        return tuple(region.statement for region in mapped_statements(self.body))


def by_kernel(plans: Sequence[GroupPlan]) -> tuple[tuple[GroupPlan, ...], ...]:
    """The plans of each kernel."""
    kernels: list[tuple[GroupPlan, ...]] = []
    for plan in plans:
        if plan.fused:
            kernels[-1] += (plan,)
        else:
            kernels.append((plan,))
    return tuple(kernels)


def mapped_statements(body: tuple[BlockNode, ...]) -> Iterator[MappedStatement]:
    """The statements of a body, in order."""
    for phase in body:
        if isinstance(phase, SequentialLoops):
            yield from mapped_statements(phase.body)
        else:
            yield phase
