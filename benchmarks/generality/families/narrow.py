"""Operators on int8, bfloat16 and float16."""
from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from generality.families import contractions, elements, rows
from generality.operators import Argument, Operator, Work
from generality.sizes import extents


def int8(rng: random.Random, seconds: float) -> Operator:
    """Products and convolutions of int8, or of uint8 by int8, with sums in int32; some products are scaled to float."""
    return rng.choice([_product, _product, _convolution])(rng, seconds)


def _product(rng: random.Random, seconds: float) -> Operator:
    left = rng.choices(["int8", "uint8"], [3, 1])[0]
    batched, scaled = rng.random() < 0.25, rng.random() < 0.3
    order = rng.choice(["nn", "nt", "tn"])

    def cost(b: float, m: float, n: float, k: float) -> Work:
        b = b if batched else 1
        return Work(2 * b * m * n * k, b * (m * k + k * n + 4 * m * n))

    b, m, n, k = extents(rng, seconds, cost, [2, 2, 2, 2])
    lead, sizes, batch = ((b,), "B,", "b,") if batched else ((), "", "")
    one = ("k", "m") if order == "tn" else ("m", "k")
    two = ("n", "k") if order == "nt" else ("k", "n")
    extent = {"m": m, "n": n, "k": k}
    given = f"{left}({sizes}{','.join(one).upper()}) X, int8({sizes}{','.join(two).upper()}) U" + (", float(N) S" if scaled else "")
    total = "P" if scaled else "O"
    lines = [f"{total}({batch}m,n) +=! int32(X({batch}{','.join(one)})) * int32(U({batch}{','.join(two)}))"]
    if scaled:
        lines.append(f"O({batch}m,n) = float(P({batch}m,n)) * S(n)")
    text = f"def int8_product({given}) -> (O) {{\n    " + "\n    ".join(lines) + "\n}"
    arguments = [Argument("X", (*lead, *(extent[i] for i in one)), left), Argument("U", (*lead, *(extent[i] for i in two)), "int8")]
    if scaled:
        arguments.append(Argument("S", (n,)))
    name = f"product {order} {left} b={b if batched else 1} m={m} n={n} k={k}{' scaled' if scaled else ''}"
    dtype = "float" if scaled else "int32"
    return Operator("int8", name, text, tuple(arguments), partial(_multiplied, order), cost(b, m, n, k), dtype)


def _multiplied(order: str, X: Any, U: Any, S: Any = None) -> Any:
    X = X.transpose(-1, -2) if order == "tn" else X
    U = U.transpose(-1, -2) if order == "nt" else U
    # PyTorch multiplies matrices of int8 by each other; other integers go through float, which is exact for sums below 2^24
    total = torch._int_mm(X, U) if X.dim() == 2 and X.dtype == U.dtype else (X.float() @ U.float()).int()
    return total if S is None else total * S


def _convolution(rng: random.Random, seconds: float) -> Operator:
    kernel, stride = rng.randint(1, 5), rng.choice([1, 1, 2])

    def cost(n: float, c: float, f: float, h: float, w: float) -> Work:
        points = n * f * ((int(h) - kernel) // stride + 1) * ((int(w) - kernel) // stride + 1)
        return Work(2 * points * c * kernel**2, n * c * h * w + f * c * kernel**2 + 4 * points)

    n, c, f, h, w = extents(rng, seconds, cost, [1, 2, 2, kernel + 2, kernel + 2])
    h, w = max(h, kernel + 2), max(w, kernel + 2)
    at = [f"{stride}*{i} + {k}" if stride > 1 else f"{i} + {k}" for i, k in (("h", "kh"), ("w", "kw"))]
    text = (
        "def int8_convolution(int8(N,C,H,W) X, int8(F,C,KH,KW) K) -> (O) {\n"
        f"    O(n,f,h,w) +=! int32(X(n,c,{','.join(at)})) * int32(K(f,c,kh,kw))\n}}"
    )
    last = rng.random() < 0.3
    arguments = (
        Argument("X", (n, c, h, w), "int8", order=(0, 2, 3, 1) if last else None),
        Argument("K", (f, c, kernel, kernel), "int8"),
    )
    name = f"convolution n={n} c={c} f={f} in={h}x{w} k={kernel} s={stride}{' channels_last' if last else ''}"
    return Operator("int8", name, text, arguments, partial(_convolved, stride), cost(n, c, f, h, w), "int32")


def _convolved(stride: int, X: Any, K: Any) -> Any:
    return F.conv2d(X.float(), K.float(), stride=stride).int()


# ---------------------------------------------------------------- bfloat16 and float16

OTHERS = (contractions.contraction, rows.reduction, rows.norm, rows.softmax, elements.broadcast, elements.permutation)


def bfloat16(rng: random.Random, seconds: float) -> Operator:
    """An operator of another family in bfloat16, sometimes in float16."""
    dtype = rng.choices(["bfloat16", "half"], [4, 1])[0]
    while True:
        made = rng.choice(OTHERS)(rng, seconds, dtype)
        if made.dtype == dtype and not (dtype == "half" and made.family == "reduction"):  # their sums leave float16's range
            break
    return replace(made, family="bfloat16", name=f"{made.family} {made.name}")
