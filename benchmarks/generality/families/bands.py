"""Sums that conditions bound on both sides: causal windows, equalities, block-diagonal factors; products under masks of data."""
from __future__ import annotations

import random
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from generality.operators import Argument, Operator, Work
from generality.sizes import extents


def band(rng: random.Random, seconds: float) -> Operator:
    """One of them."""
    return rng.choice([_window, _window, _filter, _polynomial, _blocks, _mask])(rng, seconds)


def _window(rng: random.Random, seconds: float) -> Operator:
    """Sums or greatest values of what came before, along rows."""
    width, kind = rng.choice([2, 3, 7, 16, 30]), rng.choice(["sum", "max"])

    def cost(n: float, t: float) -> Work:
        return Work(n * t * width, 8 * n * t)

    n, t = extents(rng, seconds, cost, [1, 40])
    operator, other = ("+=!", "0.0") if kind == "sum" else ("max=!", "-infinity()")
    text = f"""def band(float(N,T) X) -> (Y) {{
    Y(n,i) {operator} (s <= i && s > i - {width}) ? X(n,s) : {other} where i in 0:T
}}"""
    return Operator("band", f"{kind} of {width} n={n} t={t}", text, (Argument("X", (n, t)),), partial(_windowed, kind, width), cost(n, t))


def _windowed(kind: str, width: int, X: Any) -> Any:
    value = 0.0 if kind == "sum" else -torch.inf
    rows = F.pad(X, (width - 1, 0), value=value).unfold(-1, width, 1)
    return rows.sum(-1) if kind == "sum" else rows.amax(-1)


def _filter(rng: random.Random, seconds: float) -> Operator:
    """A causal filter of each channel, as a product with a banded matrix of constant diagonals."""
    width = rng.choice([3, 4, 9, 31])

    def cost(n: float, c: float, t: float) -> Work:
        return Work(2 * n * c * t * width, 8 * n * c * t)

    n, c, t = extents(rng, seconds, cost, [1, 2, 40])
    text = f"""def band(float(N,C,T) X, float(C,{width}) W) -> (Y) {{
    Y(n,c,i) +=! (s <= i && i - s < {width}) ? X(n,c,s) * W(c, i - s) : 0.0 where i in 0:T
}}"""
    arguments = Argument("X", (n, c, t)), Argument("W", (c, width))
    return Operator("band", f"filter of {width} n={n} c={c} t={t}", text, arguments, _filtered, cost(n, c, t))


def _filtered(X: Any, W: Any) -> Any:
    return F.conv1d(F.pad(X, (W.shape[1] - 1, 0)), W.flip(1)[:, None], groups=W.shape[0])


def _polynomial(rng: random.Random, seconds: float) -> Operator:
    """Products of polynomials, by the equality of exponents."""

    def cost(b: float, n: float, m: float) -> Work:
        return Work(2 * b * n * m, 4 * b * 2 * (n + m))

    b, n, m = extents(rng, seconds, cost, [1, 30, 4])
    text = """def band(float(B,N) X, float(M) W) -> (Y) {
    Y(b,k) +=! (i + j == k) ? X(b,i) * W(j) : 0.0 where k in 0:N+M-1
}"""
    arguments = Argument("X", (b, n)), Argument("W", (m,))
    return Operator("band", f"polynomials b={b} n={n} m={m}", text, arguments, _multiplied, cost(b, n, m))


def _multiplied(X: Any, W: Any) -> Any:
    return F.conv1d(X[:, None], W.flip(0)[None, None], padding=len(W) - 1)[:, 0]


def _blocks(rng: random.Random, seconds: float) -> Operator:
    """A block-diagonal factor."""
    block = rng.choice([2, 5, 8, 16, 32, 64])

    def cost(g: float, n: float) -> Work:
        return Work(2 * g * block * block * n, 4 * g * block * (block + 2 * n))

    g, n = extents(rng, seconds, cost, [2, 2])
    g = min(g, 4000 // block)
    size = g * block
    text = f"""def band(float(M,M) A, float(M,N) B) -> (O) {{
    O(i,n) +=! (j / {block} == i / {block}) ? A(i,j) * B(j,n) : 0.0
}}"""
    arguments = Argument("A", (size, size)), Argument("B", (size, n))
    return Operator("band", f"{g} blocks of {block} n={n}", text, arguments, partial(_diagonal, block), cost(g, n))


def _diagonal(block: int, A: Any, B: Any) -> Any:
    count = A.shape[0] // block
    blocks = A.view(count, block, count, block).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    return (blocks @ B.view(count, block, -1)).view(B.shape)


def _mask(rng: random.Random, seconds: float) -> Operator:
    """Products under masks of other types, and of what belongs to one segment."""
    kind = rng.choice(["bool", "int32", "uint8", "segments"])

    def cost(m: float, k: float, n: float) -> Work:
        return Work(2 * m * k * n, 4 * (m * k + k * n + m * n))

    m, k, n = extents(rng, seconds, cost, [2, 2, 2])
    k = m if kind == "segments" else k
    mask, declared = ("S(j) == S(i)", "int64(K) S") if kind == "segments" else ("Q(i,j)" + " != 0" * (kind != "bool"), f"{kind}(M,K) Q")
    text = f"""def band(float(M,K) A, float(K,N) B, {declared}) -> (O) {{
    O(i,n) +=! ({mask}) ? A(i,j) * B(j,n) : 0.0
}}"""
    data = Argument("S", (k,), "int64", bound=4) if kind == "segments" else Argument("Q", (m, k), kind, bound=2)
    arguments = Argument("A", (m, k)), Argument("B", (k, n)), data
    return Operator("band", f"mask of {kind} m={m} k={k} n={n}", text, arguments, _masked, cost(m, k, n))


def _masked(A: Any, B: Any, mask: Any) -> Any:
    counted = mask != 0 if mask.ndim == 2 else mask[:, None] == mask
    return torch.where(counted, A, 0.0) @ B
