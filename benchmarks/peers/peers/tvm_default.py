"""TVM untuned: the plain loop nest, serial, vectorised by LLVM alone. TVM_MCPU names the processor for LLVM."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from ops import Op

from peers._tvm import TARGET, compiled, module, prepare, to_numpy

__all__ = ["build", "prepare", "to_numpy", "versions"]


def versions() -> dict[str, str]:
    return {"tvm": tvm.__version__}


def build(op: Op, arguments: Sequence[Any]) -> Callable[..., Any]:
    return compiled(module(op), TARGET, op)
