"""Exported programs and FX graphs as blocks, and back: unchanged, with regions, with new constants, from a file.

Modules: byoc.adapter byoc.fx_read byoc.fx_write
"""

from __future__ import annotations

import functools
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.byoc.toy import Toy, outlined
from torch import Tensor, fx, nn
from torch._higher_order_ops.map import map as mapped
from torch.export import Dim, ExportedProgram, export
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.utils import _pytree as pytree

from tcjit.byoc.backends import unregister
from tcjit.byoc.fx import FxAdapter
from tcjit.byoc.fx_write import layout
from tcjit.byoc.graph import Block, Node
from tcjit.byoc.infer import make
from tcjit.byoc.runtime import forget
from tcjit.errors import PartitionError

pytestmark = pytest.mark.host

ROOT = Path(__file__).resolve().parent.parent.parent


class Mixed(nn.Module):
    """Buffers written to, in-place operations, a split, two results of one operation, a branch, a number returned, one result twice."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm, self.linear = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5)
        self.last, self.dropout = nn.LayerNorm(5), nn.Dropout(0.1)
        self.register_buffer("calls", torch.zeros(1))
        self.plain = torch.ones(5)

    def forward(self, x: Tensor) -> Any:
        self.calls.add_(1)
        y = functional.relu(self.norm(self.convolution(x)), inplace=True).mean((2, 3))
        y = self.last(self.linear(y)) + self.plain + torch.tensor([1.0, 2, 3, 4, 5])
        a, b = torch.split(y, [2, 3], 1)
        y = self.dropout(y)
        top, place = torch.max(y, 1)
        q = y[None, None]
        z = functional.scaled_dot_product_attention(q, q, q).softmax(-1)
        w = torch.cond(y.sum() > 0, lambda t: t.sin() * 2, lambda t: t.cos() + 1, (y,))
        return a, b, top, (place, z), a, w, 3


class Loops(nn.Module):
    """A loop, a map, a part without gradients, sizes computed, a number given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.5, -1.0, 2.0]))

    def forward(self, x: Tensor, n: int) -> Any:
        def goes_on(i: Tensor, y: Tensor, weight: Tensor) -> Tensor:
            return i < 3

        def step(i: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            return i + 1, (y * weight).sin() + y

        _, y = torch.ops.higher_order.while_loop(goes_on, step, (torch.zeros((), dtype=torch.int64), x), (self.weight,))
        z = mapped(lambda t, u: (t * u).exp(), x, self.weight)
        with torch.no_grad():
            q = (y + 1).relu()
        size = x.shape[0] * 2
        return y, z, q.view(size // 2, -1), n


class Views(nn.Module):
    """Memory written to through views of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(6.0))

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        y.view(-1)[1:3].add_(1)
        self.table.view(2, 3)[0].mul_(2)
        return y + self.table.view(2, 3)


def seeded(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().eval()


@functools.cache
def mixed() -> tuple[ExportedProgram, tuple[Any, ...]]:
    x = torch.randn(2, 3, 6, 6)
    return export(seeded(Mixed), (x,), dynamic_shapes=({0: Dim("batch")},)), (torch.randn(4, 3, 6, 6),)


@functools.cache
def loops() -> tuple[ExportedProgram, tuple[Any, ...]]:
    return export(seeded(Loops), (torch.randn(4, 3), 5), dynamic_shapes=({0: Dim("batch", min=2)}, None)), (torch.randn(6, 3), 5)


@functools.cache
def views() -> tuple[ExportedProgram, tuple[Any, ...]]:
    return export(seeded(Views), (torch.randn(2, 3),)), (torch.randn(2, 3),)


@pytest.fixture
def toy() -> Iterator[Toy]:
    backend = Toy()
    yield backend
    unregister(backend.name)
    forget(backend.name)


def node(block: Block, op: str) -> Node:
    return next(each for each in block.nodes if each.op == op)


def assert_same_graph(one: fx.GraphModule, other: fx.GraphModule) -> None:
    assert one.code == other.code
    for a, b in zip(one.graph.nodes, other.graph.nodes, strict=True):
        assert (a.op, a.name, a.target, str(a.args), str(a.kwargs)) == (b.op, b.name, b.target, str(b.args), str(b.kwargs))
        assert a.meta.keys() == b.meta.keys() and a.meta.get("val") is b.meta.get("val")
    inner = [{name: each for name, each in module.named_children() if isinstance(each, fx.GraphModule)} for module in (one, other)]
    assert inner[0].keys() == inner[1].keys()
    for name in inner[0]:
        assert_same_graph(inner[0][name], inner[1][name])


def assert_equal(one: Any, other: Any, tolerance: float = 0) -> None:
    ones, others = pytree.tree_leaves(one), pytree.tree_leaves(other)
    assert len(ones) == len(others)
    for a, b in zip(ones, others):
        if isinstance(a, Tensor):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
            assert a.stride() == b.stride()
        else:
            assert a == b


def reloaded(program: ExportedProgram) -> ExportedProgram:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


@functools.cache
def without_writes() -> tuple[ExportedProgram, tuple[Any, ...]]:
    program, inputs = mixed()
    return program.run_decompositions({}), inputs


PROGRAMS = [mixed, loops, views, without_writes]


@pytest.mark.parametrize("build", PROGRAMS)
def test_a_round_trip_changes_nothing(build: Callable[[], Any]) -> None:
    program, inputs = build()
    adapter = FxAdapter(program)
    again = adapter.realise(adapter.block)
    assert isinstance(again, ExportedProgram) and again is not program
    assert_same_graph(program.graph_module, again.graph_module)
    assert str(program.graph_signature) == str(again.graph_signature)
    assert program.state_dict.keys() == again.state_dict.keys() and program.constants.keys() == again.constants.keys()
    assert program.range_constraints == again.range_constraints and program.verifiers == again.verifiers
    assert_equal(reloaded(again).module()(*inputs), reloaded(program).module()(*inputs))


def test_a_loop_that_holds_a_parameter() -> None:
    """torch.export leaves a tensor without data in such a loop: nothing to be read, and nothing to be run."""

    class Held(Loops):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.higher_order.while_loop(lambda y: y.sum() < 9, lambda y: (y + self.weight.abs(),), (x,), ())[0]

    program = export(seeded(Held), (torch.ones(3),))
    adapter = FxAdapter(program)
    _, body = node(adapter.block, "higher_order.while_loop").blocks
    assert len(body.inputs) == 2 and not any(value.constant for value in body.inputs)
    assert_same_graph(program.graph_module, adapter.realise(adapter.block).graph_module)


def test_what_is_read() -> None:
    program, _ = mixed()
    block = FxAdapter(program).block
    values = {value.name: value for value in block.values}
    assert str(values["x"].type) == "float32[?x3x6x6]" and not values["x"].constant
    assert values["p_linear_weight"].constant and values["b_norm_running_mean"].constant and values["c_plain"].constant
    assert not values["b_calls"].constant, "the program writes to it"
    assert node(block, "aten.split_with_sizes").outputs == (values["getitem"], values["getitem_1"])
    assert [str(each.type) for each in node(block, "aten.max").outputs] == ["float32[?]", "int64[?]"]
    assert node(block, "aten.linear").arguments["bias"] is values["p_linear_bias"]
    assert node(block, "aten.layer_norm").arguments["normalized_shape"] == (5,)
    assert {each.op: each.effect for each in block.nodes}.items() >= {
        "aten.add_": "mutates",
        "aten.relu_": "mutates",
        "aten.unsqueeze": "view",
        "aten.softmax": "",
        "higher_order.cond": "control",
    }.items()
    assert [[each.op for each in inner.nodes] for inner in node(block, "higher_order.cond").blocks] == [
        ["aten.sin", "aten.mul"],
        ["aten.cos", "aten.add"],
    ]
    assert [value.name for value in block.outputs].count("getitem") == 2


def test_everything_that_may_share_written_memory_is_mutated() -> None:
    program, _ = views()
    block = FxAdapter(program).block
    names = {value.name for value in block.mutated}
    product, total = node(block, "aten.mul").output, node(block, "aten.add").output
    assert {"b_table", product.name} <= names
    assert {value.name for each in block.nodes if each.effect == "view" for value in each.outputs} <= names
    assert total.name not in names and "x" not in names


def test_memory_written_inside_a_part_without_gradients() -> None:
    class Average(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.mean.mul_(0.9)
            return x + self.mean

    block = FxAdapter(export(Average(), (torch.ones(3),))).block
    (held,) = [value for value in block.inputs if value.name == "b_mean"]
    assert held in block.mutated and not held.constant


@pytest.mark.parametrize("build", PROGRAMS)
def test_regions_compute_what_the_program_does(build: Callable[[], Any], toy: Toy) -> None:
    program, inputs = build()
    adapter = FxAdapter(program)
    block, regions = outlined(adapter.block, toy)
    made = adapter.realise(block)
    assert regions and isinstance(made, ExportedProgram)
    calls = [each for each in made.graph.nodes if each.target is torch.ops.tcjit.call.default]
    assert calls and all(len(each.meta["val"]) == len(region.outputs) for each, region in zip(calls, regions))
    back = reloaded(made)
    ours, theirs = back.module(), reloaded(program).module()
    for _ in range(2):  # buffers that are written to go on from where they were
        assert_equal(ours(*inputs), theirs(*inputs))
    assert set(toy.calls) <= {region.name for region in regions} and len(toy.calls) >= 2
    assert_equal(dict(ours.named_buffers()), dict(theirs.named_buffers()))


def test_a_saved_program_runs_in_another_process(tmp_path: Path, toy: Toy) -> None:
    program, inputs = mixed()
    adapter = FxAdapter(program)
    torch.export.save(adapter.realise(outlined(adapter.block, toy)[0]), tmp_path / "model.pt2")
    torch.save((inputs, reloaded(program).module()(*inputs)), tmp_path / "expected.pt")
    code = """
import sys, torch
import tcjit.byoc.runtime
from support.byoc.toy import Toy
from tcjit.byoc.backends import register
toy = register(Toy())
inputs, expected = torch.load(sys.argv[2])
found = torch.export.load(sys.argv[1]).module()(*inputs)
for a, b in zip(torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(expected), strict=True):
    assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))
print(len(toy.calls))
"""
    arguments = [sys.executable, "-c", code, str(tmp_path / "model.pt2"), str(tmp_path / "expected.pt")]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT / "tests", env=environment)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1


def folded(adapter: FxAdapter) -> Block:
    """The program with its linear layer's weight doubled, as a constant of its own."""
    block = adapter.block
    linear = node(block, "aten.linear")
    weight = linear.arguments["weight"]
    twice = adapter.constant(adapter.read(weight) * 2, "weight/twice")
    linear.arguments = {**linear.arguments, "weight": twice}
    return Block(block.inputs, block.nodes, block.outputs, block.mutated, block.origin)


def test_new_constants_take_the_place_of_old_ones() -> None:
    program, inputs = mixed()
    adapter = FxAdapter(program)
    made = adapter.realise(folded(adapter))
    assert "linear.weight" not in made.state_dict and torch.equal(made.state_dict["weight_twice"], program.state_dict["linear.weight"] * 2)
    assert "linear.weight" in program.state_dict, "the user's own keeps it"
    assert made.graph_signature.inputs_to_buffers["weight_twice"] == "weight_twice"
    double = reloaded(program)
    with torch.no_grad():
        double.state_dict["linear.weight"].mul_(2)
    assert_equal(reloaded(made).module()(*inputs), double.module()(*inputs))


def test_names_of_constants_are_unique() -> None:
    adapter = FxAdapter(mixed()[0])
    names = [adapter.constant(torch.ones(1), name).name for name in ("x", "linear", "a b", "a b", "2")]
    assert names == ["x_1", "linear_1", "a_b", "a_b_1", "_2"]
    assert torch.equal(adapter.read(adapter.constant(torch.full((2,), 3.0), "three")), torch.full((2,), 3.0))


def in_branch(adapter: FxAdapter, values: Tensor) -> None:
    """Replaces the number that the first branch multiplies with by a new constant."""
    inner = node(adapter.block, "higher_order.cond").blocks[0]
    product = node(inner, "aten.mul")
    product.arguments = {"self": product.arguments["self"], "other": adapter.constant(values, "factor")}


@pytest.mark.parametrize("kind", ["program", "module"])
def test_constants_inside_branches(kind: str) -> None:
    values = torch.tensor([1.0, -2, 3, 0.5, 4])

    class Branch(nn.Module):
        def forward(self, y: Tensor) -> Tensor:
            return torch.cond(y.sum() > 0, lambda t: t.sin() * 2, lambda t: t.cos() + 1, (y,))

    program = export(Branch(), (torch.ones(2, 5),))
    adapter = FxAdapter(program if kind == "program" else program.graph_module)
    in_branch(adapter, values)
    made = adapter.realise(adapter.block)
    run = reloaded(made).module() if isinstance(made, ExportedProgram) else lambda y: made(y)[0]
    y = torch.linspace(0.1, 1, 10).view(2, 5)
    assert_equal(run(y), y.sin() * values)
    assert_equal(run(-y), y.cos() + 1)


def test_changed_arguments_and_new_operations() -> None:
    class Chain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.softmax(-1).exp().sum(0)

    program = export(Chain(), (torch.ones(3, 4),))
    adapter = FxAdapter(program)
    block = adapter.block
    softmax, exp, _ = block.nodes
    softmax.arguments = {**softmax.arguments, "dim": 0}
    cast = make("aten.to", "dtype", {"self": softmax.output, "dtype": 7}, name="wide")
    exp.arguments = {"self": cast.output}
    exp.output.type = cast.output.type
    made = adapter.realise(Block(block.inputs, [block.nodes[0], cast, *block.nodes[1:]], block.outputs, origin=block.origin))
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    assert_equal(reloaded(made).module()(x), x.softmax(0).double().exp().sum(0))
    dtypes = [each.meta["val"].dtype for each in made.graph.nodes if each.op == "call_function"]
    assert dtypes == [torch.float32, torch.float64, torch.float64, torch.float64]


@pytest.mark.parametrize("functional", [False, True])
def test_results_of_regions_keep_the_layout_of_the_model(functional: bool, toy: Toy) -> None:
    """A kernel gives row-major results; what is behind it may look at them in another way."""

    class Last(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = x.relu() * 2
            return y.permute(0, 2, 3, 1).view(-1, 3).t(), y

    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(1)).to(memory_format=torch.channels_last)
    toy.contiguous, toy.names = True, ("aten.relu", "aten.mul")
    program = export(Last(), (x,))
    adapter = FxAdapter(program.run_decompositions({}) if functional else program)
    made = adapter.realise(outlined(adapter.block, toy)[0])
    assert_equal(reloaded(made).module()(x), Last()(x))
    assert toy.calls


@pytest.mark.parametrize(
    ("tensor", "order"),
    [
        (torch.empty(2, 3, 4), None),
        (torch.empty(2, 3, 4).permute(2, 0, 1), [1, 2, 0]),
        (torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last), [0, 2, 3, 1]),
        (torch.empty(1, 3, 4).transpose(1, 2), [0, 2, 1]),
        (torch.empty(3, 1).t(), None),
        (torch.empty(3, 1).expand(3, 4), None),
        (torch.eye(3).to_sparse(), None),
    ],
    ids=["contiguous", "permuted", "channels_last", "one", "vector", "overlapping", "sparse"],
)
def test_order_of_dimensions_in_memory(tensor: Tensor, order: list[int] | None) -> None:
    assert layout(tensor) == order


def function(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    first, second = torch.ops.aten.split.Tensor(torch.mm(x, weight), 2)
    return (first + torch.arange(3.0)).relu(), second.sum(1)


def test_a_graph_module(toy: Toy) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(4, 3), torch.randn(3, 3)
    graph = make_fx(function)(x, weight)
    adapter = FxAdapter(graph, (x, weight))
    assert_same_code(graph, adapter.realise(adapter.block))
    made = adapter.realise(outlined(adapter.block, toy)[0])
    assert isinstance(made, fx.GraphModule) and made is not graph
    assert_equal(tuple(made(x, weight)), function(x, weight))
    assert toy.calls


def assert_same_code(one: Any, other: Any) -> None:
    assert one.code.split() == other.code.split()


def test_a_graph_without_types_is_run_on_examples() -> None:
    x = torch.ones(4, 3)
    graph = make_fx(lambda x: x.relu().sum(1))(x)
    for each in graph.graph.nodes:
        each.meta.clear()
    assert [str(value.type) for value in FxAdapter(graph).block.values] == ["None", "?[?]", "?[?]"]
    assert [str(value.type) for value in FxAdapter(graph, (x,)).block.values] == ["float32[4x3]", "float32[4x3]", "float32[4]"]
    assert not any(each.meta for each in graph.graph.nodes), "the user's own is not touched"


def test_constants_of_a_graph_module() -> None:
    graph = make_fx(lambda x: x + torch.tensor([1.0, 2.0]))(torch.ones(2))
    adapter = FxAdapter(graph)
    (held,) = [value for value in adapter.block.inputs if value.constant]
    assert torch.equal(adapter.read(held), torch.tensor([1.0, 2.0]))
    add = node(adapter.block, "aten.add")
    add.arguments = {**add.arguments, "other": adapter.constant(torch.tensor([5.0, 6.0]), "other")}
    assert_equal(adapter.realise(adapter.block)(torch.ones(2)), torch.tensor([6.0, 7.0]))


def test_modules_and_methods_stay_as_they_are(toy: Toy) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.aten.relu.default(self.inner(x).neg_())

    outer, x = seeded(Outer), torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    adapter = FxAdapter(fx.symbolic_trace(outer), (x,))
    assert [(each.op, each.effect) for each in adapter.block.nodes] == [
        ("call_module.inner", "acts"),
        ("call_method.neg_", "acts"),
        ("aten.relu", ""),
    ]
    made = adapter.realise(outlined(adapter.block, toy)[0])
    assert_equal(made(x), outer(x))


def test_what_cannot_be_read_or_written() -> None:
    with pytest.raises(PartitionError, match="Linear is no ExportedProgram"):
        FxAdapter(nn.Linear(2, 2))  # type: ignore[arg-type]
    adapter = FxAdapter(make_fx(lambda x: x.relu().exp())(torch.ones(2)))
    block = adapter.block
    with pytest.raises(PartitionError, match="is no constant"):
        adapter.read(block.inputs[0])
    with pytest.raises(PartitionError, match="%relu is used and never computed"):
        adapter.realise(Block(block.inputs, block.nodes[1:], block.outputs, origin=block.origin))
    with pytest.raises(PartitionError, match="returns 0 values, the model 1"):
        adapter.realise(Block(block.inputs, block.nodes, (), origin=block.origin))
