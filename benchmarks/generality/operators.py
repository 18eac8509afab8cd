"""An operator that was drawn: its definition, its arguments, what a PyTorch user writes for it, and about how much work it is."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch


class DrawnFor(NamedTuple):
    """The machine that sizes are drawn for, one for all of its kind so that a seed means the same operators on each of them; ``least`` and
    ``most``: seconds of estimated work."""

    flops_per_second: float
    bytes_per_second: float
    least: float
    most: float


PLACES = {"cpu": DrawnFor(2e11, 1e10, 1e-6, 50e-3), "cuda": DrawnFor(2e13, 1e12, 1e-5, 4e-3)}
_drawn_for = PLACES["cpu"]


def drawn_for() -> DrawnFor:
    return _drawn_for


def draw_for(place: str) -> None:
    """Draw what follows for another kind of machine."""
    global _drawn_for
    _drawn_for = PLACES[place]


# notation -> largest error over largest magnitude; integers are compared exactly
TOLERANCE = {"float": 1e-4, "double": 1e-10, "bfloat16": 2e-2, "half": 4e-3}
TYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "bfloat16": torch.bfloat16,
    "half": torch.float16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
    "bool": torch.bool,
}
SMALL = 8  # magnitude of integers that are summed


class Work(NamedTuple):
    """Arithmetic operations, and bytes to and from memory if each element moves once."""

    flops: float
    bytes: float

    @property
    def seconds(self) -> float:
        """The least time on the machine that sizes are drawn for."""
        machine = drawn_for()
        return max(self.flops / machine.flops_per_second, self.bytes / machine.bytes_per_second)


@dataclass(frozen=True)
class Argument:
    """A tensor argument. ``dtype`` is the notation's name; integers below ``bound`` are indices; ``order`` names the dimensions from the
    outermost in memory to the innermost, where that is not the usual order."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float"
    bound: int | None = None
    order: tuple[int, ...] | None = None

    def tensor(self, generator: torch.Generator) -> torch.Tensor:
        order = self.order or tuple(range(len(self.shape)))
        stored = tuple(self.shape[d] for d in order)
        dtype, device = TYPES[self.dtype], generator.device
        if dtype.is_floating_point:
            wide = torch.float64 if self.dtype == "double" else torch.float32
            made = torch.randn(stored, generator=generator, dtype=wide, device=device).to(dtype)
        else:
            low, high = (0, self.bound) if self.bound is not None else (-SMALL if self.dtype == "int8" else 0, SMALL + 1)
            made = torch.randint(low, high, stored, generator=generator, dtype=dtype, device=device)
        return made.permute([order.index(d) for d in range(len(order))])

    def __str__(self) -> str:
        stored = f" stored {self.order}" if self.order else ""
        return f"{self.name} {self.dtype}{list(self.shape)}{stored}"


@dataclass(frozen=True)
class Operator:
    """One def with arguments of one size. ``reference`` takes the same tensors, or their float64 copies, and returns one tensor."""

    family: str
    name: str
    text: str
    arguments: tuple[Argument, ...]
    reference: Callable[..., Any]
    work: Work
    dtype: str = "float"

    @property
    def entry(self) -> str:
        return self.text.partition("def ")[2].partition("(")[0].strip()

    def tensors(self, seed: int, device: str = "cpu") -> list[torch.Tensor]:
        generator = torch.Generator(device).manual_seed(seed)
        return [argument.tensor(generator) for argument in self.arguments]

    @property
    def tolerance(self) -> float:
        return TOLERANCE.get(self.dtype, 0.0)


def size_of(dtype: str) -> int:
    return TYPES[dtype].itemsize
