"""Which operands are staged: those that a copy has each element of once.

Modules: mapping.nest.stage_operands mapping.nest.operands
"""

from __future__ import annotations

import warnings

import pytest
import torch
from support.mapping import AVX512, program

import tcjit
from tcjit import library
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import build_scop

GROUPED = """def f(float(N,C,H) X, float(F,D,K) W) -> (O) {
    O(n,f,h) +=! X(n, f / 48 * 16 + d, h + k) * W(f,d,k) where h in 0:6 }"""
TRANSPOSED = """def f(float(N,C,H) X, float(C,F,K) W) -> (O) {
    O(n,f,h) +=! (y >= 0 && y < 2*H && y % 2 == 0) ? X(n,c,y/2) * W(c,f,k) : 0.0 where h in 0:138, y = h - k }"""
CORRELATION = "def f(float(B,N) X, float(B,M) Y) -> (O) { O(m,n) +=! X(b,m+n) * Y(b,m) where n in 0:64 }"


def staged(text: str, shapes: dict[str, tuple[int, ...]]) -> set[str]:
    made = build_scop(program(text, shapes), Options(), target=AVX512)
    return {storage.name for storage in made.tensors if storage.name.endswith("_staged")}


@pytest.mark.parametrize(
    ("text", "shapes", "expected"),
    [
        (GROUPED, {"X": (20, 64, 8), "W": (192, 16, 3)}, {"W_staged"}),  # f is 48 * block + f
        (TRANSPOSED, {"X": (4, 128, 68), "W": (128, 160, 4)}, {"W_staged"}),  # k is 2 * k + 1 in a class
        (CORRELATION, {"X": (64, 127), "Y": (64, 64)}, set()),  # several m and n name one element
    ],
)
def test_what_is_staged(text: str, shapes: dict[str, tuple[int, ...]], expected: set[str]) -> None:
    assert staged(text, shapes) == expected


def test_results_of_groups() -> None:
    x, w = (torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(1)).float() for shape in ((20, 64, 8), (192, 16, 3)))
    assert torch.equal(tcjit.define(GROUPED)["f"](x, w), torch.nn.functional.conv1d(x, w, groups=4))
    x, w = x[:4].contiguous(), torch.randint(-3, 4, (64, 40, 4), generator=torch.Generator().manual_seed(2)).float()
    expected = torch.nn.functional.conv_transpose1d(x, w, stride=2)
    assert torch.equal(tcjit.define(TRANSPOSED.replace("0:138", f"0:{expected.shape[2]}"))["f"](x, w), expected)


def test_places_that_scalars_move_with_open_sizes() -> None:
    """One kernel serves all sizes; otherwise there is a warning."""
    convolution = tcjit.define(library.source("winograd_conv2d", "float32", "int64"), dynamic=["N"])["winograd_conv2d"]
    w = torch.randn((4, 3, 3, 3), generator=torch.Generator().manual_seed(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (1, 5):
            x = torch.randn((n, 3, 8, 6), generator=torch.Generator().manual_seed(n))
            torch.testing.assert_close(convolution(x, w, 1, 0), torch.nn.functional.conv2d(x, w, padding=(1, 0)))


@pytest.mark.parametrize("shape", [(1, 48, 24, 24, 40), (1, 16, 24, 36, 68), (4, 32, 28, 28, 32)])
def test_factors_whose_product_cannot_be_copied_are_operands(shape: tuple[int, ...]) -> None:
    """Of a convolution under modulated channels the products of weights are computed once, those of the image under its border cannot be:
    whichever the tile prefers, there is one."""
    n, c, h, w, o = shape
    text = """def f(float(N,C,H,W) X, float(N,C) S, float(O,C,3,3) K) -> (Y) {
        Y(n,o,y,x) +=! (y + i >= 1 && y + i <= H && x + j >= 1 && x + j <= W) ? S(n,c) * X(n,c,y + i - 1,x + j - 1) * K(o,c,i,j) : 0.0
            where y in 0:H, x in 0:W }"""
    x, s, k = torch.randn(n, c, h, w), torch.randn(n, c), torch.randn(o, c, 3, 3)
    f = tcjit.define(text, target="cpu").f
    expected = torch.nn.functional.conv2d((x * s[:, :, None, None]).double(), k.double(), padding=1)
    torch.testing.assert_close(f(x, s, k).double(), expected, rtol=1e-4, atol=1e-4)
    assert all(line.startswith(("Y: loops", "outer loops")) for line in f.compile(x, s, k).resources["reductions"])
