"""The way of the other tests to a GPU and back, tried on the CPU."""
from __future__ import annotations

import pytest
import torch
from support.rings.cuda import on_device

import tcjit
from tcjit import library
from tcjit.errors import GatherError

pytestmark = pytest.mark.host

TEXT = """
def onto(float(M, K) A) -> (C) { C(m) += A(m, k) }
def both(float(N) X, int64(B) I) -> (Y, Z) { Y(i) = X(i) + 1.0  Z(b) = X(I(b)) }
"""


def test_a_moved_tensor_lies_in_memory_as_before() -> None:
    from support.rings.cuda import moved

    whole = torch.arange(60.0).reshape(5, 12)
    for tensor in (whole, whole.T, whole[1:, 3::2], whole[2:3].expand(4, 12), torch.tensor(2.0), torch.empty(0, 3), whole.half()[1:]):
        there = moved(tensor, "cpu")
        assert torch.equal(there, tensor) and there.dtype == tensor.dtype
        assert (there.stride(), there.storage_offset()) == (tensor.stride(), tensor.storage_offset())
        assert there.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() or not tensor.numel()
    assert moved(3.5, "cpu") == 3.5


def test_defs_take_and_give_tensors_of_the_cpu() -> None:
    x, index = torch.randn(9), torch.tensor([8, 0])
    with on_device("cpu"):
        tc = tcjit.define(TEXT, target="cuda")
        y, z = tc.both(x, index)
        assert list(tc) == ["onto", "both"] and torch.equal(y, x + 1) and torch.equal(z, x[index])
        out = torch.ones(3)
        assert tc["onto"](x.reshape(3, 3), out=out) is out
        assert torch.allclose(out, 1 + x.reshape(3, 3).sum(1))
        with pytest.raises(GatherError):
            tc.both(x, index + 1)
        assert torch.equal(library.get("row_sum", target="cuda")(torch.ones(2, 3)), torch.full((2,), 3.0))
        assert type(tcjit.define(TEXT, target="reference")).__name__ == "Namespace"
        assert tc.onto.compile(x.reshape(3, 3)).target == "cpu"
    assert type(tcjit.define(TEXT)).__name__ == "Namespace"
