"""Convolutions and pools of one to three dimensions: stride, dilation, padding, groups, transposed."""
from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from generality.operators import Argument, Operator, Work
from generality.sizes import extents

OUT, TAP, POSITION, EXTENT, KERNEL = "hwz", ("kh", "kw", "kz"), ("y", "x", "t"), ("H", "W", "Z"), ("KH", "KW", "KZ")
LARGEST = {1: 9, 2: 5, 3: 3}  # kernel by number of dimensions


@dataclass(frozen=True)
class Window:
    """One dimension of a kernel that slides."""

    kernel: int
    stride: int
    padding: int
    dilation: int

    @property
    def reach(self) -> int:
        return self.dilation * (self.kernel - 1) + 1

    def outputs(self, extent: float) -> int:
        return int(extent + 2 * self.padding - self.reach) // self.stride + 1

    def spread(self, extent: float) -> int:
        """Outputs of the transposed convolution."""
        return int(extent - 1) * self.stride - 2 * self.padding + self.reach


def windows(rng: random.Random, dims: int, largest: int, strides: tuple[int, ...] = (1, 1, 2, 3)) -> list[Window]:
    made = []
    for _ in range(dims):
        kernel = rng.randint(1, largest)
        dilation = rng.choices([1, 2, 3], [6, 2, 1])[0]
        made.append(Window(kernel, rng.choice(strides), rng.randint(0, dilation * (kernel // 2)), dilation))
    return made


def facts(taps: list[Window], *more: str) -> str:
    """What a name says of the windows."""
    fields = {"k": "kernel", "s": "stride", "p": "padding", "d": "dilation"}
    return " ".join([*(f"{short}={'x'.join(str(getattr(t, field)) for t in taps)}" for short, field in fields.items()), *more])


def positions(taps: list[Window]) -> list[str]:
    """The input's subscript of each dimension."""
    return [
        _sum(_times(t.stride, OUT[d]), _times(t.dilation, TAP[d]), -t.padding) for d, t in enumerate(taps)
    ]


def _times(factor: int, index: str) -> str:
    return index if factor == 1 else f"{factor}*{index}"


def _sum(one: str, other: str, constant: int) -> str:
    tail = "" if not constant else f" - {-constant}" if constant < 0 else f" + {constant}"
    return f"{one} + {other}{tail}"


def guarded(access: str, taps: list[Window], at: list[str], otherwise: str = "0.0") -> str:
    """An access under the condition that it falls inside, where padding makes one necessary."""
    tests = [f"{p} >= 0 && {p} < {EXTENT[d]}" for d, (t, p) in enumerate(zip(taps, at)) if t.padding]
    return f"({' && '.join(tests)} ? {access} : {otherwise})" if tests else access


def where(taps: list[Window], outputs: list[int], at: list[str]) -> str:
    """Ranges of the results and names of the positions of dimensions that are padded."""
    named = [f"{POSITION[d]} = {p}" for d, (t, p) in enumerate(zip(taps, at)) if t.padding]
    ranges = [f"{OUT[d]} in 0:{outputs[d]}" for d, t in enumerate(taps) if t.padding]
    return f"\n        where {', '.join(ranges + named)}" if ranges else ""


def _at(taps: list[Window], at: list[str]) -> list[str]:
    return [POSITION[d] if t.padding else p for d, (t, p) in enumerate(zip(taps, at))]


def convolution(rng: random.Random, seconds: float) -> Operator:
    """Groups either as a dimension of their own or by division of the filter's number; half of them with bias and relu."""
    dims = rng.choices([1, 2, 3], [2, 5, 2])[0]
    taps = windows(rng, dims, LARGEST[dims])
    kind = rng.choices(["plain", "groups", "depthwise"], [5, 2, 2])[0]
    kernel = math.prod(tap.kernel for tap in taps)
    # batch, groups, channels of a group, filters of a group, extents
    low = [1, 2 if kind != "plain" else 1, 1 if kind == "depthwise" else 2, 1 if kind == "depthwise" else 2, *(t.reach + 2 for t in taps)]
    fixed = {"plain": {1: 1}, "groups": {}, "depthwise": {2: 1, 3: 1}}[kind]

    def cost(*values: float) -> Work:
        n, g, c, f, *spatial = (fixed.get(place, value) for place, value in enumerate(values))
        points = n * g * f
        inputs = n * g * c
        for tap, extent in zip(taps, spatial):
            points *= tap.outputs(extent)
            inputs *= extent
        return Work(2 * points * c * kernel, 4 * (points + inputs + g * c * f * kernel))

    sizes = extents(rng, seconds, cost, low)
    n, g, c, f, *spatial = (fixed.get(place, value) for place, value in enumerate(sizes))
    outputs = [t.outputs(e) for t, e in zip(taps, spatial)]
    split = kind == "groups" and rng.random() < 0.5  # groups as a dimension
    bias, last = rng.random() < 0.5, rng.random() < 0.3
    text = _convolution_text(kind, split, taps, outputs, f, c, bias)
    channels = (g, c) if split else (g * c,)
    shape = (n, *channels, *spatial)
    order = (0, *range(1 + len(channels), len(shape)), *range(1, 1 + len(channels))) if last else None
    filters = (g, f) if split else (g * f,)
    arguments = [
        Argument("X", shape, order=order),
        Argument("K", (*filters, *(() if kind == "depthwise" else (c,)), *(t.kernel for t in taps))),
        *([Argument("B", filters)] if bias else []),
    ]
    name = f"{dims}d {kind} n={n} g={g} c={c} f={f} in={'x'.join(map(str, spatial))} " + facts(taps, *["channels_last"] * last)
    reference = _Convolution(tuple(taps), g, split, kind == "depthwise", dims)
    return Operator("convolution", name, text, tuple(arguments), reference, cost(*sizes))


def _convolution_text(kind: str, split: bool, taps: list[Window], outputs: list[int], f: int, c: int, bias: bool) -> str:
    dims = len(taps)
    at = _at(taps, positions(taps))
    space, kernel = ",".join(EXTENT[:dims]), ",".join(KERNEL[:dims])
    tap = ",".join(TAP[:dims])
    if kind == "depthwise":
        sizes, weights, out, weight, channel = "N,C", "C", "n,f", "f", "f"
    elif split:
        sizes, weights, out, weight, channel = "N,G,C", "G,F,C", "n,g,f", "g,f,c", "g,c"
    elif kind == "groups":
        sizes, weights, out, weight, channel = "N,C", "F,D", "n,f", "f,c", f"f/{f}*{c} + c"
    else:
        sizes, weights, out, weight, channel = "N,C", "F,C", "n,f", "f,c", "c"
    left = f"O({out},{','.join(OUT[:dims])})"
    value = guarded(f"X(n,{channel},{','.join(at)})", taps, at) + f" * K({weight},{tap})"
    lines = [f"{left} +=! {value}{where(taps, outputs, positions(taps))}"]
    given = f"float({sizes},{space}) X, float({weights},{kernel}) K"
    if bias:
        given += f", float({'G,F' if split else 'C' if kind == 'depthwise' else 'F'}) B"
        lines.append(f"{left} = max({left} + B({out[2:]}), 0.0)")
    body = "\n    ".join(lines)
    return f"def convolution({given}) -> (O) {{\n    {body}\n}}"


@dataclass(frozen=True)
class _Convolution:
    taps: tuple[Window, ...]
    groups: int
    split: bool
    depthwise: bool
    dims: int

    def __call__(self, X: Any, K: Any, B: Any = None) -> Any:
        call = (F.conv1d, F.conv2d, F.conv3d)[self.dims - 1]
        filters = K.shape[:2]
        if self.split:
            X, K, B = X.flatten(1, 2), K.flatten(0, 1), None if B is None else B.flatten()
        if self.depthwise:
            K = K[:, None]
        stride, padding, dilation = ([getattr(t, field) for t in self.taps] for field in ("stride", "padding", "dilation"))
        result = call(X, K, B, stride, padding, dilation, self.groups)
        result = result if B is None else torch.relu(result)
        return result.unflatten(1, filters) if self.split else result


# ---------------------------------------------------------------- transposed


def transposed_convolution(rng: random.Random, seconds: float) -> Operator:
    """Each output gathers the taps whose stride divides their distance."""
    dims = rng.choices([1, 2, 3], [2, 5, 1])[0]
    taps = windows(rng, dims, LARGEST[dims], strides=(1, 2, 2, 3))
    taps = [Window(t.kernel, t.stride, min(t.padding, (t.reach - 1) // 2), t.dilation) for t in taps]
    kernel = math.prod(tap.kernel for tap in taps)

    def cost(*values: float) -> Work:
        n, c, f, *spatial = values
        inputs, points = n * c, n * f
        for tap, extent in zip(taps, spatial):
            inputs *= extent
            points *= tap.spread(extent)
        return Work(2 * inputs * f * kernel, 4 * (inputs + points + c * f * kernel))

    sizes = extents(rng, seconds, cost, [1, 2, 2, *(3 for _ in taps)])
    n, c, f, *spatial = sizes
    at = [f"{OUT[d]} + {t.padding} - {_times(t.dilation, TAP[d])}" for d, t in enumerate(taps)]
    tests, reads = [], []
    for d, t in enumerate(taps):
        p = POSITION[d]
        tests += [f"{p} >= 0 && {p} < {_times(t.stride, EXTENT[d])}", *([f"{p} % {t.stride} == 0"] if t.stride > 1 else [])]
        reads.append(p if t.stride == 1 else f"{p}/{t.stride}")
    space, kernels = ",".join(EXTENT[:dims]), ",".join(KERNEL[:dims])
    ranges = [f"{OUT[d]} in 0:{t.spread(e)}" for d, (t, e) in enumerate(zip(taps, spatial))]
    named = [f"{POSITION[d]} = {p}" for d, p in enumerate(at)]
    text = (
        f"def transposed_convolution(float(N,C,{space}) X, float(C,F,{kernels}) K) -> (O) {{\n"
        f"    O(n,f,{','.join(OUT[:dims])}) +=! ({' && '.join(tests)}) ? X(n,c,{','.join(reads)}) * K(c,f,{','.join(TAP[:dims])}) : 0.0\n"
        f"        where {', '.join(ranges + named)}\n}}"
    )
    arguments = (Argument("X", (n, c, *spatial)), Argument("K", (c, f, *(t.kernel for t in taps))))
    name = f"{dims}d n={n} c={c} f={f} in={'x'.join(map(str, spatial))} " + facts(taps)
    return Operator("transposed_convolution", name, text, arguments, _Transposed(tuple(taps)), cost(*sizes))


@dataclass(frozen=True)
class _Transposed:
    taps: tuple[Window, ...]

    def __call__(self, X: Any, K: Any) -> Any:
        call = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[len(self.taps) - 1]
        stride, padding, dilation = ([getattr(t, field) for t in self.taps] for field in ("stride", "padding", "dilation"))
        return call(X, K, None, stride, padding, 0, 1, dilation)


# ---------------------------------------------------------------- pools


def pool(rng: random.Random, seconds: float) -> Operator:
    """Greatest and mean values of windows, channels before or after the spatial dimensions in memory."""
    dims = rng.choices([1, 2, 3], [2, 5, 2])[0]
    greatest = rng.random() < 0.5
    taps = [
        Window(t.kernel, t.stride, min(t.padding, t.kernel // 2), t.dilation if greatest else 1)
        for t in windows(rng, dims, LARGEST[dims], strides=(1, 2, 3))
    ]
    kernel = math.prod(tap.kernel for tap in taps)

    def cost(*values: float) -> Work:
        inputs = points = values[0] * values[1]
        for tap, extent in zip(taps, values[2:]):
            inputs *= extent
            points *= tap.outputs(extent)
        return Work(points * kernel, 4 * (inputs + points))

    sizes = extents(rng, seconds, cost, [1, 1, *(t.reach + 2 for t in taps)])
    n, c, *spatial = sizes
    outputs = [t.outputs(e) for t, e in zip(taps, spatial)]
    at = _at(taps, positions(taps))
    left = f"O(n,c,{','.join(OUT[:dims])})"
    value = guarded(f"X(n,c,{','.join(at)})", taps, at, "-infinity()" if greatest else "0.0")
    ranges = [f"{OUT[d]} in 0:{out}" for d, out in enumerate(outputs)] + [f"{TAP[d]} in 0:{t.kernel}" for d, t in enumerate(taps)]
    named = [f"{POSITION[d]} = {p}" for d, (t, p) in enumerate(zip(taps, positions(taps))) if t.padding]
    lines = [f"{left} {'max=!' if greatest else '+=!'} {value}\n        where {', '.join(ranges + named)}"]
    if not greatest:
        lines.append(f"{left} = {left} / {float(kernel)}")
    body = "\n    ".join(lines)
    text = f"def pool(float(N,C,{','.join(EXTENT[:dims])}) X) -> (O) {{\n    {body}\n}}"
    order = (0, *range(2, 2 + dims), 1) if rng.random() < 0.3 else None
    kind = "max" if greatest else "mean"
    name = f"{dims}d {kind} n={n} c={c} in={'x'.join(map(str, spatial))} " + facts(taps, *["channels_last"] * bool(order))
    return Operator("pool", name, text, (Argument("X", (n, c, *spatial), order=order),), _Pool(tuple(taps), greatest), cost(*sizes))


@dataclass(frozen=True)
class _Pool:
    taps: tuple[Window, ...]
    greatest: bool

    def __call__(self, X: Any) -> Any:
        kernel, stride, padding, dilation = ([getattr(t, name) for t in self.taps] for name in ("kernel", "stride", "padding", "dilation"))
        if self.greatest:
            return (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(self.taps) - 1](X, kernel, stride, padding, dilation)
        return (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(self.taps) - 1](X, kernel, stride, padding)
