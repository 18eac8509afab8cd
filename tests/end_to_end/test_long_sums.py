"""A sum or a product of a thousand terms, on every stage: read, compiled, checked, shown."""

from __future__ import annotations

import pytest
import torch

import tcjit


@pytest.mark.parametrize(("op", "dtype"), [(" + ", "float"), (" * ", "float"), (" + ", "int8")])
def test_a_thousand_terms(op: str, dtype: str) -> None:
    tc = tcjit.define(f"def f({dtype}(N) X) -> (Y) {{ Y(i) = {op.join(['X(i)'] * 1000)} }}", target="cpu")
    x = torch.tensor([1, 0, -1], dtype=torch.int8 if dtype == "int8" else torch.float32)
    kernel = tc.f.compile(x)
    wanted = x * 1000 if op == " + " else x**1000
    assert torch.equal(tc.f(x), wanted.to(x.dtype)) and kernel.check(x).used["Y"] <= 1
    assert tc.f.compile(x, target="reference").source.count("X(i)") == 1000
