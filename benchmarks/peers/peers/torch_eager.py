"""PyTorch as anyone writes it."""
from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from ops import Op

torch.set_num_threads(int(os.environ["BENCH_THREADS"]))
torch.set_grad_enabled(False)
torch.backends.opt_einsum.enabled = False  # a plain `pip install torch` has no opt_einsum


def versions() -> dict[str, str]:
    return {"torch": torch.__version__}


def prepare(inputs: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in inputs.items()}


def build(op: Op, arguments: Sequence[Any]) -> Callable[..., Any]:
    def call(*tensors: torch.Tensor) -> Any:
        return op.torch_form(torch, F, *tensors)

    return call


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    return tensor.numpy()
