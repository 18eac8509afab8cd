"""The least work of a program, counted by hand."""
from __future__ import annotations

import islpy as isl
import pytest

from tcjit.errors import MappingError
from tcjit.grammar.front import read
from tcjit.grammar.infer import specialise
from tcjit.mapping.isl import count_points
from tcjit.mapping.roofline import roofline


@pytest.mark.parametrize(
    ("text", "shapes", "flops", "moved"),
    [
        ("def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }", {"A": (4, 5), "B": (5, 6)}, 240, 4 * (20 + 30 + 24)),
        ("def f(int32(M,K) A, int32(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }", {"A": (4, 5), "B": (5, 6)}, 240, 4 * (20 + 30 + 24)),
        ("def f(float(N) X) -> (Y) { Y(i) = X(i) > 0 ? X(i) * 2 + 1 : X(i) * 3 }", {"X": (7,)}, 14, 4 * 14),
        ("def f(float(N) X) -> (Y) { Y(i) = i < 3 ? X(i) * 2 + 1 : -X(i) }", {"X": (7,)}, 3 * 2 + 4, 4 * 14),
        ("def f(float(N) X) -> (Y) { Y(i) = i >= 2 && i < 5 ? exp(X(i)) : 0.0 }", {"X": (7,)}, 3, 4 * (3 + 7)),
        ("def f(float(N) X) -> (s) { s +=! X(i) }", {"X": (9,)}, 9, 4 * 10),
    ],
)
def test_operations_and_bytes(text: str, shapes: dict[str, tuple[int, ...]], flops: int, moved: int) -> None:
    found = roofline(specialise(read(text)[0], shapes, {}))
    assert (found.flops, found.bytes) == (flops, moved)


def test_a_padded_convolution_counts_its_products_inside_and_its_sums_everywhere() -> None:
    text = """def f(float(C,N) X, float(F,C,K) W) -> (Y) {
        Y(f, i) +=! (i + k >= 1 && i + k < N + 1) ? X(c, i + k - 1) * W(f, c, k) : 0.0 where i in 0:N
    }"""
    found = roofline(specialise(read(text)[0], {"X": (2, 10), "W": (3, 2, 3)}, {}))
    assert found.flops == 3 * 2 * (10 * 3) + 3 * 2 * (10 * 3 - 2)


def test_the_bound_is_what_takes_longer() -> None:
    found = roofline(specialise(read("def f(float(N) X) -> (Y) { Y(i) = X(i) * 2 }")[0], {"X": (1000,)}, {}))
    assert found.bound(1e12, 1e9) == "memory" and found.seconds(1e12, 1e9) == 8e-6 and found.intensity == 1 / 8
    assert found.bound(1e6, 1e12) == "arithmetic"


def test_points_under_many_conditions_with_divisions_are_counted_by_dimension() -> None:
    """isl would enumerate 32 thousand million instances of this transposed convolution."""
    text = """def f(float(N,C,H,W,Z) X, float(C,F,KH,KW,KZ) K) -> (O) {
        O(n,f,h,w,z) +=! (y >= 0 && y < 3*H && y % 3 == 0 && x >= 0 && x < W && t >= 0 && t < 3*Z && t % 3 == 0)
            ? X(n,c,y/3,x,t/3) * K(c,f,kh,kw,kz) : 0.0
            where h in 0:191, w in 0:11, z in 0:95, y = h - kh, x = w - 2*kw, t = z - kz
    }"""
    found = roofline(specialise(read(text)[0], {"X": (7, 60, 64, 7, 32), "K": (60, 32, 2, 3, 2)}, {}))
    products = 7 * 32 * 60 * (2 * 64) * (7 + 7 + 7) * (2 * 32)
    sums = 7 * 32 * 60 * (191 * 2) * (11 * 3) * (95 * 2)
    assert found.flops == products + sums


def test_too_many_points_are_an_error_that_says_so() -> None:
    """Dimensions that one condition with a division joins are counted one by one."""
    ctx = isl.Context()
    ctx.set_max_operations(10_000)
    with pytest.raises(MappingError, match="too many points to count.*\n?.*smaller sizes"):
        count_points(isl.Set("{ [a, b] : 0 <= a, b < 9000 and (a + b) mod 7 = 0 }", ctx))
