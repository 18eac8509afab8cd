"""Passes: each changes what it says and nothing else, and the pipeline runs them in an order that makes sense.

Modules: byoc.passes.batch_norm byoc.passes.common byoc.passes.constants byoc.passes.dead byoc.passes.decompose
byoc.passes.fold_scalar_tensors byoc.passes.functionalise byoc.passes.identities byoc.passes.layout byoc.passes.lower_conv_transpose
byoc.passes.pipeline
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.byoc.graphs import Build
from support.byoc.passes import FORMS, Function, computed, opened, ops, settled
from torch import Tensor, nn

from tcjit.byoc.graph import Block, Value
from tcjit.byoc.passes import Pass, Pipeline, standard
from tcjit.byoc.passes.batch_norm import fold_batch_norm
from tcjit.byoc.passes.common import share_common
from tcjit.byoc.passes.constants import fold_constants, folding
from tcjit.byoc.passes.dead import remove_dead
from tcjit.byoc.passes.decompose import RULES, decompose, decomposition
from tcjit.byoc.passes.fold_scalar_tensors import write_numbers
from tcjit.byoc.passes.functionalise import functionalise
from tcjit.byoc.passes.identities import remove_identities
from tcjit.byoc.passes.layout import channels_last
from tcjit.errors import PartitionError

forms = pytest.mark.parametrize("form", FORMS)
NOBODY: Any = None  # an adapter for passes that ask for none


def keep(block: Block, adapter: object) -> Block:
    return block


# --- the pipeline


def test_pipeline_is_changed_by_name() -> None:
    pipeline = Pipeline((Pass("a", keep), Pass("b", keep, requires=("a",), level=2, about="second"), Pass("c", keep, level=None)))
    assert str(pipeline).split("\n") == ["pass  level  requires  what it does", "a     1", "b     2      a         second", "c     asked"]
    assert pipeline.with_(Pass("d", keep), before="b").names == ("a", "d", "b", "c")
    assert pipeline.with_(Pass("d", keep), after="b").names == ("a", "b", "d", "c")
    assert pipeline.with_(Pass("d", keep)).names == ("a", "b", "c", "d")
    assert pipeline.moved("c", before="a").names == ("c", "a", "b") and pipeline.moved("a", before="b").names == ("a", "b", "c")
    assert pipeline.without("b", "a").names == ("c",) and pipeline.without() == pipeline
    assert pipeline.names == ("a", "b", "c")  # none of this changed it


def test_what_runs_at_which_level() -> None:
    pipeline = standard()
    build = Build()
    block = build.block(build("aten.exp", build.input(2)))
    told = [pipeline.run(block, NOBODY, level)[1] for level in range(4)]
    assert told[0] == () and "fold_batch_norm" not in told[1] and "fold_batch_norm" in told[2] and "channels_last" in told[3]
    assert pipeline.run(block, NOBODY, 0, ["decompose"])[1] == ("decompose",)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Pipeline((Pass("b", keep, requires=("a",)),)), "pass b requires a, which is not in the pipeline"),
        (lambda: Pipeline((Pass("b", keep, requires=("a",)), Pass("a", keep))), "pass b requires a, which comes after it"),
        (lambda: Pipeline((Pass("a", keep), Pass("b", keep, requires=("a",)))).without("a"), "requires a, which is not"),
        (lambda: Pipeline((Pass("a", keep), Pass("b", keep, requires=("a",)))).moved("a", after="b"), "which comes after it"),
        (lambda: Pipeline((Pass("a", keep), Pass("a", keep))), "two passes named a"),
        (lambda: Pipeline((Pass("a", keep),)).without("z"), "has no pass 'z'"),
        (lambda: Pipeline((Pass("a", keep),)).with_(Pass("b", keep), before="a", after="a"), "give one of them"),
        (lambda: Pipeline((Pass("a", keep),)).moved("a", before="a"), "next to itself"),
        (lambda: Pass("no name", keep), "named 'no name'"),
        (lambda: Pass("a", keep, level=4), "level 4"),
        (lambda: Pass("a", 3), "cannot be called"),  # type: ignore[arg-type]
        (lambda: Pass("a", keep, requires="b"), "requires 'b'"),  # type: ignore[arg-type]
        (lambda: standard().run(Build().block(), NOBODY, 7), "opt_level is 7"),
        (lambda: standard().run(Build().block(), NOBODY, 1, ["mine"]), "has no pass 'mine'"),
        (lambda: Pipeline((Pass("a", lambda block, adapter: NOBODY),)).run(Build().block(), NOBODY, 1), "gave NoneType"),
        (lambda: Pipeline((Pass("a", keep, (), 2), Pass("b", keep, ("a",)))).run(Build().block(), NOBODY, 1), "does not run at opt_level"),
        (lambda: decomposition("aten.exp"), "no decomposition of aten.exp"),
    ],
)
def test_mistakes_are_told(make: Callable[[], object], words: str) -> None:
    with pytest.raises(PartitionError, match=words):
        make()


class Net(nn.Module):
    """A bit of everything that the passes look for."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.two = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.last = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.relu_(self.one(self.first(x)))
        z = F.dropout(F.relu(self.two(self.second(y)) + y), 0.5, self.training)
        z = F.max_pool2d(z.reshape(z.shape) * 1, 2)
        z = torch.flatten(F.adaptive_avg_pool2d(z, 1), 1)
        return self.last(z), torch.exp(z) + torch.exp(z) @ (self.last.weight.t() @ self.last.weight)


@forms
@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_models_compute_what_they_did(form: str, level: int) -> None:
    model, x = settled(Net()), torch.randn(2, 3, 12, 12)
    adapter = opened(model, [x], form)
    before = len(adapter.block.nodes)
    block, _ = standard().run(adapter.block, adapter, level)
    for found, expected in zip(computed(adapter, block, [x]), model(x)):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    if level:
        assert "relu_" not in ops(block) and "dropout" not in ops(block) and len(block.nodes) < before
    assert ("batch_norm" in ops(block)) == (level < 2)
    assert ops(block).count("exp") == (2 if level < 2 and form == "fx" else 1)  # a trace shares by itself


# --- dead code and common subexpressions


def test_dead_code_keeps_effects() -> None:
    b = Build()
    x, w = b.input(4), b.input(4)
    b("aten.exp", b("aten.neg", x))
    b("aten.view", x, effect="view")
    b("aten.rand_like", x, effect="random")
    b("aten.add_", w, x, effect="mutates")
    b.several("aten.print", x, types=[], effect="acts")
    b.several("aten.check", x, types=[])
    pure = Build()
    idle = pure.block(pure("aten.sin", x))
    acting = Build()
    loud = acting.block(acting("aten.sin", x, effect="random"))
    b.several("prim.If", x, types=[x.type], effect="control", blocks=(idle, idle))
    b.several("prim.If", x, types=[x.type], effect="control", blocks=(loud, loud))
    b.several("prim.Loop", x, types=[x.type], effect="control", blocks=(idle,))
    block = remove_dead(b.block(b("aten.relu", x), mutated=[w]), NOBODY)
    assert ops(block) == ["rand_like", "add_", "print", "check", "prim.If", "prim.Loop", "relu"]
    assert ops(block.nodes[4].blocks[0]) == ["sin"]


def test_dead_code_sees_what_blocks_inside_use() -> None:
    b, inner = Build(), Build()
    x = b.input(4)
    used, unused = b("aten.exp", x), b("aten.neg", x)
    inside = inner("aten.sin", used)
    inner("aten.cos", unused)
    (out,) = b.several("prim.If", x, types=[x.type], effect="control", blocks=(inner.block(inside), inner.block(inside)))
    assert ops(remove_dead(b.block(out), NOBODY)) == ["exp", "prim.If"]


def test_common_subexpressions() -> None:
    b = Build()
    x, w = b.input(4), b.input(4)
    twice = [b("aten.exp", x), b("aten.exp", x)]
    sums = [b("aten.add", twice[0], 1), b("aten.add", twice[1], 1), b("aten.add", twice[0], 1.0), b("aten.add", twice[0], True)]
    written = [b("aten.exp", w), b("aten.exp", w)]
    drawn = [b("aten.rand_like", x, effect="random"), b("aten.rand_like", x, effect="random")]
    returned = [b("aten.neg", x), b("aten.neg", x)]
    shown = [b("aten.view", each, (4,), effect="view") for each in (b("aten.sin", x), b("aten.sin", x))]
    end = b("aten.cat", (*sums, *written, *drawn))
    block = share_common(b.block(end, *returned, *shown, mutated=[w]), NOBODY)
    counts = {name: ops(block).count(name) for name in ops(block)}
    # what is returned twice stays two, whoever gets it may write to it; 1, 1.0 and True are three numbers
    assert counts == {"exp": 3, "add": 3, "rand_like": 2, "neg": 2, "sin": 2, "view": 2, "cat": 1}
    (cat,) = [node for node in block.nodes if node.op == "aten.cat"]
    assert cat.inputs[0] is cat.inputs[1] and len(set(block.outputs)) == 5


# --- identities and in-place operations


def test_identities() -> None:
    def model(x: Tensor) -> Tensor:
        y = F.dropout(x, 0.5, False) * 1 / 1.0 - 0
        y = y.to(torch.float32).reshape(3, 4).transpose(0, 1).transpose(1, 0).permute(0, 1) ** 1
        return torch.exp(y.view(3, 4).expand(3, 4))

    x = torch.randn(3, 4)
    adapter = opened(Function(model), [x], "torchscript")  # an export checks every conversion
    block = remove_identities(write_numbers(adapter.block, adapter), adapter)
    assert ops(remove_dead(block, adapter)) == ["exp"]
    assert torch.equal(computed(adapter, block, [x]), torch.exp(x))


def test_what_looks_like_an_identity_and_is_none() -> None:
    def model(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        return n * 1.0, n / 1, x - 1, x * 0, x.transpose(0, 1), x.expand(2, 3, 4), x.to(torch.float64), x * 1

    inputs = [torch.randn(3, 4), torch.arange(3)]
    adapter = opened(Function(model), inputs)
    before = ops(adapter.block)
    block = remove_identities(adapter.block, adapter)
    assert ops(block) == before  # x * 1 is returned: it must be a tensor of its own
    for found, expected in zip(computed(adapter, block, inputs), model(*inputs)):
        assert torch.equal(found, expected) and found.dtype == expected.dtype


def test_numbers_of_a_trace() -> None:
    def model(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        return x * 2.5 + 1, x**2, x > 0.5, torch.div(n, 2, rounding_mode="floor"), n * 0.5, n * 2

    inputs = [torch.randn(3, 4), torch.arange(3)]
    adapter = opened(Function(model), inputs, "torchscript")
    block = write_numbers(adapter.block, adapter)
    left = [node.op for node in block.nodes if any(value.constant for value in node.inputs)]
    assert left in ([], ["aten.mul"])  # an integer tensor and a double without dimensions are a double, with a number they are a float
    for found, expected in zip(computed(adapter, block, inputs), model(*inputs)):
        assert torch.equal(found, expected) and found.dtype == expected.dtype


WRITES: dict[str, tuple[Callable[..., Any], int]] = {
    # a model, and how many writes must stay
    "chain": (lambda x: F.relu_(torch.exp(x)).add_(1).mul_(x), 0),
    "later": (lambda x: (lambda y: (F.relu_(y), y * 2))(torch.sin(x))[1], 0),
    "earlier": (lambda x: (lambda y: y * 2 + F.relu_(y))(torch.sin(x)), 0),
    "view after": (lambda x: (lambda y: F.relu_(y).view(-1))(torch.sin(x)), 0),
    "view before": (lambda x: (lambda y: (y.view(-1), F.relu_(y)))(torch.sin(x))[0], 1),
    "view written": (lambda x: (lambda y: (y[0].add_(3), y)[1])(torch.sin(x)), 1),
    "input": (lambda x: x.add_(1) * 2, 1),
    "in a list": (lambda x: (lambda y: (torch.split(y, 1)[0], y.add_(2)))(torch.sin(x))[0], 1),
    "narrower": (lambda x: torch.sin(x).add_(x.double()), 1),
    "half of them": (lambda x: (lambda y: (y.add_(1), y[0].mul_(2), y.sub_(3))[2])(torch.sin(x)), 2),
}


@forms
@pytest.mark.parametrize("name", list(WRITES))
def test_writes(form: str, name: str) -> None:
    model, left = WRITES[name]
    x = torch.randn(3, 4)
    adapter = opened(Function(model), [x.clone()], form)
    block = functionalise(adapter.block, adapter)
    assert len([node for node in block.nodes if node.effect == "mutates"]) == left
    if not left:
        assert not block.mutated
    given, also = x.clone(), x.clone()
    assert torch.equal(computed(adapter, block, [given]), model(also)) and torch.equal(given, also)


# --- constants


def test_constants_are_folded() -> None:
    table = {"a": torch.randn(4, 4), "b": torch.randn(4, 4), "wide": torch.ones(64, 64), "small": torch.arange(4, dtype=torch.int8)}

    def model(x: Tensor, a: Tensor, b: Tensor, wide: Tensor, small: Tensor) -> tuple[Tensor, Tensor]:
        return x @ (a.t() + b.exp()) + (wide * 2).sum() + small.to(torch.int32), a * 2

    x = torch.randn(3, 4)
    adapter = opened(Function(model, **table), [x])
    block = remove_dead(folding(1000)(adapter.block, adapter), adapter)
    # too large; only wider; returned, so that it must be a tensor of its own
    assert [op for op in ops(block) if not op.startswith("_assert")] == ["matmul", "mul", "sum", "add", "to", "add", "mul"]
    for found, expected in zip(computed(adapter, block, [x]), model(x, **table)):
        assert torch.equal(found, expected)


def test_what_trains_is_not_folded() -> None:
    layer = nn.Linear(4, 4)
    model = Function(lambda x: x @ (layer.weight.t() * 2))
    model.layer = layer
    adapter = opened(model, [torch.randn(2, 4)])
    assert len(fold_constants(adapter.block, adapter).nodes) == 3
    model.requires_grad_(False)
    adapter = opened(model, [torch.randn(2, 4)])
    assert ops(remove_dead(fold_constants(adapter.block, adapter), adapter)) == ["matmul"]


# --- batch norms

LAYERS: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(3, 6, 3), nn.BatchNorm1d(6)), (2, 3, 9)),
    "conv2d": (lambda: nn.Sequential(nn.Conv2d(4, 6, 3, stride=2, groups=2, bias=False), nn.BatchNorm2d(6)), (2, 4, 9, 9)),
    "conv3d": (lambda: nn.Sequential(nn.Conv3d(3, 6, 2), nn.BatchNorm3d(6, affine=False)), (2, 3, 5, 5, 5)),
    "linear": (lambda: nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6, eps=0.1)), (7, 5)),
    "linear without bias": (lambda: nn.Sequential(nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6)), (7, 5)),
}


@forms
@pytest.mark.parametrize("name", list(LAYERS))
def test_batch_norm_goes_into_the_layer(form: str, name: str) -> None:
    make, shape = LAYERS[name]
    model = settled(make())
    x = torch.randn(shape)
    adapter = opened(model, [x], form)
    block = fold_batch_norm(adapter.block, adapter)
    assert len([node for node in block.nodes if node.op.startswith("aten.")]) == 1
    # rounded once: as near to the exact result as the model itself, and nearer than a product of rounded factors needs to be
    exact = model.double()(x.double())
    error = (computed(adapter, block, [x]).double() - exact).abs().max()
    assert float(error) < 2e-6 * float(exact.abs().max())


def test_folded_weights_are_exact() -> None:
    model = settled(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)))
    conv, norm = model
    adapter = opened(model, [torch.randn(1, 3, 4, 4)])
    (node,) = fold_batch_norm(adapter.block, adapter).nodes
    scale = norm.weight.double() / torch.sqrt(norm.running_var.double() + norm.eps)
    weight, bias = node.arguments["weight"], node.arguments["bias"]
    assert isinstance(weight, Value) and isinstance(bias, Value)
    assert torch.equal(adapter.read(weight), (conv.weight.double() * scale[:, None, None, None]).float())
    shift = (conv.bias.double() - norm.running_mean.double()) * scale + norm.bias.double()
    assert torch.equal(adapter.read(bias), shift.float())


def test_addmm_takes_a_batch_norm() -> None:
    table = {"w": torch.randn(5, 6), "b": torch.randn(6), "mean": torch.randn(6), "variance": torch.rand(6) + 1}

    def model(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return F.batch_norm(torch.addmm(b, x, w), mean, variance)

    x = torch.randn(7, 5)
    adapter = opened(Function(model, **table), [x])
    block = fold_batch_norm(adapter.block, adapter)
    assert ops(block) == ["addmm"]
    torch.testing.assert_close(computed(adapter, block, [x]), model(x, **table), atol=1e-5, rtol=1e-5)


KEPT: dict[str, Callable[..., Any]] = {
    "used twice": lambda y, mean, variance: F.batch_norm(y, mean, variance) + y,
    "returned": lambda y, mean, variance: (F.batch_norm(y, mean, variance), y),
    "its own statistics": lambda y, mean, variance: F.batch_norm(y, None, None, training=True),
    "seen through a view": lambda y, mean, variance: (y.view(-1), F.batch_norm(y, mean, variance))[1] + y.view(-1)[0],
}


@pytest.mark.parametrize("name", list(KEPT))
def test_batch_norms_that_stay(name: str) -> None:
    table = {"w": torch.randn(4, 3, 1, 1), "mean": torch.randn(4), "variance": torch.rand(4) + 1}

    def model(x: Tensor, w: Tensor, mean: Tensor, variance: Tensor) -> Any:
        return KEPT[name](F.conv2d(x, w), mean, variance)

    adapter = opened(Function(model, **table), [torch.randn(2, 3, 4, 4)])
    assert "conv2d" in ops(adapter.block) and any("batch_norm" in op for op in ops(fold_batch_norm(adapter.block, adapter)))


def test_transposed_convolutions_keep_their_norm() -> None:
    adapter = opened(settled(nn.Sequential(nn.ConvTranspose2d(3, 4, 2), nn.BatchNorm2d(4))), [torch.randn(1, 3, 4, 4)])
    assert "batch_norm" in ops(fold_batch_norm(adapter.block, adapter))


# --- layout


@forms
def test_layout_changes_at_the_border_only(form: str) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            y = torch.relu(self.a(x))
            z = self.b(y) + torch.sigmoid(self.c(y))
            return torch.cumsum(F.max_pool2d(z, 2), 1) + y[:, :, :4, :4]

    model, x = settled(Two()), torch.randn(2, 4, 8, 8)
    adapter = opened(model, [x], form)
    block = channels_last(adapter.block, adapter)
    # one conversion in; out, one for the pooled result and one for y, which the slices take
    assert ops(block).count("contiguous") == 3
    torch.testing.assert_close(computed(adapter, block, [x]), model(x), atol=1e-5, rtol=1e-5)
    again = channels_last(block, adapter)
    assert sorted(ops(again)) == sorted(ops(block))
    torch.testing.assert_close(computed(adapter, again, [x]), model(x), atol=1e-5, rtol=1e-5)


class Growing(nn.Module):
    """A convolution and a transposed one behind it."""

    def __init__(self, kernel: int | tuple[int, int], stride: int | tuple[int, int], **settings: Any) -> None:
        super().__init__()
        self.conv, self.grow = nn.Conv2d(4, 6, 3, padding=1), nn.ConvTranspose2d(6, 4, kernel, stride, **settings)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.grow(torch.relu(self.conv(x))), self.grow(self.conv(x)).sigmoid()], 1)


@forms
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("step", [2, (2, 3), 1])
def test_windows_that_do_not_overlap_are_products(form: str, step: int | tuple[int, int], bias: bool) -> None:
    model, x = settled(Growing(step, step, bias=bias)), torch.randn(2, 4, 5, 7)
    adapter = opened(model, [x], form)
    block = channels_last(adapter.block, adapter)
    found = ops(block)
    assert found.count("linear") == 2 and "conv_transpose2d" not in found and "convolution" not in found
    # one conversion in, one out
    assert found.count("contiguous") == 2
    torch.testing.assert_close(computed(adapter, block, [x]), model(x), atol=1e-5, rtol=1e-5)
    if form != "fx":  # whose sizes are those of the export
        other = torch.randn(3, 4, 6, 5)
        torch.testing.assert_close(computed(adapter, block, [other]), model(other), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel": 3, "stride": 2},
        {"kernel": 2, "stride": 2, "padding": 1},
        {"kernel": 2, "stride": 2, "output_padding": 1},
        {"kernel": 2, "stride": 2, "groups": 2},
        {"kernel": 2, "stride": 2, "dilation": 2},
    ],
    ids=lambda settings: " ".join(settings),
)
def test_other_transposed_convolutions_stay(settings: dict[str, Any]) -> None:
    model, x = settled(Growing(**settings)), torch.randn(2, 4, 5, 7)
    adapter = opened(model, [x])
    block = channels_last(adapter.block, adapter)
    assert "linear" not in ops(block) and "conv_transpose2d" in ops(block)
    torch.testing.assert_close(computed(adapter, block, [x]), model(x), atol=1e-5, rtol=1e-5)


def test_layout_leaves_models_without_convolutions() -> None:
    adapter = opened(Function(lambda x: torch.relu(F.max_pool2d(x, 2)) + 1), [torch.randn(1, 2, 4, 4)])
    assert ops(channels_last(adapter.block, adapter)) == ["max_pool2d", "relu", "add"]


# --- decomposition

APART: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]]]] = {
    "linear": (F.linear, [(2, 3, 4), (5, 4), (5,)]),
    "linear without bias": (F.linear, [(3, 4), (5, 4)]),
    "addmm": (lambda a, b, c: torch.addmm(a, b, c, alpha=2, beta=3), [(5,), (3, 4), (4, 5)]),
    "addmm of nothing": (lambda a, b, c: torch.addmm(a, b, c, beta=0), [(5,), (3, 4), (4, 5)]),
    "silu": (F.silu, [(7,)]),
    "hardswish": (lambda x: F.hardswish(5 * x), [(40,)]),
    "softmax": (lambda x: torch.softmax(x, 1), [(2, 5, 3)]),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (3, 4), w, b), [(2, 3, 4), (3, 4), (3, 4)]),
    "attention": (F.scaled_dot_product_attention, [(2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7)]),
    "masked attention": (lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, scale=0.3), [(2, 3, 5, 4)] * 3 + [(5, 5)]),
}


@pytest.mark.parametrize("name", list(APART))
def test_decomposition(name: str) -> None:
    function, shapes = APART[name]
    torch.manual_seed(0)
    inputs = [torch.randn(shape) for shape in shapes]
    adapter = opened(Function(function), inputs)
    block = decompose(adapter.block, adapter)
    assert not {f"aten.{op}" for op in ops(block)} & (set(RULES) - {"aten.softmax"})
    torch.testing.assert_close(computed(adapter, block, inputs), function(*inputs), atol=1e-5, rtol=1e-5)


def test_causal_attention_stays_whole() -> None:
    inputs = [torch.randn(1, 2, 3, 4) for _ in range(3)]
    adapter = opened(Function(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)), inputs)
    assert ops(decompose(adapter.block, adapter)) == ["scaled_dot_product_attention"]
