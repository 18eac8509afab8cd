"""Quantised numbers: what an integer stands for, and which integer stands for a number."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tcjit.errors import PartitionError

RANGES = {"uint8": (0, 255), "int8": (-128, 127)}


@dataclass(frozen=True)
class Affine:
    """``q`` stands for ``scale * (q - zero_point)``, ``low <= q <= high``; all integers of the dtype unless told otherwise.

    Scales are float32 numbers, and rounded to one where they are not. A weight may have one per output channel: a tuple.
    """

    scale: float | tuple[float, ...]
    zero_point: int = 0
    dtype: str = "uint8"
    low: int | None = None
    high: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in RANGES:
            raise PartitionError(f"quantised to {self.dtype!r}", hint=f"known: {', '.join(RANGES)}")
        given = self.scale if isinstance(self.scale, (tuple, list)) else (self.scale,)
        scales = tuple(float(torch.tensor(float(each), dtype=torch.float32)) for each in given)
        if not scales or not all(0 < each < math.inf and f32(1 / each) < math.inf for each in scales):
            raise PartitionError(f"a scale of {self.scale!r}", hint="positive finite numbers whose inverses are finite in float32")
        object.__setattr__(self, "scale", scales if isinstance(self.scale, (tuple, list)) else scales[0])
        least, most = RANGES[self.dtype]
        low, high = (least if self.low is None else self.low), (most if self.high is None else self.high)
        if not least <= low < high <= most:
            raise PartitionError(f"{self.dtype} from {low} to {high}", hint=f"within {least} and {most}")
        if isinstance(self.zero_point, bool) or not isinstance(self.zero_point, int) or not low <= self.zero_point <= high:
            raise PartitionError(f"zero point {self.zero_point!r}", hint=f"an integer from {low} to {high}: 0 must have a number")
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest integer."""
        assert self.low is not None and self.high is not None
        return self.low, self.high

    @property
    def one(self) -> float:
        """The scale of a tensor that has only one; raises PartitionError otherwise."""
        if isinstance(self.scale, tuple):
            raise PartitionError(f"{len(self.scale)} scales where one is needed", hint="only weights may have one per channel")
        return self.scale

    @property
    def inverse(self) -> float:
        """1 / scale in float32, which products take instead of a division."""
        return f32(1.0 / self.one)


def f32(number: float) -> float:
    """A number rounded to float32."""
    return float(torch.tensor(number, dtype=torch.float32))


def covering(low: float, high: float, dtype: str = "uint8", bounds: tuple[int, int] | None = None) -> Affine:
    """What covers the numbers from ``low`` to ``high``, 0 included and exact; raises PartitionError where they are no numbers.

    >>> covering(0.0, 2.55).zero_point
    0
    """
    if not (math.isfinite(low) and math.isfinite(high)):
        raise PartitionError(f"values from {low} to {high} cannot be quantised")
    least, most = bounds or RANGES[dtype]
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max((high - low) / (most - least), 2.0**-100)
    zero = min(most, max(least, round(least - low / scale)))
    return Affine(scale, zero, dtype, least, most)


def weights_of(tensor: torch.Tensor, channel: int | None) -> Affine:
    """int8 around 0 for a weight: a scale per index of dimension ``channel``, or one for all where it is None."""
    top = tensor.abs().amax([dim for dim in range(tensor.dim()) if dim != channel]) if channel is not None else tensor.abs().amax()
    if not bool(torch.isfinite(top).all()):
        raise PartitionError("a weight has values that are not finite")
    scales: Sequence[float] = (top.double() / 127).clamp(min=2.0**-100).reshape(-1).tolist()
    return Affine(tuple(scales) if channel is not None else scales[0], 0, "int8")


def integers(tensor: torch.Tensor, of: Affine, channel: int) -> torch.Tensor:
    """The integers that stand for a weight."""
    scale = torch.tensor(of.scale, dtype=torch.float32)
    shape = [1] * tensor.dim()
    if isinstance(of.scale, tuple):
        if len(of.scale) != tensor.shape[channel]:
            raise PartitionError(f"{len(of.scale)} scales for a weight of {tensor.shape[channel]} channels")
        shape[channel] = -1
    inverse = (1.0 / scale).reshape(shape if scale.dim() else [])
    found = torch.round(tensor.detach().float().cpu() * inverse) + of.zero_point
    return found.clamp(*of.bounds).to(getattr(torch, of.dtype)).to(tensor.device)
