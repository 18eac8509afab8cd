"""VGG19: Simonyan and Zisserman, "Very Deep Convolutional Networks", 2014, arXiv 1409.1556, its E. (B, 3, 224, 224) -> (B, 1000)."""
from __future__ import annotations

import torch
from torch import Tensor, nn

from models.layers import images

draw = images(224, 32)


class VGG(nn.Module):
    """Stages of 3x3 convolutions with bias and without norm, a pooling after each, and three linear layers. ``side``: of the last map."""

    def __init__(self, widths: tuple[int, ...], depths: tuple[int, ...], side: int = 7, hidden: int = 4096, classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential()
        inside = 3
        for width, depth in zip(widths, depths):
            for _ in range(depth):
                self.features.extend([nn.Conv2d(inside, width, 3, padding=1), nn.ReLU(inplace=True)])
                inside = width
            self.features.append(nn.MaxPool2d(2, 2))
        self.side = side
        self.classifier = nn.Sequential(
            nn.Linear(inside * side * side, hidden), nn.ReLU(inplace=True), nn.Dropout(),
            nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(),
            nn.Linear(hidden, classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_avg_pool2d(self.features(x), self.side)
        return self.classifier(torch.flatten(x, 1))


def vgg19(small: bool) -> nn.Module:
    if small:
        return VGG((8, 16), (2, 1), 2, 32, 10)
    return VGG((64, 128, 256, 512, 512), (2, 2, 4, 4, 4))
