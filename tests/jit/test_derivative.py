"""``backward_source``: the adjoint's text for every size and for the sizes of a call, and its errors.

Modules: jit.derivative
"""
from __future__ import annotations

import pytest
import torch

import tcjit
from tcjit.errors import ArgumentError, CheckError, ShapeError

CONV = """
def conv(float(N,C,L) X, float(O,C,K) W, int32 s) -> (Y) {
    Y(n, o, i) +=! X(n, c, s*i + k) * W(o, c, k)
}
def lg(float(N) X) -> (Y) { Y(i) = polygamma(X(i), 2.0) }
"""
tc = tcjit.define(CONV, target="cpu")


def test_for_every_size() -> None:
    text = tc.conv.backward_source()
    assert text.startswith("def conv_backward(float32(N, O, (L - K) / s + 1) d_Y, float32(N, C, L) X, float32(O, C, K) W, int32 s) ->")


def test_for_the_sizes_of_a_call() -> None:
    x, w = torch.randn(2, 3, 11), torch.randn(4, 3, 3)
    text = tc.conv.backward_source(x, w, 2)
    assert text == tc.conv.backward_source(torch.empty(2, 3, 11, device="meta"), W=torch.empty(4, 3, 3, device="meta"), s=2)
    assert "int32 s" not in text and "float32(2, 3, 11) X" in text
    cotangent = torch.randn(2, 4, 5)
    d_x, d_w = tcjit.define(text, target="cpu").conv_backward(cotangent, x, w)
    x.requires_grad_()
    w.requires_grad_()
    torch.nn.functional.conv1d(x, w, stride=2).backward(cotangent)
    assert x.grad is not None and w.grad is not None
    assert torch.allclose(d_x, x.grad, atol=1e-5) and torch.allclose(d_w, w.grad, atol=1e-5)


def test_any_order() -> None:
    second = tcjit.define(tc.conv.backward_source(), target="cpu").conv_backward.backward_source()
    assert second.startswith("def conv_backward_backward(")


def test_errors() -> None:
    with pytest.raises(CheckError, match="`polygamma` has no derivative by its order"):
        tc.lg.backward_source()
    with pytest.raises(ArgumentError, match="misses W, s"):
        tc.conv.backward_source(X=torch.randn(2, 3, 11))
    with pytest.raises(ShapeError, match="size C is 3"):
        tc.conv.backward_source(torch.randn(2, 3, 11), torch.randn(4, 2, 3), 1)
