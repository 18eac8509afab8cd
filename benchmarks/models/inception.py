"""Inception V3: Szegedy and others, "Rethinking the Inception Architecture for Computer Vision", 2015, arXiv 1512.00567.

(B, 3, 299, 299) -> (B, 1000). Without the second classifier, which is for training only.
"""
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.layers import ConvNorm, images

draw = images(299, 79)


class Branches(nn.Module):
    """Several ways side by side, their results one after the other in the channels."""

    def __init__(self, *ways: nn.Module) -> None:
        super().__init__()
        self.ways = nn.ModuleList(ways)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([way(x) for way in self.ways], 1)


class Pooled(nn.Module):
    """3x3 means with stride 1, then a 1x1 convolution."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.conv = ConvNorm(inside, outside, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.avg_pool2d(x, 3, 1, 1))


def block_a(inside: int, unit: int, pooled: int) -> tuple[nn.Module, int]:
    """1x1; 1x1 5x5; 1x1 3x3 3x3; pooling. ``unit`` is 16 in the paper: widths are multiples of it. With the width of the result."""
    return Branches(
        ConvNorm(inside, 4 * unit, 1),
        nn.Sequential(ConvNorm(inside, 3 * unit, 1), ConvNorm(3 * unit, 4 * unit, 5)),
        nn.Sequential(ConvNorm(inside, 4 * unit, 1), ConvNorm(4 * unit, 6 * unit), ConvNorm(6 * unit, 6 * unit)),
        Pooled(inside, pooled * unit),
    ), (14 + pooled) * unit


def block_b(inside: int, unit: int) -> tuple[nn.Module, int]:
    """Half the size, by strides and by pooling."""
    return Branches(
        ConvNorm(inside, 24 * unit, 3, 2, padding=0),
        nn.Sequential(ConvNorm(inside, 4 * unit, 1), ConvNorm(4 * unit, 6 * unit), ConvNorm(6 * unit, 6 * unit, 3, 2, padding=0)),
        nn.MaxPool2d(3, 2),
    ), 30 * unit + inside


def block_c(inside: int, unit: int, wide: int) -> tuple[nn.Module, int]:
    """7x7 convolutions, each as 1x7 and 7x1."""
    w, out = wide * unit, 12 * unit
    twice = [ConvNorm(inside, w, 1), ConvNorm(w, w, (7, 1)), ConvNorm(w, w, (1, 7)), ConvNorm(w, w, (7, 1)), ConvNorm(w, out, (1, 7))]
    return Branches(
        ConvNorm(inside, out, 1),
        nn.Sequential(ConvNorm(inside, w, 1), ConvNorm(w, w, (1, 7)), ConvNorm(w, out, (7, 1))),
        nn.Sequential(*twice),
        Pooled(inside, out),
    ), 4 * out


def block_d(inside: int, unit: int) -> tuple[nn.Module, int]:
    """Half the size again."""
    w = 12 * unit
    return Branches(
        nn.Sequential(ConvNorm(inside, w, 1), ConvNorm(w, 20 * unit, 3, 2, padding=0)),
        nn.Sequential(ConvNorm(inside, w, 1), ConvNorm(w, w, (1, 7)), ConvNorm(w, w, (7, 1)), ConvNorm(w, w, 3, 2, padding=0)),
        nn.MaxPool2d(3, 2),
    ), 32 * unit + inside


def block_e(inside: int, unit: int) -> tuple[nn.Module, int]:
    """3x3 convolutions opened into 1x3 beside 3x1."""
    w = 24 * unit
    return Branches(
        ConvNorm(inside, 20 * unit, 1),
        nn.Sequential(ConvNorm(inside, w, 1), Branches(ConvNorm(w, w, (1, 3)), ConvNorm(w, w, (3, 1)))),
        nn.Sequential(ConvNorm(inside, 28 * unit, 1), ConvNorm(28 * unit, w), Branches(ConvNorm(w, w, (1, 3)), ConvNorm(w, w, (3, 1)))),
        Pooled(inside, 12 * unit),
    ), 128 * unit


class InceptionV3(nn.Module):
    """A stem, blocks as listed by ``a`` (pooled units) and ``c`` (wide units), and a linear classifier."""

    def __init__(
        self, unit: int = 16, a: tuple[int, ...] = (2, 4, 4), c: tuple[int, ...] = (8, 10, 10, 12), e: int = 2, classes: int = 1000
    ) -> None:
        super().__init__()
        u = unit
        layers: list[nn.Module] = [
            ConvNorm(3, 2 * u, 3, 2, padding=0), ConvNorm(2 * u, 2 * u, padding=0), ConvNorm(2 * u, 4 * u), nn.MaxPool2d(3, 2),
            ConvNorm(4 * u, 5 * u, 1), ConvNorm(5 * u, 12 * u, padding=0), nn.MaxPool2d(3, 2),
        ]  # fmt: skip
        width = 12 * u
        plan = [*((block_a, each) for each in a), (block_b,), *((block_c, each) for each in c), (block_d,), *[(block_e,)] * e]
        for make, *widths in plan:
            block, width = make(width, u, *widths)  # type: ignore[operator]
            layers.append(block)
        self.features = nn.Sequential(*layers)
        self.dropout = nn.Dropout()
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.features(x), 1)
        return self.classifier(torch.flatten(self.dropout(x), 1))


def inception_v3(small: bool) -> nn.Module:
    return InceptionV3(1, (2,), (8,), 1, 10) if small else InceptionV3()
