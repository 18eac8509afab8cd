"""opt_einsum's best contraction order, run by PyTorch."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import opt_einsum
import torch
from ops import Op

from peers.torch_eager import prepare, to_numpy

__all__ = ["build", "prepare", "to_numpy", "versions"]

EQUATIONS = {
    "tmm_s": "mk,nk->mn",
    "tmm_m": "mk,nk->mn",
    "tmm_l": "mk,nk->mn",
    "mm_1024": "mk,kn->mn",
    "mm_odd": "mk,kn->mn",
    "tbmm": "bnm,bkm->bnk",
    "c3": "by,xy->bx",
    "mttkrp": "ijk,jr,kr->ir",
    "kru3": "mnkl,zn,dk,el->mzde",
    "tccg4": "aebf,dfce->abcd",
    "tensordot": "nabhw,nbchw->nachw",
}


def versions() -> dict[str, str]:
    return {"opt_einsum": opt_einsum.__version__, "torch": torch.__version__}


def build(op: Op, arguments: Sequence[Any]) -> Callable[..., Any]:
    if op.name not in EQUATIONS:
        raise NotImplementedError("not an einsum")
    shapes = [tuple(tensor.shape) for tensor in arguments]
    expression = opt_einsum.contract_expression(EQUATIONS[op.name], *shapes, optimize="optimal")
    return lambda *tensors: expression(*tensors, backend="torch")
