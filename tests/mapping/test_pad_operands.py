"""Which reads are copied ahead of a sum.

Modules: mapping.passes.pad_operands
"""
from __future__ import annotations

import pytest
import torch
from support.mapping import program

import tcjit
from tcjit.grammar.printer import show
from tcjit.mapping.machine import Machine
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import build_scop

RING = """def f(TYPE(H,W) X) -> (Y) { Y(y,x) +=! u != 1 || v != 1 ? VALUE : ZERO
    where y in 0:H, x in 0:W, u in 0:3, v in 0:3 }"""
READ = "X((y + u + H - 1) % H, (x + v + W - 1) % W)"


@pytest.mark.parametrize(
    ("dtype", "value", "zero"),
    [("float", READ, "0.0"), ("uint8", f"int32({READ})", "0"), ("int8", f"int32({READ}) - 3", "0"), ("float16", f"float({READ})", "0.0")],
)
def test_neighbours_on_a_torus_are_copied(dtype: str, value: str, zero: str) -> None:
    text = RING.replace("TYPE", dtype).replace("VALUE", value).replace("ZERO", zero)
    scop = build_scop(program(text, {"X": (40, 50)}), Options(), target=Machine(), prove="every")
    assert any("_padded" in tensor.name for tensor in scop.tensors)
    assert not any("%" in show(s.value) for s in scop.statements if s.tensor == "Y"), "no index of the sum is divided"
    x = (torch.rand(40, 50) * 9).to(getattr(torch, {"float": "float32"}.get(dtype, dtype)))
    wide = x.to(torch.int32 if zero == "0" else torch.float32)
    shifted = [wide.roll((1 - u, 1 - v), (0, 1)) for u in range(3) for v in range(3) if (u, v) != (1, 1)]
    torch.testing.assert_close(tcjit.define(text).f(x), sum(shifted) - (24 if "- 3" in value else 0), rtol=1e-6, atol=1e-6)
