"""Reductions and normalisations against PyTorch.

Modules: byoc.lower.normalisation
"""
from __future__ import annotations

import math

import pytest
import torch
from support.byoc.lower import assert_lowered


@pytest.fixture(autouse=True)
def drawn_alike():
    torch.manual_seed(0)


def _values():
    return torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))


def test_reductions():
    def make(g, x):
        found = [g("sum", x), g("sum.dim_IntList", x, [1]), g("sum.dim_IntList", x, [-1, 0], keepdim=True), g("sum.dim_IntList", x, [])]
        found += [g("mean", x), g("mean.dim", x, [2]), g("mean.dim", x, [0, -2], True), g("prod", x), g("prod.dim_int", x, 1)]
        found += [g("amax", x, [1], True), g("amin", x, [0, -1]), g("amax", x), g("max", x), g("min", x), g("any", x), g("all.dim", x, 1)]
        found += [g("argmax", x), g("argmax", x, 1), g("argmin", x, -1, True), *g("max.dim", x, 1), *g("min.dim", x, -1, True)]
        return [*found, g("sum", x, dtype=torch.float64), g("any.dim", g("gt.Scalar", x, 1), 0), g("max.other", x, g("neg", x))]

    assert_lowered(make, _values())


def test_special_values():
    x = _values()
    x[0, 1, 2], x[1, 2], x[2, 3, 3] = math.nan, -math.inf, math.inf

    def make(g, x):
        found = [g("amax", x, [1], True), g("amin", x, [0, -1]), g("argmax", x, 1), g("argmin", x, -1, True), g("argmax", x), g("sum", x)]
        found += [*g("max.dim", x, 1), *g("min.dim", x, 2), g("logsumexp", x, [-1]), g("logsumexp", x, [0, 1])]
        return [
            *found,
            g("softmax.int", x, -1),
            g("log_softmax.int", x, -1),
            g("_safe_softmax", x, -1),
            g("var", x),
            g("norm.Scalar", x, 2),
        ]

    assert_lowered(make, x)


def test_ties_go_to_the_first():
    x = torch.tensor([[1, 3, 3, 0], [2, 2, 2, 2]])
    assert_lowered(lambda g, x: [g("argmax", x, 1), g("argmin", x, 1), g("argmax", x), g("argmin", x)], x)


def test_places_of_something_computed():
    assert_lowered(lambda g, x: g("argmax", g("add.Scalar", g("mul.Scalar", x, 0.37), 0.11), 1), _values())


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool, torch.float16, torch.float64])
def test_types(dtype):
    x = (_values() * 3).abs().to(dtype)

    def make(g, x):
        found = [g("sum.dim_IntList", x, [1]), g("prod.dim_int", x, 2), g("any", x), g("all", x), g("sum", x, dtype=torch.float32)]
        found += [g("amax", x, [1]), g("amin", x)]
        return found if x.type.dtype == "bool" else [*found, g("argmax", x, 1)]

    assert_lowered(make, x)


def test_variances_and_norms():
    def make(g, x):
        found = [
            g("var", x),
            g("var.dim", x, [1]),
            g("var.correction", x, [1, 2], correction=0, keepdim=True),
            g("std.correction", x, [-1]),
        ]
        found += [*g("var_mean.correction", x, [1]), *g("std_mean.correction", x, [0], correction=2), g("norm.ScalarOpt_dim", x, 2, [1])]
        norms = [(1, [0]), (math.inf, [0, 1]), (-math.inf, [2]), (2, None)]
        return [*found, *(g("linalg_vector_norm", x, order, dims, True) for order, dims in norms), g("logsumexp", x, [1], True)]

    assert_lowered(make, _values())
    assert_lowered(lambda g, x: g("var", g("slice.Tensor", x, 0, 0, 1)), torch.randn(3))  # of one value: NaN


def test_softmax():
    def make(g, x):
        found = [g("softmax.int", x, 1), g("_softmax", x, -1, False), g("log_softmax.int", x, 0), g("_log_softmax", x, 2, False)]
        return [*found, g("softmax.int", x, -1, torch.float64), g("softmax.int", g("mul.Scalar", x, 100), 2)]

    assert_lowered(make, _values())


def test_layer_and_rms_norm():
    def make(g, x, w, b):
        found = [g("layer_norm", x, [4], w, b), g("layer_norm", x, [4], w), *g("native_layer_norm", x, [5, 4], None, None, 1e-5)]
        return [*found, g("layer_norm", g("sin", g("exp", x)), [4]), g("rms_norm", x, [4], w), g("rms_norm", x, [5, 4])]

    assert_lowered(make, _values(), torch.rand(4), torch.randn(4))
    assert_lowered(lambda g, x, w: g("layer_norm", x, [4], w, w), _values().bfloat16(), torch.rand(4).bfloat16())


def test_norms_by_channel():
    def make(g, x, w, b):
        found = [g("group_norm", x, 3, w, b), g("group_norm", x, 2), *g("native_group_norm", x, w, b, 2, 6, 12, 2, 1e-5)]
        found += [
            g("instance_norm", x, w, b, None, None, True, 0.1, 1e-5, False),
            g("instance_norm", x, w, b, b, w, False, 0.1, 1e-5, False),
        ]
        found += [g("batch_norm", x, w, b, b, w, False, 0.1, 1e-5, False), g("batch_norm", x, None, None, b, w, False, 0.1, 1e-3, False)]
        return [*found, g("_native_batch_norm_legit_no_training", x, w, b, b, w, 0.1, 1e-5)[0]]

    assert_lowered(make, torch.randn(2, 6, 3, 4), torch.rand(6) + 0.1, torch.randn(6))


def test_a_mean_of_what_has_no_such_dimension():
    """A broadcast dimension stands in no subscript, and is still counted."""
    assert_lowered(lambda g, x: [g("sum.dim_IntList", g("expand", x, [4, 3]), [0]), g("sum", g("expand", x, [4, 3]))], torch.randn(1, 3))
