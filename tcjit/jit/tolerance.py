"""Distance of a candidate's results from the expected ones, computed on their device in as few passes as possible.

Every candidate of a search is compared, and its kernel may take less time than a comparison.
"""
from __future__ import annotations

import math

import torch

from tcjit.dataclass import dataclass


@dataclass(frozen=True)
class Expected:
    """What must come out of an output, the magnitude of its largest finite element, whether all are finite, and the distance allowed."""

    name: str
    tensor: torch.Tensor
    largest: float
    finite: bool
    allowed: float = 0.0

    @staticmethod
    def of(name: str, tensor: torch.Tensor) -> Expected:
        """With no distance allowed."""
        if not tensor.is_floating_point() or not tensor.numel():
            return Expected(name, tensor, 0.0, True)
        wide = _wide(tensor)
        finite = wide.isfinite()
        return Expected(name, tensor, _extreme(wide.where(finite, 0.0)), bool(finite.all()))

    def distance(self, got: torch.Tensor) -> float:
        """The largest difference as a part of the largest finite element; infinite where something else is not finite, or not equal
        where numbers are whole.

        >>> Expected.of("Y", torch.tensor([1.0, -4.0])).distance(torch.tensor([1.0, -3.0]))
        0.25
        """
        wanted = self.tensor
        if not wanted.is_floating_point():
            return 0.0 if torch.equal(wanted, got) else math.inf
        if not wanted.numel():
            return 0.0
        wanted, got = _wide(wanted), _wide(got)
        off = got - wanted
        if not self.finite:
            finite = wanted.isfinite()
            same = (got == wanted) | (got.isnan() & wanted.isnan())
            if not bool((same | finite).all()):
                return math.inf
            off = off.where(finite, 0.0)
        most = _extreme(off)
        if most == 0:
            return 0.0
        return most / self.largest if self.largest > 0 and math.isfinite(most) else math.inf


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """In float32 or float64: differences in half precision round and overflow."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _extreme(tensor: torch.Tensor) -> float:
    """The largest magnitude; NaN where there is one."""
    least, most = torch.aminmax(tensor)
    return max(-float(least), float(most))
