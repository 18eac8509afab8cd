"""Distances between results: the same as NumPy's in float64, for every dtype and with values that are not finite."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tcjit.jit.tolerance import Expected
from tcjit.runtime.tensors import TORCH

NAN, INF = math.nan, math.inf


def by_numpy(wanted: torch.Tensor, got: torch.Tensor) -> float:
    if not wanted.is_floating_point():
        return 0.0 if np.array_equal(wanted.numpy(), got.numpy()) else INF
    one, other = wanted.double().numpy(), got.double().numpy()
    finite = np.isfinite(one)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True) or not np.isfinite(other[finite]).all():
        return INF
    largest, most = (float(np.abs(each).max(initial=0.0)) for each in (one[finite], one[finite] - other[finite]))
    return 0.0 if most == 0 else most / largest if largest else INF


@pytest.mark.parametrize("dtype", sorted(TORCH))
def test_distances_are_those_of_numpy(dtype: str) -> None:
    draw = torch.Generator().manual_seed(7)
    wanted = (torch.randn(40, 33, generator=draw) * 50).to(TORCH[dtype])
    for got in (wanted, wanted.clone(), wanted.t().contiguous().t(), (wanted.double() * 1.01 + 0.3).to(TORCH[dtype])):
        assert Expected.of("Y", wanted).distance(got) == pytest.approx(by_numpy(wanted, got), rel=1e-6, abs=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("wanted", "got", "distance"),
    [
        ([1.0, -4.0], [1.0, -3.0], 0.25),
        ([1.0, NAN], [1.0, NAN], 0.0),
        ([1.0, NAN], [1.0, 2.0], INF),
        ([1.0, 2.0], [1.0, NAN], INF),
        ([NAN, 2.0], [NAN, NAN], INF),
        ([INF, 2.0], [INF, 1.5], 0.25),
        ([INF, 2.0], [-INF, 2.0], INF),
        ([INF, 2.0], [NAN, 2.0], INF),
        ([INF, 2.0], [7.0, 2.0], INF),
        ([1.0, 2.0], [1.0, -INF], INF),
        ([NAN, INF], [NAN, INF], 0.0),
        ([0.0, 0.0], [0.0, -0.0], 0.0),
        ([0.0, 0.0], [0.0, 1e-3], INF),
        ([], [], 0.0),
    ],
)
def test_what_is_not_finite_must_be_the_same(dtype: torch.dtype, wanted: list[float], got: list[float], distance: float) -> None:
    one, other = torch.tensor(wanted, dtype=dtype), torch.tensor(got, dtype=dtype)
    assert Expected.of("Y", one).distance(other) == distance == by_numpy(one, other)


def test_differences_of_half_precision_do_not_overflow() -> None:
    wanted = torch.tensor([6e4, 1.0], dtype=torch.float16)
    assert Expected.of("Y", wanted).distance(-wanted) == 2.0


def test_whole_numbers_are_equal_or_not() -> None:
    wanted = torch.tensor([2**62, 3])
    assert Expected.of("N", wanted).distance(wanted.clone()) == 0.0
    assert Expected.of("N", wanted).distance(wanted + torch.tensor([1, 0])) == INF
    assert Expected.of("N", torch.tensor([True])).distance(torch.tensor([False])) == INF
