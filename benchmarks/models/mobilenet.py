"""MobileNets: the second (Sandler and others, 2018, arXiv 1801.04381) as a classifier, (B, 3, 224, 224) -> (B, 1000), and the first
(Howard and others, 2017, arXiv 1704.04861) as layers for a detector."""
from __future__ import annotations

import torch
from torch import Tensor, nn

from models.layers import ConvNorm, images

draw = images(224, 32)
# expansion, width, depth, stride
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def separable(inside: int, outside: int, stride: int = 1) -> nn.Sequential:
    """MobileNet's layer: 3x3 within each channel, then 1x1 between them."""
    return nn.Sequential(ConvNorm(inside, inside, 3, stride, groups=inside), ConvNorm(inside, outside, 1))


class Inverted(nn.Module):
    """MobileNetV2's block: 1x1 to more channels, 3x3 within each, 1x1 to few without activation; a shortcut where the shape stays."""

    def __init__(self, inside: int, outside: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inside * expansion
        self.residual = stride == 1 and inside == outside
        self.body = nn.Sequential() if expansion == 1 else nn.Sequential(ConvNorm(inside, width, 1, act=nn.ReLU6))
        self.body.append(ConvNorm(width, width, 3, stride, groups=width, act=nn.ReLU6))
        self.body.append(ConvNorm(width, outside, 1, act=None))

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        if self.residual:
            y = x + y
        return y


class MobileNetV2(nn.Module):
    """A strided convolution, stages of inverted residuals, a 1x1 convolution and a linear classifier."""

    def __init__(
        self, stages: tuple[tuple[int, int, int, int], ...] = STAGES, first: int = 32, last: int = 1280, classes: int = 1000
    ) -> None:
        super().__init__()
        self.features = nn.Sequential(ConvNorm(3, first, 3, 2, act=nn.ReLU6))
        inside = first
        for expansion, width, depth, stride in stages:
            for number in range(depth):
                self.features.append(Inverted(inside, width, 1 if number else stride, expansion))
                inside = width
        self.features.append(ConvNorm(inside, last, 1, act=nn.ReLU6))
        self.dropout = nn.Dropout(0.2)
        self.classifier = nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.features(x), 1)
        return self.classifier(self.dropout(torch.flatten(x, 1)))


def mobilenet_v2(small: bool) -> nn.Module:
    return MobileNetV2(((1, 8, 1, 1), (6, 12, 2, 2)), 8, 32, 10) if small else MobileNetV2()
