"""The mapped form of a reduction: a nest of tile loops around a register tile, and the copies that it reads."""

from __future__ import annotations

from tcjit.dataclass import dataclass
from tcjit.mapping.nest.statement import FlatStatement


@dataclass(frozen=True)
class Loop:
    """A loop over blocks of ``block`` points of a dimension, which divides the block of the loop of that dimension outside it."""

    dim: str
    block: int


@dataclass(frozen=True)
class Leaf:
    """The register tile that is printed as one piece of straight code.

    ``vectors`` registers of consecutive points of ``lane``, an output dimension or a term, for each of the points of ``rows``, output
    dimensions; ``window`` are short terms that are written out whole. With ``reload``, loads are not kept from one point of the window to
    the next: registers would not suffice. Of a ``depth``, so many points of a term, the registers are those of a matrix unit, whose
    instructions sum them at once. ``block``: the terms that all tiles sum before the next ones, 0 where each sums all of them.
    ``staged``: the operands, by number, that it reads from copies.
    """

    lane: str
    vectors: int
    rows: tuple[tuple[str, int], ...] = ()
    window: tuple[str, ...] = ()
    reload: bool = False
    depth: tuple[str, int] | None = None
    block: int = 0
    staged: frozenset[int] = frozenset()

    def tile(self, dim: str, width: int) -> int:
        """Points of a dimension in the leaf, windows aside, with ``width`` lanes in a vector."""
        if self.depth and dim == self.depth[0]:
            return self.depth[1]
        return self.vectors * width if dim == self.lane else dict(self.rows).get(dim, 1)


@dataclass(frozen=True)
class Prefetch:
    """Each step fetches what the tile so many iterations later of the innermost loop over ``dim`` reads at it of an operand."""

    operand: int  # its number
    dim: str
    distance: int = 1


@dataclass(frozen=True)
class Nest:
    """``loops``, outermost first, around ``leaf``; each dimension outside the window has a loop whose block is its tile.

    A term may have a loop over blocks besides: accumulators then hold the sum of a block, which is added to the results in memory.
    """

    loops: tuple[Loop, ...]
    leaf: Leaf
    prefetch: tuple[Prefetch, ...] = ()

    def block_loop(self, s: FlatStatement) -> int | None:
        """The number of the loop over blocks of a term."""
        dims = [loop.dim for loop in self.loops]
        return next((number for number, dim in enumerate(dims) if dim in s.terms and dim in dims[number + 1 :]), None)

    def accumulated(self, s: FlatStatement) -> int:
        """The number of loops, the outermost ones, in which accumulators are started and stored."""
        block = self.block_loop(s)
        return max((n + 1 for n, loop in enumerate(self.loops) if loop.dim in s.outputs or n == block), default=0)

    def problem(self, s: FlatStatement, width: int) -> str:
        """Why the nest is none of a statement; nothing where it is one."""
        blocks: dict[str, int] = {}
        for loop in self.loops:
            if loop.dim not in s.dims or loop.dim in self.leaf.window:
                return f"no loop can run over {loop.dim}"
            if loop.block < 1:
                return f"a block of {loop.block}"
            if blocks.get(loop.dim, loop.block) % loop.block:
                return f"a block of {loop.block} does not divide that of {blocks[loop.dim]} around it"
            blocks[loop.dim] = loop.block
        if any(loop.dim in s.terms for n, loop in enumerate(self.loops[: self.accumulated(s)]) if n != self.block_loop(s)):
            return "only blocks of one term stand outside the accumulators"
        for dim in s.dims:
            if dim not in self.leaf.window and blocks.get(dim) != self.leaf.tile(dim, width):
                return f"the blocks of {dim} do not end in its tile of {self.leaf.tile(dim, width)}"
        if not set(self.leaf.window) <= set(s.terms) or self.leaf.lane in self.leaf.window:
            return "only terms are written out, and not those in lanes"
        if not {dim for dim, _ in self.leaf.rows} <= set(s.outputs) - {self.leaf.lane}:
            return "rows are results, and not those in lanes"
        return ""
