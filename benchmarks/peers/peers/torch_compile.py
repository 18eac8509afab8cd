"""torch.compile with its defaults, shapes fixed."""
from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.environ["BENCH_CACHE"] + "/inductor")
import torch
import torch._dynamo
import torch.nn.functional as F
from ops import Op

from peers.torch_eager import prepare, to_numpy, versions

__all__ = ["build", "compiled", "prepare", "to_numpy", "versions"]

torch._dynamo.config.cache_size_limit = 1000


def compiled(function: Callable[..., Any], **mode: str) -> Callable[..., Any]:
    """``function`` compiled from scratch."""
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False, fullgraph=True, **mode)


def build(op: Op, arguments: Sequence[Any]) -> Callable[..., Any]:
    return compiled(lambda *tensors: op.torch_form(torch, F, *tensors))
