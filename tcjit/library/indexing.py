"""Reads through integer tensors and masks."""
from __future__ import annotations

SELECT_ROWS = """
# The rows that an index tensor names.
# X: (M, N), Index: (K) with elements in 0:M; Y: (K, N).
# PyTorch: X.index_select(0, Index)
def select_rows(float(M, N) X, int64(K) Index) -> (Y) {
    Y(k, n) = X(Index(k), n)
}
"""

SELECT_COLUMNS = """
# The columns that an index tensor names.
# X: (M, N), Index: (K) with elements in 0:N; Y: (M, K).
# PyTorch: X.index_select(1, Index)
def select_columns(float(M, N) X, int64(K) Index) -> (Y) {
    Y(m, k) = X(m, Index(k))
}
"""

GATHER_ROWS = """
# For each element of the index tensor, the element of that row in its own column.
# X: (M, N), Index: (K, N) with elements in 0:M; Y: (K, N).
# PyTorch: X.gather(0, Index)
def gather_rows(float(M, N) X, int64(K, N) Index) -> (Y) {
    Y(k, n) = X(Index(k, n), n)
}
"""

GATHER_COLUMNS = """
# For each element of the index tensor, the element of that column in its own row.
# X: (M, N), Index: (M, K) with elements in 0:N; Y: (M, K).
# PyTorch: X.gather(1, Index)
def gather_columns(float(M, N) X, int64(M, K) Index) -> (Y) {
    Y(m, k) = X(m, Index(m, k))
}
"""

MASKED_FILL = """
# A value where the mask is set, the tensor elsewhere.
# X: (M, N), Mask: (M, N), value: scalar; Y: (M, N).
# PyTorch: X.masked_fill(Mask, value)
def masked_fill(float(M, N) X, bool(M, N) Mask, float value) -> (Y) {
    Y(m, n) = Mask(m, n) ? value : X(m, n)
}
"""

ONE_HOT_PRODUCT = """
# The weights of the classes summed over samples by column: a product with one-hot rows, without building them.
# Class: (N) with elements in 0:C, W: (C, D), scale: (N); y: (D).
# PyTorch: (F.one_hot(Class, len(W)).to(W.dtype) * scale[:, None]).sum(0) @ W
def one_hot_product(int64(N) Class, float(C, D) W, float(N) scale) -> (y) {
    y(d) +=! scale(n) * W(Class(n), d)
}
"""
