"""Models opened for passes: through torch.export and through a trace, and what a block computes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tcjit.byoc.adapter import Adapter
from tcjit.byoc.fx import FxAdapter
from tcjit.byoc.graph import Block
from tcjit.byoc.torchscript import TorchScriptAdapter

FORMS = ("fx", "torchscript")
Rewriting = Callable[[Block, Adapter], Block]
# those that oneDNN has behind a layer
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.3),
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 2.0),
}


class Acting(nn.Module):
    """A convolution and a linear layer, an activation behind each."""

    def __init__(self, act: str) -> None:
        super().__init__()
        self.conv, self.linear, self.act = nn.Conv2d(3, 4, 3), nn.Linear(6, 5), ACTIVATIONS[act]

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.linear(self.act(self.conv(x))))


class Function(nn.Module):
    """A function of tensors as a model; tensors given by name are its buffers, handed over by name."""

    def __init__(self, function: Callable[..., Any], **buffers: Tensor) -> None:
        super().__init__()
        self.function = function
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs, **dict(self.named_buffers()))


def opened(model: nn.Module, inputs: Sequence[Tensor], form: str = "fx") -> Adapter:
    """A model in evaluation, read as a block."""
    model = model.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if form == "fx":
            return FxAdapter(torch.export.export(model, tuple(inputs)), tuple(inputs))
        return TorchScriptAdapter(torch.jit.trace(model, tuple(inputs)), tuple(inputs))


def computed(adapter: Adapter, block: Block, inputs: Sequence[Tensor]) -> Any:
    """What a block computes, once written back."""
    made: Any = adapter.realise(block)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (made.module() if isinstance(made, torch.export.ExportedProgram) else made)(*inputs)


def ops(block: Block) -> list[str]:
    """The names of a block's operations, without ``aten.``."""
    return [node.op.removeprefix("aten.") for node in block.nodes]


def settled(model: nn.Module, seed: int = 0) -> nn.Module:
    """A model in evaluation whose batch norms have seen something, and whose parameters do not train."""
    torch.manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            if module.running_mean is not None and module.running_var is not None:
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
            if module.affine:
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias)
    return model.eval().requires_grad_(False)
