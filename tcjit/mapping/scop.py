"""A static control part: statements over boxes, each an assignment or an update, with domains and access relations for isl."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import chain
from math import prod

import islpy as isl

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import affine, condition, guarded_accesses, isl_name
from tcjit.grammar.ast import Access, Binary, Expr, Index, Program, Select
from tcjit.grammar.walk import with_accesses
from tcjit.mapping.isl import union_map, union_set
from tcjit.mapping.nest.nest import Leaf
from tcjit.mapping.nest.tiled_statement import KINDS, Kind, TiledStatement
from tcjit.mapping.storage import Bounds, Storage

# dimension, lower, upper (exclusive), in isl's words: inside what ``bounds`` say
DynamicBounds = tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class OuterLoops:
    """``dims`` of a statement, outermost first, over which the statements with the same ``number`` have their loops in common.

    ``row``: where these are overlapped blocks of rows, the row that an instance of the statement computes. ``columns``: whether they are
    chunks of rows, over which some of the statements reduce. ``rest``: where the last of them is one over blocks of a dimension, and the
    last block is not whole, that dimension and the points that it has there. ``leaf``: the register tile that blocks were made
    for whose packed operands a core's cache holds; ``private``: whether each iteration packs all of them, also what others pack, too.
    ``sequential``: whether statements add to their results in one iteration of the last loop after another.
    """

    number: int
    dims: tuple[str, ...]
    row: Expr | None = None
    columns: bool = False
    rest: tuple[str, int] | None = None
    leaf: Leaf | None = None
    private: bool = False
    sequential: bool = False

    @property
    def shared(self) -> tuple[str, ...]:
        """Those whose iterations threads share."""
        return self.dims[:-1] if self.sequential else self.dims


@dataclass(frozen=True)
class StatementForm:
    """``tensor(subscripts) operator value`` for every point of a box, as an ``Assignment`` and a ``ScopStatement`` have it; ``operator`` is
    ``=`` or a reduction's."""

    tensor: str
    subscripts: tuple[Expr, ...]
    operator: str
    value: Expr
    bounds: Bounds  # dimension, lower, upper (exclusive)
    source: int  # number of the def's statement it came from
    reduction: tuple[str, ...] = ()  # dimensions along which instances may be reordered
    constraints: tuple[str, ...] = ()  # further affine constraints on the dimensions, in isl's words
    fuse_outer_only: bool = False  # reads a result transposed, or parts of one: sharing all loops would cost more than it brings
    tiled: tuple[TiledStatement, ...] = ()  # nests that compute a reduction, its start among them: passes leave its form as it is
    untiled: str = ""  # why a reduction has none
    fused: bool = False  # computed by the nest of a reduction before it
    scan: str = ""  # the dimension along which a result adds to the one before it
    scatter: tuple[str, ...] = ()  # dimensions of the results; the value's outer choices, one for each, compare them with data
    outer: OuterLoops | None = None  # the loops that it shares with the statements around it

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(name for name, _, _ in self.bounds)

    @cached_property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The lower and the upper bound (exclusive) of each dimension."""
        return {name: (lower, upper) for name, lower, upper in self.bounds}

    @cached_property
    def extents(self) -> dict[str, int]:
        return {name: upper - lower for name, lower, upper in self.bounds}

    @property
    def points(self) -> int:
        return prod(self.extents.values())

    @property
    def picks(self) -> dict[str, Expr]:
        """For each dimension of ``scatter`` the data that pick one of its results for a term."""
        picks, value = dict[str, Expr](), self.value
        for dim in self.scatter:
            assert isinstance(value, Select) and isinstance(value.condition, Binary)
            picks[dim], value = value.condition.right, value.then
        return picks

    @property
    def element(self) -> Access:
        """What it writes, as a read of it."""
        return Access(self.tensor, self.subscripts, dtype=self.value.dtype)

    @property
    def reduces_rows(self) -> bool:
        """Whether it reduces the rows of which it shares chunks with others, into a partial result of each chunk."""
        return self.outer is not None and self.outer.columns and self.subscripts[:1] == (Index(self.outer.dims[0], dtype="int64"),)


@dataclass(frozen=True)
class ScopStatement(StatementForm):
    """A statement as isl knows it."""

    name: str = field(kw_only=True)
    dynamic_bounds: DynamicBounds = ()  # of the dimensions whose bounds depend on dynamic sizes

    @property
    def isl_dims(self) -> tuple[str, ...]:
        return tuple(isl_name(name) for name in self.dims)

    @property
    def tuple_text(self) -> str:
        return f"{self.name}[{', '.join(self.isl_dims)}]"

    def extent(self, dim: str) -> int:
        return self.extents[dim]

    def range(self, dim: str) -> tuple[str, str]:
        """The lower and the upper bound (exclusive) of a dimension, in isl's words."""
        return next((str(lower), str(upper)) for name, lower, upper in (*self.dynamic_bounds, *self.bounds) if name == dim)

    @property
    def facts(self) -> list[str]:
        """What bounds the dimensions."""
        boxed = [*self.bounds, *self.dynamic_bounds]
        return [f"{lower} <= {isl_name(name)} < {upper}" for name, lower, upper in boxed] + list(self.constraints)

    def domain_text(self) -> str:
        return f"{self.tuple_text} : {' and '.join(self.facts)}" if self.facts else self.tuple_text

    @cached_property
    def reads(self) -> tuple[tuple[Access, tuple[tuple[Expr, bool], ...]], ...]:
        """Every read with the conditions under which it happens, that of the updated element included."""
        updated = () if self.operator == "=" else ((self.element, ()),)
        started = dict.fromkeys((access, ()) for tiled in self.tiled for access in tiled.statement.start_reads)
        subscripts = chain.from_iterable(map(guarded_accesses, self.subscripts))
        return *updated, *guarded_accesses(self.value), *started, *subscripts

    def with_accesses(self, change: Callable[[Access], Access]) -> ScopStatement:
        """The statement with every access changed, its write and those in subscripts included."""
        subscripts = tuple(with_accesses(sub, change) for sub in self.subscripts)
        write = change(Access(self.tensor, subscripts, dtype=self.value.dtype))
        return replace(self, tensor=write.tensor, subscripts=write.subscripts, value=with_accesses(self.value, change))


@dataclass(frozen=True)
class Scop:
    """The lowered program; ``values`` holds the numbers of its sizes and specialised scalars.

    Dynamic sizes are parameters of all isl sets and maps.
    """

    program: Program
    statements: tuple[ScopStatement, ...]
    tensors: tuple[Storage, ...]
    values: Mapping[str, int]
    ctx: isl.Context

    def statement(self, name: str) -> ScopStatement:
        return self._by_name[name]

    def tensor(self, name: str) -> Storage:
        return self._tensors[name]

    def tiled(self, name: str) -> TiledStatement:
        return self._tiled[name]

    @cached_property
    def tile_statements(self) -> dict[str, tuple[TiledStatement, Kind]]:
        """The tile statements by their names in a schedule tree."""
        return {tiled.tile_statement(kind): (tiled, kind) for tiled in self._tiled.values() for kind in KINDS}

    @cached_property
    def _tiled(self) -> dict[str, TiledStatement]:
        return {tiled.name: tiled for s in self.statements for tiled in s.tiled}

    @cached_property
    def _by_name(self) -> dict[str, ScopStatement]:
        return {s.name: s for s in self.statements}

    @cached_property
    def _tensors(self) -> dict[str, Storage]:
        return {t.name: t for t in self.tensors}

    @property
    def parameters(self) -> str:
        """As of the program."""
        return self.program.parameters

    @property
    def context(self) -> tuple[str, ...]:
        """What is known of the dynamic sizes, in isl's words."""
        return self.program.context

    @cached_property
    def sizes(self) -> isl.Set:
        """The dynamic sizes that the scop is for, as a set of parameters."""
        return isl.Set.read_from_str(self.ctx, f"{self.parameters}{{ : {' and '.join(self.context)} }}")

    @cached_property
    def domain(self) -> isl.UnionSet:
        return union_set(self.ctx, [self.domain_text(s) for s in self.statements], self.parameters)

    def domain_text(self, s: ScopStatement) -> str:
        """The instances of a statement, for sizes in the context; to stand behind ``parameters``, in braces."""
        facts = [*s.facts, *self.context]
        return f"{s.tuple_text} : {' and '.join(facts)}" if facts else s.tuple_text

    def instances(self, s: ScopStatement, ctx: isl.Context | None = None) -> isl.Set:
        """The same as a set."""
        return isl.Set.read_from_str(ctx or self.ctx, f"{self.parameters}{{ {self.domain_text(s)} }}")

    @cached_property
    def writes(self) -> isl.UnionMap:
        return self.relations([self.access_text(s, s.tensor, s.subscripts, ()) for s in self.statements])

    @cached_property
    def reads(self) -> isl.UnionMap:
        parts = [self.access_text(s, a.tensor, a.subscripts, guards) for s in self.statements for a, guards in s.reads]
        return self.relations(parts)

    def relations(self, texts: Sequence[str]) -> isl.UnionMap:
        """What texts of accesses say, for the instances that there are. (isl takes longer to read bounds once more than to intersect.)"""
        return union_map(self.ctx, list(dict.fromkeys(texts)), self.parameters).intersect_domain(self.domain)

    @cached_property
    def elements(self) -> isl.UnionSet:
        """Every element of every tensor that its statements access."""
        accessed = {name for s in self.statements for name in (s.tensor, *(access.tensor for access, _ in s.reads))}
        boxes = [f"{t.element}{' : ' if t.inside else ''}{' and '.join(t.inside)}" for t in self.tensors if t.name in accessed]
        return union_set(self.ctx, boxes, self.parameters)

    def universe(self, tensor: str) -> isl.UnionSet:
        """All elements that a tensor of any extents has."""
        return union_set(self.ctx, [self.tensor(tensor).element])

    def access_text(self, s: ScopStatement, tensor: str, subscripts: tuple[Expr, ...], guards: tuple[tuple[Expr, bool], ...]) -> str:
        """The access relation of one read or write, for ``relations``; a data-dependent subscript may touch its whole dimension."""
        targets: list[str] = []
        facts: list[str] = []
        for position, subscript in enumerate(subscripts):
            text = affine(subscript, self.values)
            if text is None:
                text = f"any{position}"
                while text in s.isl_dims:
                    text += "_"
                facts.append(f"0 <= {text} < {self.tensor(tensor).extent_texts[position]}")
            targets.append(text)
        for guard, holds in guards:
            if (text := condition(guard, self.values)) is not None:
                facts.append(f"({text})" if holds else f"not ({text})")
        where = f" : {' and '.join(facts)}" if facts else ""
        return f"{s.tuple_text} -> {isl_name(tensor)}[{', '.join(targets)}]{where}"

    def show(self) -> str:
        """Domains and accesses, for people."""
        lines = []
        for s in self.statements:
            lines.append(s.domain_text())
            lines.append(f"  writes {self.access_text(s, s.tensor, s.subscripts, ()).split(' -> ')[1].split(' : ')[0]} by {s.operator}")
            lines += [f"  reads  {self.access_text(s, a.tensor, a.subscripts, g).split(' -> ')[1].split(' : ')[0]}" for a, g in s.reads]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Group:
    """Statements in program order and the columns that they share: per column, statement -> dimension."""

    statements: tuple[str, ...]
    columns: tuple[dict[str, str], ...]

    def rest(self, scop: Scop, statement: str) -> tuple[str, ...]:
        """The dimensions of a statement that stay inside."""
        shared = {column[statement] for column in self.columns}
        return tuple(d for d in scop.statement(statement).dims if d not in shared)
