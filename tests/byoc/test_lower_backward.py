"""Backward operators of ATen as regions, as AOTAutograd's graphs have them: against PyTorch.

Modules: byoc.lower.activation_gradients byoc.lower.loss_gradients byoc.lower.normalisation_gradients byoc.lower.pooling_gradients
"""
from __future__ import annotations

from typing import Any

import pytest
import torch
from support.byoc.lower import Graph, assert_lowered
from support.pairs import pairs
from torch import Tensor

from tcjit.byoc.backends import find
from tcjit.errors import PartitionError

POINTS = torch.tensor([-200.0, -90.0, -20.0, -6.0, -3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 6.0, 20.0, 90.0, 200.0])
ops = torch.ops.aten


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


ACTIVATIONS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys("silu mish hardswish hardsigmoid gelu".split(), ()),
    "gelu ": ("tanh",),
    "threshold": (0.5,),
    "hardtanh": (-1.0, 2.0),
    "leaky_relu": (0.1, False),
    "softplus": (1.5, 20.0),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_activations(name: str, dtype: torch.dtype) -> None:
    settings = {"approximate": "tanh"} if name == "gelu " else {}
    given = () if settings else ACTIVATIONS[name]
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
    points = POINTS[4:-4] if dtype is torch.bfloat16 else POINTS
    tensors = numbers(len(points)).to(dtype), points.to(dtype)
    assert_lowered(lambda g, *a: g(f"{name.strip()}_backward", *a, *given, **settings), *tensors, **close)


@pytest.mark.parametrize("is_result", [False, True])
def test_elu(is_result: bool) -> None:
    x = POINTS[POINTS != 0]  # where its own derivative jumps
    x = ops.elu(x, 2.0, 1.5, 0.7) if is_result else x
    assert_lowered(lambda g, *a: g("elu_backward", a[0], 2.0, 1.5, 0.7, is_result, a[1]), numbers(len(x)), x)


def test_by_results() -> None:
    assert_lowered(lambda g, *a: [g("sigmoid_backward", *a), g("tanh_backward", *a)], numbers(9), torch.linspace(-1, 1, 9))
    assert_lowered(lambda g, *a: g("log_sigmoid_backward", *a), numbers(16), POINTS, ops.log_sigmoid_forward(POINTS)[1])
    mask = numbers(3, 4) > 0
    assert_lowered(lambda g, *a: g("native_dropout_backward", *a, 1.25), numbers(3, 4, seed=1), mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("dim", [0, -1])
def test_softmax(dim: int, dtype: torch.dtype) -> None:
    x, close = numbers(4, 6, dtype=dtype), {"rtol": 4e-3, "atol": 4e-3} if dtype is torch.float16 else {}
    gradient = numbers(4, 6, seed=1, dtype=dtype)
    assert_lowered(lambda g, *a: g("_softmax_backward_data", *a, dim, dtype), gradient, x.softmax(dim), **close)
    assert_lowered(lambda g, *a: g("_log_softmax_backward_data", *a, dim, dtype), gradient, x.log_softmax(dim), **close)


@pairs(shape=((6,), (4, 6)), affine=(True, False), dtype=(torch.float32, torch.float64))
def test_layer_norm(shape: tuple[int, ...], affine: bool, dtype: torch.dtype) -> None:
    x, gradient = numbers(3, 4, 6, dtype=dtype), numbers(3, 4, 6, seed=1, dtype=dtype)
    given = [numbers(*shape, seed=2, dtype=dtype), numbers(*shape, seed=3, dtype=dtype)] if affine else [None, None]
    _, mean, rstd = ops.native_layer_norm(x, shape, *given, 1e-5)
    mask = [True, affine, affine]

    def made(g: Any, gradient: Any, x: Any, mean: Any, rstd: Any, *more: Any) -> Any:
        found = g("native_layer_norm_backward", gradient, x, shape, mean, rstd, *(more or (None, None)), mask)
        return found if affine else found[0]

    assert_lowered(made, gradient, x, mean, rstd, *(given if affine else ()))


@pytest.mark.parametrize("affine", [True, False])
def test_group_norm(affine: bool) -> None:
    x, gradient, weight = numbers(2, 6, 3, 2), numbers(2, 6, 3, 2, seed=1), numbers(6, seed=2)
    _, mean, rstd = ops.native_group_norm(x, weight if affine else None, None, 2, 6, 6, 3, 1e-5)

    def made(g: Any, gradient: Any, x: Any, mean: Any, rstd: Any, *more: Any) -> Any:
        found = g("native_group_norm_backward", gradient, x, mean, rstd, more[0] if more else None, 2, 6, 6, 3, [True, affine, affine])
        return found if affine else found[0]

    assert_lowered(made, gradient, x, mean, rstd, *([weight] if affine else ()), rtol=1e-4, atol=1e-4)


@pairs(train=(True, False), affine=(True, False), shape=((5, 3), (2, 3, 4, 4)))
def test_batch_norm(train: bool, affine: bool, shape: tuple[int, ...]) -> None:
    x, gradient, weight = numbers(*shape), numbers(*shape, seed=1), numbers(3, seed=2)
    mean, variance = numbers(3, seed=3), numbers(3, seed=4).abs() + 0.5
    _, kept, scale = ops.native_batch_norm(x, None, None, mean.clone(), variance.clone(), train, 0.1, 1e-5)
    kept, scale = (kept, scale) if train else (torch.zeros(3), torch.zeros(3))

    def made(g: Any, gradient: Any, x: Any, mean: Any, variance: Any, kept: Any, scale: Any, *more: Any) -> Any:
        weight, mask = more[0] if more else None, [True, affine, affine]
        found = g("native_batch_norm_backward", gradient, x, weight, mean, variance, kept, scale, train, 1e-5, mask)
        return found if affine else found[0]

    assert_lowered(made, gradient, x, mean, variance, kept, scale, *([weight] if affine else ()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_by_the_batch(affine: bool) -> None:
    def made(g: Any, x: Any, mean: Any, variance: Any, *more: Any) -> Any:
        return list(g("_native_batch_norm_legit_functional", x, *(more or (None, None)), mean, variance, True, 0.2, 1e-5))

    given = [numbers(3, seed=2), numbers(3, seed=3)] if affine else []
    assert_lowered(made, numbers(2, 3, 4, 4), numbers(3, seed=4), numbers(3, seed=5).abs(), *given, rtol=1e-4, atol=1e-4)


WINDOWS = (([2, 2], [2, 2], [0, 0]), ([3, 3], [2, 2], [1, 1]), ([3, 2], [1, 1], [1, 0]))


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("dilation", [[1, 1], [2, 1]])
@pytest.mark.parametrize("ties", [False, True])
def test_max_pooling(windows: Any, dilation: list[int], ties: bool) -> None:
    x = numbers(2, 3, 6, 6).round() if ties else numbers(2, 3, 6, 6)
    result, indices = ops.max_pool2d_with_indices(x, *windows, dilation)
    assert_lowered(lambda g, x: list(g("max_pool2d_with_indices", x, *windows, dilation)), x)

    def made(g: Any, gradient: Any, x: Any, indices: Any) -> Any:
        return g("max_pool2d_with_indices_backward", gradient, x, *windows, dilation, False, indices)

    assert_lowered(made, numbers(*result.shape, seed=1), x, indices)


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("more", [(False, True, None), (False, False, None), (False, True, 5)])
def test_average_pooling(windows: Any, more: Any) -> None:
    x = numbers(2, 3, 6, 6)
    gradient = numbers(*ops.avg_pool2d(x, *windows, *more).shape, seed=1)
    assert_lowered(lambda g, *a: g("avg_pool2d_backward", *a, *windows, *more), gradient, x)


def test_adaptive_pooling() -> None:
    x = numbers(2, 3, 6, 4)
    for size in ((1, 1), (3, 2)):
        assert_lowered(lambda g, *a: g("_adaptive_avg_pool2d_backward", *a), numbers(2, 3, *size, seed=1), x)
    with pytest.raises(PartitionError, match="windows overlap"):
        assert_lowered(lambda g, *a: g("_adaptive_avg_pool2d_backward", *a), numbers(2, 3, 4, 3, seed=1), x)


def test_slices() -> None:
    x = numbers(2, 3)
    for start, end, step in ((0, 3, 1), (2, 5, 1), (1, 6, 2), (-3, 9, 1)):
        assert_lowered(lambda g, x: g("slice_backward", x, [2, 6], 1, start, end, step), numbers(2, len(range(6)[start:end:step])))  # noqa: B023
    assert_lowered(lambda g, x: [g("select_backward", x, [2, 4, 3], 1, 2), g("select_backward", x, [2, 4, 3], 1, -4)], x)


REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


@pairs(reduction=REDUCTIONS, name=("mse_loss", "huber_loss", "smooth_l1_loss"), dtype=(torch.float32, torch.float64))
def test_distances(reduction: int, name: str, dtype: torch.dtype) -> None:
    x, y, more = numbers(3, 5, dtype=dtype), numbers(3, 5, seed=1, dtype=dtype), () if name == "mse_loss" else (0.7,)
    y[0, :2] = x[0, :2]
    assert_lowered(lambda g, *a: g(name, *a, reduction, *more), x, y)
    gradient = numbers(*(x.shape if not reduction else ()), seed=2, dtype=dtype)
    assert_lowered(lambda g, *a: g(f"{name}_backward", *a, reduction, *more), gradient, x, y)


@pairs(reduction=REDUCTIONS, weighted=(False, True), positive=(False, True))
def test_binary_cross_entropy_with_logits(reduction: int, weighted: bool, positive: bool) -> None:
    given = [numbers(3, 5) * 30, numbers(3, 5, seed=1).sigmoid(), *([numbers(5, seed=2)] if weighted else [])]
    given += [numbers(5, seed=3).abs()] if positive else []

    def made(g: Any, x: Any, y: Any, *more: Any) -> Any:
        return g("binary_cross_entropy_with_logits", x, y, more[0] if weighted else None, more[-1] if positive else None, reduction)

    assert_lowered(made, *given)


@pairs(reduction=REDUCTIONS, shape=((6, 5), (5,)), weighted=(False, True))
def test_nll_loss(reduction: int, shape: tuple[int, ...], weighted: bool) -> None:
    rows = shape[:-1]
    target = torch.randint(0, 5, rows, generator=torch.Generator().manual_seed(3))
    if rows:
        target[1] = 4
    weight, ignored = [torch.tensor([1.0, 0.5, 0.0, 2.0, 3.0])] if weighted else [], 4
    x = numbers(*shape)
    result, total = ops.nll_loss_forward(x, target, *(weight or [None]), reduction, ignored)

    def forward(g: Any, x: Any, t: Any, *w: Any) -> Any:
        return list(g("nll_loss_forward", x, t, *(w or [None]), reduction, ignored))

    def backward(g: Any, gradient: Any, x: Any, t: Any, total: Any, *w: Any) -> Any:
        return g("nll_loss_backward", gradient, x, t, *(w or [None]), reduction, ignored, total)

    assert_lowered(forward, x, target, *weight)
    assert_lowered(backward, numbers(*result.shape, seed=2), x, target, total, *weight)


def test_nll_loss_of_pictures() -> None:
    x, target = numbers(2, 5, 3, 4), torch.randint(0, 5, (2, 3, 4), generator=torch.Generator().manual_seed(3))
    _, total = ops.nll_loss2d_forward(x, target, None, 1, -100)
    assert_lowered(lambda g, *a: g("nll_loss2d_forward", *a, None, 1, -100)[0], x, target)
    assert_lowered(lambda g, a, b, c, d: g("nll_loss2d_backward", a, b, c, None, 1, -100, d), numbers(), x, target, total)


def test_xlogy() -> None:
    x, y = torch.tensor([0.0, 1.0, 2.0, 0.0]), torch.tensor([1.0, 2.0, 0.5, 0.0])
    assert_lowered(lambda g, *a: g("xlogy.Tensor", *a), x, y)


def test_what_nobody_asks_for_is_not_computed() -> None:
    g, x = Graph(), numbers(4, 6)
    values = [g.input(each) for each in (x, x, *ops.native_layer_norm(x, (6,), None, None, 1e-5)[1:])]
    made = g("native_layer_norm_backward", values[0], values[1], (6,), *values[2:], None, None, [True, False, False])
    text = find("tcjit").lower(g.region([made[0]]))["text"]
    assert text.count("+=!") == 2 and text.count("->") == 1
