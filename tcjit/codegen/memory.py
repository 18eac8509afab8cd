"""Where tensors live in a kernel, and the addresses of their elements.

An argument is a pointer with constant strides, or with strides that the call passes; a temporary is a slice of the workspace, or, below
the tile marks that contract it, a private array folded modulo its size. With dynamic sizes, strides and slices follow from them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from tcjit.codegen import prelude
from tcjit.codegen.address import Address
from tcjit.codegen.dialect import Dialect, GpuDialect
from tcjit.codegen.loops import Run
from tcjit.codegen.source import Numbers
from tcjit.grammar.ast import Binary, Expr, Index, Size
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear, Ranges, simplified
from tcjit.grammar.polynomial import Polynomial, integer, number
from tcjit.mapping.marks import Mark
from tcjit.mapping.passes.contract import STACK_BYTES
from tcjit.mapping.pipeline import Mapped
from tcjit.mapping.scop import Scop
from tcjit.mapping.storage import Buffer, Storage, ThreadSlice
from tcjit.mapping.strides import accesses

# names that C or the kernel's own signature takes
_KEYWORDS = frozenset(
    "alignas alignof asm auto bool break case char complex const constexpr continue default do double else enum extern false float "
    "for goto if imaginary inline int long noreturn nullptr register restrict return short signed sizeof static static_assert struct "
    "switch thread_local true typedef typeof typeof_unqual union unsigned unix linux void volatile while int8_t int16_t int32_t "
    "int64_t uint8_t uint16_t uint32_t uint64_t tensors numbers workspace threads NULL INFINITY NAN main".split()
)
# names of loops, helpers, vector temporaries, private arrays and strides, of limits in stdint.h, and of the implementation
_RESERVED = re.compile(r"c\d+|[svx]\d+(_\d+)?|tc_.*|TC_.*|_.*|.*_p\d*|.*_bits|.*_stride\d+|U?INT.*_.*|.*_(MIN|MAX|WIDTH)")

# types and functions that contractions declare
_VECTOR = re.compile(r"tc_(sum_)?(float|double)\d+")

ALIGNMENT = 64  # bytes, of every workspace slice and private array


class KernelMemory:
    """The names and places of all tensors of one kernel."""

    def __init__(self, mapped: Mapped, dialect: Dialect) -> None:
        self.mapped = mapped
        self.workspace = 0
        self.offsets: dict[str, int] = {}
        self.moving: dict[str, Expr] = {}  # offsets that depend on dynamic sizes, behind all others
        self.end: Expr | None = None  # where those end: the bytes of workspace of a call
        self.steps: dict[Expr, str] = {}  # strides that depend on dynamic sizes
        self.privates: dict[tuple[Mark, str], Buffer] = {(p.mark, p.tensor): p for p in mapped.privates}
        self.names = _c_names(mapped, dialect)
        self.contracted = {p.tensor for p in mapped.privates} | {part.tensor for part in mapped.slices} | _accumulated(mapped.scop)
        for storage in mapped.scop.tensors:
            if storage.role == "temporary" and storage.name not in self.contracted and not any(storage.dynamic_extents):
                self.offsets[storage.name] = self.workspace
                self.workspace += _lines(storage.elements * DTYPES[storage.dtype].bytes)
        self.first_slice = self.workspace  # of the first thread
        self.slices: dict[tuple[Mark, str], tuple[ThreadSlice, int]] = {}  # with their place in what a thread has
        self.slice_bytes = 0  # of all slices of a thread, and of its large private arrays
        for part in mapped.slices:
            self.slices[part.mark, part.tensor] = part, self.slice_bytes
            self.slice_bytes += _lines(part.elements * DTYPES[mapped.scop.tensor(part.tensor).dtype].bytes)
        self.large: dict[tuple[Mark, str], int] = {}  # private arrays that a thread's stack does not hold: their place among its slices
        stack: Counter[Mark] = Counter()
        for where, private in self.privates.items() if not mapped.launches else ():
            size = _lines(private.elements * DTYPES[mapped.scop.tensor(private.tensor).dtype].bytes)
            if stack[private.mark] + size <= STACK_BYTES:
                stack[private.mark] += size
            else:
                self.large[where] = self.slice_bytes
                self.slice_bytes += size
        self.workspace += self.slice_bytes * mapped.slots
        for storage in mapped.scop.tensors:
            if storage.role == "temporary" and storage.name not in self.contracted and any(storage.dynamic_extents):
                self.moving[storage.name] = self.end or number(self.workspace)
                size_here = _binary("*", storage.volume(), number(DTYPES[storage.dtype].bytes))
                lines = _binary("/", _binary("+", size_here, number(ALIGNMENT - 1)), number(ALIGNMENT))
                self.end = _binary("+", self.moving[storage.name], _binary("*", lines, number(ALIGNMENT)))
        for storage in mapped.scop.tensors:
            for axis in _moving_axes(storage):
                self.steps.setdefault(storage.volume(axis + 1), f"tc_step{len(self.steps)}")

    def below(self, mark: Mark) -> list[Buffer]:
        """The private arrays that a mark declares."""
        return [p for (where, _), p in self.privates.items() if where == mark]

    def slices_below(self, mark: Mark) -> list[tuple[ThreadSlice, int]]:
        """The slices that a mark declares, and where each is in what a thread has."""
        return [found for (where, _), found in self.slices.items() if where == mark]

    def exists(self, tensor: str, marks: tuple[Mark, ...]) -> bool:
        """Whether a tensor has a place here: a contracted one has none outside its tiles, where no read of it is ever evaluated."""
        return tensor not in self.contracted or any((mark, tensor) in self.privates or (mark, tensor) in self.slices for mark in marks)

    def private(self, tensor: str, marks: tuple[Mark, ...]) -> Buffer | None:
        """The buffer in which a tensor is kept here."""
        return next((found for mark in reversed(marks) if (found := self.privates.get((mark, tensor)))), None)

    def address(self, storage: Storage, subscripts: tuple[Linear, ...], marks: tuple[Mark, ...], ranges: Ranges) -> Address:
        """The address of an element; ``marks`` are the marks above, innermost last."""
        if private := self.private(storage.name, marks):
            return self._private(private, subscripts, ranges)
        name = self.names[storage.name]
        fixed = Linear.of(0)
        runtime: list[tuple[str, Linear]] = []
        for axis, (subscript, stride) in enumerate(zip(subscripts, storage.strides, strict=True)):
            if stride is None:
                runtime.append((self.stride_name(storage, axis), simplified(subscript, ranges)))
            else:
                fixed = fixed + simplified(subscript, ranges).times(stride)
        return Address(name, fixed, tuple(runtime))

    def extent(self, tensor: str, axis: int) -> Expr:
        """The extent of an axis: a number, or what follows from dynamic sizes."""
        storage = self.mapped.scop.tensor(tensor)
        return storage.extent(axis) or number(storage.shape[axis])

    def stride_name(self, storage: Storage, axis: int) -> str:
        """The variable that holds a stride."""
        if storage.layout == "contiguous":
            return self.steps[storage.volume(axis + 1)]
        return f"{self.names[storage.name]}_stride{axis}"

    @property
    def places(self) -> dict[str, str]:
        """Where in the workspace each temporary is: a number of bytes, or the variable that holds one."""
        fixed = {name: str(offset) for name, offset in self.offsets.items()}
        return {**fixed, **{name: offset_name(self.names[name]) for name in self.moving}}

    @property
    def values(self) -> list[tuple[str, Expr]]:
        """The variables whose values follow from the sizes of a call: sizes, strides, offsets of slices."""
        sizes = [(d.name, Size(d.name, dtype="int64")) for d in self.mapped.scop.program.dynamic]
        steps = [(name, value) for value, name in self.steps.items()]
        return [*sizes, *steps, *((offset_name(self.names[name]), value) for name, value in self.moving.items())]

    @property
    def arguments(self) -> list[str]:
        """The tensors that a call passes, in their order."""
        definition = self.mapped.scop.program.definition
        return [*definition.returns, *(p.name for p in definition.params if p.dims)]

    @property
    def numbers(self) -> Numbers:
        """The numbers that a call passes: what follows from its sizes, scalars, and the strides that it alone knows."""
        scop, params = self.mapped.scop, self.mapped.scop.program.definition.params
        scalars = [("scalar", p.name, p.dtype) for p in params if not p.dims and p.name not in scop.values]
        passed = [scop.tensor(p.name) for p in params if p.dims and scop.tensor(p.name).layout != "contiguous"]
        strides = [("stride", t.name, axis) for t in passed for axis, stride in enumerate(t.strides) if stride is None]
        return (*(("value", name, value) for name, value in self.values), *scalars, *strides)

    @property
    def host(self) -> tuple[tuple[str, Expr], ...]:
        """As in ``Source.host``: the bytes of workspace, where they follow from the sizes of a call."""
        return (("workspace", self.end),) if self.end is not None else ()

    def private_name(self, private: Buffer) -> str:
        """The name of a buffer; on a GPU, where one kernel may declare several of one tensor side by side, they are numbered."""
        number = [mark for mark, tensor in self.privates if tensor == private.tensor].index(private.mark) if self.mapped.launches else 0
        return f"{self.names[private.tensor]}_p{number or ''}"

    def _private(self, private: Buffer, subscripts: tuple[Linear, ...], ranges: Ranges) -> Address:
        place = Linear.of(0)
        for subscript, axis, extent in zip(subscripts, private.axes, self.mapped.scop.tensor(private.tensor).shape, strict=True):
            if axis.base == 0 and len(axis.parts) == 1 and axis.parts[0][0] == 1 and axis.parts[0][1] >= extent:
                place = place + subscript.times(axis.parts[0][2])  # all of the axis: nothing to fold
                continue
            for divisor, modulus, stride in axis.parts:
                place = place + simplified((subscript - axis.base) // divisor % modulus, ranges).times(stride)
        return Address(self.private_name(private), place)


def _c_names(mapped: Mapped, dialect: Dialect) -> dict[str, str]:
    """An identifier for every tensor and scalar: its own name, unless the language, the helpers or the loops have a use for it."""
    scalars = [p.name for p in mapped.scop.program.definition.params if not p.dims]
    wanted = [t.name for t in mapped.scop.tensors] + scalars
    taken = set(wanted)
    found = {}
    for name in wanted:
        plain = name
        while _RESERVED.fullmatch(plain) or plain in _KEYWORDS or prelude.known(plain, dialect) or (plain != name and plain in taken):
            plain = f"t{plain}_"
        found[name] = plain
        taken.add(plain)
    return found


def symbol(definition: str, dialect: Dialect) -> str:
    """The name of a def's kernel, apart from all that file scope declares."""
    name = f"tc_{definition}"
    while prelude.known(name, dialect) or _VECTOR.fullmatch(name) or (isinstance(dialect, GpuDialect) and name == "tc_shared"):
        name += "_"
    return name


def offset_name(tensor: str) -> str:
    return f"tc_offset_{tensor}"


def _lines(size: int) -> int:
    """Bytes of whole cache lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _accumulated(scop: Scop) -> set[str]:
    """The temporaries that live in accumulators, or in the values of an epilogue, only."""
    tiled = [one.statement for s in scop.statements for one in s.tiled]
    alone = {s.tensor for s in scop.statements if s.tiled or s.fused}
    stored = {flat.tensor for s in tiled for flat in (s.accesses if s.in_memory else s.accesses[1:])}  # the first one is the write
    loops = {access.tensor for s in scop.statements if not (s.tiled or s.fused) for access in accesses(s)}
    return {name for name in alone - stored - loops if scop.tensor(name).role == "temporary"}


def _moving_axes(storage: Storage) -> list[int]:
    """The axes of a contiguous tensor whose strides depend on dynamic sizes."""
    return [axis for axis, step in enumerate(storage.strides) if step is None] if storage.layout == "contiguous" else []


def _binary(op: str, left: Expr, right: Expr) -> Expr:
    return Binary(op, left, right, dtype="int64")


def linear_subscript(subscript: Expr, run: Run, values: Mapping[str, int]) -> Linear | None:
    """A quasi-affine subscript over loop variables; None for a data-dependent one."""
    value = integer(subscript, values)
    if value is None:
        return None
    if isinstance(value, int):
        return Linear.of(value)
    return _sum(value, run, values)


def _sum(value: Polynomial, run: Run, values: Mapping[str, int]) -> Linear | None:
    total = Linear.of(0)
    for monomial, factor in value.terms.items():
        if not monomial:
            total = total + factor
            continue
        if len(monomial) != 1:
            return None
        atom = monomial[0]
        if isinstance(atom, Index):
            total = total + run.index(atom.name).times(factor)
        elif isinstance(atom, Size):
            total = total + Linear.of(atom.name).times(factor)
        elif isinstance(atom, Binary) and atom.op == "/":
            left, right = linear_subscript(atom.left, run, values), linear_subscript(atom.right, run, values)
            if left is None or right is None or not right.is_constant or right.constant <= 0:
                return None
            total = total + (left // right.constant).times(factor)
        else:
            return None
    return total
