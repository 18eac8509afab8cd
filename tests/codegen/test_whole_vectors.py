"""Rows that are no multiple of a vector: pointwise statements whose last vector overlaps the one before, sums that count nothing twice.

Modules: codegen.lanes
"""

from __future__ import annotations

import pytest
import torch

import tcjit

ROWS = """def f(TYPE(M,N) X) -> (O, S, P, T) {
    O(m,n) = exp(X(m,n)) / (X(m,n) * X(m,n) + 1.0)
    S(m) +=! exp(X(m,n))
    P(m) *=! sqrt(fabs(X(m,n)) + 0.5)
    T(m) max=! tanh(X(m,n))
}"""
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
