"""Fuse column reductions: sums over the rows of a matrix run with what else runs row by row.

The adjoint of a layer norm reduces each row, writes it, and sums over all rows for its parameters. In loops of their own these sums read
the matrix again. Here chunks of rows are the outer loops that all of them share, and each chunk has a partial result of every such sum;
their number does not depend on how many threads there are: neither does the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace
from math import prod

from tcjit.dataclass import dataclass
from tcjit.grammar.ast import Access, Index
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries
from tcjit.mapping.fused_run import SUMS
from tcjit.mapping.machine import Machine
from tcjit.mapping.nest.strip_mine import strip_mine, strip_mined
from tcjit.mapping.partial_results import Chunks, partial_results
from tcjit.mapping.passes.chunk_reductions import CPU_CHUNKS, equal_chunks
from tcjit.mapping.passes.schedule_rows import FULL, OPERATORS, has_row_form
from tcjit.mapping.scop import OuterLoops
from tcjit.mapping.storage import Storage

WORTH = 1 << 17  # elements of a matrix from which threads share its rows
ROWS = 16  # of a chunk at least: its partial results are little beside them


def fuse_column_reductions(before: Assignments, machine: Machine) -> Assignments:
    """The program with reductions over rows under loops over chunks of these that they share with other assignments of the same rows."""
    temporaries, program = Temporaries(before), before.assignments
    replaced: list[tuple[Assignment, ...]] = []
    number = 1 + max((a.outer.number for a in program if a.outer), default=-1)
    while len(replaced) < len(program):
        first = len(replaced)
        found = max(_runs(before, first, machine), key=lambda run: len(run.dims), default=None)
        if found is None:
            replaced.append((program[first],))
            continue
        replaced += found.parts(number, temporaries)
        number += 1
    return before.with_parts(replaced, temporaries)


def _runs(before: Assignments, first: int, machine: Machine) -> Iterator[_SharedRows]:
    """What could share chunks, from an assignment on."""
    for access in before.assignments[first].reads:
        storage = before.storages[access.tensor]
        if len(storage.shape) > 1 and storage.elements >= WORTH and not any(storage.dynamic_extents):
            for rows in range(1, len(storage.shape)):
                run = _SharedRows(before, first, storage, rows, machine)
                if run.pays:
                    yield run


@dataclass
class _SharedRows:
    """Assignments from ``first`` on that run over the rows of a ``matrix``: over its first axes, so many; ``dims``: what they call that
    which has chunks, by their places in the program, of those between nothing. ``axes``: where it is in what they write; ``sums``: of those
    that reduce the rows, the results. ``alike``: tensors whose elements they use together with those of the matrix."""

    before: Assignments
    first: int
    matrix: Storage
    rows: int
    machine: Machine
    dims: dict[int, str] = field(default_factory=dict)
    axes: dict[str, int] = field(default_factory=dict)
    sums: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    alike: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if not self.fits:
            return
        self.alike.add(self.matrix.name)
        program, others = self.before.assignments, list[Assignment]()  # those between that run before the chunks, or behind them
        for at in range(self.first, len(program)):
            a = program[at]
            if self.joined(at, others):
                self.used |= {a.tensor, *a.tensors_read}
            elif at == self.first or a.tensor in self.used or {*a.tensors_read} & {*self.axes} or a.final or a.outer:
                break
            else:
                others.append(a)
                self.sums |= {a.tensor} if self.sums & {*a.tensors_read} else set()  # as a sum is there behind the chunks alone

    @property
    def fits(self) -> bool:
        """Whether the matrix has chunks enough, and rows of neighbours that are worth vectors."""
        columns, bytes_ = self.matrix.shape[self.rows :], DTYPES[self.matrix.dtype].bytes
        enough = prod(self.matrix.shape[: self.rows]) >= ROWS * CPU_CHUNKS and self.matrix.shape[self.axis] >= CPU_CHUNKS
        return enough and self.matrix.strides[-1] == 1 and FULL * columns[-1] > self.machine.lanes(max(4, bytes_))

    @property
    def axis(self) -> int:
        """That of the matrix which has chunks: the first one that is long enough."""
        lengths = self.matrix.shape[: self.rows]
        return next((axis for axis, length in enumerate(lengths) if length >= CPU_CHUNKS), 0)

    @property
    def pays(self) -> bool:
        """Whether reductions over the rows share the matrix with other assignments: with one that writes all of its elements, or where it
        comes from memory. Sums alone, of what is in a cache, are better in register tiles."""
        writes = bool(self.alike & {*self.axes})
        far = self.matrix.elements * DTYPES[self.matrix.dtype].bytes > self.machine.shared_bytes
        return bool(self.sums and self.axes) and (writes or far)

    def joined(self, at: int, others: list[Assignment]) -> bool:
        """Whether an assignment has joined the run."""
        a, tensors = self.before.assignments[at], self.before.storages
        if not has_row_form(a, [a.element, *a.reads], lambda name: tensors[name].dtype):
            return False
        if a.final or a.outer or a.empty or a.dynamic or a.constraints or not a.reads:
            return False
        if a.tensor in self.used or {a.tensor, *a.tensors_read} & self.sums or any(a.tensor in other.tensors_read for other in others):
            return False
        found = {self.dim(access) for access in a.reads if access.tensor in self.alike | {*self.axes}}
        dim = found.pop() if len(found) == 1 else None
        if dim is None or a.ranges.get(dim) != (0, self.matrix.shape[self.axis]):
            return False
        matrices = [access for access in a.reads if access.tensor in self.alike]
        if not all(self.over_matrix(a, access) for access in matrices):
            return False
        left = [axis for axis, sub in enumerate(a.subscripts) if isinstance(sub, Index) and sub.name == dim]
        if dim in a.reduction:
            if not matrices or self.terms(a, matrices[0]) != set(range(self.rows)) or a.value.dtype not in SUMS or not self.sum_fits(a):
                return False
            self.sums.add(a.tensor)
        elif len(left) == 1 and a.operator in ("=", *OPERATORS):
            if matrices and a.reduction and self.terms(a, matrices[0]) & set(range(self.rows)):
                return False
            self.axes[a.tensor] = left[0]
        else:
            return False
        self.dims[at] = dim
        used = [access for access in (*a.reads, a.element) if access.tensor not in self.alike | {*self.axes} - {a.tensor}]
        near = [u.tensor for u in used if tensors[u.tensor].shape == self.matrix.shape]
        self.alike |= {u.tensor for u in used if u.tensor in near and u.subscripts in [m.subscripts for m in matrices]}
        return True

    def sum_fits(self, a: Assignment) -> bool:
        """Whether the results of a reduction are one row, in the order of the matrix."""
        storage = self.before.storages[a.tensor]
        names = tuple(sub.name for sub in a.subscripts if isinstance(sub, Index))
        access = next(access for access in a.reads if access.tensor in self.alike)
        own = tuple(sub.name for sub in access.subscripts[self.rows :] if isinstance(sub, Index))
        return storage.dtype == a.value.dtype and names == own and len(names) == len(a.subscripts) and a.tensor not in a.inputs

    def dim(self, access: Access) -> str | None:
        """The dimension that has chunks, in an access to the matrix or to what the run writes row by row."""
        subscript = access.subscripts[self.axis if access.tensor in self.alike else self.axes[access.tensor]]
        return subscript.name if isinstance(subscript, Index) else None

    def over_matrix(self, a: Assignment, access: Access) -> bool:
        """Whether an assignment runs once for each element of the matrix, in its order."""
        names = [sub.name for sub in access.subscripts if isinstance(sub, Index)]
        whole = all(a.ranges.get(name) == (0, extent) for name, extent in zip(names, self.matrix.shape))
        return whole and len(names) == len(access.subscripts) and sorted(names) == sorted(a.dims)

    def terms(self, a: Assignment, access: Access) -> set[int]:
        """The axes of the matrix along which an assignment reduces it."""
        return {axis for axis, sub in enumerate(access.subscripts) if isinstance(sub, Index) and sub.name in a.reduction}

    def parts(self, number: int, temporaries: Temporaries) -> list[tuple[Assignment, ...]]:
        """What takes the place of each assignment of the run."""
        extent = self.matrix.shape[self.axis]
        size = -(-extent // equal_chunks(extent, CPU_CHUNKS))
        made: list[tuple[Assignment, ...]] = []
        for at in range(self.first, max(self.dims) + 1):
            a = self.before.assignments[at]
            if at not in self.dims:
                made.append((a,))
            elif self.dims[at] in a.reduction:
                chunks = Chunks(self.dims[at], 0, extent, size, -(-extent // size))
                accumulate, *rest = partial_results(a, chunks, temporaries, self.before, apart=False)
                made.append((replace(accumulate, outer=OuterLoops(number, accumulate.dims[:1], columns=True)), *rest))
            else:
                strip = strip_mine(a, self.dims[at], size)
                made.append((replace(strip_mined(a, strip), outer=OuterLoops(number, (strip.outer,), columns=True)),))
        return made
