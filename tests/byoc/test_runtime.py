"""Specs of regions and the operator that runs them: served, replayed, traced, differentiated.

Modules: byoc.report byoc.spec
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from support.byoc.graphs import Build
from support.byoc.scripts import Toy
from torch.fx.experimental.proxy_tensor import make_fx

from tcjit.byoc import runtime
from tcjit.byoc.backends import unregister
from tcjit.byoc.graph import Argument, Block, TensorType, Value
from tcjit.byoc.infer import make
from tcjit.byoc.ops import operator
from tcjit.byoc.regions import NodeGroup, Region, merge
from tcjit.byoc.spec import Runner, Unserved, fits, parse, plan, replay, seal, spec
from tcjit.errors import PartitionError

pytestmark = pytest.mark.host


def region(block: Block, backend: str = "toy") -> Region:
    (found,) = merge(block, [NodeGroup(backend, (node,)) for node in block.nodes])
    return found


def sum_and_relu(backend: str = "toy") -> Region:
    """relu(x + w) and x + w, of x (2, 3) and a constant w (3,)."""
    b = Build()
    x, w = b.input(2, 3), b.weight(3)
    total = b("aten.add", x, w, 1, overload="Tensor")
    return region(b.block(b("aten.relu", total, overload="default"), total), backend)


class Served(Toy):
    """A backend whose runner is a given function."""

    def __init__(self, run: Callable[[Sequence[torch.Tensor]], Sequence[Any]], name: str = "served") -> None:
        super().__init__(name)
        self.run = run
        self.loads = 0

    def load(self, spec: Mapping[str, Any]) -> Runner:
        self.loads += 1
        return self.run


def test_a_spec_says_what_a_region_computes() -> None:
    found = parse(spec(sum_and_relu(), {"source": "text"}))
    assert [found[key] for key in ("version", "backend", "name", "code")] == [1, "toy", "toy_0_add_relu", {"source": "text"}]
    shape = {"dtype": "float32", "device": "cpu"}
    assert found["inputs"] == [
        {"name": "v1", "shape": [2, 3], "constant": False, **shape},
        {"name": "v2", "shape": [3], "constant": True, **shape},
    ]
    assert [each["name"] for each in found["outputs"]] == ["v3", "v4"]
    assert found["nodes"][0] == {
        "op": "aten.add",
        "overload": "Tensor",
        "arguments": {"self": {"value": "v1"}, "other": {"value": "v2"}, "alpha": 1},
        "outputs": ["v3"],
    }


def test_names_in_a_spec_are_identifiers_and_differ() -> None:
    b = Build()
    x, y = b.input(2), b.input(2)
    x.name, y.name = "x.1", "x_1"
    end = b("aten.add", x, y, 1, overload="Tensor")
    end.name = "2"
    found = parse(spec(region(b.block(end)), {}))
    assert [each["name"] for each in (*found["inputs"], *found["outputs"])] == ["x_1", "x_1_1", "_2"]


@pytest.mark.parametrize(
    ("op", "overload", "arguments"),
    [
        ("aten.clamp", "default", (float("-inf"), 0.5)),
        ("aten.full_like", "default", (float("nan"),)),
        ("aten.mul", "Scalar", (2 + 1j,)),
        ("aten.flip", "default", ((0, 1),)),
        ("aten.to", "dtype", (7,)),
        ("aten.sum", "dim_IntList", ((1,), True)),
    ],
)
def test_arguments_of_all_kinds_come_back(op: str, overload: str, arguments: tuple[Argument, ...]) -> None:
    x = Value("x", TensorType("float32", (2, 3)))
    names = [each.name for each in operator(op, overload)._schema.arguments]
    node = make(op, overload, dict(zip(names, (x, *arguments))), name="y")
    whole = Region("toy", "one", (), (node,), (x,), (), node.outputs)
    given = torch.randn(2, 3)
    (found,) = replay(parse(spec(whole, {})), [given])
    expected = getattr(torch, op[5:])(given, *arguments) if op != "aten.to" else given.double()
    assert found.dtype == expected.dtype and torch.allclose(found, expected, equal_nan=True)


def test_damaged_and_foreign_specs_are_refused() -> None:
    text = spec(sum_and_relu(), {})
    with pytest.raises(PartitionError, match="not as it was written"):
        parse(text.replace('"alpha":1', '"alpha":2'))
    with pytest.raises(PartitionError, match="version 7, this tcjit reads 1"):
        parse(seal({**parse(text), "version": 7}))
    with pytest.raises(PartitionError, match="lacks nodes"):
        parse(seal({key: value for key, value in parse(text).items() if key != "nodes"}))
    for wrong in ("", "{", "[1]", "null"):
        with pytest.raises(PartitionError, match="no spec of a region|version None"):
            parse(wrong)
    with pytest.raises(PartitionError, match="cannot be written as JSON"):
        spec(sum_and_relu(), {"tensor": torch.ones(1)})
    assert parse(seal(parse(text))) == json.loads(text)


def test_a_plan_checks_what_it_runs() -> None:
    found = parse(spec(sum_and_relu(), {}))
    with pytest.raises(PartitionError, match="takes 2 tensors, not 1"):
        replay(found, [torch.ones(3)])
    with pytest.raises(PartitionError, match="uses v9, which nothing before computes"):
        plan({**found, "outputs": [{"name": "v9"}]})
    with pytest.raises(PartitionError, match="no operator aten.other"):
        plan({**found, "nodes": [{**found["nodes"][0], "op": "aten.other"}]})


def test_results_have_memory_of_their_own() -> None:
    b = Build()
    x = b.input(2, 3)
    turned = b("aten.t", x, overload="default", effect="view", shape=(3, 2))
    same = b("aten.contiguous", b("aten.relu", x, overload="default"), overload="default", effect="view")
    block = b.block(turned, same, same.producer.arguments["self"])  # type: ignore[union-attr, arg-type]
    found = merge(block, [NodeGroup("toy", tuple(block.nodes), row="all")])[0]
    given = torch.randn(2, 3)
    results = replay(parse(spec(found, {})), [given])
    assert len({each.untyped_storage().data_ptr() for each in (given, *results)}) == 4
    assert all(torch.equal(one, other) for one, other in zip(results, [given.t(), given.relu(), given.relu()]) if one.shape == other.shape)


@pytest.mark.parametrize("twice", [False, True], ids=["of an input", "of a result"])
def test_a_view_is_no_memory_of_something_else(twice: bool) -> None:
    """Of an input where all results differ, and of another result where none is an input's."""
    b = Build()
    x = b.input(2, 3)
    whole = b("aten.relu", x, overload="default") if twice else x
    turned = b("aten.t", whole, overload="default", effect="view", shape=(3, 2))
    block = b.block(turned, whole) if twice else b.block(turned)
    found = merge(block, [NodeGroup("toy", tuple(block.nodes), row="all")])[0]
    given = torch.randn(2, 3)
    results = replay(parse(spec(found, {})), [given])
    assert len({each.untyped_storage().data_ptr() for each in (given, *results)}) == 1 + len(results)
    assert any(torch.equal(each, (given.relu() if twice else given).t()) for each in results)


def test_a_runner_is_asked_for_once_and_serves() -> None:
    backend = Served(lambda tensors: (torch.add(*tensors), torch.add(*tensors).relu()))
    text = spec(sum_and_relu("served"), {"test": "once"})
    x, w = torch.randn(2, 3), torch.randn(3)
    for _ in range(3):
        total, positive = runtime.call(text, [x, w])
        assert torch.equal(total, x + w) and torch.equal(positive, (x + w).relu())
    assert backend.loads == 1
    runtime.forget("served")
    runtime.call(text, [x, w])
    assert backend.loads == 2


def test_what_a_runner_does_not_serve_runs_in_plain_aten() -> None:
    calls = []

    def run(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        calls.append(tensors[0].dtype)
        if tensors[0].dtype != torch.float32:
            raise Unserved("float32 only")
        return torch.add(*tensors), torch.add(*tensors).relu()

    backend = Served(run)
    text = spec(sum_and_relu("served"), {"test": "unserved"})
    x, w = torch.randn(2, 3).double(), torch.randn(3).double()
    for dtype in (torch.float64, torch.float64, torch.float32, torch.float64):
        total, _ = runtime.call(text, [x.to(dtype), w.to(dtype)])
        assert total.dtype == dtype and torch.equal(total, x.to(dtype) + w.to(dtype))
    assert calls == [torch.float64, torch.float64, torch.float32, torch.float64] and backend.loads == 1


@pytest.mark.parametrize(
    ("run", "what"),
    [
        (lambda tensors: [tensors[0]], "1 results, not 2"),
        (lambda tensors: [tensors[0] + 1, 3.0], "something of type float, not a tensor"),
        (lambda tensors: [tensors[0].double(), tensors[0] + 1], r"float64\[2, 3\], float32\[2, 3\], not float32\[2, 3\], float32\[2, 3\]"),
        (lambda tensors: [tensors[1] + 1, tensors[0] + 1], r"gave float32\[3\]"),
    ],
)
def test_a_runner_that_gives_something_else_is_told(run: Callable[[Sequence[torch.Tensor]], Sequence[Any]], what: str) -> None:
    Served(run)
    runtime.forget("served")
    with pytest.raises(PartitionError, match=what):
        runtime.call(spec(sum_and_relu("served"), {"test": what}), [torch.randn(2, 3), torch.randn(3)])


def test_other_errors_of_a_runner_are_not_hidden() -> None:
    def run(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        raise ZeroDivisionError("in the kernel")

    Served(run)
    with pytest.raises(ZeroDivisionError, match="in the kernel"):
        runtime.call(spec(sum_and_relu("served"), {"test": "errors"}), [torch.randn(2, 3), torch.randn(3)])


def test_a_backend_that_is_not_there_is_named() -> None:
    text = spec(sum_and_relu("absent"), {})
    unregister("absent")
    with pytest.raises(PartitionError, match="there is no backend 'absent'"):
        runtime.call(text, [torch.randn(2, 3), torch.randn(3)])


def test_gradients_are_those_of_the_operations() -> None:
    """First and second derivatives, with respect to inputs and constants, and none where none is recorded."""
    toy = Toy()
    text = spec(sum_and_relu(), {"test": "gradients"})
    x, w = torch.randn(2, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda a, b: runtime.call(text, [a, b])[1], (x.requires_grad_(), w.requires_grad_()))
    assert torch.autograd.gradgradcheck(lambda a, b: runtime.call(text, [a, b * b])[0] ** 2, (x, w))
    total, positive = runtime.call(text, [x.detach(), w])
    (total.sum() + positive.sum()).backward()
    assert w.grad is not None and torch.equal(w.grad, (2.0 * (total > 0) + (total <= 0)).sum(0))
    assert not toy.calls, "gradients come from plain ATen"
    with torch.no_grad():
        assert not runtime.call(text, [x, w])[0].requires_grad
    assert not runtime.call(text, [x.detach(), w.detach()])[0].requires_grad
    with torch.inference_mode():
        runtime.call(text, [x, w])
    assert toy.calls == ["toy_0_add_relu"] * 3


def test_forward_derivatives_autocast_and_batches() -> None:
    toy = Toy()
    text = spec(sum_and_relu(), {"test": "transforms"})
    x, w = torch.randn(2, 3), torch.randn(3)
    _, tangent = torch.func.jvp(lambda a: runtime.call(text, [a, w])[1], (x,), (torch.ones_like(x),))
    assert torch.equal(tangent, ((x + w) > 0).float())
    assert torch.equal(torch.func.grad(lambda a: runtime.call(text, [a, w])[0].sum())(x), torch.ones_like(x))
    assert not toy.calls
    with torch.autocast("cpu", torch.bfloat16):
        runtime.call(text, [x, w])
    assert not toy.calls, "under autocast operations choose their dtypes"
    many = torch.randn(4, 2, 3)
    batched = torch.func.vmap(lambda a: runtime.call(text, [a, w])[0])(many)
    assert torch.equal(batched, many + w) and len(toy.calls) == 4


def test_tensors_without_data_and_traces() -> None:
    toy = Toy()
    text = spec(sum_and_relu(), {"test": "traces"})
    x, w = torch.randn(2, 3), torch.randn(3)
    assert [each.shape for each in runtime.call(text, [x.to("meta"), w.to("meta")])] == [(2, 3), (2, 3)]
    traced = make_fx(lambda a, b: runtime.call(text, [a, b])[1], tracing_mode="symbolic")(x, w)
    assert [node.target for node in traced.graph.nodes if "call" in str(node.target)] == [torch.ops.tcjit.call.default]
    assert not toy.calls
    assert torch.equal(traced(x, w), (x + w).relu()) and len(toy.calls) == 1
    torch.library.opcheck(torch.ops.tcjit.call.default, (text, [x, w]))


def test_fits_compares_what_is_known() -> None:
    found = parse(spec(sum_and_relu(), {}))
    x, w = torch.randn(2, 3), torch.randn(3)
    assert fits(found, [x, w]) and not fits(found, [x]) and not fits(found, [x.double(), w]) and not fits(found, [x, torch.randn(4)])
    assert not fits(found, [x[None], w]) and not fits(found, [x.to("meta"), w])
    found["inputs"][0]["shape"] = [None, 3]
    assert fits(found, [torch.randn(7, 3), w]) and not fits(found, [torch.randn(7, 4), w])
