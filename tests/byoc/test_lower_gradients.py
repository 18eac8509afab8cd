"""Gradients of regions where operations have kinks, ties and infinities: those that PyTorch defines, by derived adjoints.

Modules: byoc.lower.gradients
"""
from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.byoc.lower import Graph, assert_lowered
from torch import Tensor

from tcjit.byoc.backends import find
from tcjit.byoc.lower.gradients import ties
from tcjit.byoc.spec import parse, plan, spec
from tcjit.errors import PartitionError

# what activations have kinks at, and what overflows in an exponential
POINTS = torch.tensor([-200.0, -90.0, -20.0, -6.0, -3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 6.0, 20.0, 90.0, 200.0])
CALLS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys("relu relu6 silu mish hardswish hardsigmoid sigmoid tanh gelu selu elu celu softplus log_sigmoid abs".split(), ()),
    **dict.fromkeys("sign square floor ceil round trunc frac neg atan erf expm1 hardshrink softshrink leaky_relu".split(), ()),
    "gelu ": ("tanh",),
    "elu ": (2.0, 1.5, 0.7),
    "clamp": (-1.0, 2.0),
    "clamp ": (-1.0,),
    "clamp  ": (None, 2.0),
    "clamp   ": (2.0, -1.0),
    "clamp_min": (-1.0,),
    "clamp_max": (2.0,),
    "hardtanh": (-1.0, 2.0),
    "threshold": (0.5, 20.0),
    "nan_to_num": (),
    "pow.Tensor_Scalar": (2,),
    "pow.Tensor_Scalar ": (0,),
    "pow.Tensor_Scalar  ": (3.0,),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_at_kinks(name: str, dtype: torch.dtype) -> None:
    settings = {"approximate": "tanh"} if CALLS[name] == ("tanh",) else {}
    given = () if settings else CALLS[name]
    assert_lowered(lambda g, x: g(name.strip(), x, *given, **settings), POINTS.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_where_exponentials_overflow(dtype: torch.dtype) -> None:
    g, x = Graph(), POINTS.to(dtype)
    value = g.input(x)
    names = "silu mish sigmoid tanh gelu selu elu celu softplus log_sigmoid hardswish hardsigmoid relu relu6".split()
    region = g.region([g(name, value) for name in names])
    parsed = parse(spec(region, find("tcjit").lower(region)))
    for name, mine, plain in zip(names, *(run([x.requires_grad_()]) for run in (find("tcjit").load(parsed).recorded, plan(parsed)))):
        gradients = [torch.autograd.grad(each, x, torch.ones_like(each), retain_graph=True)[0] for each in (mine, plain)]
        tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
        torch.testing.assert_close(*gradients, rtol=tolerance, atol=tolerance, msg=lambda said: f"{name}: {said}")  # noqa: B023


@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin", "atan2", "fmod.Tensor", "remainder.Tensor", "copysign.Tensor"])
def test_of_two_numbers(name: str) -> None:
    x, y = torch.tensor([-3.0, -1.0, 1.0, 1.0, 2.0, 5.0]), torch.tensor([-1.0, -1.0, 1.0, 2.0, -2.0, 2.0])
    assert_lowered(lambda g, *a: g(name, *a), x, y)


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_rounded_quotients_have_none(mode: str) -> None:
    x, y = torch.tensor([-3.0, -1.0, 1.0, 5.0]), torch.tensor([-1.0, 2.0, 1.0, 2.0])
    assert_lowered(lambda g, *a: g("div.Tensor_mode", *a, rounding_mode=mode), x, y)


def test_roots_and_logarithms_at_zero() -> None:
    x = torch.tensor([0.0, 0.25, 1.0, 4.0])
    for name in ("sqrt", "rsqrt", "log", "reciprocal"):
        assert_lowered(lambda g, x: g(name, x), x)  # noqa: B023
    for exponent in (0.5, -0.5, -1.0, -2.0):
        assert_lowered(lambda g, x: g("pow.Tensor_Scalar", x, exponent), x)  # noqa: B023
    assert_lowered(lambda g, x, y: g("pow.Tensor_Tensor", x, y), x, torch.tensor([0.0, 2.0, -1.0, 0.5]))


@pytest.mark.parametrize("name", ["norm.ScalarOpt_dim", "std.dim", "linalg_vector_norm"])
def test_distances_at_zero(name: str) -> None:
    x = torch.tensor([[0.0, 0.0, 0.0], [1.0, -2.0, 2.0]])
    given = (2, [1]) if name != "std.dim" else ([1],)
    assert_lowered(lambda g, x: g(name, x, *given), x)


TIES = torch.tensor([[[[2.0, 2.0, 0.0, 1.0], [2.0, 1.0, 1.0, 1.0], [0.0, 0.0, 3.0, 3.0], [0.0, 0.0, 3.0, 3.0]]]])


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("max_pool2d", ([2, 2],)),
        ("max_pool2d", ([3, 3], [1, 1], [1, 1])),
        ("max_pool2d_with_indices", ([2, 2], [1, 1], [0, 0], [2, 2])),
        ("adaptive_max_pool2d", ([3, 2],)),
        ("max.dim", (3,)),
        ("min.dim", (2, True)),
        ("amax", ([2, 3],)),
        ("amin", ([3],)),
        ("max", ()),
        ("min", ()),
        ("linalg_vector_norm", (math.inf, [3])),
        ("softmax.int", (3,)),
        ("log_softmax.int", (2,)),
        ("logsumexp", ([3],)),
        ("avg_pool2d", ([3, 3], [1, 1], [1, 1])),
    ],
)
def test_among_equal_elements(name: str, given: tuple[Any, ...]) -> None:
    def make(g: Any, x: Any) -> Any:
        found = g(name, x, *given)
        return found[0] if isinstance(found, tuple) else found

    assert_lowered(make, TIES)


def node(op: str, **arguments: Any) -> dict[str, Any]:
    return {"op": f"aten.{op}", "arguments": arguments}


def test_which_elements_win() -> None:
    assert ties([node("relu")]) == ties([node("amax"), node("max")]) == ties([node("max", other={"value": "y"})]) == "even"
    assert ties([node("max_pool2d")]) == ties([node("min", dim=1), node("softmax")]) == "first"
    for nodes, why in (([node("max_pool2d"), node("amax")], "first of equal elements"), ([node("detach")], "no gradient")):
        with pytest.raises(PartitionError, match=why):
            ties(nodes)


def test_one_number() -> None:
    assert_lowered(lambda g, x: [g("max", x), g("softmax.int", x, 0)], torch.tensor(2.0))


def test_embeddings_and_choices() -> None:
    table, places = torch.randn(7, 3, generator=torch.Generator().manual_seed(1)), torch.tensor([1, 1, 6, 0, 1])
    assert_lowered(lambda g, t, p: g("embedding", t, p), table, places)
    assert_lowered(lambda g, t, p: g("index_select", t, 0, p), table, places)
    x, mask = torch.randn(2, 3, generator=torch.Generator().manual_seed(2)), torch.tensor([[True, False, True], [False, False, True]])
    assert_lowered(lambda g, x, m: g("where.ScalarOther", m, g("log", g("abs", x)), 0.0), x, mask)
    assert_lowered(lambda g, x, m: g("masked_fill.Scalar", x, m, -math.inf), x, mask)


def test_cotangents_that_need_none() -> None:
    x: Tensor = torch.randn(3, 4, generator=torch.Generator().manual_seed(3))
    assert_lowered(lambda g, x: [g("argmax", x, 1), g("gt.Scalar", x, 0.0), g("exp", x)], x)
