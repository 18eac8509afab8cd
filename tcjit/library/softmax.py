"""Softmax over rows, safe against overflow: the row's greatest element is taken off first."""
from __future__ import annotations

SOFTMAX = """
# The softmax of each row.
# X: (M, N); Y: (M, N).
# PyTorch: torch.softmax(X, 1)
def softmax(float(M, N) X) -> (float(M, N) Y) {
    top(m) max=! X(m, n)
    E(m, n) = exp(float32(X(m, n) - top(m)))
    total(m) +=! E(m, n)
    Y(m, n) = E(m, n) / total(m)
}
"""

LOG_SOFTMAX = """
# The logarithm of each row's softmax.
# X: (M, N); Y: (M, N).
# PyTorch: torch.log_softmax(X, 1)
def log_softmax(float(M, N) X) -> (float(M, N) Y) {
    top(m) max=! X(m, n)
    total(m) +=! exp(float32(X(m, n) - top(m)))
    shift(m) = top(m) + log(total(m))
    Y(m, n) = X(m, n) - shift(m)
}
"""
