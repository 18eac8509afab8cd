"""A statement with its nest and its tiles, as a schedule tree and printers know it: four kinds of tile statements."""

from __future__ import annotations

from math import prod
from typing import Literal

import islpy as isl

from tcjit.dataclass import dataclass
from tcjit.grammar.ast import Expr
from tcjit.mapping.nest.nest import Nest
from tcjit.mapping.nest.operands import Operand
from tcjit.mapping.nest.statement import DIM, FlatStatement
from tcjit.mapping.nest.tile import Tiles
from tcjit.mapping.nest.vector_forms import is_dot_product

# accumulators get their first values; a tile with all its points, or with some, updates them; results are stored
Kind = Literal["start", "full", "partial", "store"]
ENOUGH = 4  # iterations for threads to share, rather than to meet after each block of terms
EDGES = 0.1  # of the points of iterations by which those at borders may differ, without that threads take turns
UNEVEN = 0.02  # of the iterations of threads, that one has more than another: then they take turns
KINDS: tuple[Kind, ...] = ("start", "full", "partial", "store")


@dataclass(frozen=True)
class TiledStatement:
    """``width`` lanes in a vector; ``body`` reads ``operands`` by number, ``Access("@n", ())``."""

    statement: FlatStatement
    nest: Nest
    operands: tuple[Operand, ...]
    body: Expr
    tiles: Tiles
    width: int
    cycles: float  # that all tiles take one core, by the model

    @property
    def name(self) -> str:
        return self.statement.name

    def varying(self, loops: int) -> int:
        """The number of the innermost of the outermost ``loops`` that threads share whose iterations have other tiles than those around
        them, or whose last has much fewer; 0 where there is none."""
        tiles = self.tiles.full.union(self.tiles.partial)

        def at(position: int, value: int) -> isl.Set:
            return tiles.fix_val(DIM.set, position, isl.Val(value, tiles.get_ctx())).project_out(DIM.set, position, 1)

        def varies(position: int, count: int) -> bool:
            if self._missing(position) > UNEVEN:
                return True
            if self.statement.is_box:
                return False
            some, others = (at(position, part * count // 3) for part in (1, 2))
            if self.statement.dynamic:
                return not some.is_equal(others)
            points = [_box_points(some), _box_points(others)]
            return max(points) - min(points) > EDGES * max(points)

        moving = self._shared(loops)
        return next((number for number in range(len(moving), 0, -1) if varies(*moving[number - 1])), 0)

    @property
    def threads_meet(self) -> bool:
        """Whether threads share the loops inside that over blocks of terms, and meet after each block: those around it are too short."""
        block = self.nest.block_loop(self.statement)
        return block is not None and self.has_results_in_blocks and prod(self.tiles.counts[:block]) < ENOUGH

    def _shared(self, loops: int) -> list[tuple[int, int]]:
        """The positions and the iterations of the outermost ``loops`` that threads share."""
        block = self.nest.block_loop(self.statement)
        first = block + 1 if block is not None and self.threads_meet else 0
        return [(position, count) for position, count in enumerate(self.tiles.counts) if count > 1 and position >= first][:loops]

    def _missing(self, position: int) -> float:
        """Of a loop over blocks, the part of all its iterations that the last block does not have."""
        dim, block = self.nest.loops[position].dim, self.nest.loops[position].block
        extent = self.statement.extent(dim)
        inside = any(loop.dim == dim for loop in self.nest.loops[position + 1 :])
        return -extent % block / extent if inside and dim not in self.statement.dynamic else 0.0

    @property
    def points_of_tile(self) -> int:
        """The points of a full tile, in vectors of lanes: what one of them takes is about what a plain statement does."""
        leaf = self.nest.leaf
        return leaf.vectors * prod(count for _, count in leaf.rows) * prod(self.statement.extent(dim) for dim in leaf.window)

    def tile_statement(self, kind: Kind) -> str:
        """The name of a kind of its tile statements in a schedule tree."""
        return f"{self.name}_{kind}"

    @property
    def has_results_in_blocks(self) -> bool:
        """Whether loops over results stand inside that over blocks of a term: what a block sums waits in memory for the next one."""
        block = self.nest.block_loop(self.statement)
        after = [] if block is None else self.tiles.counts[block + 1 : self.nest.accumulated(self.statement)]
        return any(count > 1 for count in after)

    def show(self) -> str:
        """One line, for people."""
        leaf = self.nest.leaf
        rows = " x ".join(f"{count} {dim}" for dim, count in leaf.rows)
        window = f", window {' '.join(leaf.window)}" if leaf.window else ""
        window += f", {self.body.function}" if is_dot_product(self.body) else ""
        window += f", matrix unit over {leaf.depth[1]} {leaf.depth[0]}" if leaf.depth else ""
        numbers = dict.fromkeys(one.operand for one in self.nest.prefetch)
        fetched = "".join(f", {self.operands[number].flats[0].tensor} prefetched" for number in numbers)
        tile = f"{leaf.vectors} x {self.width} {leaf.lane}{f' x {rows}' if rows else ''}{window}"
        loops = " ".join(loop.dim for loop in self.nest.loops)
        return f"{self.statement.sums or self.statement.write.tensor}: loops {loops}, register tile {tile}{fetched}"


def _box_points(where: isl.Set) -> int:
    """The points of the smallest box around a set."""
    if where.is_empty():
        return 0
    ends = ((where.dim_min_val(at).to_python(), where.dim_max_val(at).to_python()) for at in range(where.dim(DIM.set)))
    return prod(greatest - least + 1 for least, greatest in ends)
