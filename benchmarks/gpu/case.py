"""One operator at one size: inputs, source in the language, PyTorch form, the work that it cannot avoid."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

TOLERANCES = {"float32": 1e-4, "bfloat16": 1e-2}  # of the norm of the error over the norm of the result; tf32 is off by 3e-4
SEED = 20240601


@dataclass(frozen=True)
class Input:
    """``draw`` is "normal", "weight" (normal over the root of the last extent), or for indices the bound below which they lie."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    draw: str | int = "normal"

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * getattr(torch, self.dtype).itemsize

    def drawn(self, random: torch.Generator) -> torch.Tensor:
        """The tensor, on the generator's device."""
        dtype, device = getattr(torch, self.dtype), random.device
        if isinstance(self.draw, int):
            return torch.randint(0, self.draw, self.shape, dtype=dtype, device=device, generator=random)
        made = torch.randn(self.shape, dtype=dtype, device=device, generator=random)
        return made.div_(math.sqrt(self.shape[-1])) if self.draw == "weight" else made


@dataclass(frozen=True)
class Case:
    """``outputs`` names what is compared, in the order of ``eager``'s results; ``triton`` a kernel of ``triton_kernels``, if any."""

    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    source: str
    entry: str  # the def's name
    eager: Callable[..., Any]  # takes the inputs and the scalars
    flops: float  # of the minimal algorithm
    scalars: tuple[float, ...] = ()
    triton: str = ""
    touched: int | None = None  # bytes of the inputs that are read, where it is not all of them

    @property
    def dtype(self) -> str:
        """The type of the elements."""
        return next(given.dtype for given in self.inputs if not isinstance(given.draw, int))

    @property
    def tolerance(self) -> float:
        return TOLERANCES[self.dtype]

    @property
    def read(self) -> int:
        """Bytes of the inputs, each once."""
        return sum(given.bytes for given in self.inputs) if self.touched is None else self.touched

    def arguments(self, device: str, seed: int = SEED, shared: Mapping[int, torch.Tensor] = MappingProxyType({})) -> list[Any]:
        """Fresh inputs, the same for the same seed, and the scalars; ``shared`` are used again, by their places."""
        random = torch.Generator(device).manual_seed(seed)
        drawn = (shared[place] if place in shared else given.drawn(random) for place, given in enumerate(self.inputs))
        return [*drawn, *self.scalars]


@dataclass(frozen=True)
class Entry:
    """A line of a suite. ``dims`` are what is measured, ``small`` what the tests and a dry run take."""

    name: str
    suite: str
    make: Callable[..., Case]
    dims: Mapping[str, int]
    small: Mapping[str, int] = field(default_factory=dict)
    quick: bool = False

    def sizes(self, small: bool = False) -> dict[str, int]:
        return {**self.dims, **(self.small if small else {})}

    def case(self, small: bool = False) -> Case:
        return self.make(**self.sizes(small))


def results(returned: Any) -> list[torch.Tensor]:
    """What a call returned, as a list."""
    return list(returned) if isinstance(returned, (tuple, list)) else [returned]


def reference(case: Case, arguments: Sequence[Any]) -> list[torch.Tensor]:
    """The results in float64."""
    wide = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in arguments]
    return results(case.eager(*wide))


def error(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """The largest of the results' relative errors, norm of the difference over norm; NaN where a result has one."""
    if [tuple(one.shape) for one in found] != [tuple(one.shape) for one in expected]:
        return math.inf
    parts = []
    for one, right in zip(found, expected):
        norm = torch.linalg.vector_norm(right).item()
        distance = torch.linalg.vector_norm(one.double() - right).item()
        parts.append(distance / norm if norm else distance)
    return math.nan if any(math.isnan(part) for part in parts) else max(parts)
