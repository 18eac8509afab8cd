"""Which reductions are summed in chunks."""

from __future__ import annotations

import pytest
import torch

import tcjit

NORM = """def f(float(N,C,T) X, float(N,C) M, float(N,C) V, float(C) W) -> (S) {
    S(n,c) +=! X(n,c,t) * (X(n,c,t) - M(n,c)) * rsqrt(V(n,c)) * rsqrt(V(n,c)) * rsqrt(V(n,c)) * W(c) }"""
GRAM = "def f(float(N,C,T) X) -> (S) { S(c,e) +=! X(n,c,t) * X(n,e,t) }"


@pytest.mark.parametrize(("text", "chunked"), [(NORM, False), (GRAM, True)], ids=["rows", "products"])
def test_what_all_terms_share_makes_no_chunks(text: str, chunked: bool) -> None:
    """Rows enough for threads stay whole, whatever their results are multiplied with: they share passes with what reads them again."""
    x, m, v, w = torch.randn(2, 16, 13440), torch.randn(2, 16), torch.rand(2, 16) + 0.5, torch.randn(16)
    f = tcjit.define(text).f
    given = (x, m, v, w) if text is NORM else (x,)
    expected = (x * (x - m[..., None])).double().sum(-1) * v**-1.5 * w if text is NORM else torch.einsum("nct,net->ce", x, x)
    torch.testing.assert_close(f(*given).double(), expected.double(), rtol=1e-4, atol=1e-2)
    assert ("S_part" in f.compile(*given).source) == chunked


@pytest.mark.parametrize(("rows", "chunked"), [(512, False), (64, True)])
def test_functions_of_rows_make_chunks_where_rows_are_few(rows: int, chunked: bool) -> None:
    """Others are read once more from the cache: the sum of a softmax follows the maximum of its row."""
    x = torch.randn(rows, 9000)
    f = tcjit.define("def f(float(A,B) X) -> (O) { M(a) max=! X(a,b) S(a) +=! exp(X(a,b) - M(a)) O(a) = M(a) + log(S(a)) }").f
    torch.testing.assert_close(f(x), x.logsumexp(1), rtol=1e-5, atol=1e-5)
    assert ("S_part" in f.compile(x).source) == chunked
