"""What PyTorch reaches on this machine: floating-point operations per second in a product, bytes per second in copies."""
from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch

from tcjit.runtime import timing

PRODUCT = 1024  # rows, columns and terms
WORKING_SETS = (1 << 18, 1 << 22, 1 << 25, 1 << 28)  # bytes: those of the second cache, of the last one, and of memory


@dataclass(frozen=True)
class Ceilings:
    """``flops`` of float32 per second; of each working set in bytes, ascending, the bytes per second of a copy."""

    flops: float
    bandwidths: tuple[tuple[int, float], ...]

    def floor(self, roofline: Any, dtype: str) -> tuple[float, str]:
        """The least seconds of so much work, and what they are spent on. float64 counts as half as fast as every other type."""
        rates = [rate for size, rate in self.bandwidths if size >= roofline.bytes] or [self.bandwidths[-1][1]]
        flops = self.flops / (2 if dtype == "double" else 1)
        return roofline.seconds(flops, rates[0]), roofline.bound(flops, rates[0])

    def to_json(self) -> str:
        return json.dumps([self.flops, self.bandwidths])

    @classmethod
    def from_json(cls, text: str) -> Ceilings:
        flops, bandwidths = json.loads(text)
        return cls(flops, tuple((size, rate) for size, rate in bandwidths))


def measure() -> Ceilings:
    """In about a second."""
    a, b = torch.randn(PRODUCT, PRODUCT), torch.randn(PRODUCT, PRODUCT)
    product = _best(lambda: torch.mm(a, b))
    bandwidths = []
    for size in WORKING_SETS:
        source = torch.ones(size // 8)
        target = torch.empty_like(source)
        bandwidths.append((size, size / _best(lambda: target.copy_(source))))  # noqa: B023 - called at once
    return Ceilings(2 * PRODUCT**3 / product, tuple(bandwidths))


def _best(run: Any) -> float:
    calls = timing.calls_for(0.01, timing.reading(run))
    return min(timing.sampled(lambda: timing.reading(run, calls), 5, 50, 0.3))
