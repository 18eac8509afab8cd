"""Triangles, bands and causal masks as conditions on indices, and scans in closed form."""
from __future__ import annotations

import math
import random
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from generality.operators import Argument, Operator, Work
from generality.sizes import extents, layout


def triangular(rng: random.Random, seconds: float) -> Operator:
    """Products with a triangular or banded factor, triangular results, causal softmaxes, causal attention; half of them in a batch."""
    return rng.choice([_factor, _factor, _masked, _causal_softmax, _attention])(rng, seconds)


def _factor(rng: random.Random, seconds: float) -> Operator:
    """A(m,k) B(k,n) where A counts in a triangle or a band only."""
    kind = rng.choice(["lower", "upper", "banded"])
    batched, transposed = rng.random() < 0.5, rng.random() < 0.5
    band = rng.randint(1, 16)

    def cost(b: float, m: float, n: float) -> Work:
        b = b if batched else 1
        terms = min(m, 2 * band + 1) if kind == "banded" else m / 2
        return Work(2 * b * m * n * terms, 4 * b * (m * m + 2 * m * n))

    b, m, n = extents(rng, seconds, cost, [2, 3, 2])
    test = {"lower": "k <= m", "upper": "k >= m", "banded": f"k - m <= {band} && m - k <= {band}"}[kind]
    batch, size = ("b,", "B,") if batched else ("", "")
    right, shape = (f"{batch}n,k", (n, m)) if transposed else (f"{batch}k,n", (m, n))
    text = (
        f"def triangular(float({size}M,M) A, float({right.upper().replace('K', 'M')}) C) -> (O) {{\n"
        f"    O({batch}m,n) +=! ({test}) ? A({batch}m,k) * C({right}) : 0.0\n}}"
    )
    lead = (b,) if batched else ()
    arguments = (Argument("A", (*lead, m, m), order=layout(rng, 2 + batched, 0.8)), Argument("C", (*lead, *shape)))
    band_note = f" width {band}" if kind == "banded" else ""
    name = f"{kind} factor{band_note} b={b if batched else 1} m={m} n={n}{' transposed' if transposed else ''}"
    return Operator("triangular", name, text, arguments, _Factor(kind, band, transposed), cost(b, m, n))


@dataclass(frozen=True)
class _Factor:
    kind: str
    band: int
    transposed: bool

    def __call__(self, A: Any, C: Any) -> Any:
        if self.kind == "banded":
            A = torch.triu(torch.tril(A, self.band), -self.band)
        else:
            A = torch.tril(A) if self.kind == "lower" else torch.triu(A)
        return A @ (C.transpose(-1, -2) if self.transposed else C)


def _masked(rng: random.Random, seconds: float) -> Operator:
    """The triangle of a product, zero elsewhere; of a matrix by itself or of two."""
    itself, lower = rng.random() < 0.4, rng.random() < 0.5

    def cost(m: float, k: float) -> Work:
        return Work(m * m * k, 4 * (m * m + (1 if itself else 2) * m * k))

    m, k = extents(rng, seconds, cost, [3, 2])
    given = "float(M,K) A" if itself else "float(M,K) A, float(M,K) C"
    test = "n <= m" if lower else "n >= m"
    text = f"def triangular({given}) -> (O) {{\n    O(m,n) +=! ({test}) ? A(m,k) * {'A' if itself else 'C'}(n,k) : 0.0\n}}"
    arguments = tuple(Argument(name, (m, k), order=layout(rng, 2)) for name in ("A" if itself else "AC"))
    name = f"{'lower' if lower else 'upper'} result{' of one matrix' if itself else ''} m={m} k={k}"
    return Operator("triangular", name, text, arguments, partial(_triangle, lower), cost(m, k))


def _triangle(lower: bool, A: Any, C: Any = None) -> Any:
    return (torch.tril if lower else torch.triu)(A @ (A if C is None else C).T)


def _causal_softmax(rng: random.Random, seconds: float) -> Operator:
    def cost(b: float, m: float) -> Work:
        return Work(2 * b * m * m, 4 * b * m * m * 1.5)

    b, m = extents(rng, seconds, cost, [1, 3])
    text = """def triangular(float(B,M,M) X) -> (O) {
    G(b,i) max=! (j <= i) ? X(b,i,j) : -infinity()
    E(b,i,j) = (j <= i) ? exp(X(b,i,j) - G(b,i)) : 0.0
    S(b,i) +=! E(b,i,j)
    O(b,i,j) = E(b,i,j) / S(b,i)
}"""
    return Operator("triangular", f"causal softmax b={b} m={m}", text, (Argument("X", (b, m, m)),), _softmax_below, cost(b, m))


def _softmax_below(X: Any) -> Any:
    above = torch.ones(X.shape[-2:], dtype=torch.bool).triu(1)
    return torch.softmax(X.masked_fill(above, -math.inf), -1)


def _attention(rng: random.Random, seconds: float) -> Operator:
    """Scores, softmax and values of causal attention."""

    def cost(b: float, m: float, d: float) -> Work:
        return Work(b * m * m * (2 * d + 2), 4 * 4 * b * m * d)

    b, m, d = extents(rng, seconds, cost, [1, 3, 2])
    text = f"""def triangular(float(B,M,D) Q, float(B,M,D) K, float(B,M,D) V) -> (O) {{
    P(b,i,j) +=! Q(b,i,d) * K(b,j,d)
    G(b,i) max=! (j <= i) ? P(b,i,j) * {d**-0.5!r} : -infinity()
    E(b,i,j) = (j <= i) ? exp(P(b,i,j) * {d**-0.5!r} - G(b,i)) : 0.0
    S(b,i) +=! E(b,i,j)
    O(b,i,d) +=! E(b,i,j) * V(b,j,d)
    O(b,i,d) = O(b,i,d) / S(b,i)
}}"""
    arguments = tuple(Argument(name, (b, m, d)) for name in "QKV")
    reference = partial(F.scaled_dot_product_attention, is_causal=True)
    return Operator("triangular", f"causal attention b={b} m={m} d={d}", text, arguments, reference, cost(b, m, d))


# ---------------------------------------------------------------- scans


def scan(rng: random.Random, seconds: float) -> Operator:
    """Running sums and greatest values along any dimension, from either end, of all that came before or of a window."""
    rank = rng.choices([1, 2, 3], [1, 4, 2])[0]
    dim, kind = rng.randrange(rank), rng.choice(["sum", "sum", "exclusive", "reversed", "greatest", "window"])
    width = rng.randint(2, 32)

    def cost(*values: float) -> Work:
        elements = math.prod(values)
        return Work(elements * (width if kind == "window" else values[dim] / 2), 8 * elements)

    shape = tuple(extents(rng, seconds, cost, [width + 1 if d == dim and kind == "window" else 2 for d in range(rank)]))
    at, size = [f"i{d}" for d in range(rank)], [f"N{d}" for d in range(rank)]
    read = [*at[:dim], "j", *at[dim + 1 :]]
    i = at[dim]
    ranges = f"\n        where {i} in 0:N{dim}"
    if kind == "window":
        value = f"X({','.join([*at[:dim], f'{i} + j', *at[dim + 1 :]])})"
        value, ranges = value, f"\n        where {i} in 0:{shape[dim] - width + 1}, j in 0:{width}"
    else:
        test = {"exclusive": f"j < {i}", "reversed": f"j >= {i}"}.get(kind, f"j <= {i}")
        value = f"({test}) ? X({','.join(read)}) : {'-infinity()' if kind == 'greatest' else '0.0'}"
    operator = "max=!" if kind == "greatest" else "+=!"
    text = f"def scan(float({','.join(size)}) X) -> (O) {{\n    O({','.join(at)}) {operator} {value}{ranges}\n}}"
    note = f" of {width}" if kind == "window" else ""
    argument = Argument("X", shape, order=layout(rng, rank, 0.8))
    name = f"{kind}{note} {list(shape)} along {dim}"
    return Operator("scan", name, text, (argument,), _Scan(kind, dim, width), cost(*shape))


@dataclass(frozen=True)
class _Scan:
    kind: str
    dim: int
    width: int

    def __call__(self, X: Any) -> Any:
        if self.kind == "window":
            return X.unfold(self.dim, self.width, 1).sum(-1)
        if self.kind == "greatest":
            return torch.cummax(X, self.dim).values
        if self.kind == "reversed":
            return torch.cumsum(X.flip(self.dim), self.dim).flip(self.dim)
        total = torch.cumsum(X, self.dim)
        return total - X if self.kind == "exclusive" else total
