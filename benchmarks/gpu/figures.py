"""Numbers made of measurements: medians and percentiles, the least time that the ceilings allow, ratios."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tcjit.runtime.timing import percentile

UNITS = {"float32": ("ffma_tflops", "fp32_tflops"), "bfloat16": ("bf16_tflops",)}  # ceilings of arithmetic, the first known one counts


@dataclass(frozen=True)
class Summary:
    """Microseconds: the median, and the tenth and ninetieth percentile."""

    us: float
    p10: float
    p90: float
    samples: int


def summary(samples: Sequence[float]) -> Summary:
    ordered = sorted(samples)
    return Summary(percentile(ordered, 0.5), percentile(ordered, 0.1), percentile(ordered, 0.9), len(ordered))


def peak(ceilings: Mapping[str, Any], dtype: str) -> float | None:
    """TFLOP/s at most for elements of a type, as far as it was measured."""
    return next((ceilings[name] for name in UNITS[dtype] if isinstance(ceilings.get(name), float)), None)


def floor_us(flops: float, moved: float, dtype: str, ceilings: Mapping[str, Any]) -> float | None:
    """The least time: all arithmetic at the peak, or all compulsory traffic at the speed of a copy. None where either is unknown."""
    compute, copy = peak(ceilings, dtype), ceilings.get("copy_gbs")
    if compute is None or not isinstance(copy, float):
        return None
    return max(flops / compute / 1e6, moved / copy / 1e3)


def timed(found: Mapping[str, Any] | None) -> float | None:
    """A contender's time in microseconds; None where it has none or its result was wrong."""
    return found["us"] if found and "us" in found and found["correct"] else None


def ratio(row: Mapping[str, Any], rival: str, ours: str = "tcjit") -> float | None:
    """How many times faster than a rival we are."""
    mine, other = (timed(row["contenders"].get(name)) for name in (ours, rival))
    return other / mine if mine and other else None


def fraction(row: Mapping[str, Any], name: str) -> float | None:
    """The part of the ceiling that a contender reaches."""
    us, floor = timed(row["contenders"].get(name)), row.get("floor_us")
    return floor / us if us and floor else None
