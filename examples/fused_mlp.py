"""A dense layer with bias and ReLU as one kernel, and what happens when shapes do not fit."""

from __future__ import annotations

import torch

import tcjit

tc = tcjit.define("""
def mlp(float(B,I) X, float(O,I) W, float(O) b) -> (Y) {
    Y(n, o) +=! X(n, i) * W(o, i)
    Y(n, o)   = fmax(Y(n, o) + b(o), 0.0)
}
""")

torch.manual_seed(0)
X, W, b = torch.randn(64, 128), torch.randn(32, 128), torch.randn(32)

Y = tc.mlp(X, W, b)
print("close to PyTorch:", torch.allclose(Y, torch.relu(X @ W.T + b), rtol=1e-4, atol=1e-4))

# transposed and sliced arguments are read through their strides
print("strided argument:", torch.equal(tc.mlp(X, W.T.contiguous().T, b), Y))

try:
    tc.mlp(X, torch.randn(32, 100), b)
except tcjit.TCError as error:
    print(f"{type(error).__name__}: {error}")
