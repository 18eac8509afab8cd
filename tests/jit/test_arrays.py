"""Arrays of NumPy and of others that speak DLPack as arguments.

Modules: jit.arguments
"""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.calls import assert_refused, defs
from support.rings.targets import everywhere

import tcjit

pytestmark = pytest.mark.sample(2, over="targets")


@pytest.fixture(params=["reference", *everywhere(cuda="arrays on a GPU are tensors there, which tests/cuda has")])
def tc(request: pytest.FixtureRequest) -> Any:
    return defs(request.param)


class Foreign:
    """An array of another library: it speaks DLPack and nothing else."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __dlpack__(self, **named: Any) -> Any:
        return self.tensor.__dlpack__(**named)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


A, B = np.arange(12, dtype=np.float32).reshape(3, 4), np.ones((4, 5), dtype=np.float32)


def test_results_are_those_of_tensors(tc: Any) -> None:
    expected = torch.from_numpy(A @ B)
    frozen = A.copy()
    frozen.flags.writeable = False
    strided = np.asfortranarray(A)
    for a in (A, frozen, strided, np.repeat(A, 2, 1)[:, ::2], Foreign(torch.from_numpy(A)), torch.from_numpy(A)):
        for _ in range(3):
            assert torch.equal(tc.mm(a, B), expected)
            assert torch.equal(tc.mm(B=B, A=a), expected)
    out = torch.empty(3, 5)
    assert tc.mm(A, B, out=out) is out and torch.equal(out, expected)
    assert np.array_equal(np.from_dlpack(tc.mm(A, B)), A @ B)
    assert tc.add(np.empty(0, np.float32), np.empty(0, np.float32)).shape == (0,)
    assert torch.equal(tc.pick(A, np.array([2, 0])), torch.from_numpy(A[[2, 0]]))


def test_kernels_take_arrays(tc: Any) -> None:
    kernel = tc.mm.compile(A, B)
    assert torch.equal(kernel(A, B), torch.from_numpy(A @ B))
    kernel.check(A, B)


def test_wrong_arrays(tc: Any) -> None:
    unaligned = np.zeros(4 * 12 + 1, np.int8)[1:].view(np.float32).reshape(3, 4)
    for wrong, says in (
        (A[::-1], "has negative strides"),
        (A.astype(">f4"), "cannot be read through DLPack"),
        (np.array([["x"] * 4] * 3), "cannot be read through DLPack"),
        (unaligned, "is not aligned"),
        (A.astype(np.float64), "must have dtype torch.float32"),
        (A[0], "must have 2 dimensions"),
    ):
        assert_refused(lambda: tc.mm(wrong, B), tcjit.ArgumentError, says)  # noqa: B023
    assert_refused(lambda: tc.mm(A, B[:3]), tcjit.ShapeError)
    assert_refused(lambda: tc.mm(A), tcjit.ArgumentError, "takes 2 arguments but 1 was given")
    assert_refused(lambda: tc.add(A[0], torch.empty(4, device="meta")), tcjit.ArgumentError, "devices")


def test_gradients_of_tensors_beside_arrays(tc: Any) -> None:
    text = """
def scale(float(N) X, float(N) W) -> (Y) { Y(i) = X(i) * W(i) }
def scale_back(float(N) d_Y, float(N) X) -> (d_W) { d_W(i) = d_Y(i) * X(i) }
"""
    scale = tcjit.define(text, target=tc.mm.target, backward={"scale": "scale_back"}).scale
    w = torch.ones(4, requires_grad=True)
    scale(A[1], w).sum().backward()
    assert torch.equal(w.grad, torch.from_numpy(A[1]))
