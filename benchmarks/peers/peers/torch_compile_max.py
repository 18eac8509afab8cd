"""torch.compile(mode="max-autotune"), the C++ matrix-product template among its candidates, constants not frozen."""
from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["BENCH_CACHE"] + "/inductor-max"
import torch
import torch._inductor.config
import torch.nn.functional as F
from ops import Op

from peers.torch_compile import compiled
from peers.torch_eager import prepare, to_numpy, versions

__all__ = ["build", "prepare", "to_numpy", "versions"]

torch._inductor.config.max_autotune_gemm_backends = "ATEN,CPP"


def build(op: Op, arguments: Sequence[Any]) -> Callable[..., Any]:
    return compiled(lambda *tensors: op.torch_form(torch, F, *tensors), mode="max-autotune")
