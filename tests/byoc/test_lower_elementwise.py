"""Elementwise rules against PyTorch: special values, promotion, integer arithmetic, half types, conversions.

Modules: byoc.lower.activations byoc.lower.builder byoc.lower.elementwise byoc.lower.rules
"""
from __future__ import annotations

import math

import pytest
import torch
from support.byoc.lower import assert_lowered

from tcjit.byoc.lower.elementwise import _COMPARISONS, _FLOATS, _KEEPING, _TESTS


@pytest.fixture(autouse=True)
def drawn_alike():
    torch.manual_seed(0)


SPECIAL = torch.tensor(
    [0.0, -0.0, math.nan, math.inf, -math.inf, 0.5, -0.5, 1.5, 2.5, -1.5, -2.5, 1e-3, 100.0, -100.0, 0.3, -0.7, 3.0, -3.0, 6.5, 1e30, 1e-40]
)
FINITE = SPECIAL[SPECIAL.isfinite()]
PAIRS = torch.cartesian_prod(SPECIAL, SPECIAL)


@pytest.mark.parametrize("start", range(0, len(_FLOATS), 12))
def test_functions(start):
    names = list(_FLOATS)[start : start + 12]
    assert_lowered(lambda g, x: [g(name, x) for name in names], SPECIAL)


def test_functions_that_keep_the_type():
    floats = [name for name in _KEEPING if name != "bitwise_not"]
    assert_lowered(lambda g, x: [g(name, x) for name in (*floats, *_TESTS)], SPECIAL)
    whole = torch.tensor([0, 1, -1, 7, -8, 100, 2**31 - 1, -(2**31)], dtype=torch.int32)
    integers = [name for name in _KEEPING if name not in ("frac", "square", "relu6")]
    assert_lowered(lambda g, x: [g(name, x) for name in (*integers, *_TESTS, "exp", "sigmoid", "rsqrt")], whole)


def test_round_is_to_even():
    text = assert_lowered(lambda g, x: g("round", x), torch.arange(-8, 9) / 2)
    assert "trunc" in text


def test_bools():
    def make(g, x, y):
        both = [g(name, x, y) for name in ("add.Tensor", "mul.Tensor", "logical_xor", "bitwise_and.Tensor", "bitwise_or.Tensor", "maximum")]
        return [*both, *(g(name, x) for name in (*_TESTS, "bitwise_not", "exp", "sum", "any", "all", "amax")), g("add.Scalar", x, 3)]

    assert_lowered(make, torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False]))


def test_arithmetic_broadcasts():
    def make(g, x, y):
        found = [g("add.Tensor", x, y, alpha=2), g("sub.Tensor", x, y, alpha=0.5), g("rsub.Scalar", x, 2), g("div.Tensor", x, y)]
        found += [g("div.Tensor_mode", x, y, rounding_mode=mode) for mode in ("floor", "trunc")]
        found += [
            g(name, x, y) for name in ("floor_divide", "remainder.Tensor", "fmod.Tensor", "maximum", "fmax", "fmin", "atan2", "hypot")
        ]
        found += [g("pow.Tensor_Scalar", x, power) for power in (2, 3, 0.5, -0.5, -1, -2, 0, 1.7)]
        found += [g("pow.Scalar", 2, x), g("pow.Tensor_Tensor", g("abs", x), y), g("addcmul", x, x, y, value=0.5)]
        return [*found, g("addcdiv", x, x, y, value=0.5), g("lerp.Scalar", x, y, 0.3), g("lerp.Scalar", x, y, 0.8)]

    assert_lowered(make, torch.randn(3, 1, 4), torch.randn(2, 1))


def test_special_pairs():
    def make(g, x, y):
        found = [g("div.Tensor_mode", x, y, rounding_mode=mode) for mode in ("floor", "trunc")]
        names = ("maximum", "minimum", "fmax", "fmin", "remainder.Tensor", "fmod.Tensor", "copysign.Tensor", "atan2", "hypot")
        found += [g(name, x, y) for name in names]
        return [*found, *(g(f"{name}.Tensor", x, y) for name in _COMPARISONS), g("clamp.Tensor", x, y, None), g("clamp_max.Tensor", x, y)]

    # not contiguous: PyTorch's vectorised fmod gives NaN for quotients beyond 2^24
    assert_lowered(make, PAIRS[:, 0], PAIRS[:, 1])


def test_floor_of_large_quotients():
    x = torch.tensor([16777215.0, 8388609.0, -8388609.0, 1e20, 5.0, -5.0, 4.0])
    assert_lowered(
        lambda g, x, y: [g("floor_divide", x, y), g("remainder.Tensor", x, y)],
        x,
        torch.tensor([1.0, 1.0, 1.0, 3.0, math.inf, math.inf, 0.1]),
    )


def test_integers():
    pairs = torch.cartesian_prod(torch.tensor([-7, -3, -1, 0, 1, 4, 9]), torch.tensor([-4, -2, 1, 3]))

    def make(g, x, y):
        found = [g("div.Tensor", x, y), *(g("div.Tensor_mode", x, y, rounding_mode=mode) for mode in ("floor", "trunc"))]
        found += [g("remainder.Tensor", x, y), g("remainder.Scalar", x, -3), g("div.Scalar", x, 2), g("pow.Tensor_Scalar", x, 3)]
        found += [g("add.Tensor", x, y), g("maximum", x, y), g("clamp", x, -2, 3), g("eq.Scalar", x, 1.5), g("lt.Scalar", x, 2)]
        condition = g("lt.Tensor", x, y)
        found += [g("where.self", condition, x, y), g("where.ScalarOther", condition, x, 7), g("masked_fill.Scalar", x, condition, 5)]
        return [*found, g("logical_and", x, y), g("logical_or", x, y), g("rsub.Scalar", x, 1, 3)]

    assert_lowered(make, pairs[:, 0].contiguous(), pairs[:, 1].contiguous())
    small = torch.tensor([250, 3, 128], dtype=torch.uint8)
    assert_lowered(lambda g, x: [g("add.Tensor", x, x), g("mul.Scalar", x, 3), g("sub.Scalar", x, 5), g("sum", x), g("neg", x)], small)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats(dtype):
    def make(g, x, y):
        found = [g("add.Tensor", x, y, alpha=0.3), g("mul.Scalar", x, 0.1), g("div.Tensor", x, y), g("add.Scalar", x, 0.1)]
        found += [g(name, x) for name in ("exp", "silu", "gelu", "sigmoid", "relu", "sum", "mean", "round", "sqrt")]
        found += [g("gt.Scalar", x, 0.1), g("clamp", x, -0.3, 0.7), g("softmax.int", x, 0), g("mul.Tensor", g("add.Tensor", x, y), y)]
        return found

    # whole registers: what is left after them PyTorch rounds once more between a product and a sum
    assert_lowered(make, torch.randn(64).to(dtype), torch.randn(64).to(dtype))


def test_promotion():
    def make(g, whole, number, double, half):
        found = [
            g("mul.Tensor", whole, number),
            g("add.Tensor", whole, double),
            g("mul.Tensor", half, number),
            g("add.Tensor", half, whole),
        ]
        found += [g("lt.Tensor", whole, number), g("lt.Tensor", half, double), g("eq.Scalar", half, 0.1), g("add.Scalar", whole, 2.5)]
        return [*found, g("where.ScalarOther", g("gt.Scalar", whole, 1), half, 1.5), g("add.Tensor", number, double)]

    half = torch.tensor([0.1, 2.5, -1.0, 2.4]).half()
    assert_lowered(make, torch.randint(-5, 5, (4,)), torch.tensor(0.7), torch.tensor(2.5, dtype=torch.float64), half)


def test_activations():
    def make(g, x):
        found = [g("gelu", x, approximate="tanh"), g("elu", x, 0.7), g("celu", x, 0.7), g("leaky_relu", x, 0.1), g("softplus", x, 2.0, 1.0)]
        found += [g("hardtanh", x), g("hardshrink", x), g("softshrink", x), g("threshold", x, 0.1, 7), g("nan_to_num", x), g("selu", x)]
        return [
            *found,
            g("log_sigmoid", x),
            g("clamp", x, 0, None),
            g("clamp", x, None, 0.5),
            g("clamp", x, 2, 1),
            g("elu", x, 1.5, 2.0, 0.5),
        ]

    assert_lowered(make, SPECIAL)
    # of contiguous infinities PyTorch's vendor library makes NaN, other layouts give infinity
    assert_lowered(lambda g, x: g("gelu", x), FINITE)
    assert_lowered(lambda g, x, w: [g("prelu", x, w), g("glu", x, 1)], torch.randn(2, 4, 6), torch.rand(4))
    assert_lowered(lambda g, x, w: g("prelu", x, w), torch.randn(5), torch.rand(1))


def test_conversions_and_constants():
    kinds = (torch.int32, torch.int64, torch.float16, torch.float64, torch.bool, torch.bfloat16)
    assert_lowered(lambda g, x: [g("to.dtype", x, kind) for kind in kinds], torch.tensor([0.0, -1.5, 2.7, 1e4, -0.2]))
    assert_lowered(
        lambda g, x: [g("to.dtype", x, kind) for kind in (torch.int8, torch.uint8, torch.float32, torch.bool)], torch.tensor([0, 300, -1])
    )

    def make(g, x):
        made = [g("full", [2, 3], 1.5), g("full", [2], -math.inf), g("zeros", [2]), g("ones_like", x), g("arange", 6)]
        return [*made, g("arange.start_step", 3, 10, 2), g("full_like", x, math.nan), g("full", [2], 2**40)]

    assert_lowered(make, torch.randn(2))


def test_numbers_as_tensors():
    def make(g, x, s):
        found = [g("mul.Tensor", x, s), g("add.Tensor", s, s), g("where.self", g("gt.Tensor", x, s), x, s), g("sum", s), g("amax", s)]
        return [*found, g("softmax.int", s, 0), g("relu", g("neg", s)), g("masked_fill.Tensor", x, g("gt.Scalar", x, 0), s), g("argmax", s)]

    assert_lowered(make, torch.randn(3), torch.tensor(0.7))


def test_a_chain_is_one_statement_and_a_costly_value_is_kept():
    text = assert_lowered(lambda g, x, b: g("hardswish", g("add.Tensor", g("mul.Tensor", x, x), b)), torch.randn(3, 4), torch.randn(4))
    assert text.count(" where ") == 1

    def twice(g, x):
        y = g("exp", g("sin", x))
        return g("add.Tensor", g("relu", y), g("neg", y))

    assert assert_lowered(twice, torch.randn(5)).count("exp(") == 1


def test_a_small_value_is_not_computed_for_every_place_that_it_goes_to():
    text = assert_lowered(lambda g, x, s: g("div.Tensor", x, g("sqrt", s)), torch.rand(6, 5), torch.rand(6, 1))
    assert "= (sqrt(x1(i0, 0))) where i0 in 0:6, i1 in 0:1" in text
