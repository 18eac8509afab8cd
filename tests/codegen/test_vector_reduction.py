"""Sums and extrema of rows in vector registers: every length around that of vectors, NaN and infinities, and where they are not used.

Modules: codegen.vector_reduction
"""

from __future__ import annotations

import math

import pytest
import torch

import tcjit
from tcjit.errors import GatherError
from tcjit.runtime import host

# a condition on indices takes what the row consists of out of passes over rows, which have accumulators of their own
ROW = "E(i,j) = (j < i ? X(i,j) : X(i,j))"
TEXT = f"""def f(T(M,N) X) -> (Y, R) {{
    {ROW}
    R(i) OP=! E(i,j)
    Y(i,j) = exp(E(i,j) - R(i)) }}"""
VECTOR = "tc_row0 = "
LANES = host.compiler().vector_bytes // 4


def program(operator: str = "max", dtype: str = "float") -> str:
    return TEXT.replace("OP", operator).replace("T(", f"{dtype}(")


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("operator", ["max", "min"])
def test_lengths_of_rows(operator: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    function, used = tcjit.define(program(operator, str(dtype)[6:])).f, 0
    for length in (1, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 257):
        x = torch.randn(5, length).to(dtype)
        kernel = function.compile(x)
        expected = x.amax(1) if operator == "max" else x.amin(1)
        assert torch.equal(kernel(x)[1], expected), length
        used += VECTOR in kernel.source
    assert used >= 5


SUM = TEXT.replace("OP", "+").replace("T(", "float(")


@pytest.mark.parametrize("length", [15, 16, 17, 40, 64, 65, 163, 257, 1024, 1025])
@pytest.mark.parametrize("operator", ["+", "*"])
def test_sums_of_neighbours(operator: str, length: int) -> None:
    """What is left behind whole blocks counts once, under a mask."""
    torch.manual_seed(2)
    x = torch.rand(5, length) * 0.2 + 0.9
    kernel = tcjit.define(SUM.replace("+=! E", f"{operator}=! E")).f.compile(x)
    expected = x.double().sum(1) if operator == "+" else x.double().prod(1)
    torch.testing.assert_close(kernel(x)[1].double(), expected, rtol=1e-5, atol=0)
    assert (VECTOR in kernel.source) == (LANES <= length <= 1024)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 15, 16, 40, 63, 64, 68])
def test_nan_and_infinities(bad: float, place: int) -> None:
    """A NaN in any lane, of vectors that overlap too, is the result of its row alone."""
    x = torch.randn(3, 69)
    x[1, place] = bad
    kernel = tcjit.define(program()).f.compile(x)
    assert VECTOR in kernel.source
    torch.testing.assert_close(kernel(x)[1], x.amax(1), equal_nan=True, rtol=0, atol=0)


def test_rows_of_nothing_but_minus_infinity() -> None:
    x = torch.full((2, 32), -math.inf)
    assert torch.equal(tcjit.define(program()).f(x)[1], x.amax(1))


def test_widths() -> None:
    x = torch.randn(4, 50)
    for width in (4, 8):
        kernel = tcjit.define(program()).f.compile(x, options=tcjit.Options(vector_width=width))
        assert f"tc_float{width} tc_row0" in kernel.source and torch.equal(kernel(x)[1], x.amax(1))


@pytest.mark.parametrize(
    ("statement", "vectors"),
    [
        ("R(i) max=! E(i,2*j) where j in 0:20", False),
        ("R(i) max=! fabs(E(i,j))", True),
        ("R(i) max=! ((i + j) % 3 == 0 ? E(i,j) : -1e30)", True),
        ("R(i) max=! (m(i,j) ? E(i,j) : -1e30)", True),
        ("R(i) max=! E(i,p(j)) where j in 0:40", False),
    ],
    ids=["every second", "computed", "guarded", "masked", "gathered"],
)
def test_rows_of_values(statement: str, vectors: bool) -> None:
    """What is computed from neighbours in memory is computed for a few vectors at once."""
    text = f"def f(float(M,N) X, bool(M,N) m, int64(N) p) -> (R, Y) {{ {ROW}\n {statement}\n Y(i,j) = exp(E(i,j) - R(i)) }}"
    torch.manual_seed(1)
    x = torch.randn(3, 40)  # fewer rows than a vector has lanes
    mask, places = torch.rand(3, 40) > 0.5, torch.randint(0, 40, (40,))
    kernel = tcjit.define(text).f.compile(x, mask, places)
    third = (torch.arange(40)[None] + torch.arange(3)[:, None]) % 3 == 0
    rows = {"2*j": x[:, ::2], "fabs": x.abs(), "% 3": x.masked_fill(~third, -1e30), "m(i,j)": x.masked_fill(~mask, -1e30)}
    rows["p(j)"] = x[:, places]
    expected = next((values for part, values in rows.items() if part in statement), x)
    assert (VECTOR in kernel.source) == ("tc_terms[" in kernel.source) == vectors
    assert torch.equal(kernel(x, mask, places)[0], expected.amax(1))


@pytest.mark.parametrize("length", [16, 17, 18, 31, 33, 40, 63, 65, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_of_short_rows_of_functions(length: int, dtype: torch.dtype) -> None:
    """Terms of the last vectors that those before them have, too, count once."""
    name = "float" if dtype == torch.float32 else "double"
    text = f"def f({name}(M,N) X) -> (R, Y) {{ {ROW}\n R(i) +=! max(E(i,j), 1.0)\n Y(i,j) = exp(E(i,j) - R(i)) }}"
    x = torch.randint(-3, 9, (5, length)).to(dtype)
    kernel = tcjit.define(text).f.compile(x)
    assert "tc_terms[" in kernel.source
    assert torch.equal(kernel(x)[0], x.clamp(min=1.0).sum(1))


def test_places_out_of_range_are_named() -> None:
    text = "def f(float(M,N) X, int64(N) p) -> (R, Y) { R(i) max=! X(i,p(j)) where j in 0:40\n Y(i,j) = exp(X(i,j) - R(i)) }"
    x, places = torch.randn(5, 40), torch.randint(0, 40, (40,))
    places[39] = 40
    with pytest.raises(GatherError, match="40"):
        tcjit.define(text).f(x, places)


@pytest.mark.parametrize("length", [16, 17, 50, 64, 65, 200])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_computed_values_of_every_length(length: int, bad: float) -> None:
    text = "def f(float(M,N) X) -> (R, Y) { R(i) min=! X(i,j) * 2.0\n Y(i,j) = exp(X(i,j) - R(i)) }"
    for place in (0, length // 2, length - 1):
        x = torch.randn(3, length)
        x[1, place] = bad
        torch.testing.assert_close(tcjit.define(text).f(x)[0], (x * 2).amin(1), equal_nan=True, rtol=0, atol=0)
