"""Matrix products in their layouts, alone and as dense layers."""
from __future__ import annotations

MATMUL_NN = """
# The product of two matrices.
# A: (M, K), B: (K, N); C: (M, N).
# PyTorch: A @ B
def matmul_nn(float(M, K) A, float(K, N) B) -> (C) {
    C(m, n) +=! A(m, k) * B(k, n)
}
"""

MATMUL_NT = """
# The product of A with B transposed.
# A: (M, K), B: (N, K); C: (M, N).
# PyTorch: A @ B.T
def matmul_nt(float(M, K) A, float(N, K) B) -> (C) {
    C(m, n) +=! A(m, k) * B(n, k)
}
"""

MATMUL_TN = """
# The product of A transposed with B.
# A: (K, M), B: (K, N); C: (M, N).
# PyTorch: A.T @ B
def matmul_tn(float(K, M) A, float(K, N) B) -> (C) {
    C(m, n) +=! A(k, m) * B(k, n)
}
"""

MATMUL_TT = """
# The product of A transposed with B transposed.
# A: (K, M), B: (N, K); C: (M, N).
# PyTorch: A.T @ B.T
def matmul_tt(float(K, M) A, float(N, K) B) -> (C) {
    C(m, n) +=! A(k, m) * B(n, k)
}
"""

BATCHED_MATMUL_NN = """
# The product of two matrices, for each of a batch.
# X: (B, M, K), Y: (B, K, N); Z: (B, M, N).
# PyTorch: torch.bmm(X, Y)
def batched_matmul_nn(float(B, M, K) X, float(B, K, N) Y) -> (Z) {
    Z(b, m, n) +=! X(b, m, k) * Y(b, k, n)
}
"""

BATCHED_MATMUL_NT = """
# The product of X with Y transposed, for each of a batch.
# X: (B, M, K), Y: (B, N, K); Z: (B, M, N).
# PyTorch: torch.bmm(X, Y.mT)
def batched_matmul_nt(float(B, M, K) X, float(B, N, K) Y) -> (Z) {
    Z(b, m, n) +=! X(b, m, k) * Y(b, n, k)
}
"""

BATCHED_MATMUL_TN = """
# The product of X transposed with Y, for each of a batch.
# X: (B, K, M), Y: (B, K, N); Z: (B, M, N).
# PyTorch: torch.bmm(X.mT, Y)
def batched_matmul_tn(float(B, K, M) X, float(B, K, N) Y) -> (Z) {
    Z(b, m, n) +=! X(b, k, m) * Y(b, k, n)
}
"""

BATCHED_MATMUL_TT = """
# The product of X transposed with Y transposed, for each of a batch.
# X: (B, K, M), Y: (B, N, K); Z: (B, M, N).
# PyTorch: torch.bmm(X.mT, Y.mT)
def batched_matmul_tt(float(B, K, M) X, float(B, N, K) Y) -> (Z) {
    Z(b, m, n) +=! X(b, k, m) * Y(b, n, k)
}
"""

MATVEC = """
# A matrix times a vector.
# A: (M, K), x: (K); y: (M).
# PyTorch: A @ x
def matvec(float(M, K) A, float(K) x) -> (y) {
    y(m) +=! A(m, k) * x(k)
}
"""

ADDMM = """
# A product added to a matrix, both scaled.
# C: (M, N), A: (M, K), B: (K, N), beta and alpha: scalars; D: (M, N).
# PyTorch: torch.addmm(C, A, B, beta=beta, alpha=alpha)
def addmm(float(M, N) C, float(M, K) A, float(K, N) B, float32 beta, float32 alpha) -> (float(M, N) D) {
    P(m, n) +=! float32(A(m, k) * B(k, n))
    D(m, n) = beta * C(m, n) + alpha * P(m, n)
}
"""

LINEAR = """
# A dense layer.
# X: (B, I), Weight: (O, I), Bias: (O); Y: (B, O).
# PyTorch: F.linear(X, Weight, Bias)
def linear(float(B, I) X, float(O, I) Weight, float(O) Bias) -> (Y) {
    Y(b, o) +=! X(b, i) * Weight(o, i)
    Y(b, o) = Y(b, o) + Bias(o)
}
"""

LINEAR_RELU = """
# A dense layer and a rectifier.
# X: (B, I), Weight: (O, I), Bias: (O); Y: (B, O).
# PyTorch: F.relu(F.linear(X, Weight, Bias))
def linear_relu(float(B, I) X, float(O, I) Weight, float(O) Bias) -> (Y) {
    Y(b, o) +=! X(b, i) * Weight(o, i)
    Y(b, o) = relu(Y(b, o) + Bias(o))
}
"""

LINEAR_GELU = """
# A dense layer and the exact Gaussian error unit; the sums are kept in Z, where the unit reads them twice.
# X: (B, I), Weight: (O, I), Bias: (O); Y: (B, O).
# PyTorch: F.gelu(F.linear(X, Weight, Bias))
def linear_gelu(float(B, I) X, float(O, I) Weight, float(O) Bias) -> (float(B, O) Y) {
    Z(b, o) +=! float32(X(b, i) * Weight(o, i))
    Z(b, o) = Z(b, o) + Bias(o)
    Y(b, o) = 0.5 * Z(b, o) * (1.0 + erf(Z(b, o) * 0.7071067811865476))
}
"""

MLP = LINEAR_RELU + LINEAR + """
# Two dense layers with a rectifier between, out of the defs above.
# X: (B, I), W1: (H, I), B1: (H), W2: (O, H), B2: (O); Y: (B, O).
# PyTorch: F.linear(F.relu(F.linear(X, W1, B1)), W2, B2)
def mlp(float(B, I) X, float(H, I) W1, float(H) B1, float(O, H) W2, float(O) B2) -> (Y) {
    Hidden = linear_relu(X, W1, B1)
    Y = linear(Hidden, W2, B2)
}
"""
