"""What several models have in common: a convolution with its norm and activation, and how random weights are made plausible."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

WEIGHTED = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)


class ConvNorm(nn.Module):
    """Convolution without bias, batch norm, activation: (B, inside, H, W) -> (B, outside, H', W'). Padded to keep the size at stride 1,
    unless ``padding`` says otherwise; ``act`` None leaves the activation out."""

    def __init__(
        self,
        inside: int,
        outside: int,
        kernel: int | tuple[int, int] = 3,
        stride: int = 1,
        *,
        padding: int | tuple[int, int] | None = None,
        groups: int = 1,
        act: Callable[[], nn.Module] | None = nn.ReLU,
    ) -> None:
        super().__init__()
        sizes = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        around = (sizes[0] // 2, sizes[1] // 2) if padding is None else padding
        self.conv = nn.Conv2d(inside, outside, sizes, stride, around, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outside)
        self.act = nn.Identity() if act is None else act()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


def settle(model: nn.Module, inputs: Sequence[Tensor]) -> nn.Module:
    """The model in eval mode with weights such that signals neither die nor grow, made by one forward on ``inputs``.

    Convolutions and linear layers are scaled to outputs of root mean square 1, in the order in which they run (layer-sequential
    unit variance, Mishkin and Matas 2016, arXiv 1511.06422). Batch norms get the statistics that they meet, off by some percent as those of
    a training set are, and affine parameters around 1 and 0.
    """
    handles = []

    def scale(layer: Any, _: Any, out: Tensor) -> Tensor | None:
        if layer in done:  # a head that several feature maps share
            return None
        done.add(layer)
        size = max(float(out.square().mean().sqrt()), 1e-6)
        for parameter in layer.parameters():
            parameter /= size
        return out / size

    def measure(norm: Any, given: tuple[Tensor]) -> None:
        (x,) = given
        variance, mean = torch.var_mean(x, dim=(0, 2, 3), correction=0)
        variance = variance + 0.1 * x.square().mean()  # a map of one pixel has none
        norm.running_mean.copy_(mean + 0.1 * variance.sqrt() * torch.randn_like(mean))
        norm.running_var.copy_(variance * (0.8 + 0.4 * torch.rand_like(variance)))
        norm.weight.copy_(0.5 + torch.rand_like(mean))
        norm.bias.copy_(0.1 * torch.randn_like(mean))

    done: set[nn.Module] = set()
    for layer in model.modules():
        if isinstance(layer, WEIGHTED):
            handles.append(layer.register_forward_hook(scale))
        elif isinstance(layer, nn.BatchNorm2d):
            handles.append(layer.register_forward_pre_hook(measure))
        elif isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
            nn.init.normal_(layer.weight, std=1 / math.sqrt(layer.embedding_dim))
    model.eval()
    with torch.no_grad():
        model(*inputs)
    for handle in handles:
        handle.remove()
    return model.requires_grad_(False)


def images(size: int, small_size: int) -> Callable[[bool, int], tuple[Tensor, ...]]:
    """What draws a batch of normalised images, (B, 3, size, size)."""
    return lambda small, batch: (torch.randn(batch, 3, *[small_size if small else size] * 2),)
