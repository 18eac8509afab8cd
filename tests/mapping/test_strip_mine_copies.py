"""Sums at quotients of their terms, over the digits of these."""

from __future__ import annotations

import torch

import tcjit


def test_errors_of_groups_are_summed_by_groups() -> None:
    """What a group shares is computed once for it, not for each of its elements."""
    text = """def f(float(N,D) X, int8(N,D) Q, int8(N,D/32) E) -> (S) {
        S(n) +=! e * e where e = X(n,d) - Q(n,d) * exp2(float(E(n,d/32))), d in 0:D }"""
    g = torch.Generator().manual_seed(0)
    x, q = torch.randn(30, 96, generator=g), torch.randint(-9, 9, (30, 96), generator=g, dtype=torch.int8)
    e = torch.randint(-3, 3, (30, 3), generator=g, dtype=torch.int8)
    f = tcjit.define(text).f
    torch.testing.assert_close(f(x, q, e), ((x - q * torch.exp2(e.float()).repeat_interleave(32, 1)) ** 2).sum(1), rtol=1e-5, atol=1e-4)
    source = f.compile(x, q, e).source
    assert "tc_c0 = exp2f(" in source and "tc_fdiv" not in source[source.index("tc_f(void") :]
