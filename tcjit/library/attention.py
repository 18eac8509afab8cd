"""Scaled dot-product attention as one program: scores, a safe softmax over the keys, the weighted sum of values."""
from __future__ import annotations

ATTENTION = """
# Each query's average of the values, weighted by the softmax of its products with the keys.
# Query: (B, H, Q, D), Key: (B, H, K, D), Value: (B, H, K, E), scale: scalar; Y: (B, H, Q, E).
# PyTorch: F.scaled_dot_product_attention(Query, Key, Value, scale=scale)
def attention(float(B, H, Q, D) Query, float(B, H, K, D) Key, float(B, H, K, E) Value, float32 scale) -> (float(B, H, Q, E) Y) {
    S(b, h, q, k) +=! float32(Query(b, h, q, d) * Key(b, h, k, d))
    S(b, h, q, k) = S(b, h, q, k) * scale
    top(b, h, q) max=! S(b, h, q, k)
    S(b, h, q, k) = exp(S(b, h, q, k) - top(b, h, q))
    total(b, h, q) +=! S(b, h, q, k)
    O(b, h, q, e) +=! S(b, h, q, k) * Value(b, h, k, e)
    Y(b, h, q, e) = O(b, h, q, e) / total(b, h, q)
}
"""

CAUSAL_ATTENTION = """
# Attention in which query q sees the keys up to q.
# Query: (B, H, Q, D), Key: (B, H, K, D), Value: (B, H, K, E), scale: scalar; Y: (B, H, Q, E).
# PyTorch: F.scaled_dot_product_attention(Query, Key, Value, is_causal=True, scale=scale)
def causal_attention(float(B, H, Q, D) Query, float(B, H, K, D) Key, float(B, H, K, E) Value,
                     float32 scale) -> (float(B, H, Q, E) Y) {
    S(b, h, q, k) +=! (k <= q) ? float32(Query(b, h, q, d) * Key(b, h, k, d)) : 0.0
    S(b, h, q, k) = (k <= q) ? S(b, h, q, k) * scale : -infinity()
    top(b, h, q) max=! S(b, h, q, k)
    S(b, h, q, k) = (k <= q) ? exp(S(b, h, q, k) - top(b, h, q)) : 0.0
    total(b, h, q) +=! S(b, h, q, k)
    O(b, h, q, e) +=! (k <= q) ? S(b, h, q, k) * Value(b, h, k, e) : 0.0
    Y(b, h, q, e) = O(b, h, q, e) / total(b, h, q)
}
"""

BIASED_ATTENTION = """
# Attention with a bias added to the scores; a bias of minus infinity masks a key.
# Query: (B, H, Q, D), Key: (B, H, K, D), Value: (B, H, K, E), Bias: (Q, K), scale: scalar; Y: (B, H, Q, E).
# PyTorch: F.scaled_dot_product_attention(Query, Key, Value, attn_mask=Bias, scale=scale)
def biased_attention(float(B, H, Q, D) Query, float(B, H, K, D) Key, float(B, H, K, E) Value, float(Q, K) Bias,
                     float32 scale) -> (float(B, H, Q, E) Y) {
    S(b, h, q, k) +=! float32(Query(b, h, q, d) * Key(b, h, k, d))
    S(b, h, q, k) = S(b, h, q, k) * scale + Bias(q, k)
    top(b, h, q) max=! S(b, h, q, k)
    S(b, h, q, k) = exp(S(b, h, q, k) - top(b, h, q))
    total(b, h, q) +=! S(b, h, q, k)
    O(b, h, q, e) +=! S(b, h, q, k) * Value(b, h, k, e)
    Y(b, h, q, e) = O(b, h, q, e) / total(b, h, q)
}
"""
