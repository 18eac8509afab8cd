"""The suite of Tensor Comprehensions' evaluation, as ``benchmarks/peers/ops.py`` has it for the CPU, with the paper's large tables."""
from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from gpu.case import Case, Entry, Input

NAMES = """
tmm_s tmm_m tmm_l tbmm gconv_56 gconv_14 gconv_7 mlp1 mlp3 lut1 lut2 c3 kru3 moments tensordot wavenet
""".split()
ROWS = 10_000_000  # of a look-up table, in the paper
SMALL = 7  # extents at most, for the tests
_PARAM = re.compile(r"\w+\(([\w,]+)\) (\w+)")


def _peers_ops() -> dict[str, Any]:
    """OPS of the peers' harness, whose modules have names of their own there."""
    spec = importlib.util.spec_from_file_location("peers_ops", Path(__file__).resolve().parents[1] / "peers" / "ops.py")
    assert spec is not None and spec.loader is not None
    if spec.name not in sys.modules:
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    found: dict[str, Any] = sys.modules[spec.name].OPS
    return found


def sizes(op: Any) -> dict[str, int]:
    """The value of every size that the parameters of an op name."""
    dims = {name: listed.split(",") for listed, name in _PARAM.findall(op.source.partition("->")[0])}
    return {dim: extent for given in op.inputs for dim, extent in zip(dims[given.name], given.shape) if not dim.isdigit()}


def _made(op: Any, **extents: int) -> Case:
    """An op at other sizes."""
    dims = {name: listed.split(",") for listed, name in _PARAM.findall(op.source.partition("->")[0])}
    shapes = {name: tuple(extents[dim] if dim in extents else int(dim) for dim in listed) for name, listed in dims.items()}

    def eager(*inputs: Any) -> Any:
        return op.torch_form(torch, F, *inputs)

    def one(name: str, draw: str | int) -> Input:
        if isinstance(draw, int):  # I1 looks up rows of LUT1
            return Input(name, shapes[name], "int32", shapes[name.replace("I", "LUT")][0])
        return Input(name, shapes[name], draw=draw)

    inputs = tuple(one(given.name, given.draw) for given in op.inputs)
    touched = op.bytes - 4 * sum(_product(shape) for shape in op.outputs.values()) if "LUT" in op.source else None
    product = "matmul_nt" if op.name.startswith("tmm") or op.name == "c3" else ""
    return Case(inputs, tuple(op.outputs), op.source, op.entry, eager, op.flops, triton=product, touched=touched)


def _product(shape: tuple[int, ...]) -> int:
    result = 1
    for extent in shape:
        result *= extent
    return result


def _entry(name: str) -> Entry:
    op = _peers_ops()[name]
    dims = {size: ROWS if size.startswith("E") and name.startswith("lut") else extent for size, extent in sizes(op).items()}
    small = {size: min(extent, SMALL) for size, extent in dims.items()}
    return Entry(name, "tc", lambda **extents: _made(op, **extents), dims, small, quick=True)


ENTRIES = [_entry(name) for name in NAMES]
