"""Tensors as a kernel sees them, and the boxes that statements run over."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

Bounds = tuple[tuple[str, int, int], ...]  # dimension, lower, upper (exclusive), outermost first


def fresh(stem: str, taken: Collection[str]) -> str:
    """The stem, with a number if that name is taken."""
    name, count = stem, 0
    while name in taken:
        count += 1
        name = f"{stem}{count}"
    return name


@dataclass(frozen=True)
class Storage:
    """A tensor as the kernel sees it; ``layout`` as in a launch record, always contiguous unless an argument."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: str  # input output temporary
    layout: str = "contiguous"

    @property
    def elements(self) -> int:
        total = 1
        for extent in self.shape:
            total *= extent
        return total

    @property
    def strides(self) -> tuple[int | None, ...]:
        """Element strides; None where only the call knows them."""
        if self.layout == "contiguous":
            result: list[int] = []
            step = 1
            for extent in reversed(self.shape):
                result.insert(0, step)
                step *= max(extent, 1)
            return tuple(result)
        return tuple({"0": 0, "1": 1}.get(letter) for letter in self.layout)


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
    mark: str
    space: str
    axes: tuple[Axis, ...]
    elements: int


def folded(tensor: str, mark: str, base: tuple[int, ...], sizes: tuple[int, ...], space: str = "thread") -> Buffer:
    """A row-major buffer of ``sizes`` elements, each subscript taken modulo its size from ``base`` on."""
    axes: list[Axis] = []
    step = 1
    for start, size in reversed(list(zip(base, sizes, strict=True))):
        axes.insert(0, Axis(start, ((1, size, step),)))
        step *= size
    return Buffer(tensor, mark, space, tuple(axes), step)
