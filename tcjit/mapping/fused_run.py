"""Fused runs: assignments in a row that could share loops, and how often they use the elements of their operands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from math import prod

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import guarded_accesses, is_gather
from tcjit.grammar.ast import Access, Binary, Index, Select
from tcjit.grammar.dtypes import DTYPES, ROUNDED
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import walk
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.nest.vector_forms import TYPES
from tcjit.mapping.storage import Storage

SUMS = ("float32", "float64", "int32")  # types of partial results
REUSE = 32  # results that use an element of an operand in one iteration, at least, or as many as in all of them


@dataclass
class FusedRun:
    """Assignments in a row and, for each loop that they could share, its dimension in each of them; None where they cannot.

    ``axes``: for each tensor that they use and each of these loops, the axis that its index is the subscript of, in all accesses;
    ``accumulating``: the loops that are over terms of some of them, which add to their results in one iteration after another;
    ``independent``: tensors of assignments that nothing has joined to the others yet.
    """

    extents: tuple[int, ...]
    dims: list[tuple[str | None, ...]] = field(default_factory=list)
    axes: dict[str, list[int | None]] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    accumulating: set[int] = field(default_factory=set)
    independent: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, a: Assignment, accesses: Sequence[Access]) -> FusedRun | None:
        """A run that begins with an assignment, over its dimensions that are subscripts of its result; None where there are none."""
        axes, divided = {sub.name: axis for axis, sub in enumerate(a.subscripts) if isinstance(sub, Index)}, divided_dims(a)
        bounds = [(name, upper) for name, lower, upper in a.results if lower == 0 and upper > 1 and name in axes.keys() - divided]
        if a.final or a.empty or a.dynamic or not bounds:
            return None
        bounds.sort(key=lambda bound: axes[bound[0]])
        run = cls(tuple(extent for _, extent in bounds))
        run.add(a, tuple(name for name, _ in bounds), accesses)
        return run

    def copy(self) -> FusedRun:
        """The same, to which others may be added."""
        axes, sets = dict(self.axes), (set(self.written), set(self.accumulating), set(self.independent))
        return FusedRun(self.extents, list(self.dims), axes, *sets)

    def take(self, a: Assignment, accesses: Sequence[Access], *, accumulates: bool = False, broadcasts: bool = False) -> bool:
        """Add an assignment, if it uses what others of the run compute, or what they read, and any loop is left that all can share; one
        over its terms where it ``accumulates`` results that nothing of the run uses. ``broadcasts``: whether a loop may have, of operands
        that others iterate over, the same elements in each iteration."""
        terms = a.terms if accumulates and a.tensor not in self.axes else ()
        ranges = {name: (lower, upper) for name, lower, upper in (*a.results, *terms)}
        joined = [access for access in accesses if access.tensor in self.written or access.tensor == a.tensor in self.axes]
        broadcasts = broadcasts and not joined
        joined = joined or [access for access in accesses if access.tensor in self.axes]
        divided, found = divided_dims(a), [self._dim(loop, joined, ranges, broadcasts) for loop in range(len(self.extents))]
        dims = tuple(dim if dim not in divided else None for dim in found)
        if not joined or not any(dims) or a.final or a.empty or a.dynamic:
            return False
        used = {access.tensor for access in accesses}
        if used & self.independent:
            self.independent = self.independent | used if {access.tensor for access in joined} <= self.independent else set()
        self.add(a, dims, accesses)
        self.accumulating |= {loop for loop, dim in enumerate(dims) if dim in a.reduction}
        return True

    def take_independent(self, a: Assignment, accesses: Sequence[Access]) -> bool:
        """Add an assignment that uses nothing of what others of the run do, with loops of the same extents in the same order: another one
        may use what both compute."""
        used, divided = {access.tensor for access in accesses}, divided_dims(a)
        free = [sub.name for sub in a.subscripts if isinstance(sub, Index) and sub.name not in divided]
        dims: list[str | None] = []
        for extent in self.extents:
            at = next((at for at, name in enumerate(free) if a.ranges.get(name) == (0, extent) and name not in a.reduction), None)
            dims.append(None if at is None else free[at])
            free = free if at is None else free[at + 1 :]
        if used & self.axes.keys() or not any(dims) or a.final or a.empty or a.dynamic:
            return False
        self.add(a, tuple(dims), accesses)
        self.independent |= used
        return True

    def add(self, a: Assignment, dims: tuple[str | None, ...], accesses: Sequence[Access]) -> None:
        """Add an assignment with its dimension for each loop."""
        self.dims.append(dims)
        self.written.add(a.tensor)
        for access in accesses:
            axes = [self._axis(access, dim) for dim in dims]
            known = self.axes.setdefault(access.tensor, axes)
            self.axes[access.tensor] = [axis if axis == other else None for axis, other in zip(axes, known, strict=True)]

    def _dim(self, loop: int, joined: Sequence[Access], ranges: Mapping[str, tuple[int, int]], broadcasts: bool) -> str | None:
        """The dimension that is a loop in all accesses to what the run computes, or in those that move along it."""
        found = set()
        for access in joined:
            axis = self.axes[access.tensor][loop]
            if axis is None and broadcasts:
                continue
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


class Uses:
    """The accesses of an assignment, and how often its operands are used."""

    def __init__(self, a: Assignment) -> None:
        self.a, self.accesses = a, tuple(all_accesses(a))
        self.reads = {access: set(names(access)) for access in a.reads}

    @cached_property
    def is_contraction(self) -> bool:
        """Whether elements of all operands are used for several results."""
        return bool(self.a.reduction) and len(self.reads) > 1 and all(self.reuse(moving, ()) > 1 for moving in self.reads.values())

    @cached_property
    def slides(self) -> bool:
        """Whether a window of an operand is read for each result, as by a convolution of each channel alone or by pooling."""
        return bool(self.a.reduction) and any(len(set(names(sub))) > 1 for access in self.reads for sub in access.subscripts)

    def reuse(self, moving: set[str], fixed: Sequence[str]) -> int:
        """The results that use an element of an operand, where some dimensions are fixed."""
        return prod(upper - lower for name, lower, upper in self.a.results if name not in moving and name not in fixed)

    def keeps_reuse(self, fixed: Sequence[str], *sizes: int, least: int | None = None) -> bool:
        """Whether operands of a contraction are used often enough, for ``least`` results, in one iteration of loops over blocks of such
        sizes of dimensions."""
        least = REUSE if least is None else least
        for moving in self.reads.values() if self.is_contraction else ():
            rows = prod(size for dim, size in zip(fixed, sizes) if dim not in moving)
            if rows * self.reuse(moving, fixed) < min(least, self.reuse(moving, ())):
                return False
        return True

    def read_again(self, dims: Sequence[str]) -> set[str]:
        """The tensors of which each iteration of loops over some dimensions reads the same elements."""
        return {access.tensor for access, moving in self.reads.items() if not moving & set(dims)}


def divided_dims(a: Assignment) -> set[str]:
    """The dimensions of a reduction that its conditions take residues of, also as what a quotient leaves, ``w - 2 * (w / 2)``: each class
    of these is a nest of its own, over other loops."""
    if not a.reduction:
        return set()
    tests = [part.condition for part in walk(a.value) if isinstance(part, Select)]
    moduli = [part for part in walk(a.value) if isinstance(part, Binary) and part.op == "%"]
    moduli += [part for test in tests for part in walk(test) if isinstance(part, Binary) and part.op == "/"]
    return {name for part in moduli if part.dtype == "int64" for name in names(part)}


def all_accesses(a: Assignment) -> Iterator[Access]:
    """The write of an assignment and all its reads, those of gathered subscripts included."""
    yield Access(a.tensor, a.subscripts, dtype=a.value.dtype)
    for expr in (a.value, *([a.start] if a.start is not None else []), *a.subscripts):
        yield from (access for access, _ in guarded_accesses(expr))
    for nest in a.tiled:
        yield from (Access(flat.tensor, (), dtype=a.value.dtype) for flat in nest.statement.accesses)


def bytes_of(storage: Storage) -> int:
    """Of all elements of a tensor."""
    return storage.elements * DTYPES[storage.dtype].bytes


def may_have_nest(uses: Uses) -> bool:
    """Whether an assignment is no reduction, or one that nests are made of: others are written out, or have loops of their own."""
    a = uses.a
    gathers = any(is_gather(sub) for access in uses.reads for sub in access.subscripts)
    return not a.reduction or a.value.dtype in (*TYPES, *ROUNDED) and not gathers
