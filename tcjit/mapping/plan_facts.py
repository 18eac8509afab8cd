"""What the plans for a GPU's groups are made from: strides, reuse and extents of a group's statements."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from tcjit.grammar.affine import isl_name
from tcjit.grammar.ast import Access
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.footprint import WIDE
from tcjit.mapping.gpu_nest import Distribution, StatementPlan
from tcjit.mapping.group import Group
from tcjit.mapping.machine import Device
from tcjit.mapping.options import Options
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.strides import accesses, affine_form, stride

BLOCK = 256  # threads of a block where nothing else decides
ROW_ELEMENTS = 16  # of a row, for each thread, before more threads take it


@dataclass(frozen=True)
class BlockShape:
    """What one block does of groups that share a kernel: so many values of some columns, by number, and all of the others; its
    ``threads`` if they are known; ``kept``: temporaries in shared memory all the while, and the ``room`` that they leave in bytes;
    ``resident``: blocks that a processor holds at once, at most."""

    values: Mapping[int, int]
    kept: frozenset[str]
    room: int
    resident: int
    threads: int = 0


@dataclass(frozen=True, eq=False)
class Facts:
    """A group of statements, with the options and the device that it is planned for; ``block``: what it shares a kernel with decides."""

    scop: Scop
    group: Group
    options: Options
    device: Device
    block: BlockShape | None = None

    @cached_property
    def statements(self) -> tuple[ScopStatement, ...]:
        return tuple(self.scop.statement(name) for name in self.group.statements)

    @cached_property
    def main(self) -> ScopStatement:
        """The statement with the most instances."""
        return max(self.statements, key=lambda s: (s.points, bool(s.reduction)))

    @cached_property
    def operand_bytes(self) -> int:
        """Of the widest element that the main statement reads beside what it updates."""
        return max(DTYPES[a.dtype].bytes for a in accesses(self.main)[2:])

    @property
    def most_threads(self) -> int:
        return min(self.options.block or BLOCK, self.device.max_threads)

    @property
    def columns(self) -> range:
        """The numbers of the columns."""
        return range(len(self.group.columns))

    @property
    def points(self) -> int:
        """Elements of all columns together."""
        return prod(self.extent(c) for c in self.columns)

    def dims(self, s: ScopStatement) -> tuple[str, ...]:
        """The dimensions of a statement that run along the columns."""
        return tuple(column[s.name] for column in self.group.columns)

    def extent(self, column: int) -> int:
        return self.main.extent(self.dims(self.main)[column])

    def most(self, column: int) -> int:
        """The values of a column that a block may take at once."""
        limits = self.block.values if self.block else {}
        return min(self.extent(column), limits.get(column, self.extent(column)))

    def along_rows(self, column: int) -> bool:
        """Whether a column counts rows of what is written, and of something kept that the main statement reads: threads then take rows
        that follow each other."""
        dim, kept = self.dims(self.main)[column], self.block.kept if self.block else frozenset()
        write, _, *reads = accesses(self.main)
        return stride(self.scop, write, dim) != 1 and any(a.tensor in kept and stride(self.scop, a, dim) not in (0, 1) for a in reads)

    def lower(self, column: int) -> int:
        return bounds(self.main, self.dims(self.main)[column])[0]

    def share(self, column: int, tile: int, threads: int = 1, vector: int = 1, warps: int = 1) -> Distribution:
        """How a column is shared out, in tiles of so many values."""
        share = Distribution(self.lower(column), self.extent(column), tile, threads, vector, warps)
        if self.block is None:
            return share
        return replace(share, sequence=-(-self.block.values[column] // tile) if column in self.block.values else share.tiles)

    def whole(self, column: int) -> Distribution:
        """A column of which each block takes one value, or one after the other."""
        return self.share(column, 1)

    def items(self) -> tuple[StatementPlan, ...]:
        return tuple(StatementPlan(s.name, self.dims(s)) for s in self.statements)

    def nearness(self, s: ScopStatement, dim: str) -> tuple[int, bool, int]:
        """How well neighbours along a dimension lie in memory: elements of accesses that move by one there, less those that jump."""
        score = 0
        for a in accesses(s):
            step = stride(self.scop, a, dim)
            touched = prod(s.extent(d) for d in s.dims if self.moves_with(a, d))
            score += touched * ((step == 1) - (step not in (0, 1)))
        return score, stride(self.scop, accesses(s)[0], dim) == 1, s.extent(dim)

    def shifts(self, s: ScopStatement, dim: str) -> bool:
        """Whether a dimension only shifts a subscript that another one moves too, as that of a window does."""
        forms = [affine_form(sub, self.scop.values) for a in accesses(s)[2:] for sub in a.subscripts]
        return any(form is not None and len(form[0]) > 1 and dim in form[0] for form in forms)

    def together(self, moving: Iterable[tuple[ScopStatement, str]]) -> int:
        """The neighbours along dimensions of statements that fill one access of 16 bytes, of the widest type among them; 4 at least."""
        sizes = [DTYPES[a.dtype].bytes for s, dim in moving for a in accesses(s) if stride(self.scop, a, dim) == 1]
        return max(4, WIDE // max(sizes, default=WIDE))

    def moves_with(self, access: Access, dim: str) -> bool:
        """Whether an access moves with a dimension (or may, where it is no plain sum)."""
        forms = [affine_form(sub, self.scop.values) for sub in access.subscripts]
        return any(form is None or form[0].get(dim, 0) for form in forms)


def bounds(s: ScopStatement, dim: str) -> tuple[int, int]:
    """The least value of a dimension, and one more than the greatest."""
    return next((lower, upper) for name, lower, upper in s.bounds if name == dim)


def over_columns(s: ScopStatement, columns: Sequence[str]) -> bool:
    """Whether a statement has constraints, and they are on the dimensions of its results alone, which run along ``columns``."""
    others = {isl_name(dim) for dim in s.dims if dim not in columns}
    return bool(s.constraints) and not any(others & set(re.findall(r"\w+", text)) for text in s.constraints)
