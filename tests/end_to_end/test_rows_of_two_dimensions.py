"""Products with their lanes in the terms and rows of a register tile along both operands, with what follows them.

Modules: codegen.tile_printer mapping.nest.plan_nest mapping.nest.cost
"""

from __future__ import annotations

import pytest
import torch

import tcjit

TEXT = """def f(float(M,K) A, float(N,K) B, float(N) c) -> (C, Y) {
    C(m,n) +=! A(m,k) * B(n,k)
    Y(m,n) = fmax(C(m,n) + c(n), 0.0)
}"""


@pytest.mark.parametrize(("rows", "columns", "terms"), [(30, 40, 2001), (5, 7, 333), (16, 9, 1024), (7, 6, 64), (2, 2, 500)])
def test_products_and_what_follows_them(rows: int, columns: int, terms: int) -> None:
    a, b, c = torch.randn(rows, terms), torch.randn(columns, terms), torch.randn(columns)
    kernel = tcjit.define(TEXT).f.compile(a, b, c)
    product, after = kernel(a, b, c)
    exact = a.double() @ b.double().t()
    torch.testing.assert_close(product.double(), exact, rtol=0, atol=1e-6 * terms)
    torch.testing.assert_close(after, (product + c).relu())
    assert kernel.resources["verified"]


@pytest.mark.parametrize("guard", ["n <= m", "m + n < 40"])
def test_parts_of_results(guard: str) -> None:
    a = torch.randn(37, 900)
    text = f"def h(float(M,K) A) -> (C) {{ C(m,n) +=! ({guard}) ? A(m,k) * A(n,k) : 0.0 }}"
    m, n = torch.arange(37)[:, None], torch.arange(37)[None, :]
    where = n <= m if guard == "n <= m" else m + n < 40
    torch.testing.assert_close(tcjit.define(text).h(a), (a @ a.t()) * where, rtol=1e-4, atol=1e-3)


def test_a_tile_that_is_asked_for() -> None:
    a, b = torch.randn(33, 700), torch.randn(21, 700)
    f = tcjit.define("def g(float(M,K) A, float(N,K) B) -> (C) { C(m,n) +=! A(m,k) * B(n,k) }").g
    for rows in (4, 9, 16, 20):
        kernel = f.compile(a, b, options=tcjit.Options(register_tile=(rows, 1)))
        torch.testing.assert_close(kernel(a, b), a @ b.t(), rtol=1e-4, atol=1e-3)
