"""U-Net: Ronneberger, Fischer, Brox, 2015, arXiv 1505.04597, as it is mostly built since: padded, with batch norms, 32 channels at full
size (Buda, Saha, Mazurowski, 2019, arXiv 1906.03720). (B, 3, 256, 256) -> (B, 1, 256, 256), a probability per pixel.
"""
from __future__ import annotations

import torch
from torch import Tensor, nn

from models.layers import ConvNorm, images

draw = images(256, 32)


def double(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(ConvNorm(inside, outside), ConvNorm(outside, outside))


class UNet(nn.Module):
    """Down ``depth`` times by pooling and up as often by transposed convolutions, each beside what was there on the way down."""

    def __init__(self, depth: int = 4, width: int = 32) -> None:
        super().__init__()
        widths = [width << number for number in range(depth + 1)]
        self.down = nn.ModuleList(double(inside, outside) for inside, outside in zip([3, *widths], widths[:-1]))
        self.bottom = double(widths[-2], widths[-1])
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * each, each, 2, 2) for each in widths[-2::-1])
        self.up = nn.ModuleList(double(2 * each, each) for each in widths[-2::-1])
        self.last = nn.Conv2d(width, 1, 1)
        self.pool = nn.MaxPool2d(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        beside = []
        for step in self.down:
            x = step(x)
            beside.append(x)
            x = self.pool(x)
        x = self.bottom(x)
        for grow, step in zip(self.grow, self.up):
            x = step(torch.cat([grow(x), beside.pop()], 1))
        return torch.sigmoid(self.last(x))


def unet(small: bool) -> nn.Module:
    return UNet(2, 8) if small else UNet()
