"""Nanoseconds that elementwise operations take for an element on one core, beyond moving it, in ATen and in a kernel of tcjit:
``python benchmarks/elementwise.py``. The table of ``tcjit/byoc/cost.py`` is from its output.
"""
from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402 - the number of threads is read when it is imported

import tcjit  # noqa: E402
from tcjit.byoc.cost import ELEMENT_S  # noqa: E402

ELEMENTS = 1 << 15
CALLS = 60


class One(torch.nn.Module):
    """A module of one operation."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.function(x)
        return result


def best(call: Callable[..., Any], x: torch.Tensor) -> float:
    """The least seconds of a call."""
    seconds = []
    for _ in range(CALLS):
        start = time.perf_counter()
        call(x)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main() -> None:
    torch.set_num_threads(1)
    positive = torch.rand(ELEMENTS) + 0.1
    mixed = positive * torch.randn(ELEMENTS).sign()
    with torch.no_grad():
        moved = best(torch.abs, mixed)
        print(f"{'operation':<16} {'ATen ns':>8} {'tcjit ns':>8}")
        for op in ELEMENT_S:
            name = op.removeprefix("aten.")
            function = getattr(torch, name, None) or getattr(torch.nn.functional, name.replace("log_sigmoid", "logsigmoid"))
            x = positive if name in ("log", "log2") else mixed
            kernel = tcjit.partition(One(function).eval(), (x,), tcjit.PartitionConfig(cost=False))
            found = [1e9 * (best(call, x) - moved) / ELEMENTS for call in (function, kernel)]
            print(f"{op:<16} {found[0]:8.2f} {found[1]:8.2f}")


if __name__ == "__main__":
    main()
