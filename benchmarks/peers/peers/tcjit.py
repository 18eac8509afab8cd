"""tcjit through its public interface. BENCH_TUNE=N tunes with N trials first; a fresh cache unless TCJIT_CACHE_DIR is set."""
from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TCJIT_CACHE_DIR", os.environ["BENCH_CACHE"] + "/tcjit")
import torch
from ops import Op

import tcjit
from peers.torch_eager import prepare, to_numpy

__all__ = ["build", "prepare", "to_numpy", "versions"]


def versions() -> dict[str, str]:
    return {"tcjit": tcjit.__version__, "torch": torch.__version__}


def build(op: Op, arguments: Sequence[Any]) -> Callable[..., Any]:
    function = getattr(tcjit.define(op.source), op.entry)
    info = {}
    if trials := int(os.environ.get("BENCH_TUNE", "0")):
        start = time.perf_counter()
        function.autotune(*arguments, config=tcjit.TunerConfig(trials=trials))
        info = {"tuning_s": time.perf_counter() - start, "trials": trials}
    returns = op.source.partition("->")[2].partition("(")[2].partition(")")[0].replace(" ", "").split(",")
    wanted = [returns.index(output) for output in op.outputs]

    def call(*tensors: torch.Tensor) -> Any:
        results = function(*tensors)
        return tuple(results[position] for position in wanted) if len(returns) > 1 else results

    call.info = info  # type: ignore[attr-defined]
    return call
