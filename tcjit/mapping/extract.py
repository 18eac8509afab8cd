"""From a program to a scop.

Lowering splits a reduction that initialises into ``init`` and ``update``, gives half-precision and bool sums a wider temporary, and
cuts a reduction with few results into a fixed number of chunks with a partial result each. What comes out is again a list
of plain assignments and updates, so everything after this file knows two kinds of statement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tcjit.grammar.affine import affine, guarded_accesses, isl_name
from tcjit.grammar.ast import Access, Binary, Cast, Const, Expr, Index, Program, Statement
from tcjit.grammar.walk import rebuild
from tcjit.mapping.cases import cases, joined
from tcjit.mapping.isl import context
from tcjit.mapping.options import Options
from tcjit.mapping.pack import is_product, packings, replaced, turned_lane
from tcjit.mapping.pad import padded_read, paddings, with_padded
from tcjit.mapping.reduction import identity, needs_wide
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.storage import Bounds, Storage, fresh
from tcjit.mapping.strides import fits_block, stride_in

# terms of a reduction that are worth a block of a GPU
PART = 4096
# by how much the values of a dynamic size differ at most
SPREAD = 32


def build(program: Program, options: Options, layouts: Mapping[str, str] | None = None, processors: int = 0) -> Scop:
    """Lower a program. ``layouts`` gives the arguments' layouts as in a launch record; the rest is contiguous.

    ``processors`` are those of a GPU, which a long reduction with few results is spread over; 0 on a CPU.
    """
    layouts = layouts or {}
    extents = dict(program.extents)
    storages = [
        Storage(t.name, t.dtype, program.shape(t.name), t.role, layouts.get(t.name, "contiguous"), extents.get(t.name, ()))
        for t in program.definition.tensors
    ]
    lowering = _Lowering(program, options, storages, processors)
    for number, statement in enumerate(program.definition.statements):
        lowering.lower(number, statement)
    used = {s.tensor for s in lowering.statements} | {a.tensor for s in lowering.statements for a, _ in s.reads()}
    kept = tuple(t for t in lowering.tensors if t.role != "temporary" or t.name in used)
    values = {**dict(program.sizes), **dict(program.scalars)}
    return Scop(program, tuple(lowering.statements), kept, values, context())


class _Lowering:
    """Collects statements and the temporaries that lowering adds."""

    def __init__(self, program: Program, options: Options, tensors: list[Storage], processors: int) -> None:
        self.program = program
        self.options = options
        self.tensors = tensors
        self.processors = processors
        self.statements: list[ScopStatement] = []
        self.open: dict[str, tuple[Expr, Expr]] = {}  # the ranges of the statement at hand that depend on dynamic sizes

    def lower(self, number: int, s: Statement) -> None:
        box = {r.index: limits for r, limits in zip(s.domain, self.program.domains[number], strict=True)}
        ranges = self.program.ranges[number] if self.program.ranges else ()
        self.open = {r.index: found for r, found in zip(s.domain, ranges) if found is not None}
        left = tuple((name, *limits) for name, limits in box.items() if name not in s.reduction)
        full = tuple((name, *limits) for name, limits in box.items())
        if any(upper <= lower for _, lower, upper in left):
            return
        tensor = next(t for t in self.tensors if t.name == s.tensor)
        empty = any(upper <= lower for _, lower, upper in full)
        if s.operator == "=":
            for part, value in self._joined(s, full, number):
                self._emit(tensor.name, s.subscripts, "=", value, part, (), number)
            return
        wide = s.accumulate if needs_wide(s) else ""
        target, value = tensor, s.value
        if wide:
            target = self._temporary(f"{tensor.name}_wide", wide, tensor.shape, tensor.open)
            value = Cast(s.value, dtype=wide)
        first: Expr | None = None
        if s.initialise:
            first = identity(s.operator, target.dtype)
        elif wide:
            first = Cast(Access(tensor.name, s.subscripts, dtype=tensor.dtype), dtype=wide)
        if empty:
            self._start(target, s, first, left, number)
        else:
            self._sum(target, s, value, first, left, full, number)
        if wide:
            narrowed = Cast(Access(target.name, s.subscripts, dtype=wide), dtype=tensor.dtype)
            self._emit(tensor.name, s.subscripts, "=", narrowed, left, (), number)

    def _start(self, target: Storage, s: Statement, first: Expr | None, left: Bounds, number: int) -> None:
        """The value that a reduction starts from, where it does not go on from the one that is there."""
        if first is not None:
            self._emit(target.name, s.subscripts, "=", first, left, (), number)

    def _reduce(
        self, target: Storage, s: Statement, value: Expr, first: Expr | None, left: Bounds, full: Bounds, number: int
    ) -> None:
        reduced = tuple(bound for bound in full if bound[0] in s.reduction)
        chunks = self._chunks(value, left, reduced)
        if chunks <= 1:
            for box, terms in self._cases(s, value, left):
                self._start(target, s, first, box, number)
                inside = tuple(next((b for b in box if b[0] == bound[0]), bound) for bound in full)
                self._emit(target.name, s.subscripts, s.operator, terms, inside, s.reduction, number)
            return
        name, lower, upper = max(reduced, key=lambda bound: bound[2] - bound[1])
        if self.processors:  # the outermost loop that is long enough: what is left is read in long runs
            name, lower, upper = next(((n, lo, hi) for n, lo, hi in reduced if hi - lo >= chunks), (name, lower, upper))
        moving = name in self.open
        if moving:  # parts of one size: their number follows from the call, and suffices at the least value of a dynamic size too
            chunks = min(upper - lower, chunks * SPREAD)
        else:
            chunks = _divisor_near(upper - lower, chunks)
        size = -(-(upper - lower) // chunks)
        chunks = -(-(upper - lower) // size)
        chunk = fresh("chunk", {bound[0] for bound in full} | {t.name for t in self.tensors})
        part = self._temporary(f"{target.name}_part", target.dtype, (chunks, *target.shape), (None, *target.open) if target.open else ())
        at = (Index(chunk, dtype="int64"), *s.subscripts)
        limits = (chunk, 0, chunks)
        # the reduced dimension now counts inside its chunk
        start = Binary("*", Index(chunk, dtype="int64"), Const(size, dtype="int64"), dtype="int64")
        moved = Binary("+", start, Index(name, dtype="int64"), dtype="int64")
        moved = Binary("+", moved, Const(lower, dtype="int64"), dtype="int64") if lower else moved
        inside = tuple((n, 0, size) if n == name else (n, lo, hi) for n, lo, hi in full)
        short = () if chunks * size == upper - lower else (f"{size} * {isl_name(chunk)} + {isl_name(name)} < {upper - lower}",)
        if moving:
            first_term, end = self.open.pop(name)
            place = f"{size} * {isl_name(chunk)} + {isl_name(name)} + {lower}"
            short = (f"{affine(first_term, self._values)} <= {place} < {affine(end, self._values)}",)
            last = Binary("+", end, Const(size - 1 - lower, dtype="int64"), dtype="int64")
            self.open[chunk] = Const(0, dtype="int64"), Binary("/", last, Const(size, dtype="int64"), dtype="int64")
        # an untouched element of a partial (left indices that cover a part of the tensor) is never read
        alone = bool(self.processors)  # on a GPU a launch of its own: in one with others, a block would have all parts of a result
        self._emit(part.name, at, "=", identity(s.operator, target.dtype), (limits, *left), (), number, apart=alone)
        value = _with_index(value, name, moved)
        self._emit(part.name, at, s.operator, value, (limits, *inside), s.reduction, number, short, apart=alone)
        combined = Access(part.name, at, dtype=target.dtype)
        self._start(target, s, first, left, number)
        self._emit(target.name, s.subscripts, s.operator, combined, (*left, limits), (chunk,), number, apart=alone)

    def _sum(self, target: Storage, s: Statement, value: Expr, first: Expr | None, left: Bounds, full: Bounds, number: int) -> None:
        """A reduction, its operands and its result in forms that vectors can use."""
        if not self.options.pack or (self.options.lanes == 1 and not self.processors):
            self._reduce(target, s, value, first, left, full, number)
            return
        if s.operator == "+=" and s.reduction:
            value = self._padded(value, full, number)
        lane = None if self.processors else turned_lane(s, value, full, {t.name: t for t in self.tensors}, self._values, self.options.lane)
        if lane is None or lane in self.open:
            self._reduce(target, s, self._packed(target, s, value, full, number), first, left, full, number)
            return
        order = sorted(range(len(s.subscripts)), key=lambda axis: s.subscripts[axis] == Index(lane, dtype="int64"))
        shape = tuple(target.shape[axis] for axis in order)
        extents = tuple(target.open[axis] for axis in order) if target.open else ()
        turned = self._temporary(f"{target.name}_turned", target.dtype, shape, extents)
        inner = replace(s, tensor=turned.name, subscripts=tuple(s.subscripts[axis] for axis in order))
        last = tuple(sorted(left, key=lambda bound: bound[0] == lane))
        whole = (*last, *(bound for bound in full if bound not in left))
        self._reduce(turned, inner, self._packed(turned, inner, value, whole, number), first, last, whole, number)
        result = Access(turned.name, inner.subscripts, dtype=turned.dtype)
        self._emit(target.name, s.subscripts, "=", result, left, (), number, apart=True)

    def _packed(self, target: Storage, s: Statement, value: Expr, full: Bounds, number: int) -> Expr:
        """The value reading packed copies where they pay, the copies emitted before."""
        if self.processors:  # shared memory does the rest
            return value
        copies: dict[Access, Access] = {}
        for packing in packings(target, s.subscripts, value, full, s.reduction, {t.name: t for t in self.tensors}, self._values):
            source = packing.access
            bounds = tuple(next(b for b in full if b[0] == name) for name in packing.order)
            shape = tuple(upper for _, _, upper in bounds)
            copy = self._temporary(f"{source.tensor}_packed", source.dtype, shape, self._uppers(packing.order))
            order = tuple(Index(name, dtype="int64") for name in packing.order)
            self._emit(copy.name, order, "=", source, bounds, (), number)
            copies[source] = Access(copy.name, order, dtype=source.dtype)
        return replaced(value, copies)

    def _joined(self, s: Statement, full: Bounds, number: int) -> list[tuple[Bounds, Expr]]:
        """The parts of an assignment: one, unless it joins tensors, which neither it nor a later one that would share its loops reads."""
        later = [each.value for each in self.program.definition.statements[number:] if not each.reduction]
        if self.processors or self.options.lanes == 1 or any(a.tensor == s.tensor for v in later for a, _ in guarded_accesses(v)):
            return [(full, s.value)]
        return joined(s.value, full, self._values, self.open)

    def _cases(self, s: Statement, value: Expr, left: Bounds) -> list[tuple[Bounds, Expr]]:
        """The parts in which a sum is computed: one, unless conditions on its results keep it from vectors."""
        plain = self.processors or not self.options.pack or self.options.lanes == 1
        if plain or s.operator != "+=" or not s.reduction or is_product(value):
            return [(left, value)]
        return cases(value, left, self._values, self.open)

    def _padded(self, value: Expr, full: Bounds, number: int) -> Expr:
        """The value reading padded copies instead of under conditions, where that makes a product of it."""
        found = paddings(value, full, {t.name: t for t in self.tensors}, self._values, self.open)
        made: dict[Expr, Access] = {p.select: padded_read(p, "") for p in found}
        if not found or not is_product(with_padded(value, made)):
            return value
        for p in found:
            bounds = tuple((name, 0, greatest - least + 1) for name, (least, greatest) in zip(p.indices, p.box, strict=True))
            shape = tuple(upper for _, _, upper in bounds)
            copy = self._temporary(f"{p.read.tensor}_padded", p.read.dtype, shape, self._uppers(p.dims))
            known, self.open = self.open, {name: self.open[dim] for name, dim in zip(p.indices, p.dims, strict=True) if dim in self.open}
            self._emit(copy.name, tuple(Index(name, dtype="int64") for name in p.indices), "=", p.value, bounds, (), number)
            self.open = known
            made[p.select] = padded_read(p, copy.name)
        return with_padded(value, made)

    @property
    def _values(self) -> dict[str, int]:
        return {**dict(self.program.sizes), **dict(self.program.scalars)}

    def _uppers(self, dims: Sequence[str]) -> tuple[Expr | None, ...]:
        """The extents of a temporary whose axes are these dimensions of the statement at hand, as in ``Storage.open``."""
        found = tuple(self.open[dim][1] if dim in self.open else None for dim in dims)
        return found if any(found) else ()

    def _fits_block(self, value: Expr, reduced: Bounds) -> bool:
        """Whether one block of a GPU can keep the terms of a result."""
        storages = {t.name: t for t in self.tensors}
        extents = {name: upper - lower for name, lower, upper in reduced}
        reads = [access for access, _ in guarded_accesses(value)]
        return fits_block(extents, reads, lambda a, dim: stride_in(storages[a.tensor], a.subscripts, dim, self._values))

    def _chunks(self, value: Expr, left: Bounds, reduced: Bounds) -> int:
        """How many parts share a reduction: as many as are asked for, else enough for threads where the results alone give too few."""
        if not reduced or self.options.reduction_chunks:
            return self.options.reduction_chunks if reduced else 1
        results, terms = _volume(left), _volume(reduced)
        longest = max(upper - lower for _, lower, upper in reduced)
        if self.processors and results >= 2 * self.processors:
            return 1  # blocks enough, whose threads share the terms
        if self.processors:
            if results >= self.processors // 2 or terms < 2 * PART or self._fits_block(value, reduced):
                return 1
            return min(-(-2 * self.processors // results), terms // PART, longest)
        if results >= 16 or results * terms < 1 << 17 or longest < 256:
            return 1
        return 32

    def _emit(
        self,
        tensor: str,
        subscripts: tuple[Expr, ...],
        operator: str,
        value: Expr,
        bounds: Bounds,
        reduction: tuple[str, ...],
        number: int,
        constraints: tuple[str, ...] = (),
        *,
        apart: bool = False,
    ) -> None:
        if any(upper <= lower for _, lower, upper in bounds):
            return
        name = f"S{len(self.statements)}"
        limits = tuple(
            (dim, str(affine(self.open[dim][0], self._values)), str(affine(self.open[dim][1], self._values)))
            for dim, _, _ in bounds
            if dim in self.open
        )
        # an update along no dimension is still an update: it reads what it writes
        made = ScopStatement(name, tensor, subscripts, operator, value, bounds, reduction, constraints, number, limits, apart)
        self.statements.append(made)

    def _temporary(self, stem: str, dtype: str, shape: tuple[int, ...], extents: tuple[Expr | None, ...] = ()) -> Storage:
        taken = {t.name for t in self.tensors} | {p.name for p in self.program.definition.params}  # scalars are names of the kernel too
        storage = Storage(fresh(stem, taken), dtype, shape, "temporary", open=extents)
        self.tensors.append(storage)
        return storage


def _divisor_near(extent: int, wanted: int) -> int:
    """A number of chunks near the wanted one, equal chunks if there are such: they need no guard."""
    return next((n for n in range(wanted, 2 * wanted) if extent % n == 0), wanted)


def _with_index(value: Expr, name: str, replacement: Expr) -> Expr:
    """The value with an index replaced; where it stands as a value, in ``int32``, the replacement is converted to that."""
    if isinstance(value, Index) and value.name == name:
        return replacement if value.dtype == replacement.dtype else Cast(replacement, dtype=value.dtype)
    return rebuild(value, lambda child: _with_index(child, name, replacement))


def _volume(bounds: Bounds) -> int:
    total = 1
    for _, lower, upper in bounds:
        total *= max(0, upper - lower)
    return total
