"""Products and attention under masks that are no triangle, and convolutions with borders that repeat, reflect or join."""
from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from generality.operators import Argument, Operator, Work
from generality.sizes import extents

Mask = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def masked(rng: random.Random, seconds: float) -> Operator:
    """Products with a factor, or attention with scores, that count under a condition on indices: not on a diagonal, in blocks, up to the
    end of a block, in a window and some first columns, in every few columns, off the multiples of a number."""
    block, few = rng.choice([8, 16, 32, 50, 64, 100]), rng.randint(1, 16)
    kinds: Mapping[str, tuple[str, Mask]] = {
        "off the diagonal": ("j != i", lambda i, j: j != i),
        f"blocks of {block}": (f"j / {block} == i / {block}", lambda i, j: j // block == i // block),
        f"up to blocks of {block}": (f"j / {block} <= i / {block}", lambda i, j: j // block <= i // block),
        f"window of {block} and {few} first": (
            f"j < {few} || (j <= i && i - j < {block})",
            lambda i, j: (j < few) | (j <= i) & (i - j < block),
        ),
        f"every {few + 1}": (f"(i - j) % {few + 1} == 0 && j <= i", lambda i, j: ((i - j) % (few + 1) == 0) & (j <= i)),
        f"off multiples of {few + 1}": (f"(i + j) % {few + 1} != 0 || j == i", lambda i, j: ((i + j) % (few + 1) != 0) | (j == i)),
    }
    kind = rng.choice(list(kinds))
    return rng.choice([_product, _attention])(rng, seconds, kind, *kinds[kind])


def _product(rng: random.Random, seconds: float, kind: str, test: str, mask: Mask) -> Operator:
    def cost(m: float, n: float) -> Work:
        return Work(m * m * n, 4 * (m * m + 2 * m * n))

    m, n = extents(rng, seconds, cost, [3, 2])
    text = f"def masked(float(M,M) A, float(M,N) B) -> (O) {{\n    O(i,n) +=! ({test}) ? A(i,j) * B(j,n) : 0.0\n}}"
    arguments = Argument("A", (m, m)), Argument("B", (m, n))
    counted = _counted(mask, m)
    work = Work(2 * int(counted.sum()) * n, 4 * (m * m + 2 * m * n))
    return Operator("masked", f"factor {kind} m={m} n={n}", text, arguments, partial(_factor, counted), work)


def _counted(mask: Mask, m: int) -> torch.Tensor:
    return mask(torch.arange(m)[:, None], torch.arange(m)).expand(m, m)


def _factor(counted: torch.Tensor, A: Any, B: Any) -> Any:
    return (A * counted) @ B


def _attention(rng: random.Random, seconds: float, kind: str, test: str, mask: Mask) -> Operator:
    def cost(b: float, m: float, d: float) -> Work:
        return Work(b * m * m * (2 * d + 2), 4 * 4 * b * m * d)

    b, m, d = extents(rng, seconds, cost, [1, 3, 2])
    text = f"""def masked(float(B,M,D) Q, float(B,M,D) K, float(B,M,D) V) -> (O) {{
    P(b,i,j) +=! Q(b,i,d) * K(b,j,d)
    P(b,i,j) = ({test}) ? P(b,i,j) * {d**-0.5!r} : -1e30
    G(b,i) max=! P(b,i,j)
    E(b,i,j) = exp(P(b,i,j) - G(b,i))
    S(b,i) +=! E(b,i,j)
    O(b,i,d) +=! E(b,i,j) * V(b,j,d)
    O(b,i,d) = O(b,i,d) / S(b,i)
}}"""
    arguments = tuple(Argument(name, (b, m, d)) for name in "QKV")
    added = torch.where(_counted(mask, m), 0.0, -1e30)
    reference = partial(F.scaled_dot_product_attention, attn_mask=added)
    return Operator("masked", f"attention {kind} b={b} m={m} d={d}", text, arguments, reference, cost(b, m, d))


BORDERS = {
    "replicate": "min(max({0} - {1}, 0), {2} - 1)",
    "reflect": "abs({0} - {1}) < {2} ? abs({0} - {1}) : 2*{2} - 2 - abs({0} - {1})",
    "circular": "({0} + {2} - {1}) % {2}",
}


def border(rng: random.Random, seconds: float) -> Operator:
    """Convolutions of one or two dimensions, plain or of each channel by itself, over an image that goes on beyond its border."""
    mode, each, rank = rng.choice(list(BORDERS)), rng.random() < 0.3, rng.choice([1, 2, 2])
    pad = rng.choice([1, 1, 2])
    kernel = 2 * pad + 1

    def cost(n: float, c: float, f: float, size: float) -> Work:
        points = n * size**rank * kernel**rank * c
        return Work(2 * points * (1 if each else f), 4 * n * size**rank * (2 * c if each else c + f))

    n, c, f, size = extents(rng, seconds, cost, [1, 2, 2, 8])
    at, taps, sizes = ["h", "w"][:rank], ["r", "s"][:rank], ["H", "W"][:rank]
    places = [BORDERS[mode].format(f"{one} + {tap}", pad, extent) for one, tap, extent in zip(at, taps, sizes, strict=True)]
    limits = [*zip(at, sizes, strict=True), *((tap, kernel) for tap in taps)]
    ranges = ", ".join(f"{one} in 0:{end}" for one, end in limits)
    channel, weights = ("c", "C") if each else ("f", "F,C")
    weight = ",".join(["c", *taps] if each else ["f", "c", *taps])
    shape = ",".join([weights, *[str(kernel)] * rank])
    text = (
        f"def border(float(N,C,{','.join(sizes)}) X, float({shape}) K) -> (Y) {{\n"
        f"    Y(n,{channel},{','.join(at)}) +=! X(n,c,{','.join(places)}) * K({weight})\n        where {ranges}\n}}"
    )
    of_kernel = (c, *[kernel] * rank) if each else (f, c, *[kernel] * rank)
    arguments = Argument("X", (n, c, *[size] * rank)), Argument("K", of_kernel)
    filters = " of each channel" if each else f" f={f}"
    name = f"{rank}d {mode} n={n} c={c}{filters} in={'x'.join([str(size)] * rank)} k={kernel}"
    return Operator("border", name, text, arguments, _Bordered(mode, each, rank, pad), cost(n, c, f, size))


@dataclass(frozen=True)
class _Bordered:
    mode: str
    each: bool
    rank: int
    pad: int

    def __call__(self, X: Any, K: Any) -> Any:
        padded = F.pad(X, [self.pad] * (2 * self.rank), mode=self.mode)
        weights, groups = (K[:, None], K.shape[0]) if self.each else (K, 1)
        return (F.conv1d if self.rank == 1 else F.conv2d)(padded, weights, groups=groups)
