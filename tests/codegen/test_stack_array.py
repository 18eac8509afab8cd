"""Arrays on the stack: no tensor has the name of one.

Modules: codegen.text
"""

from __future__ import annotations

import pytest
import torch

import tcjit


@pytest.mark.parametrize(("own", "other"), [("A", "A_p_"), ("tA", "A_p"), ("A", "A_p"), ("A", "A_")])
def test_a_tensor_is_never_an_array_of_a_thread(own: str, other: str) -> None:
    text = f"""def f(float(N,M) X, float(N,M) {other}) -> (Y) {{
        {own}(i,j) = exp(X(i,j)) * 2.0
        S(i) +=! {own}(i,j)
        Y(i,j) = {own}(i,j) / S(i) + {other}(i,j) }}"""
    x, y = torch.randn(2, 200, 300)
    torch.testing.assert_close(tcjit.define(text)["f"](x, y), torch.softmax(x, 1) + y)
