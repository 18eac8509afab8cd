"""Tensors as a kernel sees them, and the boxes that statements run over."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property
from math import prod

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import affine, isl_name
from tcjit.grammar.ast import Binary, Const, Expr
from tcjit.layout import memory_order
from tcjit.mapping.marks import Mark

BOUNDARY = 16  # bytes, on which shared arrays start
OPEN_STRIDE = 4  # elements between neighbours, at least, that are not known to be together
Bounds = tuple[tuple[str, int, int], ...]  # dimension, lower, upper (exclusive), outermost first


def fresh(stem: str, taken: Collection[str]) -> str:
    """The stem, with a number if that name is taken."""
    name, count = stem, 0
    while name in taken:
        count += 1
        name = f"{stem}{count}"
    return name


def are_digits(terms: Iterable[tuple[int, int]]) -> bool:
    """Whether a sum of dimensions, given the factors and extents of these, has another value at each of their points."""
    reach = 0  # from the least to the greatest value of those with smaller factors
    for factor, extent in sorted((abs(factor), extent) for factor, extent in terms):
        if extent > 1 and factor <= reach:
            return False
        reach += factor * (extent - 1)
    return True


@dataclass(frozen=True)
class Storage:
    """A tensor as the kernel sees it; ``layout`` as in a launch record, always contiguous unless an argument.

    ``dynamic_extents`` has, per axis, the extent where it depends on dynamic sizes, which ``shape`` then bounds; empty where none does.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: str  # input output temporary
    layout: str = "contiguous"
    dynamic_extents: tuple[Expr | None, ...] = ()

    def __post_init__(self) -> None:
        if not any(self.dynamic_extents):
            object.__setattr__(self, "dynamic_extents", ())

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def known_elements(self) -> int:
        """The number of elements where the tensor fills its memory and it depends on no dynamic size, else 0."""
        dense = memory_order(self.layout, len(self.shape)) is not None
        return self.elements if dense and not any(self.dynamic_extents) else 0

    @cached_property
    def strides(self) -> tuple[int | None, ...]:
        """Element strides; None where only the call knows them."""
        order = memory_order(self.layout, len(self.shape))
        if order is None:
            return tuple({"0": 0, "1": 1}.get(letter) for letter in self.layout)
        result: list[int | None] = [None] * len(order)
        step: int | None = 1
        for axis in reversed(order):
            result[axis] = step
            step = None if step is None or self.extent(axis) is not None else step * max(self.shape[axis], 1)
        return tuple(result)

    @property
    def estimated_strides(self) -> tuple[int, ...]:
        """Element strides for the greatest extents; where only the call knows them those of a contiguous tensor, but never neighbours'."""
        order = memory_order(self.layout, len(self.shape)) or range(len(self.shape))
        found, step = [0] * len(self.shape), 1
        for axis in reversed(order):
            found[axis] = step
            step *= max(self.shape[axis], 1)
        open_ended = memory_order(self.layout, len(self.shape)) is None
        return tuple(max(step, OPEN_STRIDE) if open_ended else step for step in found)

    def extent(self, axis: int) -> Expr | None:
        """The extent of an axis where it depends on dynamic sizes."""
        return self.dynamic_extents[axis] if self.dynamic_extents else None

    def volume(self, first: int = 0) -> Expr:
        """The elements of all axes from ``first`` on: what a contiguous tensor's axis before them strides by."""
        total: Expr = Const(1, dtype="int64")
        for axis in range(first, len(self.shape)):
            factor = self.extent(axis) or Const(self.shape[axis], dtype="int64")
            total = Binary("*", total, factor, dtype="int64")
        return total

    @property
    def axes(self) -> list[str]:
        """A name for each axis, in isl's words."""
        return [f"a{axis}" for axis in range(len(self.shape))]

    @property
    def element(self) -> str:
        """An element at some places along its axes, in isl's words."""
        return f"{isl_name(self.name)}[{', '.join(self.axes)}]"

    @property
    def inside(self) -> list[str]:
        """What bounds the places, in isl's words."""
        return [f"0 <= {axis} < {extent}" for axis, extent in zip(self.axes, self.extent_texts, strict=True)]

    @property
    def extent_texts(self) -> tuple[str, ...]:
        """isl's text of every extent."""
        extents = (self.extent(axis) for axis in range(len(self.shape)))
        return tuple(str(bound) if extent is None else str(affine(extent, {})) for extent, bound in zip(extents, self.shape, strict=True))


@dataclass(frozen=True)
class Axis:
    """How a subscript counts in a buffer: a part ``(divisor, modulus, stride)`` adds
    ``(subscript - base) // divisor % modulus * stride``."""

    base: int
    parts: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Buffer:
    """Below ``mark``, a temporary is kept in a small array instead of the workspace: one per ``thread``, or one ``shared`` by a block."""

    tensor: str
    mark: Mark
    space: str
    axes: tuple[Axis, ...]
    elements: int


@dataclass(frozen=True)
class ThreadSlice:
    """Below ``mark``, each thread keeps what one iteration of the loops above it uses of a temporary in a slice of the workspace.

    There, element ``e`` of the tensor, counted in memory order, is element ``e - sum(steps[n] * value of loop n) - least``.
    """

    tensor: str
    mark: Mark
    steps: tuple[int, ...]
    least: int
    elements: int
