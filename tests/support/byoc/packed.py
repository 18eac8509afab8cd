"""Models for the backend ``packed``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import tcjit
from support.byoc.passes import opened, settled
from tcjit.byoc.partition_blocks import cut
from tcjit.byoc.spec import parse

CONFIG = tcjit.PartitionConfig(backends=("packed",), cost=False)


class Form:
    """A model in one of its forms, partitioned."""

    def __init__(self, model: nn.Module, x: Tensor, form: str = "fx") -> None:
        given: Any = torch.jit.trace(model, (x,)) if form == "torchscript" else model
        self.made = tcjit.partition(given, (x,), CONFIG)

    def __call__(self, x: Tensor) -> Any:
        with torch.no_grad():
            return self.made(x)

    @property
    def rows(self) -> list[str]:
        """The names of the regions without backend and number."""
        return [name.split("_", 2)[2] for name in self.made.regions]


def assert_same(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def conv(x: Tensor | None = None) -> tuple[nn.Module, Tensor]:
    """A convolution with relu, and an input; the weight of the first is ``model[0].weight``."""
    return settled(nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.ReLU())), torch.randn(2, 4, 8, 8) if x is None else x


def weight_of(model: nn.Module) -> Tensor:
    found: Tensor = model.get_parameter("0.weight")
    return found


def lowered(model: nn.Module, x: Tensor) -> dict[str, Any]:
    """What a model's only region is lowered to."""
    (text,) = cut(opened(model, [x]), CONFIG).specs.values()
    found: dict[str, Any] = parse(text)["code"]
    return found
