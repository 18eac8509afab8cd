"""Stencils of one to three steps on grids of one to three dimensions."""
from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from generality.operators import Argument, Operator, Work
from generality.sizes import extents

AT, SIZE = "ijk", "NML"


def stencil(rng: random.Random, seconds: float) -> Operator:
    """Stars and boxes with random coefficients; inside only, so that each step is smaller, or with zeros around."""
    dims, steps = rng.choices([1, 2, 3], [2, 4, 2])[0], rng.choice([1, 1, 2, 3])
    box = rng.random() < 0.4
    radius = 1 if box or rng.random() < 0.7 else 2
    zeros = rng.random() < 0.5
    points = [
        point
        for point in itertools.product(range(-radius, radius + 1), repeat=dims)
        if box or sum(1 for offset in point if offset) <= 1
    ]
    weights = {point: rng.randint(-99, 99) / 100 or 0.5 for point in points}

    def cost(*values: float) -> Work:
        elements = math.prod(values)
        return Work(2 * steps * len(points) * elements, 8 * elements)

    shape = tuple(extents(rng, seconds, cost, [2 * radius * steps + 2] * dims))
    shape = tuple(max(extent, 2 * radius * steps + 2) for extent in shape)
    lines, source = [], "X"
    for step in range(steps):
        target = "O" if step == steps - 1 else f"T{step}"
        lines.append(_step(target, source, weights, dims, radius, zeros))
        source = target
    text = f"def stencil(float({','.join(SIZE[:dims])}) X) -> (O) {{\n    " + "\n    ".join(lines) + "\n}"
    kind = f"{'box' if box else 'star'} of radius {radius}"
    name = f"{dims}d {kind} {'with zeros around' if zeros else 'inside'} {steps} steps {list(shape)}"
    return Operator("stencil", name, text, (Argument("X", shape),), _Stencil(weights, radius, zeros, steps), cost(*shape))


def _step(target: str, source: str, weights: dict[tuple[int, ...], float], dims: int, radius: int, zeros: bool) -> str:
    terms = []
    for point, weight in weights.items():
        moved = [offset if zeros else offset + radius for offset in point]
        at = [AT[d] + (f" + {m}" if m > 0 else f" - {-m}" if m < 0 else "") for d, m in enumerate(moved)]
        read = f"{source}({','.join(at)})"
        tests = [f"{p} >= 0" if m < 0 else f"{p} < {SIZE[d]}" for d, (m, p) in enumerate(zip(moved, at)) if m] if zeros else []
        terms.append(f"{weight!r} * " + (f"({' && '.join(tests)} ? {read} : 0.0)" if tests else read))
    ranges = f"\n        where {', '.join(f'{AT[d]} in 0:{SIZE[d]}' for d in range(dims))}" if zeros else ""
    return f"{target}({','.join(AT[:dims])}) = " + "\n        + ".join(terms) + ranges


@dataclass(frozen=True)
class _Stencil:
    """A box as a convolution, a star as a sum of slices."""

    weights: dict[tuple[int, ...], float]
    radius: int
    zeros: bool
    steps: int

    def __call__(self, X: Any) -> Any:
        side = 2 * self.radius + 1
        for _ in range(self.steps):
            if len(self.weights) == side ** X.dim():
                kernel = torch.tensor(list(self.weights.values()), dtype=X.dtype).reshape(1, 1, *[side] * X.dim())
                convolve = (F.conv1d, F.conv2d, F.conv3d)[X.dim() - 1]
                X = convolve(X[None, None], kernel, padding=self.radius if self.zeros else 0)[0, 0]
            else:
                X = self._slices(F.pad(X, [self.radius] * (2 * X.dim())) if self.zeros else X)
        return X

    def _slices(self, X: Any) -> Any:
        total = 0.0
        for point, weight in self.weights.items():
            part = tuple(slice(self.radius + o, extent - self.radius + o) for o, extent in zip(point, X.shape))
            total = total + weight * X[part]
        return total
