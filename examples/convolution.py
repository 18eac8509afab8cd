"""A convolution with zero padding, stride and dilation. Padding is a condition; a read under a false condition is no read."""

from __future__ import annotations

import torch

import tcjit

tc = tcjit.define("""
def conv2d(float(N,C,H,W) X, float(O,C,KH,KW) K, int32 s, int32 d, int32 p) -> (Y) {
    Y(n, o, y, x) +=! (inside ? X(n, c, v, u) : 0.0) * K(o, c, kh, kw)
        where v = s*y + d*kh - p, u = s*x + d*kw - p, inside = v >= 0 && v < H && u >= 0 && u < W,
              y in 0:(H + 2*p - d*(KH - 1) - 1)/s + 1, x in 0:(W + 2*p - d*(KW - 1) - 1)/s + 1
}
""")

generator = torch.Generator().manual_seed(0)
X = torch.randn(2, 8, 17, 23, generator=generator)
K = torch.randn(16, 8, 3, 3, generator=generator)

for stride, dilation, padding in [(1, 1, 0), (1, 1, 1), (2, 1, 1), (1, 2, 2), (3, 2, 1)]:
    Y = tc.conv2d(X, K, stride, dilation, padding)
    expected = torch.nn.functional.conv2d(X, K, stride=stride, dilation=dilation, padding=padding)
    same = torch.allclose(Y, expected, rtol=1e-4, atol=1e-4)
    print(f"stride {stride}, dilation {dilation}, padding {padding}: {tuple(Y.shape)}, close to PyTorch: {same}")
