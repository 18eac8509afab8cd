"""Halves converted in vectors: loops of every length, accumulations, sums, dynamic sizes, all halves there are, and where they stay.

Modules: codegen.half_vectors
"""

from __future__ import annotations

import pytest
import torch

import tcjit
from tcjit.runtime import host

LANES = host.compiler().vector_bytes // 4
CONVERTED = "tc_load_f16"
ROUNDED = "tc_store_f16"
LENGTHS = (1, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 257)


def every_half() -> torch.Tensor:
    return torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.float16)


def kernel_of(text: str, *arguments: torch.Tensor) -> tcjit.Kernel:
    return tcjit.define(text).f.compile(*arguments)


def test_every_half_is_read_and_written() -> None:
    x = every_half()
    kernel = kernel_of("def f(half(N) X) -> (F, O) { F(n) = float(X(n))  O(n) = half(-float(X(n))) }", x)
    floats, halves = kernel(x)
    torch.testing.assert_close(floats, x.float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(halves, -x, rtol=0, atol=0, equal_nan=True)
    assert CONVERTED in kernel.source and ROUNDED in kernel.source


def test_rounding_is_to_nearest_even() -> None:
    """Floats halfway between halves, and next to there, denormals and what overflows among them."""
    bits = every_half().float().view(torch.int32)
    x = torch.cat([(bits + change).view(torch.float32) for change in (0xFFF, 0x1000, 0x1001)])
    x = x[~x.isnan()]
    kernel = kernel_of("def f(float(N) X) -> (O) { O(n) = half(X(n)) }", x)
    assert torch.equal(kernel(x), x.half())
    assert ROUNDED in kernel.source


@pytest.mark.parametrize("length", LENGTHS)
def test_lengths(length: int) -> None:
    """The last block overlaps the one before, or what is left runs on its own where nothing may be computed twice."""
    torch.manual_seed(length)
    x, y = torch.randn(3, length).half(), torch.randn(3, length).half()
    scaled = kernel_of("def f(half(M,N) X, half(M,N) Y) -> (O) { O(i,j) = X(i,j) * Y(i,j) }", x, y)
    assert torch.equal(scaled(x, y), x * y)
    again = kernel_of("def f(half(M,N) X, half(M,N) Y) -> (O) { O(i,j) = X(i,j) * Y(i,j)  O(i,j) += Y(i,j) }", x, y)
    assert torch.equal(again(x, y), x * y + y)
    assert (CONVERTED in scaled.source) == (3 * length >= 16)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("subscript", ["3*i + 1", "(i / 2) * 5 + i % 2", "N - 1 - 2*i"])
def test_strided_reads(length: int, subscript: str) -> None:
    """Collected as bits, and converted together."""
    torch.manual_seed(length)
    x, i = torch.randn(4, 3 * length + 5).half(), torch.arange(length)
    kernel = kernel_of(f"def f(half(M,N) X) -> (O) {{ O(m,i) = float(X(m,{subscript})) * 2.0 + 1.0 where i in 0:{length} }}", x)
    at = {"3*i + 1": 3 * i + 1, "(i / 2) * 5 + i % 2": (i // 2) * 5 + i % 2, "N - 1 - 2*i": x.shape[1] - 1 - 2 * i}[subscript]
    assert torch.equal(kernel(x), x.float()[:, at] * 2 + 1)
    assert "/" in subscript or (CONVERTED in kernel.source) == (length >= LANES)  # the digits of a division are loops of their own


@pytest.mark.parametrize("length", [7, 33, 70, 501])
@pytest.mark.parametrize("points", [2, 3, 4])
@pytest.mark.parametrize(("name", "dtype"), [("half", torch.float16), ("bfloat16", torch.bfloat16)])
def test_rows_of_a_few_points(length: int, points: int, name: str, dtype: torch.dtype) -> None:
    """Rows are lanes: their points are collected and put back as bits."""
    torch.manual_seed(length)
    x = torch.randn(length, points).to(dtype)
    text = f"""def f({name}(N,D) X) -> (O) {{
        M(n) max=! float(X(n,d))
        E(n,d) = exp(float(X(n,d)) - M(n))
        S(n) +=! E(n,d)
        O(n,d) = {name}(E(n,d) / S(n))
    }}"""
    kernel = kernel_of(text, x)
    torch.testing.assert_close(kernel(x).float(), x.float().softmax(1), rtol=2.0**-7 if name == "bfloat16" else 2.0**-10, atol=1e-7)
    if name == "half" and length >= 33:
        assert "tc_apart" in kernel.source


def test_interleaved_writes_keep_their_order() -> None:
    """What an update reads, or another iteration writes too, is not put off behind the loop."""
    torch.manual_seed(0)
    x = torch.randn(300, 2).half()
    text = """def f(half(N,D) X) -> (O, S) {
        S(n) +=! float(X(n,d))
        O(n,d) = half(float(X(n,d)) * S(n))
        O(n,d) += half(S(n))
    }"""
    kernel = kernel_of(text, x)
    total = x.float().sum(1)
    torch.testing.assert_close(kernel(x)[1], total)
    torch.testing.assert_close(kernel(x)[0], (x.float() * total[:, None]).half() + total[:, None].half(), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("operator", ["+", "max", "min"])
def test_reductions(length: int, operator: str) -> None:
    """Terms that two blocks share count once."""
    torch.manual_seed(length)
    x = torch.randn(4, length).half()
    text = f"def f(half(M,N) X) -> (R, Y) {{ R(i) {operator}=! exp(float(X(i,j)))  Y(i,j) = float(X(i,j)) - R(i) }}"
    kernel = kernel_of(text, x)
    wide = x.double().exp()
    expected = {"+": wide.sum(1), "max": wide.amax(1), "min": wide.amin(1)}[operator]
    torch.testing.assert_close(kernel(x)[0].double(), expected, rtol=1e-5, atol=0)


def test_sums_of_halves_are_in_vectors() -> None:
    x = torch.randn(4, 257).half()
    text = "def f(half(M,N) X) -> (R) { R(i) +=! (j >= i ? exp(float(X(i,j))) : 0.0) + float(X(i,j)) }"
    kernel = tcjit.define(text).f.compile(x)
    assert "tc_row0 = (tc_row0 + " in kernel.source and CONVERTED in kernel.source


def test_doubles_from_halves() -> None:
    x = torch.randn(5, 100).half()
    kernel = kernel_of("def f(half(M,N) X) -> (R, Y) { R(i) +=! double(X(i,j))  Y(i,j) = double(X(i,j)) / R(i) }", x)
    expected = x.double().sum(1)
    torch.testing.assert_close(kernel(x)[0], expected)
    torch.testing.assert_close(kernel(x)[1], x.double() / expected[:, None])


def test_dynamic_sizes() -> None:
    function = tcjit.define("def f(half(M,N) X, half(N) U) -> (O) { O(i,j) = half(exp(float(X(i,j)))) * U(j) }", dynamic=["N"]).f
    for length in LENGTHS:
        x, u = torch.randn(3, length).half(), torch.randn(length).half()
        kernel = function.compile(x, u)
        torch.testing.assert_close(function(x, u), x.float().exp().half() * u, rtol=2e-3, atol=1e-3)
        assert length == 1 or CONVERTED in kernel.source


def test_reads_under_conditions_stay_inside() -> None:
    """A neighbour that does not exist at the ends is read where it does."""
    x = torch.randn(200).half()
    kernel = kernel_of("def f(half(N) X) -> (O) { O(n) = n > 0 ? X(n) * half(2) + X(n-1) : X(n) where n in 0:N }", x)
    expected = x.clone()
    expected[1:] = x[1:] * 2 + x[:-1]
    torch.testing.assert_close(kernel(x), expected, rtol=1e-3, atol=1e-3)


def test_reads_under_conditions_on_data() -> None:
    x, m = torch.randn(8, 129).half(), torch.rand(8, 129) > 0.5
    kernel = kernel_of("def f(half(M,N) X, bool(M,N) B) -> (O) { O(i,j) = B(i,j) ? X(i,j) * half(3) : half(0) }", x, m)
    assert torch.equal(kernel(x, m), torch.where(m, x * 3, torch.zeros_like(x)))
    assert CONVERTED in kernel.source


def test_what_is_only_moved_is_not_converted() -> None:
    """A signalling NaN keeps its bits."""
    x = every_half()
    kernel = kernel_of("def f(half(N) X) -> (O) { O(n) = X(n) }", x)
    assert torch.equal(kernel(x).view(torch.int16), x.view(torch.int16))
    assert CONVERTED not in kernel.source


def test_results_of_a_tile() -> None:
    """The epilogue of a product rounds in vectors, at the edges too."""
    for m, n in ((96, 100), (7, 33), (5, 16), (40, 5)):
        a, b = torch.randn(m, 64).half(), torch.randn(64, n).half()
        text = "def f(half(M,K) A, half(K,N) B) -> (O) { S(i,j) +=! float(A(i,k)) * float(B(k,j))  O(i,j) = half(fmax(S(i,j), 0.0)) }"
        kernel = kernel_of(text, a, b)
        torch.testing.assert_close(kernel(a, b), (a.float() @ b.float()).relu().half(), rtol=2e-3, atol=2e-3)
        assert ROUNDED in kernel.source or n < 16


@pytest.mark.parametrize("width", [4, 8])
def test_narrower_vectors(width: int) -> None:
    x = torch.randn(3, 100).half()
    kernel = tcjit.define("def f(half(M,N) X) -> (O) { O(i,j) = X(i,j) * X(i,j) }").f.compile(x, options=tcjit.Options(vector_width=width))
    assert torch.equal(kernel(x), x * x)


def test_one_read_in_two_statements() -> None:
    """Definitions that share a read's expression, at other places: each reads its own."""
    x = torch.randn(2, 200).half()
    text = """def g(half(N) A) -> (B) { B(n) = A(n) * half(2) }
    def f(half(N) X, half(N) Y) -> (O) { P = g(X)  Q = g(Y)  O(n) = P(n) + Q(n) }"""
    kernel = kernel_of(text, x[0], x[1])
    assert torch.equal(kernel(x[0], x[1]), x[0] * 2 + x[1] * 2)
    assert CONVERTED in kernel.source


def test_tiles_of_narrow_vectors() -> None:
    a, b = torch.randn(24, 64).half(), torch.randn(64, 40).half()
    text = "def f(half(M,K) A, half(K,N) B) -> (O) { S(i,j) +=! float(A(i,k)) * float(B(k,j))  O(i,j) = half(S(i,j)) }"
    kernel = tcjit.define(text).f.compile(a, b, options=tcjit.Options(vector_width=4))
    torch.testing.assert_close(kernel(a, b), (a.float() @ b.float()).half(), rtol=2e-3, atol=2e-3)
