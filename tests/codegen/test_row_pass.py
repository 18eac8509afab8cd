"""Passes over rows: lengths around those of vectors, types, NaN and infinities, what is at hand and what is loaded again.

Modules: codegen.row_pass
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from support.mapping import program

import tcjit
from tcjit.jit.targets.cpu import machine_of
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import map_program
from tcjit.runtime import host

MACHINE = machine_of(host.compiler())
LENGTHS = (2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 100, 127, 129, 130, 257, 700)
SOFTMAX = """def f(T(M,N) X) -> (Y, R, S) {
    R(i) max=! X(i,j)
    E(i,j) = exp(X(i,j) - R(i))
    S(i) +=! E(i,j)
    Y(i,j) = E(i,j) / S(i) }"""
MOMENTS = """def f(float(M,N) X) -> (A, Q, L, P) {
    A(i) +=! X(i,j)
    Q(i) +=! X(i,j) * X(i,j)
    L(i) min=! X(i,j)
    P(i) *=! 1.0 + 0.001 * X(i,j) }"""
NORM = """def f(float(A,B,C,D) X, float(B) g) -> (Y) {
    m(a) +=! X(a,b,c,d)
    v(a) +=! (X(a,b,c,d) - m(a) / (B * C * D)) * (X(a,b,c,d) - m(a) / (B * C * D))
    Y(a,b,c,d) = g(b) * (X(a,b,c,d) - m(a) / (B * C * D)) * rsqrt(v(a) / (B * C * D) + 1e-5) }"""
PASS = "tc_a0_0"  # an accumulator of the first reduction


def softmax(dtype: torch.dtype) -> Callable[..., tcjit.Kernel]:
    return tcjit.define(SOFTMAX.replace("T(", f"{str(dtype)[6:]}(")).f.compile


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 30])  # too few for statements of their own for the points of short rows
def test_lengths_of_rows(dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(0)
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    for length in LENGTHS:
        x = torch.randn(rows, length).to(dtype)
        kernel = softmax(dtype)(x)
        assert (PASS in kernel.source) == (3 * length > MACHINE.lanes(max(4, dtype.itemsize))), length
        y, most, total = kernel(x)
        assert torch.equal(most, x.amax(1)), length
        torch.testing.assert_close(y, torch.softmax(x.double(), 1).to(dtype), rtol=tolerance, atol=tolerance)
        exact = (x - most[:, None]).double().exp().to(dtype).double().sum(1).to(dtype)
        torch.testing.assert_close(total, exact, rtol=4 * tolerance, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "together"), [(203, 12), (515, 16), (60, 1)])
def test_short_rows_that_wait_for_sums_take_turns(dtype: torch.dtype, rows: int, together: int) -> None:
    """The last ones of them are fewer; long rows, and those of a single reduction, run one after the other."""
    machine = dataclasses.replace(MACHINE, threads=2)
    for length in (21, 64, 300):
        text, shapes = SOFTMAX.replace("T(", f"{str(dtype)[6:]}("), {"X": (rows, length)}
        text = text.replace("Y(i,j) = E(i,j) / S(i)", "Y(k,l) = E(k,l) / S(k)")
        (shown,) = map_program(program(text, shapes), Options(), machine).reductions
        wanted = together if together > 1 and length <= 8 * machine.lanes(4) else 1
        assert shown.startswith(f"{wanted} rows i" if wanted > 1 else "rows i"), shown
        x = torch.randn(rows, length).to(dtype)
        kernel = softmax(dtype)(x)
        y, most, _ = kernel(x)
        assert torch.equal(most, x.amax(1))
        tolerance = 1e-6 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(y, torch.softmax(x.double(), 1).to(dtype), rtol=tolerance, atol=tolerance)
    alone = "def f(float(M,N) X) -> (Y) { v(i) +=! X(i,j) * X(i,j)  Y(i,j) = X(i,j) * rsqrt(v(i)) }"
    assert map_program(program(alone, {"X": (rows, 21)}), Options(), machine).reductions[0].startswith("rows i")


@pytest.mark.parametrize("length", LENGTHS)
def test_several_reductions_in_one_pass(length: int) -> None:
    torch.manual_seed(length)
    x = torch.randn(30, length)
    kernel = tcjit.define(MOMENTS).f.compile(x)
    assert ("tc_a3_0" in kernel.source) == (3 * length > MACHINE.lanes(4))
    sums, squares, least, product = kernel(x)
    torch.testing.assert_close(sums, x.double().sum(1).float(), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(squares, (x.double() ** 2).sum(1).float(), rtol=1e-5, atol=1e-5)
    assert torch.equal(least, x.amin(1))
    torch.testing.assert_close(product, (1 + 0.001 * x.double()).prod(1).float(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("shape", [(3, 4, 5, 7), (2, 3, 6, 6), (40, 8, 3, 33), (5, 1, 9, 2)])
def test_rows_of_several_dimensions(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, g = torch.randn(shape), torch.randn(shape[1])
    kernel = tcjit.define(NORM).f.compile(x, g)
    expected = torch.nn.functional.layer_norm(x.double(), shape[1:]) * g.double()[None, :, None, None]
    torch.testing.assert_close(kernel(x, g), expected.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("length", [13, 16, 69, 300])
def test_nan_and_infinities(bad: float, length: int) -> None:
    """A NaN in any lane is the result of its row alone, as in PyTorch."""
    for place in {0, 7, length // 2, length - 1}:
        x = torch.randn(3, length)
        x[1, place] = bad
        y, most, _ = softmax(torch.float32)(x)(x)
        torch.testing.assert_close(y, torch.softmax(x, 1), equal_nan=True)
        torch.testing.assert_close(most, x.amax(1), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_widths(width: int) -> None:
    x = torch.randn(6, 53)
    kernel = softmax(torch.float32)(x, options=tcjit.Options(vector_width=width))
    assert f"tc_float{width} {PASS}" in kernel.source
    torch.testing.assert_close(kernel(x)[0], torch.softmax(x, 1))


def test_nothing_behind_a_row_is_touched() -> None:
    """The last vector of the last row is loaded and stored under a mask."""
    for length in (5, 21, 150):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            memory, out = torch.full((4 * length + 64,), math.nan, dtype=dtype), torch.full((4 * length + 64,), 7.0, dtype=dtype)
            x, y = memory[: 4 * length].view(4, length), out[: 4 * length].view(4, length)
            x.copy_(torch.randn(4, length))
            kernel = softmax(dtype)(x)
            assert not kernel(x, out=(y, torch.empty(4, dtype=dtype), torch.empty(4, dtype=dtype)))[0].isnan().any()
            assert (out[4 * length :] == 7.0).all()


def test_results_that_a_pass_reads_and_writes() -> None:
    """What a statement overwrites is at hand as it is then, for the statements and passes behind it."""
    text = """def f(float(M,N) X) -> (Y, S, T) {
        Y(i,j) = X(i,j) + 1.0
        S(i) +=! Y(i,j)
        Y(i,j) = Y(i,j) * S(i)
        T(i) max=! Y(i,j) }"""
    for length in (11, 48, 333):
        x = torch.randn(9, length)
        y, s, t = tcjit.define(text).f(x)
        torch.testing.assert_close(s, (x + 1).sum(1), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(y, (x + 1) * s[:, None])
        assert torch.equal(t, y.amax(1))


def test_sums_into_what_there_is() -> None:
    text = "def f(float(M,N) X, float(M) a) -> (S, R) { S(i) = a(i)  S(i) += X(i,j)  R(i) max=! X(i,j) * 2.0 }"
    x, a = torch.randn(17, 45), torch.randn(17)
    s, r = tcjit.define(text).f(x, a)
    torch.testing.assert_close(s, a + x.sum(1), rtol=1e-5, atol=1e-5)
    assert torch.equal(r, x.amax(1) * 2)


def test_dynamic_lengths() -> None:
    function = tcjit.define(SOFTMAX.replace("T(", "float("), dynamic=["M", "N"]).f
    for rows, length in ((3, 5), (40, 130), (7, 64), (64, 1000), (2, 2)):
        x = torch.randn(rows, length)
        torch.testing.assert_close(function(x)[0], torch.softmax(x, 1))


@pytest.mark.parametrize("length", [9, 21, 33, 64, 1000])
@pytest.mark.parametrize("dtype", ["float", "double", "bfloat16"])
def test_places_of_greatest_elements(dtype: str, length: int) -> None:
    """Indices are values of lanes; the pass for places holds as many points in an array as 32-bit vectors do, whatever the other held."""
    text = f"def f({dtype}(M,N) X) -> (O) {{ R(i) max=! X(i,j)  O(i) min=! (X(i,j) == R(i)) ? j : N }}"
    torch.manual_seed(length)
    x = torch.randperm(40 * length).view(40, length) if dtype != "bfloat16" else torch.stack([torch.randperm(min(length, 256))] * 40)
    x = x.to(getattr(torch, dtype))
    kernel = tcjit.define(text).f.compile(x)
    assert kernel.resources["reductions"] == ["rows i: passes over j for R, then O"]
    assert torch.equal(kernel(x).long(), x.argmax(1))


def test_passes_over_elements_of_different_types() -> None:
    text = "def f(double(M,N) X) -> (R, S) { R(i) max=! X(i,j)  S(i) +=! float(X(i,j) - R(i)) }"
    for length in (7, 33, 64, 100):
        x = torch.randn(20, length, dtype=torch.float64)
        most, total = tcjit.define(text).f(x)
        torch.testing.assert_close(total, (x - most[:, None]).sum(1).float(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("kind", ["float", "double", "bfloat16"])
def test_bytes_are_converted_as_they_are_loaded(kind: str, dtype: torch.dtype) -> None:
    """Masks and weights of single bytes, whose vectors are whole, masked, or the row's last ones."""
    torch.manual_seed(0)
    number = f"{kind}(Q(i,j) ? 1.0 : 0.0)" if dtype == torch.bool else f"{kind}(Q(i,j))"
    test = "Q(i,j)" if dtype == torch.bool else "Q(i,j) > 1"
    text = f"""def f({kind}(M,N) X, {str(dtype)[6:]}(M,N) Q) -> (Y, C) {{
        S(i) +=! {test} ? X(i,j) : 0.0
        C(i) +=! {number}
        Y(i,j) = {number} * (X(i,j) - S(i)) }}"""
    for length in (8, 9, 31, 64, 100, 257):
        x = torch.randn(30, length).to(getattr(torch, {"float": "float32", "double": "float64"}.get(kind, kind)))
        q = torch.randint(0, 2, (30, length)).bool() if dtype == torch.bool else torch.randint(-100, 100, (30, length)).to(dtype)
        kernel = tcjit.define(text).f.compile(x, q)
        assert PASS in kernel.source, length
        y, c = kernel(x, q)
        chosen = torch.where(q if dtype == torch.bool else q > 1, x.double(), 0.0).sum(1).to(x.dtype)
        tolerance = {"float": 1e-5, "double": 1e-12, "bfloat16": 4e-2}[kind]
        torch.testing.assert_close(c, q.double().sum(1).to(x.dtype), rtol=tolerance, atol=0)
        torch.testing.assert_close(y, (q.to(x.dtype) * (x - chosen[:, None])), rtol=tolerance, atol=100 * tolerance)


def test_long_rows_have_a_place_for_each_thread() -> None:
    """What a stack does not hold, and half a core's cache does; longer rows still have a place for each of their elements."""
    torch.manual_seed(0)
    for length, longer in ((40_000, False), (MACHINE.cache_bytes // 4, True)):
        x = torch.randn(40, length)
        kernel = softmax(torch.float32)(x)
        rows = 40 if longer else MACHINE.threads
        assert ("tc_slice" in kernel.source) != longer
        assert rows * 4 * length <= kernel.resources["workspace"] <= rows * (4 * length + 256) + 4096
        for threads in (1, 2, 5):
            kept = torch.get_num_threads()
            torch.set_num_threads(threads)
            y = kernel(x)[0]
            torch.set_num_threads(kept)
            torch.testing.assert_close(y, torch.softmax(x.double(), 1).float(), rtol=1e-5, atol=0)
