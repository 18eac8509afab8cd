"""Scans in vector registers: every length around that of vectors, both directions, NaN, and where they are not used.

Modules: codegen.vector_reduction
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import tcjit
from tcjit.jit.targets.cpu import machine_of
from tcjit.runtime import host

VECTOR = "tc_carried = TC_SHUFFLE("
LANES = machine_of(host.compiler()).lanes(4)
FORWARDS = "def f(T(M,N) X) -> (Y) { Y(i,j) OP=! (k <= j ? X(i,k) : ID) where j in 0:N }"
BACKWARDS = FORWARDS.replace("k <= j", "k >= j")
OPERATORS = {"+": "0", "*": "1", "max": "-infinity()", "min": "infinity()"}


def scan(text: str, operator: str, dtype: str = "float") -> tcjit.TCFunction:
    identity = OPERATORS[operator] if dtype != "int32" else OPERATORS[operator].replace("-infinity()", "-2147483648")
    return tcjit.define(text.replace("OP", operator).replace("ID", identity).replace("T(", f"{dtype}(")).f


def expected(x: torch.Tensor, operator: str, backwards: bool) -> torch.Tensor:
    x = x.flip(1) if backwards else x
    found = {
        "+": lambda: x.cumsum(1, dtype=x.dtype), "*": lambda: x.cumprod(1), "max": lambda: x.cummax(1)[0], "min": lambda: x.cummin(1)[0],
    }[operator]()  # fmt: skip
    return found.flip(1) if backwards else found


@pytest.mark.sample(2)
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("operator", OPERATORS)
def test_lengths_of_rows(operator: str, backwards: bool) -> None:
    torch.manual_seed(0)
    function, used = scan(BACKWARDS if backwards else FORWARDS, operator), 0
    for length in (2, 7, 8, 15, 16, 17, 31, 32, 33, 34, 49, 64, 65, 200):
        x = torch.randint(1, 3, (3, length)).float() if operator == "*" else torch.randint(-50, 50, (3, length)).float()
        x = torch.where(torch.arange(length) % 9 == 4, x, 1.0) if operator == "*" else x
        kernel = function.compile(x)
        assert torch.equal(kernel(x), expected(x, operator, backwards)), length
        used += VECTOR in kernel.source
    assert used >= 4 or LANES < 4


@pytest.mark.parametrize("condition", ["k < j", "k <= j + 2", "k > j", "k >= j && k >= 3"])
def test_first_results_of_another_form(condition: str) -> None:
    """None, or several terms, or as many as the second has."""
    x = torch.randint(-9, 9, (5, 70)).float()
    k, j = torch.arange(70)[:, None], torch.arange(70)
    mask = {"k < j": k < j, "k <= j + 2": k <= j + 2, "k > j": k > j, "k >= j && k >= 3": (k >= j) & (k >= 3)}[condition]
    assert torch.equal(scan(FORWARDS.replace("k <= j", condition), "+")(x), x @ mask.float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32], ids=str)
@pytest.mark.parametrize("operator", ["+", "max"])
def test_types(operator: str, dtype: torch.dtype) -> None:
    x = torch.randint(-(2**30), 2**30, (2, 77)).to(dtype)  # sums of int32 wrap
    kernel = scan(FORWARDS, operator, str(dtype)[6:].replace("float64", "double")).compile(x)
    assert torch.equal(kernel(x), expected(x, operator, False)) and (VECTOR in kernel.source or LANES < 8)


@pytest.mark.parametrize("operator", ["max", "min", "+"])
@pytest.mark.parametrize("place", [0, 15, 16, 40, 66])
def test_nan_stays(operator: str, place: int) -> None:
    """From its place on, in its row alone."""
    x = torch.randn(3, 67)
    x[1, place] = math.nan
    found = scan(FORWARDS, operator)(x)
    assert found.isnan().sum() == 67 - place and found[1, place:].isnan().all()


def test_sums_are_as_good_as_those_in_order() -> None:
    x = torch.randn(4, 10_000)
    exact = x.double().cumsum(1)
    found, in_order = scan(FORWARDS, "+")(x), torch.from_numpy(np.cumsum(x.numpy(), 1))
    assert (found - exact).abs().max() <= 2 * (in_order - exact).abs().max()


@pytest.mark.parametrize("width", [2, 4, 8])
def test_widths(width: int) -> None:
    x = torch.randint(-9, 9, (3, 50)).float()
    kernel = scan(FORWARDS, "+").compile(x, options=tcjit.Options(vector_width=width))
    assert (f"tc_float{width} tc_carried" in kernel.source) == (width >= 4) and torch.equal(kernel(x), x.cumsum(1))


def test_lanes_across_a_scan_are_left_alone() -> None:
    text = FORWARDS.replace("X(i,k)", "X(k,i)").replace("Y(i,j)", "Y(j,i)").replace("0:N", "0:M")
    x = torch.randint(-3, 4, (40, 40)).float()
    kernel = scan(text, "+").compile(x)
    assert VECTOR not in kernel.source and torch.equal(kernel(x), x.cumsum(0))


def test_halves_are_summed_in_a_wider_type() -> None:
    x = torch.randint(-3, 4, (40, 40)).half()
    kernel = scan(FORWARDS.replace("T(", "half("), "+").compile(x)
    assert VECTOR in kernel.source and torch.equal(kernel(x), x.cumsum(1))


def test_terms_are_computed() -> None:
    """Values of indices, choices and gathers, whose places are checked."""
    text = "def f(float(N) X, int64(N) p) -> (Y) { Y(j) +=! (k <= j ? (k % 3 == 0 ? exp(X(p(k))) : -1.0) : 0.0) where j in 0:N }"
    x, p = torch.zeros(100), torch.randperm(100)
    function = tcjit.define(text).f
    terms = torch.where(torch.arange(100) % 3 == 0, 1.0, -1.0)
    assert torch.equal(function(x, p), terms.cumsum(0))
    with pytest.raises(tcjit.GatherError):
        function(x, torch.full_like(p, 100))
