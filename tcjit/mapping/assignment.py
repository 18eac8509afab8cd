"""A program before it is a scop: assignments and reductions over boxes, in the order in which they run.

The passes between ``extract`` and ``Scop`` rewrite them one by one; what isl knows of a statement, its name and its text, comes last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, fields, replace
from functools import cached_property
from typing import Any

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import affine, guarded_accesses
from tcjit.grammar.arithmetic import index
from tcjit.grammar.ast import Access, Const, Expr, Index, Program, Statement
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import number
from tcjit.grammar.printer import show
from tcjit.grammar.walk import walk
from tcjit.mapping.isl import context
from tcjit.mapping.scop import Scop, ScopStatement, StatementForm
from tcjit.mapping.storage import Bounds, Storage, fresh

DynamicRanges = Mapping[str, tuple[Expr, Expr]]  # dimension -> lower, upper (exclusive), where they depend on dynamic sizes


@dataclass(frozen=True)
class Assignment(StatementForm):
    """A statement on its way to a scop; the dimensions of a reduction come last."""

    start: Expr | None = None  # that every result of a reduction starts from; None: from what its element holds
    dynamic: DynamicRanges = field(default_factory=dict)  # of dimensions of the def's statement; others may be among them

    @property
    def results(self) -> Bounds:
        """The dimensions of the left side."""
        return tuple(bound for bound in self.bounds if bound[0] not in self.reduction)

    @property
    def terms(self) -> Bounds:
        """The dimensions of the reduction."""
        return tuple(bound for bound in self.bounds if bound[0] in self.reduction)

    @cached_property
    def reads(self) -> tuple[Access, ...]:
        """The accesses of the value, each as often as it has them."""
        return tuple(access for access, _ in guarded_accesses(self.value))

    @cached_property
    def inputs(self) -> frozenset[str]:
        """The tensors that the value reads."""
        return frozenset(access.tensor for access in self.reads)

    @property
    def start_constraints(self) -> tuple[str, ...]:
        """Those of the results, where they are chunks of rows, or blocks the last of which is not whole; others concern terms."""
        blocks = self.outer is not None and (self.outer.rest is not None or self.outer.columns and not self.reduces_rows)
        return self.constraints if blocks else ()

    @cached_property
    def tensors_read(self) -> frozenset[str]:
        """The tensors that value, subscripts and start read."""
        exprs = (self.value, *self.subscripts, *([self.start] if self.start is not None else []))
        return frozenset(part.tensor for expr in exprs for part in walk(expr) if isinstance(part, Access))

    @property
    def final(self) -> bool:
        """Whether the form is one that later passes leave as it is."""
        return bool(self.tiled or self.fused or self.scan or self.scatter)

    def span(self, dim: str) -> tuple[object, object]:
        """The values of a dimension, for one size and for all of them."""
        return self.ranges.get(dim), self.dynamic.get(dim)

    @property
    def empty(self) -> bool:
        return any(upper <= lower for _, lower, upper in self.bounds)

    @property
    def is_elementwise(self) -> bool:
        """Whether it is a plain store to every element of a box that is known."""
        return self.outer is None and self.is_elementwise_in_loops

    @property
    def is_elementwise_in_loops(self) -> bool:
        """The same, also under loops that others share."""
        return self.operator == "=" and not (self.final or self.start or self.empty or self.dynamic or self.constraints)

    def show(self) -> str:
        """One line, for people."""
        return self._shown

    @cached_property
    def _shown(self) -> str:
        box = ", ".join(f"{name} in {lower}:{upper}" for name, lower, upper in self.bounds)
        start = f" from {show(self.start)}" if self.start else ""
        left = f"{self.tensor}({', '.join(map(show, self.subscripts))})"
        return f"{left} {self.operator} {show(self.value)}{start}{f' where {box}' if box else ''}"


@dataclass(frozen=True)
class Assignments:
    """The assignments of a program with its tensors; ``temporaries`` with the numbers of the def's statements they were added for;
    ``plans`` of nests by what they depend on, for all passes that ask for them."""

    program: Program
    assignments: tuple[Assignment, ...]
    declared: tuple[Storage, ...]
    temporaries: tuple[tuple[int, Storage], ...] = ()
    replaced: tuple[tuple[Assignment, ...], ...] = ()  # for each assignment before the last pass, those that took its place
    plans: dict[object, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def tensors(self) -> tuple[Storage, ...]:
        """Temporaries last, in the order of the def's statements."""
        return (*self.declared, *(storage for _, storage in sorted(self.temporaries, key=lambda added: added[0])))

    @cached_property
    def storages(self) -> dict[str, Storage]:
        """The tensors by their names."""
        return {storage.name: storage for storage in self.tensors}

    @cached_property
    def values(self) -> dict[str, int]:
        """The numbers of sizes and specialised scalars."""
        return self.program.values

    def statement(self, assignment: Assignment) -> Statement:
        """The def's statement that an assignment came from."""
        return self.program.definition.statements[assignment.source]

    def may_leave_results(self, a: Assignment) -> bool:
        """Whether an update of the program need not visit results without terms: an identity changes none that a sum of floats may hold,
        as 0.0 does -0.0, which no sum from 0.0 is."""
        if a.start is not None:
            return False
        if a.operator != "+=" or DTYPES[a.value.dtype].kind != "float":
            return True
        number = next(number for number, one in enumerate(self.assignments) if one is a)
        shape = self.storages[a.tensor].shape
        for one in reversed(self.assignments[:number]):
            if one.tensor == a.tensor and one.operator != "+=":
                return False
            if one.tensor == a.tensor and one.start is not None:
                places = [one.ranges.get(sub.name) if isinstance(sub, Index) else None for sub in one.subscripts]
                every = places == [(0, extent) for extent in shape] and len({*one.subscripts}) == len(shape)
                return every and isinstance(one.start, Const) and math.copysign(1, one.start.value) == 1
        return False

    def with_parts(self, parts: Iterable[Sequence[Assignment]], temporaries: Temporaries | None = None) -> Assignments:
        """The program with some assignments in the place of each, and with the ``temporaries`` that these use."""
        replaced = tuple(map(tuple, parts))
        added = self.temporaries if temporaries is None else tuple(temporaries.added)
        return replace(self, assignments=tuple(new for part in replaced for new in part), temporaries=added, replaced=replaced)

    def show(self) -> str:
        return "".join(f"{assignment.show()}\n" for assignment in self.assignments)


class Temporaries:
    """The tensors of a program while a pass adds some."""

    def __init__(self, before: Assignments) -> None:
        self.tensors = dict(before.storages)
        self.added = list(before.temporaries)
        self._taken = {p.name for p in before.program.definition.params}  # scalars are names of the kernel too

    def add(self, source: int, stem: str, dtype: str, shape: Sequence[int], extents: Sequence[Expr | None] = ()) -> Storage:
        """A new one; ``extents``: of its axes, those that depend on dynamic sizes, if any does."""
        storage = Storage(fresh(stem, self._taken | set(self.tensors)), dtype, tuple(shape), "temporary", dynamic_extents=tuple(extents))
        self.tensors[storage.name] = storage
        self.added.append((source, storage))
        return storage

    def stored(self, a: Assignment, stem: str, value: Expr, bounds: Bounds) -> Assignment:
        """An assignment of a value to a new temporary whose axes are some dimensions of another assignment, each from 0 on."""
        dims = [name for name, _, _ in bounds]
        dynamic = {name: limits for name, limits in a.dynamic.items() if name in dims}
        extents = [dynamic[name][1] if name in dynamic else None for name in dims]
        storage = self.add(a.source, stem, value.dtype, [upper for _, _, upper in bounds], extents)
        return Assignment(storage.name, tuple(map(index, dims)), "=", value, bounds, a.source, dynamic=dynamic)

    def copy(self, a: Assignment, stem: str, value: Expr, axes: Sequence[tuple[Index, int, Expr | None]]) -> Assignment:
        """An assignment of a value to a new temporary with an axis for each of some indices, from 0 to an extent, which may depend on
        dynamic sizes."""
        storage = self.add(a.source, stem, value.dtype, [size for _, size, _ in axes], [extent for _, _, extent in axes])
        bounds = tuple((own.name, 0, size) for own, size, _ in axes)
        dynamic = {own.name: (number(0), extent) for own, _, extent in axes if extent is not None}
        return Assignment(storage.name, tuple(own for own, _, _ in axes), "=", value, bounds, a.source, dynamic=dynamic)

    @contextmanager
    def trial(self, *, keep: bool = False) -> Iterator[None]:
        """What is added inside is forgotten behind it; not if it is to be kept, unless an error ends it."""
        tensors, added, ended = dict(self.tensors), list(self.added), False
        try:
            yield
            ended = True
        finally:
            if not (keep and ended):
                self.tensors, self.added = tensors, added


def rewrite(before: Assignments, visit: Callable[[Assignment, Temporaries], Sequence[Assignment]]) -> Assignments:
    """The program with every assignment replaced by some, which may use temporaries that ``visit`` adds."""
    temporaries = Temporaries(before)
    return before.with_parts([(old,) if old.final else visit(old, temporaries) for old in before.assignments], temporaries)


def to_scop(before: Assignments) -> Scop:
    """The statements ``S0``, ``S1``... with the tensors that they use."""
    statements = tuple(to_statement(f"S{number}", a, before.values) for number, a in enumerate(before.assignments))
    used = {s.tensor for s in statements} | {read.tensor for s in statements for read, _ in s.reads}
    tensors = tuple(t for t in before.tensors if t.role != "temporary" or t.name in used)
    return Scop(before.program, statements, tensors, before.values, context())


def to_statement(name: str, a: Assignment, values: Mapping[str, int]) -> ScopStatement:
    """An assignment as isl knows it; where a reduction starts is not part of it."""
    dynamic = [(dim, *a.dynamic[dim]) for dim, _, _ in a.bounds if dim in a.dynamic]
    limits = tuple((dim, str(affine(lower, values)), str(affine(upper, values))) for dim, lower, upper in dynamic)
    return ScopStatement(**{one.name: getattr(a, one.name) for one in fields(StatementForm)}, name=name, dynamic_bounds=limits)
