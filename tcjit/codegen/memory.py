"""Where tensors live in a kernel, and the text of an element's address.

An argument is a pointer with constant strides, or with strides that the call passes; a temporary is a slice of the workspace, or, below
the tile marks that contract it, a private array folded modulo its size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tcjit.codegen import prelude
from tcjit.codegen.dialect import Dialect, GpuDialect
from tcjit.codegen.linear import Linear, Opaque, combine
from tcjit.codegen.loops import Run
from tcjit.grammar.ast import Binary, Expr, Index
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.form import Form, integer
from tcjit.mapping.pipeline import Mapped
from tcjit.mapping.storage import Buffer, Storage

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

Ranges = Mapping[str, tuple[int, int]]  # loop variable -> least and greatest value, where both are constants
Bounds = Callable[[Linear, Ranges], "tuple[int, int] | None"]


@dataclass(frozen=True)
class Address:
    """``base[fixed + sum(part * stride)]``: one constant-stride sum, and the parts whose stride is a variable of the kernel."""

    base: str
    fixed: Linear
    runtime: tuple[tuple[str, Linear], ...] = ()

    @property
    def text(self) -> str:
        return self.written(lambda value: value.text)

    def written(self, index: Callable[[Linear], str]) -> str:
        """The element's text, given that of an expression."""
        parts = [] if self.fixed.is_constant and not self.fixed.constant and self.runtime else [index(self.fixed)]
        parts += [f"{index(part) if part.is_operand else f'({index(part)})'} * {stride}" for stride, part in self.runtime]
        return f"{self.base}[{' + '.join(parts)}]"

    def stride(self, variable: str) -> int | None:
        """Elements that the address moves with a loop variable; None where that is unknown."""
        if any(part.coefficient(variable) != 0 for _, part in self.runtime):
            return None
        return self.fixed.coefficient(variable)

    def substitute(self, values: Mapping[str, Linear]) -> Address:
        return Address(self.base, self.fixed.substitute(values), tuple((s, p.substitute(values)) for s, p in self.runtime))

    @property
    def variables(self) -> frozenset[str]:
        return frozenset(self.fixed.variables.union(*(part.variables for _, part in self.runtime)))


class Memory:
    """The names and places of all tensors of one kernel."""

    def __init__(self, mapped: Mapped, dialect: Dialect, bounds: Bounds) -> None:
        self.mapped = mapped
        self.bounds = bounds
        self.workspace = 0
        self.offsets: dict[str, int] = {}
        self.privates: dict[tuple[str, str], Buffer] = {(p.mark, p.tensor): p for p in mapped.privates}
        self.names = _c_names(mapped, dialect)
        self.contracted = {p.tensor for p in mapped.privates}
        for storage in mapped.scop.tensors:
            if storage.role == "temporary" and storage.name not in self.contracted:
                self.offsets[storage.name] = self.workspace
                size = storage.elements * DTYPES[storage.dtype].bytes
                self.workspace += -(-size // ALIGNMENT) * ALIGNMENT

    def below(self, mark: str) -> list[Buffer]:
        """The private arrays that a mark declares."""
        return [p for (where, _), p in self.privates.items() if where == mark]

    def exists(self, tensor: str, marks: tuple[str, ...]) -> bool:
        """Whether a tensor has a place here: a contracted one has none outside its tiles, where no read of it is ever evaluated."""
        return tensor not in self.contracted or any((mark, tensor) in self.privates for mark in marks)

    def private(self, tensor: str, marks: tuple[str, ...]) -> Buffer | None:
        """The buffer in which a tensor is kept here."""
        return next((found for mark in reversed(marks) if (found := self.privates.get((mark, tensor)))), None)

    def address(self, storage: Storage, subscripts: tuple[Linear, ...], marks: tuple[str, ...], ranges: Ranges) -> Address:
        """The address of an element; ``marks`` are the marks above, innermost last."""
        if private := self.private(storage.name, marks):
            return self._private(private, subscripts, ranges)
        name = self.names[storage.name]
        fixed = Linear.of(0)
        runtime: list[tuple[str, Linear]] = []
        for axis, (subscript, stride) in enumerate(zip(subscripts, storage.strides, strict=True)):
            if stride is None:
                runtime.append((stride_name(name, axis), subscript))
            else:
                fixed = fixed + subscript.times(stride)
        return Address(name, fixed, tuple(runtime))

    def private_name(self, private: Buffer) -> str:
        """The name of a buffer; on a GPU, where one kernel may declare several of one tensor side by side, they are numbered."""
        number = [mark for mark, tensor in self.privates if tensor == private.tensor].index(private.mark) if self.mapped.launches else 0
        return f"{self.names[private.tensor]}_p{number or ''}"

    def _private(self, private: Buffer, subscripts: tuple[Linear, ...], ranges: Ranges) -> Address:
        place = Linear.of(0)
        for subscript, axis in zip(subscripts, private.axes, strict=True):
            for divisor, modulus, stride in axis.parts:
                value = combine("floor", (subscript - axis.base, Linear.of(divisor)))
                place = place + without_idle_mod(combine("mod", (value, Linear.of(modulus))), ranges, self.bounds).times(stride)
        return Address(self.private_name(private), place)


def _c_names(mapped: Mapped, dialect: Dialect) -> dict[str, str]:
    """An identifier for every tensor and scalar: its own name, unless the language, the helpers or the loops have a use for it."""
    scalars = [p.name for p in mapped.scop.program.definition.params if not p.dims]
    wanted = [t.name for t in mapped.scop.tensors] + scalars
    taken = set(wanted)
    found = {}
    for name in wanted:
        plain = name
        while _RESERVED.fullmatch(plain) or keyword(plain) or prelude.known(plain, dialect) or (plain != name and plain in taken):
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


def keyword(name: str) -> bool:
    """Whether C or the kernel's own signature takes a name."""
    return name in _KEYWORDS


def stride_name(tensor: str, axis: int) -> str:
    return f"{tensor}_stride{axis}"


def without_idle_mod(value: Linear, ranges: Ranges, bounds: Bounds) -> Linear:
    """Drop ``x mod n`` where the loops keep x inside 0..n-1."""
    result = Linear((), value.constant)
    for atom, coefficient in value.terms:
        kept = Linear(((atom, 1),))
        if isinstance(atom, Opaque) and atom.op == "mod" and atom.args[1].is_constant:
            limits = bounds(atom.args[0], ranges)
            if limits is not None and limits[0] >= 0 and limits[1] < atom.args[1].constant:
                kept = atom.args[0]
        result = result + kept.times(coefficient)
    return result


def bounds(value: Linear, ranges: Ranges) -> tuple[int, int] | None:
    """Least and greatest value of a sum over loop variables with constant ranges; None where one is missing."""
    least = greatest = value.constant
    for atom, coefficient in value.terms:
        limits = ranges.get(atom) if isinstance(atom, str) else None
        if limits is None:
            return None
        ends = (coefficient * limits[0], coefficient * limits[1])
        least += min(ends)
        greatest += max(ends)
    return least, greatest


def linear_subscript(subscript: Expr, run: Run, values: Mapping[str, int]) -> Linear | None:
    """A quasi-affine subscript over loop variables; None for a data-dependent one."""
    value = integer(subscript, values)
    if value is None:
        return None
    if isinstance(value, int):
        return Linear.of(value)
    return _form(value, run, values)


def _form(value: Form, run: Run, values: Mapping[str, int]) -> Linear | None:
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
        elif isinstance(atom, Binary) and atom.op == "/":
            left, right = linear_subscript(atom.left, run, values), linear_subscript(atom.right, run, values)
            if left is None or right is None or not right.is_constant or right.constant <= 0:
                return None
            total = total + combine("floor", (left, right)).times(factor)
        else:
            return None
    return total
