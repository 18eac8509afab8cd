"""Rows that are no multiple of a vector: pointwise statements whose last vector overlaps the one before, sums that count nothing twice.

Modules: codegen.lanes
"""

from __future__ import annotations

import pytest
import torch

import tcjit
from tcjit.runtime import host

ROWS = """def f(TYPE(M,N) X) -> (O, S, P, T) {
    O(m,n) = exp(X(m,n)) / (X(m,n) * X(m,n) + 1.0)
    S(m) +=! exp(X(m,n))
    P(m) *=! sqrt(fabs(X(m,n)) + 0.5)
    T(m) max=! tanh(X(m,n))
}"""
LANES = host.compiler().vector_bytes // 4
LENGTHS = [1, 7, 15, 16, 17, 31, 33, 39, 47, 64, 91]


@pytest.mark.parametrize(("dtype", "length"), [*((torch.float32, n) for n in LENGTHS), (torch.float64, 13), (torch.float64, 39)])
def test_every_element_counts_once(dtype: torch.dtype, length: int) -> None:
    x = torch.randn(5, length, dtype=dtype, generator=torch.Generator().manual_seed(length)) / 4
    f = tcjit.define(ROWS.replace("TYPE", "float" if dtype == torch.float32 else "double")).f
    pointwise, total, product, greatest = f.compile(x, options=tcjit.Options(vector_width=1))(x)
    wide = x.double()
    tolerance = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(pointwise.double(), wide.exp() / (wide * wide + 1), **tolerance)
    torch.testing.assert_close(total.double(), wide.exp().sum(1), **tolerance)
    torch.testing.assert_close(product.double(), (wide.abs() + 0.5).sqrt().prod(1), **tolerance)
    torch.testing.assert_close(greatest.double(), wide.tanh().amax(1), **tolerance)


def test_what_is_computed_twice_is_computed_alike() -> None:
    """Not a statement that reads what it writes, nor one that is cheap."""
    x = torch.randn(3, 39)
    loops = {
        "O(m,n) = exp(X(m,n))": True,
        "O(m,n) = X(m,n) + 1.0": False,
        "O(m,n) = X(m,n)  O(m,n) = exp(O(m,n))": False,
    }
    for statements, twice in loops.items():
        f = tcjit.define(f"def f(float(M,N) X) -> (O) {{ {statements} }}").f
        kernel = f.compile(x[:, :-1], options=tcjit.Options(vector_width=16))
        assert ("tc_first" in kernel.source) == twice, kernel.source
        torch.testing.assert_close(kernel(x[:, :-1]), x[:, :-1].exp() if "exp" in statements else x[:, :-1] + 1)


@pytest.mark.parametrize(("length", "lanes"), [(9, 8), (15, 8), (16, 0), (23, min(16, LANES))])
def test_a_short_loop_has_short_vectors(length: int, lanes: int) -> None:
    x, m = torch.randn(40, length), torch.rand(40) + 0.5
    kernel = tcjit.define("def f(float(M,N) X, float(M) S) -> (O) { O(m,n) = exp(X(m,n)) / S(m) }").f.compile(x, m)
    assert ("tc_vector +=" in kernel.source) == bool(lanes)
    assert not lanes or f"tc_vector += {lanes})" in kernel.source
    torch.testing.assert_close(kernel(x, m), x.exp() / m[:, None])


def test_subscripts_of_a_gather_that_stay_are_evaluated_before_a_loop() -> None:
    """They are checked there, once."""
    text = "def f(float(A,B) X, int32(N) P, int32(B) Q) -> (Y) { Y(n,b) = exp(X((n + P(n)) % 7, Q(b))) }"
    x, q = torch.randn(7, 40), torch.randint(0, 40, (40,), dtype=torch.int32)
    p = torch.randint(0, 7, (12,), dtype=torch.int32)
    function = tcjit.define(text).f
    source = function.compile(x, p, q).source
    assert "const int64_t tc_index0_0 = " in source and source.count("tc_mod(") == source[: source.index("exp_f32(X")].count("tc_mod(")
    rows = (torch.arange(12) + p) % 7
    torch.testing.assert_close(function(x, p, q), x[rows][:, q.long()].exp())
    with pytest.raises(tcjit.TCError, match="into X is outside"):
        tcjit.define(text.replace("% 7", "% 9")).f(x, torch.full((12,), 8, dtype=torch.int32), q)
