"""Table look-ups, alone and summed over bags of equal length."""
from __future__ import annotations

EMBEDDING = """
# The rows of a table that the indices name.
# Table: (E, D), Index: (B, L) with elements in 0:E; Y: (B, L, D).
# PyTorch: F.embedding(Index, Table)
def embedding(float(E, D) Table, int64(B, L) Index) -> (Y) {
    Y(b, l, d) = Table(Index(b, l), d)
}
"""

EMBEDDING_BAG_SUM = """
# The sum of each bag's rows.
# Table: (E, D), Index: (B, L) with elements in 0:E; Y: (B, D).
# PyTorch: F.embedding_bag(Index, Table, mode="sum")
def embedding_bag_sum(float(E, D) Table, int64(B, L) Index) -> (Y) {
    Y(b, d) +=! Table(Index(b, l), d)
}
"""

EMBEDDING_BAG_MEAN = """
# The mean of each bag's rows.
# Table: (E, D), Index: (B, L) with elements in 0:E; Y: (B, D).
# PyTorch: F.embedding_bag(Index, Table, mode="mean")
def embedding_bag_mean(float(E, D) Table, int64(B, L) Index) -> (float(B, D) Y) {
    Total(b, d) +=! float32(Table(Index(b, l), d))
    Y(b, d) = Total(b, d) / L
}
"""

EMBEDDING_BAG_MAX = """
# The greatest of each bag's rows, column by column.
# Table: (E, D), Index: (B, L) with elements in 0:E; Y: (B, D).
# PyTorch: F.embedding_bag(Index, Table, mode="max")
def embedding_bag_max(float(E, D) Table, int64(B, L) Index) -> (Y) {
    Y(b, d) max=! Table(Index(b, l), d)
}
"""

EMBEDDING_BAG_WEIGHTED = """
# The weighted sum of each bag's rows.
# Table: (E, D), Index: (B, L) with elements in 0:E, Weight: (B, L); Y: (B, D).
# PyTorch: F.embedding_bag(Index, Table, mode="sum", per_sample_weights=Weight)
def embedding_bag_weighted(float(E, D) Table, int64(B, L) Index, float(B, L) Weight) -> (Y) {
    Y(b, d) +=! Table(Index(b, l), d) * Weight(b, l)
}
"""
