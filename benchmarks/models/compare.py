"""How far results are apart."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

Error: TypeAlias = Callable[[Sequence[Tensor], Sequence[Tensor]], float]


def results(out: Any) -> tuple[Tensor, ...]:
    """What a model returned, as tensors."""
    return (out,) if isinstance(out, Tensor) else tuple(out)


def largest(expected: Sequence[Tensor], found: Sequence[Tensor]) -> float:
    """The largest error over the largest magnitude, of the worst result; infinite where shapes or dtypes differ or a number is none."""
    worst = 0.0
    for want, have in zip(expected, found, strict=True):
        if want.shape != have.shape or want.dtype != have.dtype or not bool(torch.isfinite(have).all()):
            return float("inf")
        scale = max(float(want.abs().max()), 1e-30) if want.numel() else 1.0
        worst = max(worst, float((have.double() - want.double()).abs().max()) / scale if want.numel() else 0.0)
    return worst


def detections(expected: Sequence[Tensor], found: Sequence[Tensor]) -> float:
    """The largest distance from a box, with its score, to the nearest of the same class and image in the other results, in parts of the
    largest coordinate; one in fifty boxes may have none, since at a threshold or a tie the last bit decides."""
    if len(expected) != len(found) or any(want.dtype != have.dtype for want, have in zip(expected, found)):
        return float("inf")
    if not len(expected[0]) or not len(found[0]):
        return float("inf") if len(expected[0]) != len(found[0]) else 0.0
    scale = float(expected[0].abs().max())
    between = torch.cdist(_rows(expected, scale), _rows(found, scale), p=float("inf"))
    nearest = torch.cat([between.min(0).values, between.min(1).values]).nan_to_num(float("inf")).sort().values
    return float(nearest[-1 - len(nearest) // 50])


def _rows(found: Sequence[Tensor], scale: float) -> Tensor:
    """A row per box: its corners and score below 1, its class and image far apart."""
    boxes, score, kind, image = (value.double() for value in found)
    return torch.cat([boxes / scale, torch.stack([score, 9 * kind, 9 * image], 1)], 1)
