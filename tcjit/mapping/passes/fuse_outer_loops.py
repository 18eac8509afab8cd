"""Fuse outer loops: assignments that follow one another share the loops over the dimensions along which nothing passes between them.

Scores of attention are as large as memory is wide: a product writes them, a softmax reads and writes them, and a product reads them again.
Where all three run for one matrix of the batch before the next begins, they stay in a cache, and one matrix for each thread is all the
memory that they need. This is loop fusion at the outermost level; ``contract_slices`` is the contraction of arrays that follows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access, Index
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.machine import Machine
from tcjit.mapping.nest.strip_mine import strip_mine, strip_mined
from tcjit.mapping.outer_loops import OuterLoops
from tcjit.mapping.storage import Storage

REUSE = 32  # results that use an element of an operand in one iteration, at least, or as many as in all of them: register tiles need them
ITERATIONS = 4  # for each thread at least: they share them evenly
MOVES = 3  # of an element of a temporary between memory and caches: its place is read before it is written, then it is read
FEWER = 4  # times less memory for temporaries than without, at least


def fuse_outer_loops(before: Assignments, machine: Machine) -> Assignments:
    """The program with the loops that its assignments share, where that keeps temporaries in a core's cache."""
    program, number, first = list(before.assignments), 0, 0
    tensors = {storage.name: storage for storage in before.tensors}
    while first < len(program):
        fused = _fused(program, first, tensors, machine)
        for position, loops in enumerate(fused, first):
            program[position] = _under(program[position], number, loops)
        number += bool(fused)
        first += max(1, len(fused))
    return replace(before, assignments=tuple(program), replaced=tuple((new,) for new in program))


def _under(a: Assignment, number: int, loops: Sequence[tuple[str, int]]) -> Assignment:
    """An assignment whose outer loops are shared: those over dimensions, or over blocks of so many of their points."""
    dims = []
    for dim, block in loops:
        if block > 1:
            strip = strip_mine(a, dim, block)
            a = strip_mined(a, strip)
        dims.append(strip.outer if block > 1 else dim)
    return replace(a, outer=OuterLoops(number, tuple(dims)))


def settle_outer_loops(before: Assignments) -> Assignments:
    """The program with what stands between assignments that share loops, and does not share them, before all of those; where it has to
    stay, as a copy of what they compute does, or none of them has a nest, they share nothing."""
    program = list(before.assignments)
    for number in dict.fromkeys(a.outer.number for a in program if a.outer):
        shares = [a.outer is not None and a.outer.number == number for a in program]
        first, last = shares.index(True), len(shares) - shares[::-1].index(True)
        own = [a for a, fits in zip(program[first:last], shares[first:last], strict=True) if fits]
        others = [a for a, fits in zip(program[first:last], shares[first:last], strict=True) if not fits]
        if any(a.tiled for a in own) and _may_precede(others, program[first:last]):
            program[first:last] = [*others, *own]
        else:
            program[first:last] = [replace(a, outer=None) if fits else a for a, fits in zip(program[first:last], shares[first:last])]
    return replace(before, assignments=tuple(program), replaced=())


def _may_precede(others: Sequence[Assignment], program: Sequence[Assignment]) -> bool:
    """Whether some of the assignments can stand before all the rest: nothing before them writes what they read, or uses what they write."""
    read: set[str] = set()
    written: set[str] = set()
    for a in program:
        if any(a is other for other in others):
            if a.tensor in read | written or written & {access.tensor for access in _accesses(a)}:
                return False
        else:
            read |= {access.tensor for access in _accesses(a)}
            written.add(a.tensor)
    return True


def _accesses(a: Assignment) -> Iterator[Access]:
    """The write of an assignment and all its reads, those of gathered subscripts included."""
    yield Access(a.tensor, a.subscripts, dtype=a.value.dtype)
    for expr in (a.value, *([a.start] if a.start is not None else []), *a.subscripts):
        yield from (access for access, _ in guarded_accesses(expr))
    for nest in a.tiled:
        yield from (Access(flat.tensor, (), dtype=a.value.dtype) for flat in nest.statement.accesses)


@dataclass
class _FusedRun:
    """Assignments in a row and, for each loop that they could share, its dimension in each of them; None where they cannot.

    ``axes``: for each tensor that they use and each of these loops, the axis that its index is the subscript of, in all accesses.
    """

    extents: tuple[int, ...]
    dims: list[tuple[str | None, ...]] = field(default_factory=list)
    axes: dict[str, list[int | None]] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)

    def take(self, a: Assignment) -> bool:
        """Add an assignment, if it uses what others of the run compute and any loop is left that all can share."""
        ranges = {name: (lower, upper) for name, lower, upper in a.results}
        accesses = list(_accesses(a))
        joined = [access for access in accesses if access.tensor in self.written or access.tensor == a.tensor in self.axes]
        dims = tuple(self._dim(loop, joined, ranges) for loop in range(len(self.extents)))
        if not joined or not any(dims) or a.final or a.empty or a.dynamic:
            return False
        self._add(a, dims, accesses)
        return True

    def begin(self, a: Assignment, dims: tuple[str, ...]) -> None:
        """Add the first assignment."""
        self._add(a, dims, list(_accesses(a)))

    def _add(self, a: Assignment, dims: tuple[str | None, ...], accesses: Sequence[Access]) -> None:
        self.dims.append(dims)
        self.written.add(a.tensor)
        for access in accesses:
            axes = [self._axis(access, dim) for dim in dims]
            known = self.axes.setdefault(access.tensor, axes)
            self.axes[access.tensor] = [axis if axis == other else None for axis, other in zip(axes, known, strict=True)]

    def _dim(self, loop: int, joined: Sequence[Access], ranges: Mapping[str, tuple[int, int]]) -> str | None:
        """The dimension that is a loop in all accesses to what the run computes."""
        found = set()
        for access in joined:
            axis = self.axes[access.tensor][loop]
            subscript = access.subscripts[axis] if axis is not None else None
            found.add(subscript.name if isinstance(subscript, Index) else None)
        dim = found.pop() if len(found) == 1 else None
        return dim if dim is not None and ranges.get(dim) == (0, self.extents[loop]) else None

    @staticmethod
    def _axis(access: Access, dim: str | None) -> int | None:
        axes = [axis for axis, sub in enumerate(access.subscripts) if isinstance(sub, Index) and sub.name == dim]
        return axes[0] if axes else None

    def shared(self, loops: Iterable[int]) -> list[tuple[str, ...]]:
        """The dimensions of each assignment for some of the loops, which all can share."""
        numbers = list(loops)
        return [tuple(dim for loop in numbers if (dim := dims[loop]) is not None) for dims in self.dims]

    @property
    def possible(self) -> list[int]:
        """The loops that all assignments can share."""
        return [loop for loop in range(len(self.extents)) if all(dims[loop] is not None for dims in self.dims)]


def _fused(
    program: Sequence[Assignment], first: int, tensors: Mapping[str, Storage], machine: Machine
) -> list[list[tuple[str, int]]]:
    """The loops that assignments from the first on share, for each of them: dimensions, and how many of their points are a block; nothing
    where they should share none."""
    a = program[first]
    bounds = [(name, upper) for name, lower, upper in a.results if lower == 0 and upper > 1 and Index(name, dtype="int64") in a.subscripts]
    if a.final or a.empty or a.dynamic or not bounds:
        return []
    order = [sub.name for sub in a.subscripts if isinstance(sub, Index)]
    bounds.sort(key=lambda bound: order.index(bound[0]))
    run = _FusedRun(tuple(extent for _, extent in bounds))
    run.begin(a, tuple(name for name, _ in bounds))
    best: list[list[tuple[str, int]]] = []
    for end in range(first + 1, len(program)):
        if not run.take(program[end]) or not run.possible:
            break
        loops = _worth(program, first, end + 1, run, tensors, machine)
        if loops:
            best = [list(zip(dims, loops.values(), strict=True)) for dims in run.shared(loops)]
    return best


def _worth(
    program: Sequence[Assignment], first: int, end: int, run: _FusedRun, tensors: Mapping[str, Storage], machine: Machine
) -> dict[int, int]:
    """The outermost loops that keep what lives in a run alone in a core's cache, each with the size of a block; none where they do not
    pay."""
    members, others = program[first:end], [*program[:first], *program[end:]]
    outside = {access.tensor for other in others for access in _accesses(other)}
    inside = [tensors[name] for name in run.written if tensors[name].role == "temporary" and name not in outside]
    total, most = sum(map(_bytes, inside)), machine.cache_bytes // 2
    if total <= machine.cache_bytes or not any(map(_is_contraction, members)):
        return {}
    loops: dict[int, int] = {}
    for loop in run.possible:
        wider = run.shared([*loops, loop])
        if all(_keeps_reuse(a, dims, 1) for a, dims in zip(members, wider, strict=True)):
            loops[loop] = 1
        if total // _iterations(run, loops) <= most:
            break
    if not loops:  # blocks of rows
        loop = run.possible[0]
        rows = most // (total // run.extents[loop])
        sizes = [size for size in range(REUSE, rows + 1) if run.extents[loop] % size == 0]
        loops = {loop: max(sizes)} if sizes else {}
    dims = run.shared(loops)
    count = _iterations(run, loops)
    again = sum(_bytes(tensors[name]) for name in _read_again(members, dims, run.written))
    evenly = count >= ITERATIONS * machine.threads or count % machine.threads == 0
    reuse = all(_keeps_reuse(a, own, *loops.values()) for a, own in zip(members, dims, strict=True))
    costs = machine.costs
    saved = MOVES * total * machine.threads / costs.memory_read
    return loops if count >= FEWER and evenly and reuse and count * again / (costs.l3_load * costs.frequency) <= saved else {}


def _iterations(run: _FusedRun, loops: Mapping[int, int]) -> int:
    return prod(run.extents[loop] // size for loop, size in loops.items())


def _bytes(storage: Storage) -> int:
    return storage.elements * DTYPES[storage.dtype].bytes


def _is_contraction(a: Assignment) -> bool:
    """Whether elements of all its operands are used for several results."""
    reads = [access for access, _ in guarded_accesses(a.value)]
    return bool(a.reduction) and len(reads) > 1 and all(_reuse(a, access, ()) > 1 for access in reads)


def _reuse(a: Assignment, access: Access, fixed: Sequence[str]) -> int:
    """The results that use an element, where some dimensions are fixed."""
    moving = {name for sub in access.subscripts for name in names(sub)}
    return prod(upper - lower for name, lower, upper in a.results if name not in moving and name not in fixed)


def _keeps_reuse(a: Assignment, fixed: Sequence[str], *sizes: int) -> bool:
    """Whether operands of a contraction are used often enough in one iteration of loops over blocks of such sizes of some dimensions."""
    if not _is_contraction(a):
        return True
    for access, _ in guarded_accesses(a.value):
        moving = {name for sub in access.subscripts for name in names(sub)}
        rows = prod(size for dim, size in zip(fixed, sizes) if dim not in moving)
        if rows * _reuse(a, access, fixed) < min(REUSE, _reuse(a, access, ())):
            return False
    return True


def _read_again(members: Sequence[Assignment], shared: Sequence[tuple[str, ...]], written: set[str]) -> set[str]:
    """The tensors from outside of which each iteration reads the same elements."""
    found = set()
    for a, dims in zip(members, shared, strict=True):
        for access, _ in guarded_accesses(a.value):
            moving = {name for sub in access.subscripts for name in names(sub)}
            if access.tensor not in written and not moving & set(dims):
                found.add(access.tensor)
    return found
