"""Operators by name, their arguments, and what they do besides computing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tcjit.byoc.ops import DTYPES, bind, call, effect_of, operator, plain, run, written
from tcjit.errors import PartitionError

pytestmark = pytest.mark.host


def test_operators_are_found_by_name_and_overload() -> None:
    assert operator("aten.add", "Tensor") is torch.ops.aten.add.Tensor
    assert operator("aten.relu", "") is operator("aten.relu", "default") is torch.ops.aten.relu.default
    with pytest.raises(PartitionError, match="has no operator aten.nothing"):
        operator("aten.nothing", "default")
    with pytest.raises(PartitionError, match="has no overload 'Row'.*\n.*Tensor"):
        operator("aten.add", "Row")


def test_arguments_go_by_the_names_of_the_schema_with_all_defaults() -> None:
    assert bind(torch.ops.aten.add.Tensor, ("x", "y"), {}) == {"self": "x", "other": "y", "alpha": 1}
    found = bind(torch.ops.aten.conv2d.default, ("x", "w"), {"stride": [2, 2]})
    assert found == {"input": "x", "weight": "w", "bias": None, "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    assert list(found) == "input weight bias stride padding dilation groups".split()
    made = bind(torch.ops.aten.zeros.default, ([2, 3],), {"dtype": torch.float16, "device": torch.device("cpu"), "layout": torch.strided})
    assert made == {"size": (2, 3), "dtype": 5, "layout": 0, "device": "cpu", "pin_memory": None}
    assert plain(torch.channels_last) == 2 and plain(torch.Size([1, 2])) == (1, 2)


@pytest.mark.parametrize(
    ("args", "kwargs", "what"),
    [
        (("x",), {}, "lacks its argument other"),
        (("x", "y", "z"), {}, "takes no argument number 3"),
        (("x", "y"), {"beta": 1}, "takes no beta"),
        (("x", "y"), {"self": 1}, "is given self twice"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(args: tuple[Any, ...], kwargs: dict[str, Any], what: str) -> None:
    with pytest.raises(PartitionError, match=what):
        bind(torch.ops.aten.add.Tensor, args, kwargs)


def test_a_node_runs_with_numbers_for_dtypes_and_texts_for_devices() -> None:
    x = torch.arange(6.0).view(2, 3)
    (found,) = run("aten.to", "dtype", {"self": x, "dtype": DTYPES[torch.int64]})
    assert found.dtype == torch.int64
    (made,) = run("aten.zeros", "default", {"size": (2,), "dtype": DTYPES[torch.bool], "device": "cpu"})
    assert made.dtype == torch.bool and made.device.type == "cpu"
    one, other = run("aten.split", "Tensor", {"self": x, "split_size": 2, "dim": 1})
    assert one.shape == (2, 2) and other.shape == (2, 1), "a list of tensors is so many results"
    values, places = run("aten.max", "dim", {"self": x, "dim": 1})
    assert torch.equal(values, torch.tensor([2.0, 5.0])) and torch.equal(places, torch.tensor([2, 2]))
    with pytest.raises(PartitionError, match="aten.add.Tensor lacks its argument other"):
        call("aten.add", "Tensor", {"self": x})
    with pytest.raises(PartitionError, match="no ScalarType of number 99"):
        run("aten.to", "dtype", {"self": x, "dtype": 99})


def test_the_numbers_of_dtypes_are_those_of_torchscript() -> None:
    for dtype, number in DTYPES.items():
        if dtype != torch.complex32:
            assert torch.ops.aten.zeros.default([1], dtype=number, device="meta").dtype == dtype


@pytest.mark.parametrize(
    ("op", "overload", "arguments", "effect"),
    [
        ("aten.add", "Tensor", {}, ""),
        ("aten.add_", "Tensor", {}, "mutates"),
        ("aten.t", "default", {}, "view"),
        ("aten.reshape", "default", {}, "view"),
        ("aten.split", "Tensor", {}, "view"),
        ("aten.einsum", "default", {}, "view"),
        ("aten.type_as", "default", {}, "view"),
        ("aten.rand_like", "default", {}, "random"),
        ("aten.dropout", "default", {}, "random"),
        ("aten.dropout", "default", {"train": True}, "random"),
        ("aten.dropout", "default", {"train": False}, "view"),
        ("aten.scaled_dot_product_attention", "default", {"dropout_p": 0.0}, ""),
        ("aten.scaled_dot_product_attention", "default", {"dropout_p": 0.1}, "random"),
        ("aten.batch_norm", "default", {"training": False}, ""),
        ("aten.batch_norm", "default", {"training": True}, "mutates"),
        ("aten.batch_norm", "default", {}, "mutates"),
        ("aten._assert_async", "default", {}, "acts"),
    ],
)
def test_effects(op: str, overload: str, arguments: dict[str, Any], effect: str) -> None:
    assert effect_of(operator(op, overload), arguments) == effect


def test_what_is_written_to() -> None:
    assert written(operator("aten.add_", "Tensor"), {}) == ("self",)
    assert written(operator("aten.add", "out"), {}) == ("out",)
    statistics = {"running_mean": None, "running_var": None}
    assert written(operator("aten.batch_norm", "default"), {**statistics, "training": True}) == ("running_mean", "running_var")
    assert written(operator("aten.batch_norm", "default"), {**statistics, "training": False}) == ()
