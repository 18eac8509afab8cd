"""GPU kernels as data: how loops are shared out over blocks, uniform steps and threads, before they become a schedule tree.

``map_to_blocks`` and ``map_to_threads`` make bands of the digits of these shares, as text that isl reads, over a statement's dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import isl_name
from tcjit.grammar.ast import Access
from tcjit.mapping.marks import Launch
from tcjit.mapping.storage import Buffer

UNROLLED = 1024  # statements of a completely unrolled piece of a reduction
LEVELS = ("block", "tile"), ("warp", "round", "thread", "vector")  # the digits of a tile's number, and of a place in a tile


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
    def numbers(self) -> Distribution:
        """How the numbers of the tiles are shared out."""
        return Distribution(0, self.tiles, 1, sequence=self.sequence)

    @property
    def levels(self) -> dict[str, tuple[int, int]]:
        """The digits of a value less ``lower``, most significant first: the weight and the count of each."""
        unit = self.threads * self.vector
        return {
            "block": (self.tile * self.sequence, self.blocks),  # or the step of a reduction
            "tile": (self.tile, min(self.sequence, self.tiles)),
            "warp": (self.rounds * unit, self.warps),
            "round": (unit, self.rounds),
            "thread": (self.vector, self.threads),
            "vector": (1, self.vector),
        }

    @property
    def digits(self) -> tuple[tuple[int, int], ...]:
        """Those with several values, where each counts in whole ones of the next; else the value as it is."""
        if self.tiles > 1 and self.tile != self.whole_tile:
            return ((1, self.extent),)
        return tuple((weight, count) for weight, count in self.levels.values() if count > 1) or ((1, 1),)

    def text(self, level: str, dim: str) -> str:
        """A digit of a value of a dimension."""
        weight, count = self.levels[level]
        place = f"{isl_name(dim)} - {self.lower}" if self.lower else isl_name(dim)
        of_tiles, inside = LEVELS
        names = inside if level in inside else of_tiles
        if names is inside and self.tiles > 1:
            place = f"({place}) mod {self.tile}"
        if weight > 1:
            place = f"floor(({place})/{weight})"
        above = prod(self.levels[name][1] for name in names[: names.index(level)])
        return place if above == 1 else f"({place}) mod {count}"


@dataclass(frozen=True)
class StatementPlan:
    """A statement of a group on its way to the threads: the dimension that runs along each column of the group, the one of its other
    dimensions that threads share (the lane), and the reduction dimensions that a block takes in steps.

    A statement that copies to shared memory what a ``reader`` uses counts tiles along columns and steps; the axes of the piece that it
    copies are shared out over all threads, slowest first.
    """

    statement: str
    columns: tuple[str, ...]
    lane: tuple[str, Distribution] | None = None
    steps: tuple[tuple[str, Distribution], ...] = ()
    reduce: bool = False  # combines partial results of the lane's threads
    mma: bool = False  # the threads of a warp compute together, on tensor cores
    padded: bool = False  # computes whole tiles, of zeros beyond the last term
    reader: str = ""
    axes: tuple[tuple[str, Distribution], ...] = ()
    async_copy: bool = False  # its copies may arrive later, at a ``WaitGroup``

    def role(self, dim: str) -> int | str | None:
        """The number of the column that a dimension runs along, or ``lane``; None for one that threads do not share."""
        if dim in self.columns:
            return self.columns.index(dim)
        return "lane" if self.lane and self.lane[0] == dim else None

    def column(self, number: int, columns: tuple[Distribution, ...]) -> Distribution:
        """How its dimension along a column is shared out."""
        return columns[number].numbers if self.reader else columns[number]

    def share(self, dim: str, columns: tuple[Distribution, ...]) -> Distribution | None:
        """How a dimension is shared out, None for one that each thread runs through."""
        if dim in self.columns:
            return self.column(self.columns.index(dim), columns)
        return dict([*([self.lane] if self.lane else []), *self.steps, *self.axes]).get(dim)


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

    def digits(self, item: StatementPlan) -> list[tuple[str, str, Distribution]]:
        """What the digits of a thread's number are to a statement, the last one counting fastest: dimension, level, share."""
        shares = item.axes if item.reader else [(item.columns[c], self.columns[c]) for c in self.order]
        digits = [(dim, level, share) for level in ("warp", "thread") for dim, share in shares if share.levels[level][1] > 1]
        if item.reader or self.lane_threads == 1:
            return digits
        dim, share = item.lane or ("0", Distribution(0, 1, 1, self.lane_threads))  # the first thread of those that could share one
        return [(dim, "thread", share), *digits] if self.lane_first else [*digits, (dim, "thread", share)]

    @property
    def threads(self) -> int:
        """Of a block."""
        return prod(share.warps * share.threads for share in self.columns) * self.lane_threads


@dataclass(frozen=True)
class SequentialLoops:
    """Loops that all threads of a block run together; per loop, statement -> its step.

    With ``stages`` of 2 and more the copies of the body run that many steps less one ahead of what reads them.
    """

    loops: tuple[dict[str, str], ...]
    body: tuple[BlockNode, ...]
    stages: int = 1


BlockNode = str | SequentialLoops  # a statement, or several in loops


@dataclass(frozen=True)
class LaunchBounds:
    """The kernel below the mark ``mark`` runs on blocks of ``threads``."""

    mark: Launch
    threads: int


@dataclass(frozen=True)
class GpuKernel:
    """One launch: its plans, block loops (statement -> the block's number), what a block does, its small buffers."""

    plans: tuple[GroupPlan, ...]
    blocks: tuple[dict[str, str], ...]
    body: tuple[BlockNode, ...]
    buffers: tuple[Buffer, ...]

    @property
    def threads(self) -> int:
        """Of a block."""
        return max(plan.threads for plan in self.plans)

    @property
    def items(self) -> dict[str, tuple[StatementPlan, GroupPlan]]:
        """Every statement with its plan, and that of its group."""
        return {item.statement: (item, plan) for plan in self.plans for item in plan.items}


def by_kernel(plans: Sequence[GroupPlan]) -> tuple[tuple[GroupPlan, ...], ...]:
    """The plans of each kernel."""
    kernels: list[tuple[GroupPlan, ...]] = []
    for plan in plans:
        if plan.fused:
            kernels[-1] += (plan,)
        else:
            kernels.append((plan,))
    return tuple(kernels)


def statements(body: Sequence[BlockNode]) -> list[str]:
    """Those of a body, in order."""
    return [name for node in body for name in ([node] if isinstance(node, str) else statements(node.body))]
