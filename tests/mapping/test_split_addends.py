"""Sums of terms that are sums themselves.

Modules: mapping.passes.split_addends mapping.verify_unions
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.mapping import program

import tcjit
from tcjit.errors import VerifyError
from tcjit.mapping.extract import extract
from tcjit.mapping.passes.split_addends import split_addends
from tcjit.mapping.verify_assignments import verify_assignments

FORWARD = "def f(float(N,H) X, float(3) K) -> (Y) { Y(n,y) +=! X(n, abs(2*y + i - 1)) * K(i) where y in 0:H/2 }"
TEXT = """def f(float(N,T) G, float(3) K) -> (Y) {
    Y(n,i) +=! ((i - k + 1) % 2 == 0 && i - k + 1 >= 0 && i - k + 1 < 2 * T ? G(n, (i - k + 1) / 2) * K(k) : 0.0)
        + ((1 - k - i) % 2 == 0 && 1 - k - i >= 0 ? G(n, (1 - k - i) / 2) * K(k) : 0.0) where i in 0:2*T, k in 0:3
}"""
SHAPES = {"G": (30, 40), "K": (3,)}


def test_a_sum_for_each_addend() -> None:
    before = extract(program(TEXT, SHAPES))
    after = split_addends(before)
    verify_assignments("split_addends", before, after)
    first, second = after.assignments
    assert (first.start, second.start) == (before.assignments[0].start, None)
    assert "(i - k + 1) / 2" in first.show() and "(1 - k - i) / 2" in second.show()


@pytest.mark.parametrize(
    "value",
    [
        "(i >= k ? G(n, i - k) : 0.0) + (k > i ? G(n, k - i) : 0.0)",  # nothing divides
        "((i - k) % 2 == 0 && i >= k ? G(n, (i - k) / 2) : 0.0) + K(k)",  # an addend that always counts
        "((i - k) % 2 == 0 && i >= k ? G(n, (i - k) / 2) : 0.0) * K(k)",  # a product
    ],
)
def test_what_stays(value: str) -> None:
    text = f"def f(float(N,T) G, float(3) K) -> (Y) {{ Y(n,i) +=! {value} where i in 0:T, k in 0:3 }}"
    before = extract(program(text, SHAPES))
    assert split_addends(before).assignments == before.assignments


def test_the_validation() -> None:
    before = extract(program(TEXT, SHAPES))
    after = split_addends(before)
    first, second = after.assignments
    for wrong in ((first,), (second, first), (first, replace(second, start=first.start)), (first, replace(first, start=None))):
        with pytest.raises(VerifyError, match="split_addends"):
            verify_assignments("split_addends", before, replace(after, assignments=wrong, replaced=(wrong,)))


def test_the_gradient_of_a_reflected_border() -> None:
    x = torch.randn(7, 62, requires_grad=True)
    kernel = torch.tensor([0.25, 0.5, 0.25])
    y = tcjit.define(FORWARD).f(x, kernel)
    grad = torch.randn_like(y)
    (found,) = torch.autograd.grad(y, x, grad)
    expected = F.conv1d(F.pad(x[:, None], (1, 1), mode="reflect"), kernel[None, None], stride=2)[:, 0, : y.shape[1]]
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(found, torch.autograd.grad(expected, x, grad)[0])
