"""ResNet: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", 2015, arXiv 1512.03385. (B, 3, 224, 224) -> (B, 1000)."""
from __future__ import annotations

import torch
from torch import Tensor, nn

from models.layers import ConvNorm, images

draw = images(224, 32)


class Basic(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is projected where the shape changes."""

    expansion = 1

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(ConvNorm(inside, width, 3, stride), ConvNorm(width, width, act=None))
        same = stride == 1 and inside == width
        self.shortcut = nn.Identity() if same else ConvNorm(inside, width, 1, stride, act=None)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 beside a shortcut; the result is four times as wide. The stride is with the 3x3 convolution, as is usual today."""

    expansion = 4

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = 4 * width
        self.body = nn.Sequential(ConvNorm(inside, width, 1), ConvNorm(width, width, 3, stride), ConvNorm(width, outside, 1, act=None))
        same = stride == 1 and inside == outside
        self.shortcut = nn.Identity() if same else ConvNorm(inside, outside, 1, stride, act=None)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def stem(width: int) -> nn.Sequential:
    """7x7 with stride 2 and a pooling: a quarter of the size."""
    return nn.Sequential(ConvNorm(3, width, 7, 2), nn.MaxPool2d(3, 2, 1))


def stage(block: type[Basic] | type[Bottleneck], inside: int, width: int, depth: int, stride: int) -> nn.Sequential:
    """``depth`` blocks, the first of which has the stride."""
    outside = width * block.expansion
    return nn.Sequential(block(inside, width, stride), *(block(outside, width, 1) for _ in range(depth - 1)))


class ResNet(nn.Module):
    """A stem, stages that halve the size and double the width, and a linear classifier of the mean over all places."""

    def __init__(self, block: type[Basic] | type[Bottleneck], depths: tuple[int, ...], width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = stem(width)
        self.stages = nn.Sequential()
        inside = width
        for number, depth in enumerate(depths):
            self.stages.append(stage(block, inside, width << number, depth, 1 if number == 0 else 2))
            inside = (width << number) * block.expansion
        self.classifier = nn.Linear(inside, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(self.stem(x))
        return self.classifier(torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1))


def resnet18(small: bool) -> nn.Module:
    return ResNet(Basic, (2, 1), 8, 10) if small else ResNet(Basic, (2, 2, 2, 2))


def resnet50(small: bool) -> nn.Module:
    return ResNet(Bottleneck, (2, 1), 8, 10) if small else ResNet(Bottleneck, (3, 4, 6, 3))
