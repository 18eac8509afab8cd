"""DarkNet-53: Redmon and Farhadi, "YOLOv3: An Incremental Improvement", 2018, arXiv 1804.02767. (B, 3, 256, 256) -> (B, 1000)."""
from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from models.layers import ConvNorm, images

draw = images(256, 32)
LEAKY = partial(nn.LeakyReLU, 0.1)


class Residual(nn.Module):
    """1x1 to half the width and 3x3 back, added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(ConvNorm(width, width // 2, 1, act=LEAKY), ConvNorm(width // 2, width, act=LEAKY))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class DarkNet(nn.Module):
    """Stages of a strided convolution and so many residual blocks."""

    def __init__(self, depths: tuple[int, ...] = (1, 2, 8, 8, 4), width: int = 32, classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(ConvNorm(3, width, act=LEAKY))
        for depth in depths:
            self.features.append(ConvNorm(width, 2 * width, 3, 2, act=LEAKY))
            width *= 2
            self.features.extend(Residual(width) for _ in range(depth))
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(nn.functional.adaptive_avg_pool2d(self.features(x), 1), 1))


def darknet53(small: bool) -> nn.Module:
    return DarkNet((1, 2), 8, 10) if small else DarkNet()
