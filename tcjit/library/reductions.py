"""Reductions of rows, columns and whole tensors, and moments."""
from __future__ import annotations

ROW_SUM = """
# The sum of each row.
# X: (M, N); y: (M).
# PyTorch: X.sum(1)
def row_sum(float(M, N) X) -> (y) {
    y(m) +=! X(m, n)
}
"""

COLUMN_SUM = """
# The sum of each column.
# X: (M, N); y: (N).
# PyTorch: X.sum(0)
def column_sum(float(M, N) X) -> (y) {
    y(n) +=! X(m, n)
}
"""

TOTAL_SUM = """
# The sum of all elements.
# X: (M, N); y: a scalar.
# PyTorch: X.sum()
def total_sum(float(M, N) X) -> (y) {
    y +=! X(m, n)
}
"""

ROW_MEAN = """
# The mean of each row.
# X: (M, N); y: (M).
# PyTorch: X.mean(1)
def row_mean(float(M, N) X) -> (float(M) y) {
    total(m) +=! float32(X(m, n))
    y(m) = total(m) / N
}
"""

ROW_MAX = """
# The greatest element of each row; a NaN wins.
# X: (M, N); y: (M).
# PyTorch: X.amax(1)
def row_max(float(M, N) X) -> (y) {
    y(m) max=! X(m, n)
}
"""

ROW_MIN = """
# The least element of each row; a NaN wins.
# X: (M, N); y: (M).
# PyTorch: X.amin(1)
def row_min(float(M, N) X) -> (y) {
    y(m) min=! X(m, n)
}
"""

ROW_PROD = """
# The product of each row.
# X: (M, N); y: (M).
# PyTorch: X.prod(1)
def row_prod(float(M, N) X) -> (y) {
    y(m) *=! X(m, n)
}
"""

ROW_NORM = """
# The Euclidean length of each row.
# X: (M, N); y: (M).
# PyTorch: torch.linalg.vector_norm(X, dim=1)
def row_norm(float(M, N) X) -> (float(M) y) {
    total(m) +=! float32(X(m, n)) * X(m, n)
    y(m) = sqrt(total(m))
}
"""

ROW_LOGSUMEXP = """
# The logarithm of the sum of the exponentials of each row, without overflow.
# X: (M, N); y: (M).
# PyTorch: torch.logsumexp(X, 1)
def row_logsumexp(float(M, N) X) -> (float(M) y) {
    top(m) max=! X(m, n)
    total(m) +=! exp(float32(X(m, n) - top(m)))
    y(m) = log(total(m)) + top(m)
}
"""

MOMENTS = """
# Mean and (biased) variance of each row, the variance about the mean.
# X: (M, N); mean: (M), var: (M).
# PyTorch: X.mean(1), X.var(1, correction=0)
def moments(float(M, N) X) -> (mean, var) {
    mean(m) +=! float32(X(m, n))
    mean(m) = mean(m) / N
    var(m) +=! (X(m, n) - mean(m)) * (X(m, n) - mean(m))
    var(m) = var(m) / N
}
"""

MOMENTS_ONE_PASS = """
# Mean and (biased) variance of each row, reading it once; a variance far below the mean's square is lost to rounding.
# X: (M, N); mean: (M), var: (M).
# PyTorch: X.mean(1), X.var(1, correction=0)
def moments_one_pass(float(M, N) X) -> (mean, var) {
    mean(m) +=! float32(X(m, n))
    var(m) +=! float32(X(m, n)) * X(m, n)
    mean(m) = mean(m) / N
    var(m) = var(m) / N - mean(m) * mean(m)
}
"""
