"""What an operator that somebody wrote consists of."""
from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class WrittenOperator:
    """A def, arguments in the order of its parameters, PyTorch's form of it, and the largest error relative to the largest magnitude."""

    name: str
    text: str
    arguments: Callable[[torch.Generator], Sequence[torch.Tensor]]
    reference: Callable[..., Any]
    tolerance: float

    @property
    def entry(self) -> str:
        """The name of the def, the last of the text."""
        return re.findall(r"def (\w+)", self.text)[-1]

    def tensors(self) -> Sequence[torch.Tensor]:
        return self.arguments(torch.Generator().manual_seed(1))

    def error(self, result: Any, expected: Any) -> float:
        """The largest error of all results over their largest finite magnitude; infinite where shapes, types or infinities differ."""
        pairs = list(zip(several(result), several(expected), strict=True))
        if any((a.shape, a.dtype) != (b.shape, b.dtype) for a, b in pairs):
            return float("inf")
        return max(_error(a.double(), b.double()) for a, b in pairs)


def _error(result: torch.Tensor, expected: torch.Tensor) -> float:
    apart = torch.where(result == expected, 0.0, (result - expected).abs())  # infinities, too
    greatest = [float(part.abs().max()) for part in (apart, expected[expected.isfinite()]) if part.numel()]
    return greatest[0] / max(greatest[-1], 1e-30) if len(greatest) == 2 else sum(greatest)


def several(result: Any) -> tuple[torch.Tensor, ...]:
    """The results of a call, one or many."""
    return result if isinstance(result, tuple) else (result,)


def normal(g: torch.Generator, *shape: int, dt: torch.dtype = torch.float32) -> torch.Tensor:
    """Of a standard normal distribution, drawn in double."""
    return torch.randn(*shape, generator=g, dtype=torch.float64).to(dt)


def uniform(g: torch.Generator, *shape: int, dt: torch.dtype = torch.float32) -> torch.Tensor:
    """Between 0 and 1, drawn in double."""
    return torch.rand(*shape, generator=g, dtype=torch.float64).to(dt)


def integers(g: torch.Generator, least: int, end: int, *shape: int, dt: torch.dtype = torch.int64) -> torch.Tensor:
    """From the least to before the end."""
    return torch.randint(least, end, shape, generator=g).to(dt)


def adder(operators: list[WrittenOperator]) -> Callable[[dict[str, Any]], None]:
    """A function that adds an operator, of a dict as the tables have it."""
    return lambda one: operators.append(WrittenOperator(one["name"], one["text"], one["args"], one["torch"], one["tol"]))
