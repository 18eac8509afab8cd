"""A group of statements that is to be planned for a GPU: extents, strides and reuse along the dimensions that its statements share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import isl_name
from tcjit.grammar.ast import Access
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.footprint import WIDE
from tcjit.mapping.gpu_nest import Distribution, StatementPlan
from tcjit.mapping.machine import Device
from tcjit.mapping.options import Options
from tcjit.mapping.scop import Group, Scop, ScopStatement
from tcjit.mapping.strides import accesses, affine_form, involves, stride, subscript_form

SECTOR = 32  # bytes of memory that are read and written at once
WARP = 32  # threads whose accesses to memory go together
BLOCK = 256  # threads of a block where nothing else decides
INVARIANT = ("statements", "main", "_accesses", "reuse", "internal")  # properties that do not depend on the blocks


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
class MemoryAccess:
    """A read or a write of a statement: ``strides`` in elements along the dimensions that it moves with, None where that is not one
    number; ``forms``: per subscript the factors of dimensions in its plain sum; ``divided``: the dimensions in quotients and remainders
    beside these, None where data or dynamic sizes are part of a subscript."""

    access: Access
    bytes: int
    strides: Mapping[str, int | None]
    forms: tuple[Mapping[str, int], ...]
    divided: frozenset[str] | None

    @property
    def affine(self) -> bool:
        """Whether all subscripts are plain sums."""
        return self.divided == frozenset()

    @property
    def tensor(self) -> str:
        return self.access.tensor

    @cached_property
    def shifted(self) -> frozenset[str]:
        """The dimensions that move a subscript together with another one, as that of a window does."""
        return frozenset(dim for form in self.forms if len(form) > 1 for dim in form)

    def moves(self, dim: str) -> bool:
        return dim in self.strides

    def stride(self, dim: str) -> int | None:
        return self.strides.get(dim, 0)


@dataclass(frozen=True, eq=False)
class StatementGroup:
    """A group, with the options and the device that it is planned for; ``block``: what it shares a kernel with decides."""

    scop: Scop
    group: Group
    options: Options
    device: Device
    block: BlockShape | None = None

    def within(self, block: BlockShape) -> StatementGroup:
        """The same group in blocks of a shape."""
        made = replace(self, block=block)
        made.__dict__.update({name: value for name, value in self.__dict__.items() if name in INVARIANT})
        return made

    @cached_property
    def statements(self) -> tuple[ScopStatement, ...]:
        return tuple(self.scop.statement(name) for name in self.group.statements)

    @cached_property
    def main(self) -> ScopStatement:
        """The statement with the most instances."""
        return max(self.statements, key=lambda s: (s.points, bool(s.reduction)))

    @cached_property
    def _accesses(self) -> dict[str, tuple[MemoryAccess, ...]]:
        return {s.name: tuple(self._memory_access(s, a) for a in accesses(s)) for s in self.statements}

    def accesses(self, s: ScopStatement) -> tuple[MemoryAccess, ...]:
        """The write of a statement and all its reads, that of the result which it updates first."""
        return self._accesses[s.name]

    def operands(self, s: ScopStatement) -> tuple[MemoryAccess, ...]:
        """What a statement reads beside what it updates, once."""
        return tuple({a.access: a for a in self.accesses(s)[1 if s.operator == "=" else 2 :]}.values())

    def elements(self, s: ScopStatement, a: MemoryAccess) -> int:
        """How many an access can touch."""
        return min(self.scop.tensor(a.tensor).elements, prod(s.extent(dim) for dim in a.strides))

    def _memory_access(self, s: ScopStatement, access: Access) -> MemoryAccess:
        forms = [affine_form(sub, self.scop.values) for sub in access.subscripts]
        moving = [
            {dim for dim in s.dims if involves(sub, dim)} if form is None else {dim for dim, f in form[0].items() if f}
            for sub, form in zip(access.subscripts, forms, strict=True)
        ]
        strides = {dim: stride(self.scop, access, dim) for dim in s.dims if any(dim in dims for dims in moving)}
        known = [form for sub in access.subscripts if (form := subscript_form(sub, self.scop.values))]
        divided = frozenset[str]().union(*(form.divided for form in known))
        factors = tuple(form.factors for form in known)
        return MemoryAccess(access, DTYPES[access.dtype].bytes, strides, factors, divided if len(known) == len(forms) else None)

    @cached_property
    def internal(self) -> frozenset[str]:
        """Temporaries that no other group uses."""
        own = set(self.group.statements)
        used = {a.tensor for s in self.scop.statements if s.name not in own for a in accesses(s)}
        return frozenset(t.name for t in self.scop.tensors if t.role == "temporary" and t.name not in used)

    # ------------------------------------------------------------ the columns

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

    def own_dims(self, s: ScopStatement) -> list[str]:
        """Its other dimensions of more than one value."""
        return [d for d in s.dims if d not in self.dims(s) and s.extent(d) > 1]

    def extent(self, column: int) -> int:
        return self.main.extent(self.dims(self.main)[column])

    def lower(self, column: int) -> int:
        return self.main.ranges[self.dims(self.main)[column]][0]

    def most(self, column: int) -> int:
        """The values of a column that a block may take at once."""
        limits = self.block.values if self.block else {}
        return min(self.extent(column), limits.get(column, self.extent(column)))

    @property
    def most_threads(self) -> int:
        return min(self.options.block or BLOCK, self.device.max_threads)

    @property
    def kept(self) -> frozenset[str]:
        """Temporaries in shared memory all the while."""
        return self.block.kept if self.block else frozenset()

    def share(self, column: int, tile: int, threads: int = 1, vector: int = 1, warps: int = 1) -> Distribution:
        """How a column is shared out, in tiles of so many values."""
        share = Distribution(self.lower(column), self.extent(column), tile, threads, vector, warps)
        if self.block is None:
            return share
        return replace(share, sequence=-(-self.block.values[column] // tile) if column in self.block.values else share.tiles)

    def shares(self, some: Mapping[int, Distribution]) -> tuple[Distribution, ...]:
        """Those of all columns: of each other one a block takes one value, or one after the other."""
        return tuple(some.get(c) or self.share(c, 1) for c in self.columns)

    def items(self) -> tuple[StatementPlan, ...]:
        return tuple(StatementPlan(s.name, self.dims(s)) for s in self.statements)

    # ------------------------------------------------------------ strides and reuse

    def nearness(self, s: ScopStatement, dim: str) -> tuple[float, bool, int]:
        """How well neighbours along a dimension lie in memory: elements of accesses that move by one there, or by a few, which are in one
        sector with others, less those that jump."""
        score = 0.0
        for a in self.accesses(s):
            step = a.stride(dim)
            near = -1.0 if step is None or abs(step) * a.bytes >= SECTOR else 1 / abs(step) if step else 0.0
            score += prod(s.extent(d) for d in s.dims if a.moves(d)) * near
        return score, self.accesses(s)[0].stride(dim) == 1, s.extent(dim)

    def along_rows(self, column: int) -> bool:
        """Whether a column counts rows of what is kept, or of what asynchronous copies leave as it lies, along terms: threads then take
        rows that follow each other."""
        dim, terms = self.dims(self.main)[column], {d for d in self.main.reduction if self.main.extent(d) >= WARP}
        write, _, *reads = self.accesses(self.main)
        kept = write.stride(dim) != 1 and any(a.tensor in self.kept and a.stride(dim) not in (0, 1) for a in reads)
        copied = [a for a in reads if a.moves(dim) and a.tensor not in self.kept and not a.shifted and a.bytes == 4]
        copied = [a for a in copied if all(step == 1 or (step or 1) % (WIDE // a.bytes) == 0 for step in a.strides.values())]
        return kept or ("async_copy" in self.device.capabilities and any(a.stride(d) == 1 for a in copied for d in terms))

    @cached_property
    def reuse(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The columns along which some operands of the main statement move and others are read again, by which these are, those nearest in
        memory first: the class with the nearest one, then the largest other one. None where there are no two, or hardly a sum. Of a column
        that a subscript divides a block takes one value."""
        s, operands = self.main, self.operands(self.main)
        divided: set[str] = set().union(*(a.divided or () for a in operands))
        if any(a.divided is None for a in operands) or divided & {*s.reduction} or prod(s.extent(d) for d in s.reduction) < 4:
            return None

        def distance(column: int) -> int:
            step = self.accesses(s)[0].stride(self.dims(s)[column])
            return 1 << 62 if step is None else abs(step)

        by_use: dict[frozenset[int], tuple[int, ...]] = {}
        for c in sorted(self.columns, key=lambda c: (distance(c), -c)):
            used = frozenset(n for n, a in enumerate(operands) if a.moves(self.dims(s)[c]))
            if self.extent(c) > 1 and 0 < len(used) < len(operands) and self.dims(s)[c] not in divided:
                by_use[used] = (*by_use.get(used, ()), c)
        if len(by_use) < 2:
            return None
        across, *others = by_use.values()
        return across, max(others, key=lambda columns: prod(self.extent(c) for c in columns))


def over_columns(s: ScopStatement, columns: Sequence[str]) -> bool:
    """Whether a statement has constraints, and they are on the dimensions of its results alone, which run along ``columns``."""
    others = {isl_name(dim) for dim in s.dims if dim not in columns}
    return bool(s.constraints) and not any(others & set(re.findall(r"\w+", text)) for text in s.constraints)
