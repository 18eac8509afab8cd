"""Contractions beyond the matrix product; several of them with a factorisation that saves work, one statement per step."""
from __future__ import annotations

DOT = """
# The inner product of two vectors.
# x: (N), y: (N); z: a scalar.
# PyTorch: torch.dot(x, y)
def dot(float(N) x, float(N) y) -> (z) {
    z +=! x(n) * y(n)
}
"""

OUTER = """
# The outer product of two vectors.
# x: (M), y: (N); Z: (M, N).
# PyTorch: torch.outer(x, y)
def outer(float(M) x, float(N) y) -> (Z) {
    Z(m, n) = x(m) * y(n)
}
"""

BILINEAR = """
# A bilinear form of each pair of rows.
# X: (B, I), Weight: (O, I, J), Y: (B, J); Z: (B, O).
# PyTorch: F.bilinear(X, Y, Weight)
def bilinear(float(B, I) X, float(O, I, J) Weight, float(B, J) Y) -> (float(B, O) Z) {
    T(b, o, j) +=! float32(X(b, i) * Weight(o, i, j))
    Z(b, o) +=! T(b, o, j) * Y(b, j)
}
"""

MTTKRP = """
# A tensor's first unfolding times the Khatri-Rao product of two factors, factored so that the last mode is contracted first.
# X: (I, J, K), A: (J, R), B: (K, R); M: (I, R).
# PyTorch: torch.einsum("ijk,jr,kr->ir", X, A, B)
def mttkrp(float(I, J, K) X, float(J, R) A, float(K, R) B) -> (float(I, R) M) {
    T(i, j, r) +=! float32(X(i, j, k) * B(k, r))
    M(i, r) +=! T(i, j, r) * A(j, r)
}
"""

TENSORDOT_CHANNELS = """
# A product over one axis at each pixel.
# X: (N, A, B, H, W), Y: (N, B, C, H, W); Z: (N, A, C, H, W).
# PyTorch: torch.einsum("nabhw,nbchw->nachw", X, Y)
def tensordot_channels(float(N, A, B, H, W) X, float(N, B, C, H, W) Y) -> (Z) {
    Z(n, a, c, h, w) +=! X(n, a, b, h, w) * Y(n, b, c, h, w)
}
"""

TCCG4 = """
# A contraction of two four-dimensional tensors over two axes, as they stand in coupled-cluster methods (abcd-aebf-dfce).
# X: (A, E, B, F), Y: (D, F, C, E); Z: (A, B, C, D).
# PyTorch: torch.einsum("aebf,dfce->abcd", X, Y)
def tccg4(float(A, E, B, F) X, float(D, F, C, E) Y) -> (Z) {
    Z(a, b, c, d) +=! X(a, e, b, f) * Y(d, f, c, e)
}
"""

KRONECKER3 = """
# A matrix along each of three modes, one mode at a time.
# X: (M, N0, N1, N2), W0: (D0, N0), W1: (D1, N1), W2: (D2, N2); Y: (M, D0, D1, D2).
# PyTorch: torch.einsum("mijk,ai,bj,ck->mabc", X, W0, W1, W2)
def kronecker3(float(M, N0, N1, N2) X, float(D0, N0) W0, float(D1, N1) W1, float(D2, N2) W2) -> (float(M, D0, D1, D2) Y) {
    S(m, i, j, c) +=! float32(X(m, i, j, k) * W2(c, k))
    T(m, i, b, c) +=! S(m, i, j, c) * W1(b, j)
    Y(m, a, b, c) +=! T(m, i, b, c) * W0(a, i)
}
"""
