"""Defs that call earlier defs are compiled as one program; tensors that are not returned are temporaries."""

from __future__ import annotations

import torch

import tcjit

tc = tcjit.define("""
def dense(float(B,I) X, float(O,I) W, float(O) b) -> (Y) {
    Y(n, o) +=! X(n, i) * W(o, i)
    Y(n, o)   = Y(n, o) + b(o)
}
def gelu(float(B,O) X) -> (Y) {
    Y(n, o) = 0.5 * X(n, o) * (1.0 + erf(X(n, o) * 0.7071067811865476))
}
def feed_forward(float(B,I) X, float(H,I) W1, float(H) b1, float(I,H) W2, float(I) b2) -> (Y) {
    A = dense(X, W1, b1)
    G = gelu(A)
    R = dense(G, W2, b2)
    Y(n, i) = X(n, i) + R(n, i)
}
""")

generator = torch.Generator().manual_seed(0)
X, W1, b1, W2, b2 = (0.1 * torch.randn(*shape, generator=generator) for shape in [(32, 64), (256, 64), (256,), (64, 256), (64,)])

Y = tc.feed_forward(X, W1, b1, W2, b2)
expected = X + torch.nn.functional.gelu(X @ W1.T + b1) @ W2.T + b2
print("close to PyTorch:", torch.allclose(Y, expected, atol=1e-5))

# every def can be called by itself, and results can be written in place
out = torch.empty(32, 64)
tc.gelu(X, out=out)
print("out= was filled: ", torch.allclose(out, torch.nn.functional.gelu(X), atol=1e-6))
