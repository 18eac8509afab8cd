"""Types from PyTorch's own rules: known extents, extents known at the run only, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tcjit.byoc.graph import TensorType, Value
from tcjit.byoc.infer import Shapes, make, result_types, type_of
from tcjit.errors import PartitionError

pytestmark = pytest.mark.host


def value(*shape: int | None, dtype: str = "float32") -> Value:
    return Value("x", TensorType(dtype, shape))


@pytest.mark.parametrize(
    ("op", "overload", "arguments", "types"),
    [
        ("aten.add", "Tensor", {"self": value(2, 3), "other": value(3, dtype="float64")}, ["float64[2x3]"]),
        ("aten.add", "Tensor", {"self": value(None, 4), "other": value(7, 1, dtype="float16")}, ["float32[7x4]"]),
        ("aten.add", "Tensor", {"self": value(None, 4), "other": value(None, 4)}, ["float32[?x4]"]),
        ("aten.mm", "default", {"self": value(None, 4), "mat2": value(4, 5)}, ["float32[?x5]"]),
        ("aten.view", "default", {"self": value(None, 4), "size": (-1, 2)}, ["float32[?x2]"]),
        ("aten.conv2d", "default", {"input": value(None, 3, 8, 8), "weight": value(4, 3, 3, 3)}, ["float32[?x4x6x6]"]),
        ("aten.cat", "default", {"tensors": (value(2, 3), value(None, 3)), "dim": 0}, ["float32[?x3]"]),
        ("aten.nonzero", "default", {"self": value(2, 3)}, ["int64[?x2]"]),
        ("aten.select", "int", {"self": value(2, 3), "dim": 0, "index": Value("i")}, ["float32[3]"]),
        ("aten.to", "dtype", {"self": value(2, 3), "dtype": 5}, ["float16[2x3]"]),
        ("aten.max", "dim", {"self": value(2, 3), "dim": 1}, ["float32[2]", "int64[2]"]),
        ("aten.split", "Tensor", {"self": value(5, 3), "split_size": 2}, ["float32[2x3]", "float32[2x3]", "float32[1x3]"]),
        ("aten.relu", "default", {"self": Value("x", TensorType())}, ["?[?]"]),
    ],
)
def test_types(op: str, overload: str, arguments: dict[str, Any], types: list[str]) -> None:
    assert list(map(str, result_types(op, overload, arguments))) == types


def test_what_cannot_be_computed_is_refused() -> None:
    with pytest.raises(PartitionError, match=r"aten.mm.default cannot take %x: float32\[2x3\], %x: float32\[2x3\]: .*\[2, 3\] X \[2, 3\]"):
        result_types("aten.mm", "default", {"self": value(2, 3), "mat2": value(2, 3)})
    with pytest.raises(PartitionError, match="lacks its argument mat2"):
        result_types("aten.mm", "default", {"self": value(2, 3)})


def test_a_new_node_has_defaults_types_and_effect() -> None:
    node = make("aten.add", "Tensor", {"self": value(2, 3), "other": 1}, name="sum")
    assert str(node) == "%sum: float32[2x3] = aten.add(self=%x: float32[2x3], other=1, alpha=1)"
    assert node.output.producer is node and node.effect == "" and node.origin is None
    node = make("aten.max", "dim", {"self": value(2, 3), "dim": 1}, name="most")
    assert [each.name for each in node.outputs] == ["most_0", "most_1"] and [each.position for each in node.outputs] == [0, 1]
    assert make("aten.t", "default", {"self": value(2, 3)}, name="t").effect == "view"
    given = make("aten.relu", "default", {"self": Value("x", TensorType())}, name="y", outputs=[TensorType("float32", (1,))])
    assert str(given.output.type) == "float32[1]"
    with pytest.raises(PartitionError, match="takes no beta"):
        make("aten.add", "Tensor", {"self": value(2), "other": 1, "beta": 2}, name="sum")


def test_an_example_keeps_its_strides() -> None:
    shapes = Shapes()
    like = shapes.like(torch.empty(4, 5).t())
    assert like.stride() == (1, 5) and str(type_of(like)) == "float32[5x4]"
    like = shapes.like(torch.empty(4, 5).t(), (1,))
    assert str(type_of(like)) == "float32[5x?]" and not like.is_contiguous()
    assert type_of(3) is None and str(type_of(torch.empty(2, dtype=torch.bool))) == "bool[2]"


def test_refusals_are_not_logged(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PartitionError):
        result_types("aten.mm", "default", {"self": value(2, 3), "mat2": value(2, 3)})
    assert not caplog.records and "failed while" not in capfd.readouterr().err
