"""The expert's formulations through torch.compile."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ops import Op

from peers import torch_expert
from peers.torch_compile import compiled
from peers.torch_eager import prepare, to_numpy, versions

__all__ = ["build", "prepare", "to_numpy", "versions"]


def build(op: Op, arguments: Sequence[Any]) -> Callable[..., Any]:
    return compiled(torch_expert.build(op, arguments))
