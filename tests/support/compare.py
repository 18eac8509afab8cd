"""The tolerance rule: what a target computes against the reference and its per-element errors."""
from __future__ import annotations

import numpy as np

from tcjit.runtime.numerics import Array
from tcjit.runtime.reference import Result


def assert_agree(actual: Array, expected: Result, name: str) -> None:
    """AssertionError with the worst element unless ``actual`` is within ``expected.error[name]`` of ``expected.values[name]``.

    ``actual`` holds floats as float64, other types as themselves. NaN equals NaN and infinities equal themselves; an error of 0 asks
    for the very same number, an infinite one for nothing.
    """
    value, error = expected.values[name], expected.error[name]
    assert actual.shape == value.shape, f"{name} has shape {actual.shape}, not {value.shape}"
    assert actual.dtype == value.dtype, f"{name} has dtype {actual.dtype}, not {value.dtype}"
    with np.errstate(all="ignore"):
        same = (actual == value) | ((actual != actual) & (value != value))
        distance = np.where(same, 0.0, np.abs(actual.astype(np.float64) - value.astype(np.float64)))
        distance = np.where(same | ~np.isnan(distance), distance, np.inf)
        distance = np.where(~same & (distance == 0), 1.0, distance)  # integers beyond 2^53
        wrong = ~same & ~(distance <= error)
    if not np.any(wrong):
        return
    with np.errstate(all="ignore"):
        excess = np.where(wrong, np.where(error > 0, distance / np.maximum(error, 1e-300), np.inf), -1.0)
    at = np.unravel_index(int(np.argmax(excess)), value.shape)
    raise AssertionError(
        f"{name}{list(map(int, at))} is {actual[at]}, not {value[at]} (allowed error {error[at]:.3g}, found {distance[at]:.3g});"
        f" {int(np.count_nonzero(wrong))} of {value.size} elements are wrong"
    )


def decided(expected: Result) -> float:
    """The fraction of elements that are compared."""
    errors = [error for error in expected.error.values() if error.size]
    return float(np.mean([np.mean(np.isfinite(error)) for error in errors])) if errors else 1.0
