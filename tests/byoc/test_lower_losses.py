"""Losses, running sums and broadcasts of several tensors as regions, against PyTorch.

Modules: byoc.lower.losses byoc.lower.reductions
"""
from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.byoc.lower import assert_lowered
from support.pairs import pairs
from torch import Tensor, nn

import tcjit
from tcjit.byoc.lower.reductions import RUNNING
from tcjit.errors import PartitionError

REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}
TYPES = (torch.float32, torch.float64)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pairs(reduction=REDUCTIONS, dtype=TYPES, beta=(1.0, 0.3, 0.0))
def test_smooth_l1_loss(reduction: int, dtype: torch.dtype, beta: float) -> None:
    x, y = numbers(3, 5, dtype=dtype), numbers(3, 5, seed=1, dtype=dtype)
    assert_lowered(lambda g, *a: g("smooth_l1_loss", *a, reduction, beta), x, y)
    assert_lowered(lambda g, *a: g("smooth_l1_loss", *a, reduction, beta), x, torch.full((3, 5), math.nan, dtype=dtype))


@pairs(reduction=REDUCTIONS, dtype=TYPES, log_target=(False, True))
def test_kl_div(reduction: int, dtype: torch.dtype, log_target: bool) -> None:
    x, y = numbers(4, 6, dtype=dtype).log_softmax(1), numbers(4, 6, seed=1, dtype=dtype).softmax(1)
    y[0, 0] = 0
    given = y.clamp_min(1e-9).log() if log_target else y
    assert_lowered(lambda g, *a: g("kl_div", *a, reduction, log_target=log_target), x, given)


@pairs(reduction=REDUCTIONS, dtype=TYPES, p=(2.0, 1.0, math.inf), swap=(False, True))
def test_triplet_margin_loss(reduction: int, dtype: torch.dtype, p: float, swap: bool) -> None:
    given = [numbers(5, 7, seed=seed, dtype=dtype) for seed in range(3)]
    assert_lowered(lambda g, *a: g("triplet_margin_loss", *a, 1.5, p, 1e-6, swap, reduction), *given)


CLASSES = {"rows": (6, 5), "one row": (5,), "pictures": (2, 5, 3, 4)}


def classes_of(shape: tuple[int, ...]) -> Tensor:
    rows = (shape[0], *shape[2:]) if len(shape) > 1 else ()
    return torch.randint(0, 5, rows, generator=torch.Generator().manual_seed(3))


@pairs(reduction=REDUCTIONS, shape=CLASSES, smoothing=(0.0, 0.2), weighted=(False, True))
def test_cross_entropy_of_classes(reduction: int, shape: tuple[int, ...], smoothing: float, weighted: bool) -> None:
    target = classes_of(shape)
    weight = [torch.tensor([1.0, 0.5, 0.0, 2.0, 3.0])] if weighted else []
    ignored = int(target.reshape(-1)[0]) if len(shape) > 1 else -100

    def made(g: Any, x: Any, t: Any, *w: Any) -> Any:
        return g("cross_entropy_loss", x, t, w[0] if w else None, reduction, ignored, smoothing)

    assert_lowered(made, numbers(*shape), target, *weight)


@pytest.mark.parametrize("reduction", REDUCTIONS.values(), ids=REDUCTIONS)
def test_cross_entropy_leaves_rows_out(reduction: int) -> None:
    """Their number is no place in the classes; where all are, the mean is NaN."""
    for target in ([2, -100, 4, -100], [-100] * 4):
        assert_lowered(lambda g, x, t: g("cross_entropy_loss", x, t, None, reduction), numbers(4, 5), torch.tensor(target))


@pairs(reduction=REDUCTIONS, dtype=TYPES, smoothing=(0.0, 0.2), shape=CLASSES)
def test_cross_entropy_of_parts(reduction: int, dtype: torch.dtype, smoothing: float, shape: tuple[int, ...]) -> None:
    x, parts = numbers(*shape, dtype=dtype), numbers(*shape, seed=1, dtype=dtype).softmax(min(1, len(shape) - 1))
    weight = torch.tensor([1.0, 0.5, 0.0, 2.0, 3.0], dtype=dtype)
    assert_lowered(lambda g, x, t, w: g("cross_entropy_loss", x, t, w, reduction, -100, smoothing), x, parts, weight)
    assert_lowered(lambda g, x, t: g("cross_entropy_loss", x, t, None, reduction, -100, smoothing), x, parts)


@pairs(name=("cumsum", "cumprod"), dim=(0, 1, -1), dtype=(*TYPES, torch.int32, torch.int64, torch.bool, torch.float16))
def test_running(name: str, dim: int, dtype: torch.dtype) -> None:
    x = (numbers(4, 6) * 2).to(dtype)
    assert_lowered(lambda g, x: g(name, x, dim), x, **({"rtol": 2e-3, "atol": 2e-3} if dtype == torch.float16 else {}))
    assert_lowered(lambda g, x: g(name, x, dim, dtype=torch.float64), x)


def test_running_sums_of_strange_numbers() -> None:
    x = torch.tensor([[1.0, math.inf, 2.0, math.nan], [math.nan, 1.0, -math.inf, 0.0]])
    for name in ("cumsum", "cumprod"):
        assert_lowered(lambda g, x: g(name, x, 1), x)  # noqa: B023
        assert_lowered(lambda g, x: g(name, x, 0), torch.tensor(3.0))  # noqa: B023


def test_long_running_sums_say_what_they_cost() -> None:
    with pytest.raises(PartitionError, match=rf"cumsum over {RUNNING + 1} elements is {(RUNNING + 1) ** 2} steps in the language"):
        assert_lowered(lambda g, x: g("cumsum", x, 0), numbers(RUNNING + 1))


def test_broadcasts() -> None:
    assert_lowered(lambda g, *a: g("broadcast_tensors", list(a)), numbers(3, 1), numbers(4), torch.tensor(2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda g, x, y: g("smooth_l1_loss", g("to.dtype", x, torch.float16), g("to.dtype", y, torch.float16)), "not in one type"),
        (lambda g, x, y: g("triplet_margin_loss", x, y, x, 1.0, 3.0), "order 3.0"),
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(PartitionError, match=message):
        assert_lowered(make, numbers(3, 4), numbers(3, 4, seed=1))


def test_normalising_without_statistics_writes_nothing() -> None:
    model, x = nn.Sequential(nn.InstanceNorm2d(4), nn.Tanh()).eval(), numbers(2, 4, 5, 5)
    done = tcjit.partition(model, (x,), tcjit.PartitionConfig(cost=False, backends=("tcjit",)))
    assert done.coverage.nodes == 1, done.report()
    torch.testing.assert_close(done(x), model(x), atol=1e-5, rtol=1e-5)
    held = nn.InstanceNorm2d(4, track_running_stats=True).train()
    told = tcjit.partition(held, (x,), tcjit.PartitionConfig(cost=False, backends=("tcjit",)), dry_run=True)
    assert any("writes to its argument" in row["reason"] for row in told.rows), told.report()
