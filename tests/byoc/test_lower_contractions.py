"""Products, convolutions, pooling, resizing and attention against PyTorch.

Modules: byoc.lower.contractions byoc.lower.convolutions byoc.lower.pooling
"""
from __future__ import annotations

import math

import pytest
import torch
from support.byoc.lower import assert_lowered


@pytest.fixture(autouse=True)
def drawn_alike():
    torch.manual_seed(0)


def test_matrices():
    def make(g, a, b, v, m):
        row = g("select.int", m, 0, 0)
        found = [
            g("mm", a, b),
            g("matmul", a, b),
            g("addmm", m, a, b),
            g("addmm", row, a, b, beta=0.5, alpha=2),
            g("mv", a, v),
            g("dot", v, v),
        ]
        found += [g("matmul", a, v), g("matmul", v, b), g("matmul", v, v), g("addmv", g("select.int", m, 1, 0), a, v), g("outer", v, v)]
        turned = g("t", b)
        found += [
            g("linear", a, turned),
            g("linear", v, turned),
            g("relu", g("linear", a, turned, row)),
            g("mm", g("exp", a), g("relu", b)),
        ]
        return [*found, g("gelu", g("add.Tensor", g("mm", a, b), m))]

    assert_lowered(make, torch.randn(3, 5), torch.randn(5, 4), torch.randn(5), torch.randn(3, 4))


def test_beta_of_zero_reads_nothing():
    m = torch.full((3, 4), math.nan)
    assert_lowered(lambda g, m, a, b: g("addmm", m, a, b, beta=0), m, torch.randn(3, 5), torch.randn(5, 4))


def test_batches():
    def make(g, a, b, m, s):
        found = [g("bmm", a, b), g("addbmm", g("select.int", m, 0, 0), a, b, beta=2)]
        found += [g("baddbmm", m, a, b, alpha=0.3), g("baddbmm", m, a, b, beta=2), g("matmul", a, s)]
        found += [g("matmul", g("unsqueeze", a, 1), g("unsqueeze", b, 0)), g("matmul", g("select.int", a, 0, 0), b)]
        return [*found, g("linear", a, g("t", s), g("select.int", s, 0, 0)), g("matmul", a, g("select.int", s, 1, 0))]

    assert_lowered(make, torch.randn(2, 3, 5), torch.randn(2, 5, 4), torch.randn(2, 3, 4), torch.randn(5, 4))


def test_einsum():
    def make(g, a, b):
        pairs = ("bij,bjk->bik", "bij,bjk->ki", "bij , cjk", "bij,bjk->")
        return [
            *(g("einsum", text, [a, b]) for text in pairs),
            g("einsum", "bij->ji", [a]),
            g("einsum", "bii->bi", [g("slice.Tensor", a, 2, 0, 3)]),
        ]

    assert_lowered(make, torch.randn(2, 3, 5), torch.randn(2, 5, 4))


def test_products_of_other_types():
    assert_lowered(lambda g, a, b: g("mm", a, b), torch.randint(-9, 9, (3, 4)), torch.randint(-9, 9, (4, 2)))
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert_lowered(
            lambda g, a, b: [g("mm", a, b), g("linear", a, b, g("select.int", b, 0, 0))],
            torch.randn(4, 4).to(dtype),
            torch.randn(4, 4).to(dtype),
        )


def test_the_epilogue_stands_in_one_statement():
    text = assert_lowered(lambda g, x, w, b: g("relu", g("linear", x, w, b)), torch.randn(3, 4), torch.randn(5, 4), torch.randn(5))
    assert text.count(" where ") == 2


def test_convolutions():
    def make(g, x, w, wg, wd, b):
        found = [g("conv2d", x, w, b), g("conv2d", x, w, None, [2, 2], [1, 1]), g("conv2d", x, w, b, [1, 2], [2, 1], [2, 1])]
        found += [g("conv2d", x, wg, b, [1, 1], [1, 1], [1, 1], 2), g("conv2d", x, wd, None, [1, 1], [1, 1], [1, 1], 4)]
        found += [g("conv2d.padding", x, w, b, [1, 1], word) for word in ("same", "valid")]
        found += [g("convolution", x, w, b, [1, 1], [1, 1], [1, 1], False, [0, 0], 1), g("conv2d", g("select.int", x, 0, 0), w, b)]
        return [*found, g("relu", g("add.Tensor", found[0], g("conv2d", x, w, b)))]

    shapes = ((2, 4, 7, 6), (6, 4, 3, 3), (6, 2, 3, 3), (4, 1, 3, 3), (6,))
    assert_lowered(make, *(torch.randn(shape) for shape in shapes), rtol=1e-4, atol=1e-5)


def test_even_kernels_of_the_same_extent():
    assert_lowered(
        lambda g, x, w: g("conv2d.padding", x, w, None, [1, 1], "same", [1, 2]),
        torch.randn(1, 2, 6, 7),
        torch.randn(3, 2, 2, 4),
        rtol=1e-4,
        atol=1e-5,
    )


def test_transposed_convolutions():
    def make(g, x, w, wg, b):
        found = [g("conv_transpose2d.input", x, w, b), g("conv_transpose2d.input", x, w, b, [2, 2])]
        found += [g("conv_transpose2d.input", x, w, None, [2, 3], [1, 0], [1, 2], 1, [1, 2])]
        found += [g("conv_transpose2d.input", x, wg, None, [2, 2], [1, 1], [1, 1], 2)]
        return [*found, g("convolution", x, w, b, [2, 2], [1, 1], [1, 1], True, [1, 1], 1)]

    shapes = ((2, 4, 7, 6), (4, 3, 3, 2), (4, 3, 3, 3), (3,))
    assert_lowered(make, *(torch.randn(shape) for shape in shapes), rtol=1e-4, atol=1e-5)


def test_one_and_three_dimensions():
    def make(g, x, w, y, v):
        found = [g("conv1d", x, w, None, [2], [1]), g("conv3d", y, v, None, [1, 1, 1], [1, 1, 1])]
        return [*found, g("conv_transpose1d", x, g("transpose.int", w, 0, 1), None, [2])]

    assert_lowered(make, *(torch.randn(shape) for shape in ((2, 3, 9), (4, 3, 3), (1, 2, 4, 5, 3), (3, 2, 2, 3, 1))), rtol=1e-4, atol=1e-5)


def test_pooling():
    x = torch.randn(2, 4, 7, 6)
    x[0, 0, 2, 2] = math.nan

    def make(g, x):
        found = [
            g("max_pool2d", x, [2, 2]),
            g("max_pool2d", x, [3, 3], [2, 2], [1, 1]),
            g("max_pool2d", x, [3, 2], [2, 1], [1, 0], [1, 2], True),
        ]
        found += [g("max_pool2d_with_indices", x, [2, 2])[0], g("avg_pool2d", x, [2, 2]), g("avg_pool2d", x, [3, 3], [2, 2], [1, 1])]
        found += [
            g("avg_pool2d", x, [3, 3], [2, 2], [1, 1], *rest) for rest in ((False, False), (True, True), (True, False), (True, False, 5))
        ]
        found += [g("adaptive_avg_pool2d", x, size) for size in ([1, 1], [3, 4], [10, 2])]
        return [*found, g("_adaptive_avg_pool2d", x, [7, 3]), g("adaptive_max_pool2d", x, [3, 4])[0]]

    assert_lowered(make, x)
    assert_lowered(
        lambda g, x: [g("max_pool1d", x, [2]), g("avg_pool1d", x, [3], [2], [1]), g("adaptive_avg_pool1d", x, [4])], torch.randn(2, 3, 9)
    )


def test_resizing():
    def make(g, x):
        found = [g("upsample_nearest2d", x, size) for size in ([14, 12], [5, 9])] + [g("upsample_nearest2d.vec", x, None, [2.0, 3.0])]
        found += [g("upsample_bilinear2d", x, *rest) for rest in (([14, 12], False), ([14, 12], True), ([5, 4], False), ([1, 3], True))]
        return [*found, g("upsample_bilinear2d.vec", x, None, False, [2.0, 2.0]), g("upsample_bilinear2d", x, [7, 6], False)]

    assert_lowered(make, torch.randn(2, 3, 7, 6), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attention(dtype):
    mask = torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[2] = False  # a row that sees nothing

    def make(g, q, k, v, mask, bias):
        found = [g("scaled_dot_product_attention", q, k, v), g("scaled_dot_product_attention", q, k, v, None, 0.0, True)]
        return [*found, g("scaled_dot_product_attention", q, k, v, mask), g("scaled_dot_product_attention", q, k, v, bias, scale=0.3)]

    shapes = ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6))
    tensors = (torch.randn(shape, dtype=dtype) for shape in shapes)
    assert_lowered(make, *tensors, mask, torch.randn(2, 1, 5, 7, dtype=dtype), rtol=1e-5, atol=1e-5)


def test_attention_with_shared_keys():
    q, k = torch.randn(2, 4, 5, 4), torch.randn(2, 2, 5, 4)
    assert_lowered(lambda g, q, k: g("scaled_dot_product_attention", q, k, k, enable_gqa=True), q, k)


def test_attention_out_of_its_parts():
    def make(g, x, w):
        heads = [g("transpose.int", g("view", each, [2, 5, 3, 4]), 1, 2) for each in g("split.Tensor", g("linear", x, w), 12, -1)]
        scores = g("div.Scalar", g("matmul", heads[0], g("transpose.int", heads[1], -2, -1)), 2.0)
        mask = g("tril", g("ones", [5, 5]))
        seen = g("masked_fill.Scalar", scores, g("eq.Scalar", mask, 0), -math.inf)
        found = g("matmul", g("softmax.int", seen, -1), heads[2])
        return g("reshape", g("transpose.int", found, 1, 2), [2, 5, 12])

    assert_lowered(make, torch.randn(2, 5, 8), torch.randn(36, 8), rtol=1e-5, atol=1e-5)
