"""Reductions, norms and softmaxes over any dimensions."""
from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from generality.operators import Argument, Operator, Work, size_of
from generality.sizes import extents, layout

LETTERS = "abcd"
NARROW = ("bfloat16", "half")  # read as float, rounded where the result is stored


@dataclass(frozen=True)
class Rows:
    """A tensor with some dimensions that are reduced."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]
    order: tuple[int, ...] | None
    dtype: str

    @property
    def all(self) -> str:
        return ",".join(LETTERS[: len(self.shape)])

    @property
    def kept(self) -> str:
        return ",".join(LETTERS[d] for d in range(len(self.shape)) if d not in self.dims)

    @property
    def count(self) -> int:
        return math.prod(self.shape[d] for d in self.dims)

    @property
    def trailing(self) -> bool:
        return self.dims == tuple(range(len(self.shape) - len(self.dims), len(self.shape)))

    @property
    def read(self) -> str:
        return f"float(X({self.all}))" if self.dtype in NARROW else f"X({self.all})"

    @property
    def parameter(self) -> str:
        return f"{self.dtype}({self.all.upper()}) X"

    @property
    def argument(self) -> Argument:
        return Argument("X", self.shape, self.dtype, order=self.order)

    def at(self, name: str) -> str:
        """A tensor of the dimensions that are not reduced."""
        return f"{name}({self.kept})" if self.kept else name

    def stored(self, value: str) -> str:
        return f"{self.dtype}({value})" if self.dtype in NARROW else value

    def __str__(self) -> str:
        order = f" stored {self.order}" if self.order else ""
        return f"{list(self.shape)} over {list(self.dims)} {self.dtype}{order}"


def drawn(rng: random.Random, seconds: float, dtype: str, ops: int, result: bool, most: int | None = None) -> tuple[Rows, Work]:
    """A tensor of one to four dimensions; ``ops`` per element; ``result`` where one of the same size is written."""
    rank = rng.choices([1, 2, 3, 4], [1, 4, 3, 2])[0]
    if rng.random() < 0.5:
        dims = tuple(range(rank - rng.randint(1, most or rank), rank))  # the last ones
        dims = tuple(d for d in dims if d >= 0)
    else:
        dims = tuple(sorted(rng.sample(range(rank), rng.randint(1, min(rank, most or rank)))))

    def cost(*values: float) -> Work:
        elements = math.prod(values)
        return Work(ops * elements, size_of(dtype) * elements * (1 + result))

    shape = tuple(extents(rng, seconds, cost, [2] * rank))
    return Rows(shape, dims, layout(rng, rank, usual=0.8), dtype), cost(*shape)


def _dtype(rng: random.Random, dtype: str) -> str:
    return dtype or rng.choices(["float", "double"], [6, 1])[0]


# ---------------------------------------------------------------- reductions


REDUCTIONS = {
    "sum": ("+=!", "{x}", lambda X, dims: X.sum(dims)),
    "mean": ("+=!", "{x}", lambda X, dims: X.mean(dims)),
    "greatest": ("max=!", "{x}", lambda X, dims: X.amax(dims)),
    "least": ("min=!", "{x}", lambda X, dims: X.amin(dims)),
    "squares": ("+=!", "{x} * {x}", lambda X, dims: X.square().sum(dims)),
    "magnitudes": ("+=!", "fabs({x})", lambda X, dims: X.abs().sum(dims)),
}


def reduction(rng: random.Random, seconds: float, dtype: str = "") -> Operator:
    """Sums and extremes, and the place of the greatest element."""
    dtype = _dtype(rng, dtype)
    if rng.random() < 0.15:
        return _argmax(rng, seconds, "float")
    kind = rng.choice(list(REDUCTIONS))
    rows, work = drawn(rng, seconds, dtype, 1, result=False)
    operator, value, form = REDUCTIONS[kind]
    out, value = rows.at("O"), value.format(x=rows.read)
    if kind == "mean":
        lines = [f"{rows.at('S')} {operator} {value}", f"{out} = {rows.stored(rows.at('S') + f' / {rows.count}.0')}"]
    elif dtype in NARROW:
        lines = [f"{rows.at('S')} {operator} {value}", f"{out} = {rows.stored(rows.at('S'))}"]
    else:
        lines = [f"{out} {operator} {value}"]
    text = _text("reduction", rows.parameter, lines)
    return Operator("reduction", f"{kind} {rows}", text, (rows.argument,), _Over(form, rows.dims), work, dtype)


def _argmax(rng: random.Random, seconds: float, dtype: str) -> Operator:
    rows, work = drawn(rng, seconds, dtype, 2, result=False, most=1)
    index = LETTERS[rows.dims[0]]
    lines = [
        f"{rows.at('M')} max=! {rows.read}",
        f"{rows.at('O')} min=! ({rows.read} == {rows.at('M')}) ? {index} : {index.upper()}",
    ]
    text = _text("reduction", rows.parameter, lines)
    return Operator("reduction", f"argmax {rows}", text, (rows.argument,), _Over(_argument_of_greatest, rows.dims), work, "int32")


def _argument_of_greatest(X: Any, dims: tuple[int, ...]) -> Any:
    return X.argmax(dims[0])


@dataclass(frozen=True)
class _Over:
    form: Any
    dims: tuple[int, ...]

    def __call__(self, X: Any) -> Any:
        return self.form(X, self.dims)


def _text(family: str, given: str, lines: list[str]) -> str:
    body = "\n    ".join(lines)
    return f"def {family}({given}) -> (O) {{\n    {body}\n}}"


# ---------------------------------------------------------------- norms


def norm(rng: random.Random, seconds: float, dtype: str = "") -> Operator:
    """By mean and variance, by the root of the mean square, by the Euclidean norm; the first two with weights where PyTorch has them."""
    dtype = _dtype(rng, dtype)
    kind = rng.choice(["layer", "layer", "rms", "l2"])
    rows, work = drawn(rng, seconds, dtype, 5 if kind == "layer" else 3, result=True)
    weighted = rows.trailing and kind != "l2" and rng.random() < 0.7
    x, weight = rows.read, ",".join(LETTERS[d] for d in rows.dims)
    s, m = rows.at("S"), rows.at("M")
    lines = []
    if kind == "layer":
        lines += [f"{m} +=! {x}", f"{m} = {m} / {rows.count}.0", f"{s} +=! ({x} - {m}) * ({x} - {m})"]
        value = f"({x} - {m}) * rsqrt({s} / {rows.count}.0 + 1e-5)"
    else:
        lines += [f"{s} +=! {x} * {x}"]
        value = f"{x} * rsqrt({s} / {rows.count}.0 + 1e-5)" if kind == "rms" else f"{x} / max(sqrt({s}), 1e-12)"
    given, arguments = rows.parameter, [rows.argument]
    if weighted:
        shape = tuple(rows.shape[d] for d in rows.dims)
        names = ("W", "Z") if kind == "layer" else ("W",)
        given += "".join(f", {dtype}({weight.upper()}) {name}" for name in names)
        arguments += [Argument(name, shape, dtype) for name in names]
        value += f" * W({weight})" + (f" + Z({weight})" if kind == "layer" else "")
    lines.append(f"O({rows.all}) = {rows.stored(value)}")
    name = f"{kind}{' weighted' if weighted else ''} {rows}"
    return Operator("norm", name, _text("norm", given, lines), tuple(arguments), _Norm(kind, rows.dims, rows.trailing), work, dtype)


@dataclass(frozen=True)
class _Norm:
    kind: str
    dims: tuple[int, ...]
    trailing: bool

    def __call__(self, X: Any, W: Any = None, Z: Any = None) -> Any:
        if self.kind == "l2":
            return F.normalize(X, dim=self.dims)
        shape = [X.shape[d] for d in self.dims]
        if self.kind == "layer":
            if self.trailing:
                return F.layer_norm(X, shape, W, Z)
            variance, mean = torch.var_mean(X, self.dims, correction=0, keepdim=True)
            return (X - mean) * torch.rsqrt(variance + 1e-5)
        if self.trailing:
            return F.rms_norm(X, shape, W, 1e-5)
        return X * torch.rsqrt(X.square().mean(self.dims, keepdim=True) + 1e-5)


# ---------------------------------------------------------------- softmaxes


def softmax(rng: random.Random, seconds: float, dtype: str = "") -> Operator:
    """Softmax, its logarithm, and the logarithm of the sum of exponentials; over one dimension, sometimes two."""
    dtype = _dtype(rng, dtype)
    kind = rng.choices(["softmax", "log_softmax", "logsumexp"], [4, 2, 1])[0]
    rows, work = drawn(rng, seconds, dtype, 4, result=kind != "logsumexp", most=rng.choices([1, 2], [4, 1])[0])
    x, m, s = rows.read, rows.at("M"), rows.at("S")
    lines = [f"{m} max=! {x}"]
    if kind == "softmax":
        lines += [f"E({rows.all}) = exp({x} - {m})", f"{s} +=! E({rows.all})", f"O({rows.all}) = {rows.stored(f'E({rows.all}) / {s}')}"]
    else:
        lines += [f"{s} +=! exp({x} - {m})"]
        last = (f"O({rows.all})", f"{x} - {m} - log({s})") if kind == "log_softmax" else (rows.at("O"), f"{m} + log({s})")
        lines.append(f"{last[0]} = {rows.stored(last[1])}")
    text = _text("softmax", rows.parameter, lines)
    return Operator("softmax", f"{kind} {rows}", text, (rows.argument,), _Softmax(kind, rows.dims), work, dtype)


@dataclass(frozen=True)
class _Softmax:
    kind: str
    dims: tuple[int, ...]

    def __call__(self, X: Any) -> Any:
        if self.kind == "logsumexp":
            return torch.logsumexp(X, self.dims)
        if len(self.dims) == 1:
            return (torch.softmax if self.kind == "softmax" else torch.log_softmax)(X, self.dims[0])
        shifted = X - torch.logsumexp(X, self.dims, keepdim=True)
        return torch.exp(shifted) if self.kind == "softmax" else shifted
