"""Moving and mapping elements: permutations, broadcasts, gathers, products with one-hot matrices."""
from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from generality.operators import Argument, Operator, Work, size_of
from generality.sizes import extents, layout

LETTERS = "abcde"
TABLE = 1 << 26  # elements that are gathered from, at most


def permutation(rng: random.Random, seconds: float, dtype: str = "") -> Operator:
    """Dimensions in another order, one of them reversed, or channels spread over an image."""
    dtype = dtype or rng.choices(["float", "double", "int8"], [6, 1, 1])[0]
    if rng.random() < 0.2:
        return _pixel_shuffle(rng, seconds, dtype)
    rank = rng.randint(2, 5)
    reverse = rng.randrange(rank) if rng.random() < 0.2 else None
    order = rng.sample(range(rank), rank)
    while reverse is None and order == sorted(order):  # which PyTorch would not even copy
        order = rng.sample(range(rank), rank)

    def cost(*values: float) -> Work:
        return Work(0, 2 * size_of(dtype) * math.prod(values))

    shape = tuple(extents(rng, seconds, cost, [2] * rank))
    letters = LETTERS[:rank]
    read = [f"{i.upper()} - 1 - {i}" if d == reverse else i for d, i in enumerate(letters)]
    ranges = f"\n        where {letters[reverse]} in 0:{letters[reverse].upper()}" if reverse is not None else ""
    text = (
        f"def permutation({dtype}({','.join(letters.upper())}) X) -> (O) {{\n"
        f"    O({','.join(letters[d] for d in order)}) = X({','.join(read)}){ranges}\n}}"
    )
    name = f"{list(shape)} to {order} {dtype}" + (f" reversed {reverse}" if reverse is not None else "")
    reference = partial(_permuted, order, reverse)
    return Operator("permutation", name, text, (Argument("X", shape, dtype),), reference, cost(*shape), dtype)


def _permuted(order: list[int], reverse: int | None, X: Any) -> Any:
    return (X if reverse is None else X.flip(reverse)).permute(order).contiguous()


def _pixel_shuffle(rng: random.Random, seconds: float, dtype: str) -> Operator:
    r = rng.choice([2, 3, 4])

    def cost(*values: float) -> Work:
        return Work(0, 2 * size_of(dtype) * r * r * math.prod(values))

    n, c, h, w = extents(rng, seconds, cost, [1, 1, 2, 2])
    text = (
        f"def permutation({dtype}(N,C,H,W) X) -> (O) {{\n"
        f"    O(n,c,y,x) = X(n, c*{r * r} + y % {r} * {r} + x % {r}, y/{r}, x/{r}) where c in 0:{c}, y in 0:H*{r}, x in 0:W*{r}\n}}"
    )
    name = f"pixel shuffle by {r} n={n} c={c} in={h}x{w} {dtype}"
    argument = Argument("X", (n, c * r * r, h, w), dtype)
    return Operator("permutation", name, text, (argument,), partial(F.pixel_shuffle, upscale_factor=r), cost(n, c, h, w), dtype)


# ---------------------------------------------------------------- broadcasts

# text and PyTorch form of a value of one to three operands
Form = tuple[str, int, Callable[..., Any]]
FORMS: dict[str, list[Form]] = {
    "X": [
        ("tanh({X})", 8, torch.tanh),
        ("{X} * sigmoid({X})", 10, F.silu),
        ("0.5 * {X} * (1.0 + erf({X} * 0.7071067811865476))", 12, F.gelu),
        ("exp(-{X} * {X})", 8, lambda X: torch.exp(-X * X)),
        ("fmin(fmax({X}, -1.0), 1.0)", 2, lambda X: X.clamp(-1.0, 1.0)),
        ("log1p(fabs({X}))", 10, lambda X: torch.log1p(X.abs())),
    ],
    "XU": [
        ("{X} + {U}", 1, torch.add),
        ("{X} * {U}", 1, torch.mul),
        ("max({X} + {U}, 0.0)", 2, lambda X, U: torch.relu(X + U)),
        ("{X} / (1.0 + fabs({U}))", 3, lambda X, U: X / (1.0 + U.abs())),
        ("tanh({X} + {U})", 9, lambda X, U: torch.tanh(X + U)),
        ("({X} > {U}) ? {X} : 0.5 * {U}", 2, lambda X, U: torch.where(X > U, X, 0.5 * U)),
    ],
    "XUV": [
        ("{X} * {U} + {V}", 2, lambda X, U, V: X * U + V),
        ("max({X} * {U} + {V}, 0.0)", 3, lambda X, U, V: torch.relu(X * U + V)),
        ("sigmoid({X}) * {U} + (1.0 - sigmoid({X})) * {V}", 20, lambda X, U, V: torch.lerp(V, U, torch.sigmoid(X))),
        ("({X} - {U}) * ({X} - {U}) * {V}", 4, lambda X, U, V: (X - U).square() * V),
    ],
}


def broadcast(rng: random.Random, seconds: float, dtype: str = "") -> Operator:
    """Elementwise, of operands that have some of the dimensions, each in an order of its own."""
    dtype = dtype or rng.choices(["float", "double"], [6, 1])[0]
    names = rng.choices(["X", "XU", "XUV"], [2, 4, 3])[0]
    value, ops, form = rng.choice(FORMS[names])
    letters = LETTERS[: rng.randint(1, 4)]
    operands = [letters, *("".join(i for i in letters if rng.random() < 0.5) or rng.choice(letters) for _ in names[1:])]
    if len(names) > 1 and rng.random() < 0.2:  # no operand has all dimensions
        operands[0] = letters[1:] or letters
        operands[1] = letters[0] + "".join(i for i in operands[1] if i != letters[0])
    operands = ["".join(rng.sample(o, len(o))) if rng.random() < 0.4 else o for o in operands]

    def cost(*values: float) -> Work:
        size = dict(zip(letters, values))
        moved = sum(math.prod(tuple(size[i] for i in o)) for o in [*operands, letters])
        return Work(ops * math.prod(values), size_of(dtype) * moved)

    values = extents(rng, seconds, cost, [2] * len(letters))
    size = dict(zip(letters, values))
    given = ", ".join(f"{dtype}({','.join(o.upper())}) {n}" for n, o in zip(names, operands))
    reads = {n: f"{n}({','.join(o)})" for n, o in zip(names, operands)}
    text = f"def broadcast({given}) -> (O) {{\n    O({','.join(letters)}) = {value.format(**reads)}\n}}"
    arguments = tuple(Argument(n, tuple(size[i] for i in o), dtype) for n, o in zip(names, operands))
    equation = ",".join(operands) + "->" + letters
    name = f"{value.format(**{n: n for n in names})} {equation} " + " ".join(f"{i}={n}" for i, n in size.items()) + f" {dtype}"
    return Operator("broadcast", name, text, arguments, _Broadcast(form, tuple(operands), letters), cost(*values), dtype)


@dataclass(frozen=True)
class _Broadcast:
    form: Callable[..., Any]
    operands: tuple[str, ...]
    result: str

    def __call__(self, *tensors: Any) -> Any:
        return self.form(*(self._aligned(tensor, operand) for tensor, operand in zip(tensors, self.operands)))

    def _aligned(self, tensor: Any, operand: str) -> Any:
        there = [i for i in self.result if i in operand]
        tensor = tensor.permute([operand.index(i) for i in there])
        return tensor[tuple(slice(None) if i in there else None for i in self.result)]


# ---------------------------------------------------------------- gathers


def gather(rng: random.Random, seconds: float) -> Operator:
    """Rows of a table, their sums, elements along a dimension, slices along any dimension, single elements."""
    kind = rng.choice(["rows", "bag", "along", "slices", "elements"])
    integer = "int64" if kind in ("along", "elements") else rng.choice(["int32", "int64"])
    make = {"rows": _rows, "bag": _bag, "along": _along, "slices": _slices, "elements": _single}[kind]
    return make(rng, seconds, integer)


def _gather(name: str, text: str, arguments: tuple[Argument, ...], reference: Callable[..., Any], work: Work) -> Operator:
    sizes = " ".join(f"{a.name}={'x'.join(map(str, a.shape))}" for a in arguments)
    return Operator("gather", f"{name} {sizes} {arguments[-1].dtype}", text, arguments, reference, work)


def _rows(rng: random.Random, seconds: float, integer: str) -> Operator:
    def cost(v: float, n: float, d: float) -> Work:
        return Work(0, 4 * (min(n, v) * d + n * d))

    v, n, d = extents(rng, seconds, cost, [2, 2, 1])
    v = max(2, min(v, 200_000, TABLE // d))
    text = f"def gather(float(V,D) X, {integer}(N) I) -> (O) {{\n    O(n,d) = X(I(n), d)\n}}"
    arguments = (Argument("X", (v, d)), Argument("I", (n,), integer, bound=v))
    return _gather("rows", text, arguments, lambda X, index: F.embedding(index, X), cost(v, n, d))


def _bag(rng: random.Random, seconds: float, integer: str) -> Operator:
    def cost(v: float, n: float, length: float, d: float) -> Work:
        return Work(n * length * d, 4 * (min(n * length, v) * d + n * d))

    v, n, length, d = extents(rng, seconds, cost, [2, 1, 2, 1])
    v = max(2, min(v, 200_000, TABLE // d))
    text = f"def gather(float(V,D) X, {integer}(N,L) I) -> (O) {{\n    O(n,d) +=! X(I(n,l), d)\n}}"
    arguments = (Argument("X", (v, d)), Argument("I", (n, length), integer, bound=v))
    return _gather("bag", text, arguments, lambda X, index: F.embedding_bag(index, X, mode="sum"), cost(v, n, length, d))


def _along(rng: random.Random, seconds: float, integer: str) -> Operator:
    dim = rng.randrange(3)

    def cost(*values: float) -> Work:
        return Work(0, 16 * math.prod(values[:3]))

    *shape, table = extents(rng, seconds, cost, [2, 2, 2, 2])
    table = max(2, min(table, 4 * max(shape), TABLE * shape[dim] // math.prod(shape)))
    at = ["a", "b", "c"]
    read = [*at[:dim], "I(a,b,c)", *at[dim + 1 :]]
    sizes = [*"ABC"[:dim], "T", *"ABC"[dim + 1 :]]
    text = f"def gather(float({','.join(sizes)}) X, {integer}(A,B,C) I) -> (O) {{\n    O(a,b,c) = X({', '.join(read)})\n}}"
    given = (*shape[:dim], table, *shape[dim + 1 :])
    arguments = (Argument("X", given), Argument("I", tuple(shape), integer, bound=table))
    return _gather(f"along {dim}", text, arguments, lambda X, index: torch.gather(X, dim, index), cost(*shape))


def _slices(rng: random.Random, seconds: float, integer: str) -> Operator:
    rank = rng.randint(2, 3)
    dim = rng.randrange(rank)

    def cost(*values: float) -> Work:
        return Work(0, 8 * math.prod(values[:rank]))

    *shape, table = extents(rng, seconds, cost, [2] * (rank + 1))
    table = max(2, min(table, 4 * max(shape), TABLE * shape[dim] // math.prod(shape)))
    at = list("abc"[:rank])
    read = [*at[:dim], f"I({at[dim]})", *at[dim + 1 :]]
    sizes = [*"ABC"[:dim], "T", *"ABC"[dim + 1 : rank]]
    text = f"def gather(float({','.join(sizes)}) X, {integer}({'ABC'[dim]}) I) -> (O) {{\n    O({','.join(at)}) = X({', '.join(read)})\n}}"
    given = (*shape[:dim], table, *shape[dim + 1 :])
    arguments = (Argument("X", given, order=layout(rng, rank, 0.8)), Argument("I", (shape[dim],), integer, bound=table))
    return _gather(f"slices along {dim}", text, arguments, lambda X, index: torch.index_select(X, dim, index), cost(*shape))


def _single(rng: random.Random, seconds: float, integer: str) -> Operator:
    def cost(h: float, w: float, n: float) -> Work:
        return Work(0, 24 * n)

    h, w, n = extents(rng, seconds, cost, [2, 2, 2])
    h, w = min(h, 4096), min(w, 4096)
    text = f"def gather(float(H,W) X, {integer}(N) I, {integer}(N) J) -> (O) {{\n    O(n) = X(I(n), J(n))\n}}"
    arguments = (Argument("X", (h, w)), Argument("I", (n,), integer, bound=h), Argument("J", (n,), integer, bound=w))
    return _gather("elements", text, arguments, lambda X, row, column: X[row, column], cost(h, w, n))


# ---------------------------------------------------------------- one-hot products


def one_hot(rng: random.Random, seconds: float) -> Operator:
    """A product with a matrix that has a single one in each row, as a comparison; its transpose; a histogram."""
    kind = rng.choices(["rows", "sums", "counts"], [3, 3, 1])[0]

    def cost(v: float, n: float, d: float) -> Work:
        d = 1 if kind == "counts" else d
        return Work(2 * n * v * d, 4 * (n + v * d + n * d))

    v, n, d = extents(rng, seconds, cost, [2, 2, 2])
    index = Argument("I", (n,), "int64", bound=v)
    if kind == "rows":
        text = "def one_hot(float(V,D) X, int64(N) I) -> (O) {\n    O(n,d) +=! (I(n) == v) ? X(v,d) : 0.0\n}"
        arguments: tuple[Argument, ...] = (Argument("X", (v, d)), index)
    elif kind == "sums":
        text = f"def one_hot(float(N,D) X, int64(N) I) -> (O) {{\n    O(v,d) +=! (I(n) == v) ? X(n,d) : 0.0 where v in 0:{v}\n}}"
        arguments = (Argument("X", (n, d)), index)
    else:
        text = f"def one_hot(int64(N) I) -> (O) {{\n    O(v) +=! (I(n) == v) ? 1 : 0 where v in 0:{v}\n}}"
        arguments = (index,)
    dtype = "int32" if kind == "counts" else "float"
    name = f"{kind} v={v} n={n}" + (f" d={d}" if kind != "counts" else "")
    return Operator("one_hot", name, text, arguments, partial(_one_hot, kind, v), cost(v, n, d), dtype)


def _one_hot(kind: str, v: int, *tensors: Any) -> Any:
    if kind == "counts":
        return torch.bincount(tensors[0], minlength=v)
    X, index = tensors
    if kind == "rows":
        return F.one_hot(index, v).to(X.dtype) @ X
    return torch.zeros(v, X.shape[1], dtype=X.dtype).index_add_(0, index, X)
