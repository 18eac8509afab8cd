"""int8: the statements agree with PyTorch's own integer operators to the last bit, and quantised models tell what the float ones tell.

Modules: byoc.passes.affine byoc.passes.calibrate byoc.passes.editing byoc.passes.qnn byoc.passes.quantisable byoc.passes.quantise
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.byoc.models import MODELS
from support.byoc.passes import FORMS, Function, computed, opened, ops, settled
from torch import Tensor, nn
from torch.ao.quantization import QConfigMapping, get_default_qconfig
from torch.ao.quantization.quantize_fx import convert_fx, fuse_fx, prepare_fx

from tcjit.byoc.adapter import Adapter
from tcjit.byoc.graph import Block, Node, TensorType, Value
from tcjit.byoc.infer import type_of
from tcjit.byoc.ops import run
from tcjit.byoc.passes import qnn, standard
from tcjit.byoc.passes.affine import Affine, covering, f32, integers, weights_of
from tcjit.byoc.passes.calibrate import Calibration
from tcjit.byoc.passes.editing import Emit
from tcjit.byoc.passes.qnn import Constants, Quantised
from tcjit.byoc.passes.quantise import Scheme, quantisation, quantised
from tcjit.byoc.torchscript import TorchScriptAdapter
from tcjit.errors import PartitionError

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def engine() -> None:
    """PyTorch's reference is fbgemm: oneDNN multiplies scales in another order."""
    torch.backends.quantized.engine = "fbgemm"


class Held:
    """An adapter of constants alone."""

    form = "fx"
    block: Any = None

    def __init__(self) -> None:
        self.tensors: dict[Value, Tensor] = {}

    def read(self, value: Value) -> Tensor:
        return self.tensors[value]

    def constant(self, tensor: Tensor, name: str) -> Value:
        value = Value(name, type_of(tensor), constant=True)
        self.tensors[value] = tensor
        return value

    def realise(self, block: Block) -> Callable[..., Any]:
        raise AssertionError("what is computed from constants runs node by node")

    def compute(self, emit: Emit, result: Value) -> Tensor:
        """The value that emitted nodes compute."""

        def given(argument: Any) -> Any:
            if isinstance(argument, Value):
                return self.tensors[argument]
            return tuple(map(given, argument)) if isinstance(argument, tuple) else argument

        for node in emit.nodes:
            found = run(node.op, node.overload, {name: given(argument) for name, argument in node.arguments.items()})
            self.tensors.update(zip(node.outputs, found))
        return self.tensors[result]

    def take(self, x: Tensor, of: Affine) -> Quantised:
        value = self.constant(x, "x")
        return Quantised(value, of)


def scale(number: float) -> float:
    return f32(number)


def torch_of(x: Tensor, of: Affine) -> Tensor:
    return torch._make_per_tensor_quantized_tensor(x, of.one, of.zero_point)


def some(seed: int, *shape: int, low: int = 0, high: int = 255) -> Tensor:
    return torch.randint(low, high + 1, shape, generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


A, B, C = Affine(0.0313, 3), Affine(0.0517, 120), Affine(0.0913, 61)
TIES = Affine(0.0626, 7)  # twice the scale of A: every other sum lies between two integers


@pytest.mark.parametrize("to", [C, Affine(0.0913, 60), Affine(0.011), Affine(0.25, 255)])
def test_quantize_and_dequantize(to: Affine) -> None:
    held, emit = Held(), Emit()
    x = 5 * torch.randn(1 << 18, generator=torch.Generator().manual_seed(1))
    x[:4096] = (torch.arange(4096) - 2048 + 0.5) * torch.tensor(to.one)
    value = held.constant(x, "x")
    q = qnn.quantize(emit, value, to)
    back = qnn.dequantize(emit, q)
    expected = torch.quantize_per_tensor(x, to.one, to.zero_point, torch.quint8)
    assert torch.equal(held.compute(emit, q.value), expected.int_repr())
    assert torch.equal(held.tensors[back], expected.dequantize())


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "padded": {"padding": (1, 2)},
    "strided": {"stride": (2, 1), "padding": (1, 1)},
    "groups": {"groups": 4, "padding": (1, 1)},
    "dilated": {"dilation": (2, 1), "padding": (2, 1)},
}


@pytest.mark.parametrize("channels", [True, False], ids=["per channel", "per tensor"])
@pytest.mark.parametrize("name", list(CONVOLUTIONS))
def test_convolution(name: str, channels: bool) -> None:
    told = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1, **CONVOLUTIONS[name]}
    for seed, (biased, relu) in enumerate([(True, False), (True, True), (False, False), (False, True)]):
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(24, 8 // told["groups"], 3, 3, generator=generator)
        bias = torch.randn(24, generator=generator) if biased else None
        x, of, to = some(seed, 2, 8, 9, 11, high=127), Affine(0.0371 * (seed + 1), 50 + seed), Affine(0.9 + 0.1 * seed, 100)
        held, emit = Held(), Emit()
        kind = weights_of(weight, 0 if channels else None)
        constants = Constants(held.constant(weight, "w"), None if bias is None else held.constant(bias, "b"), 0, 2)
        w = qnn.weights(held, constants, kind, of, to)
        found = held.compute(emit, qnn.conv2d(emit, held.take(x, of), w, to, relu=relu, **told).value)
        whole = integers(weight, kind, 0)
        scales = torch.tensor(kind.scale, dtype=torch.float64)
        if channels:
            qw = torch._make_per_channel_quantized_tensor(whole, scales, torch.zeros(24, dtype=torch.long), 0)
        else:
            qw = torch._make_per_tensor_quantized_tensor(whole, float(scales), 0)
        numbers = [list(told[key]) for key in ("stride", "padding", "dilation")]
        packed = torch.ops.quantized.conv2d_prepack(qw, bias, *numbers, told["groups"])
        function = torch.ops.quantized.conv2d_relu if relu else torch.ops.quantized.conv2d
        assert torch.equal(found, function(torch_of(x, of), packed, to.one, to.zero_point).int_repr())


@pytest.mark.parametrize("channels", [True, False], ids=["per channel", "per tensor"])
@pytest.mark.parametrize("turned", [True, False], ids=["addmm", "linear"])
def test_dense(channels: bool, turned: bool) -> None:
    for seed, relu in enumerate([False, True]):
        weight, bias = torch.randn(33, 120), torch.randn(33)
        x, of, to = some(seed, 65, 120, high=127), Affine(0.04, 60 + seed), Affine(1.3, 99)
        held, emit = Held(), Emit()
        kind = weights_of(weight, 0 if channels else None)
        stored = weight.t().contiguous() if turned else weight
        constants = Constants(held.constant(stored, "w"), held.constant(bias, "b"), int(turned), 0)
        w = qnn.weights(held, constants, kind, of, to)
        found = held.compute(emit, qnn.dense(emit, held.take(x, of), w, to, turned=turned, relu=relu).value)
        whole, scales = integers(weight, kind, 0), torch.tensor(kind.scale, dtype=torch.float64)
        if channels:
            qw = torch._make_per_channel_quantized_tensor(whole, scales, torch.zeros(33, dtype=torch.long), 0)
        else:
            qw = torch._make_per_tensor_quantized_tensor(whole, float(scales), 0)
        function = torch.ops.quantized.linear_relu if relu else torch.ops.quantized.linear
        expected = function(torch_of(x, of), torch.ops.quantized.linear_prepack(qw, bias), to.one, to.zero_point)
        assert torch.equal(found, expected.int_repr())


@pytest.mark.parametrize("to", [C, TIES, A], ids=["C", "TIES", "A"])
@pytest.mark.parametrize("name", ["add", "add_relu", "mul", "mul_relu", "cat", "cat_relu"])
def test_two_tensors(name: str, to: Affine) -> None:
    x, y = some(1, 4, 64, 32, 16), some(2, 4, 64, 32, 16)
    held, emit = Held(), Emit()
    one, other = held.take(x, A), held.take(y, B)
    relu = name.endswith("relu")
    if name.startswith("cat"):
        found = qnn.concatenate(emit, [one, other], 1, to, relu=relu)
        expected = getattr(torch.ops.quantized, name)([torch_of(x, A), torch_of(y, B)], 1, to.one, to.zero_point)
    else:
        found = (qnn.mul if name.startswith("mul") else qnn.add)(emit, one, other, to, relu=relu)
        expected = getattr(torch.ops.quantized, name)(torch_of(x, A), torch_of(y, B), to.one, to.zero_point)
    assert torch.equal(held.compute(emit, found.value), expected.int_repr())


@pytest.mark.parametrize("size", [(16, 16), (7, 7), (2, 2), (5, 3)])
def test_mean(size: tuple[int, int]) -> None:
    for of in (A, B, Affine(0.1)):
        x = some(3, 4, 128, *size)
        held, emit = Held(), Emit()
        found = qnn.mean(emit, held.take(x, of), (-2, -1), size[0] * size[1], True)
        assert torch.equal(held.compute(emit, found.value), F.adaptive_avg_pool2d(torch_of(x, of), (1, 1)).int_repr())


def test_clamp() -> None:
    x = some(4, 1000)
    for low, high in ((0.0, 6.0), (-1.0, 1.0)):
        held, emit = Held(), Emit()
        found = held.compute(emit, qnn.clamp(emit, held.take(x, B), low, high).value)
        assert torch.equal(found, F.hardtanh(torch_of(x, B), low, high).int_repr())


@pytest.mark.parametrize("zero", [-11, 0, 90])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_zero_points_of_weights(dtype: str, zero: int) -> None:
    """Sums of (q_x - z_x) * (q_w - z_w), computed in float64, where they are exact."""
    of, kind, to = Affine(0.02, 17, dtype), Affine(0.01, zero, "int8"), Affine(0.3, -3 if dtype == "int8" else 9, dtype)
    weight, x = torch.randn(6, 5, 3, 3), some(5, 2, 5, 8, 8)
    x = (x.int() - 128).to(torch.int8) if dtype == "int8" else x
    held, emit = Held(), Emit()
    w = qnn.weights(held, Constants(held.constant(weight, "w"), None, 0, 2), kind, of, to)
    found = qnn.conv2d(emit, held.take(x, of), w, to, stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1)
    exact = F.conv2d(x.double() - 17, integers(weight, kind, 0).double() - zero, padding=1)
    factor = torch.tensor(of.one) * torch.tensor(kind.one) / torch.tensor(to.one)
    expected = (torch.round(exact.float() * factor) + to.zero_point).clamp(*to.bounds)
    assert torch.equal(held.compute(emit, found.value), expected.to(x.dtype))


def test_sums_that_leave_int32_are_refused() -> None:
    held = Held()
    constants = Constants(held.constant(torch.ones(1, 70000), "w"), None, 0, 0)
    with pytest.raises(PartitionError, match="do not fit into int32"):
        qnn.weights(held, constants, Affine(1 / 127, 0, "int8"), Affine(1.0), Affine(1.0))


# --- whole models


def chain(adapter: Adapter) -> list[tuple[Node, Value]]:
    """The layers of a block with what they compute, relu included."""
    found = []
    for node in adapter.block.nodes:
        if node.op in ("aten.conv2d", "aten.linear", "aten.add"):
            user = node.output.users[0] if node.output.users else None
            fused = user is not None and user.op == "aten.relu" and len(node.output.users) == 1
            found.append((node, user.output if fused and user is not None else node.output))
    return found


def scales_of(module: torch.fx.GraphModule) -> tuple[Affine, list[tuple[Affine, Any]]]:
    """Of PyTorch's quantised model: of its input, and of each layer with the weight it has."""
    start, layers = None, []

    def held(argument: Any) -> Any:
        return getattr(module, argument.target) if isinstance(argument, torch.fx.Node) else argument

    for node in module.graph.nodes:
        if node.op == "call_function" and node.target is torch.quantize_per_tensor:
            start = Affine(float(held(node.args[1])), int(held(node.args[2])))
        elif node.op == "call_module" and hasattr(module.get_submodule(node.target), "zero_point"):
            layer = module.get_submodule(node.target)
            layers.append((Affine(float(layer.scale), int(layer.zero_point)), layer.weight()))
        elif node.op == "call_function" and str(node.target).startswith("quantized.add"):
            layers.append((Affine(float(held(node.args[2])), int(held(node.args[3]))), None))
    assert start is not None
    return start, layers


def dtypes(block: Block) -> set[str]:
    """What the sums of a block's layers are computed in."""
    kinds = [node.output.type for node in block.nodes if node.op in ("aten.conv2d", "aten.linear")]
    return {kind.dtype for kind in kinds if kind is not None}


@pytest.mark.parametrize("small", [True, pytest.param(False, marks=pytest.mark.whole)], ids=["small", "whole"])
def test_resnet_18_agrees_with_pytorch_to_the_last_bit(small: bool) -> None:
    model = MODELS["resnet18"].make(small)
    draw = torch.Generator().manual_seed(3)
    samples = [torch.randn(2, 3, 64, 64, generator=draw) for _ in range(3)]
    with torch.no_grad():
        prepared = prepare_fx(model, QConfigMapping().set_global(get_default_qconfig("fbgemm")), (samples[0],))
        for x in samples:
            prepared(x)
        theirs = convert_fx(prepared)
    adapter = opened(fuse_fx(model), [samples[0]])
    start, told = scales_of(theirs)
    layers = chain(adapter)
    assert len(layers) == len(told) and len(told) > (10 if small else 25)
    named, weights = {adapter.block.inputs[-1].name: start}, {}
    for (node, output), (of, weight) in zip(layers, told):
        assert (weight is None) == (node.op == "aten.add")
        named[output.name] = of
        if weight is not None:
            assert isinstance(node.arguments["weight"], Value)
            weights[node.arguments["weight"].name] = Affine(tuple(weight.q_per_channel_scales().tolist()), 0, "int8")
    block = quantised(adapter.block, adapter, Scheme(named, weights))
    assert dtypes(block) == {"int32"}
    x = torch.randn(4, 3, 64, 64, generator=draw)
    with torch.no_grad():
        assert torch.equal(computed(adapter, block, [x[:2]]), theirs(x[:2]))
        if small:
            assert torch.equal(computed(adapter, block, [x[2:]]), theirs(x[2:]))


class Digits(nn.Module):
    """A small net with everything that is quantised: convolutions, a sum, a concatenation, a product, pooling, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.second, self.third = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 1)
        self.gate, self.last = nn.Conv2d(16, 32, 1), nn.Linear(32 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = F.max_pool2d(F.relu(self.second(x) + x), 2)
        x = torch.cat([x, F.relu(self.third(x))], 1) * F.relu6(self.gate(x))
        return self.last(torch.flatten(F.max_pool2d(x, 2), 1))


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A trained net, images to calibrate with, and images with their digits to judge by."""
    datasets = pytest.importorskip("sklearn.datasets", reason="needs scikit-learn for its digits")
    found = datasets.load_digits()
    images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(found.target)
    torch.manual_seed(0)
    order = torch.randperm(len(labels))
    train, test = order[:1200], order[1200:]
    model = Digits()
    step = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(15):
        for part in train[torch.randperm(len(train))].split(150):
            step.zero_grad()
            F.cross_entropy(model(images[part]), labels[part]).backward()
            step.step()
    return model.eval().requires_grad_(False), images[train[: len(test)]], images[test], labels[test]


@pytest.mark.sample(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy"])
def test_digits_stay_within_a_point(digits: tuple[nn.Module, Tensor, Tensor, Tensor], method: str, form: str) -> None:
    model, seen, images, labels = digits
    adapter = opened(model, [images], form)
    pipeline = standard().with_(quantisation(Scheme(Calibration([(seen,)], method))), before="remove_dead")
    block, ran = pipeline.run(adapter.block, adapter)
    assert "quantise" in ran and {"conv2d", "cat", "linear"} <= set(ops(block))
    assert dtypes(block) == {"int32"}
    float_hits = float((model(images).argmax(1) == labels).float().mean())
    hits = float((computed(adapter, block, [images]).argmax(1) == labels).float().mean())
    assert float_hits > 0.97 and abs(hits - float_hits) <= 0.01


def test_layers_inside_branches() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = torch.relu(self.a(x))
            if bool(x.sum() > 0):
                y = torch.relu(self.b(y))
            return y * 2

    model = settled(Net())
    up, down = torch.rand(4, 8), -torch.rand(4, 8)
    adapter = TorchScriptAdapter(torch.jit.script(model), (up,))
    block = quantised(adapter.block, adapter, Scheme(Calibration([(up,), (down,)])))
    (branch,) = [each for node in block.nodes for each in node.blocks if each.nodes]
    assert "linear" in ops(branch) and "_to_copy" in ops(branch)
    for x in (up, down):
        torch.testing.assert_close(computed(adapter, block, [x]), model(x), atol=0.05, rtol=0.05)


# --- calibration, and what the user chooses


def ranges(calibration: Calibration, function: Callable[[Tensor], Tensor] = torch.exp) -> tuple[float, float]:
    adapter = opened(Function(lambda x: function(x) + 1), [calibration.samples[0][0]])
    value = adapter.block.nodes[0].output
    before = str(adapter.block)
    found = calibration.ranges(adapter.block, adapter, [value])[value]
    assert str(adapter.block) == before and value.producer is adapter.block.nodes[0]
    return found


def test_calibration() -> None:
    torch.manual_seed(0)
    normal = torch.randn(10000)
    far = torch.cat([normal[:-1], torch.tensor([100.0])])
    low, high = ranges(Calibration([(normal,), (2 * normal,)]), torch.neg)
    assert (low, high) == (float(-2 * normal.max()), float(-2 * normal.min()))
    assert ranges(Calibration([(far,)], "minmax"), torch.clone)[1] == 100.0
    assert ranges(Calibration([(far,)], "percentile", 99.9), torch.clone)[1] < 5
    low, high = ranges(Calibration([(far,)], "entropy"), torch.clone)
    assert high <= 100 and low <= float(normal.min()) * 0.2
    assert ranges(Calibration([(torch.zeros(10000),)], "entropy"), torch.clone) == (0.0, 0.0)


def test_covering_keeps_zero_exact() -> None:
    assert covering(0.5, 2.0).zero_point == 0 and covering(-2.0, -0.5).zero_point == 255
    of = covering(-1.0, 3.0, "int8")
    assert of.zero_point == -64 and of.bounds == (-128, 127)
    assert covering(0.0, 0.0).one > 0 and covering(-1.0, 1.0, bounds=(0, 127)).bounds == (0, 127)


def test_what_the_user_chooses() -> None:
    model = settled(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Flatten(), nn.Linear(64, 3)))
    x = torch.randn(1, 3, 4, 4)

    def floats(**told: Any) -> tuple[list[str], Block]:
        adapter = opened(model, [x])
        block = quantised(adapter.block, adapter, Scheme(Calibration([(x,)]), **told))
        layers = [node for node in block.nodes if node.op in ("aten.conv2d", "aten.linear")]
        return [node.op for node in layers if str(node.output.type).startswith("float")], block

    assert floats()[0] == []
    assert floats(ops=("dense",))[0] == ["aten.conv2d", "aten.conv2d"]
    name = opened(model, [x]).block.nodes[0].output.name
    kept, block = floats(skip=(name,))
    assert kept == ["aten.conv2d"] and "stay float" in block.nodes[0].reason
    _, block = floats(per_channel=False, dtype="int8", bounds=(-100, 100))
    assert any(node.op == "aten.clamp" and node.arguments["min"] == -100 for node in block.nodes)
    adapter = opened(model, [x])
    block = quantised(adapter.block, adapter, Scheme({}))
    assert "no scale is known" in block.nodes[0].reason and ops(block)[:2] == ["conv2d", "relu"]


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Affine(0.0), "a scale of 0.0"),
        (lambda: Affine(float("nan")), "a scale of nan"),
        (lambda: Affine(1e-42), "inverses are finite"),
        (lambda: Affine(()), "a scale of"),
        (lambda: Affine(1.0, 256), "zero point 256"),
        (lambda: Affine(1.0, -1), "zero point -1"),
        (lambda: Affine(1.0, 0, "int4"), "quantised to 'int4'"),
        (lambda: Affine(1.0, 0, "uint8", 0, 300), "uint8 from 0 to 300"),
        (lambda: Affine((1.0, 2.0)).one, "2 scales where one is needed"),
        (lambda: covering(0.0, float("inf")), "from 0.0 to inf"),
        (lambda: weights_of(torch.tensor([[float("nan")]]), 0), "not finite"),
        (lambda: integers(torch.ones(3, 2), Affine((1.0, 1.0), 0, "int8"), 0), "2 scales for a weight of 3 channels"),
        (lambda: Calibration([]), "needs samples"),
        (lambda: Calibration(torch.ones(3)), "needs samples"),  # type: ignore[arg-type]
        (lambda: Calibration([(1,)], "guess"), "by 'guess'"),
        (lambda: Calibration([(1,)], "percentile", 20), "percentile 20"),
        (lambda: Scheme(3), "activations are 3"),  # type: ignore[arg-type]
        (lambda: Scheme({}, ops=("softmax",)), "'softmax' cannot be quantised"),
        (lambda: Scheme({}, bounds=(0, 400)), "from 0 to 400"),
        (lambda: ranges(Calibration([(torch.tensor([1.0, float("inf")]),)]), torch.clone), "not finite"),
    ],
)
def test_mistakes_are_told(make: Callable[[], object], words: str) -> None:
    with pytest.raises(PartitionError, match=words):
        make()


def test_types_of_the_statements() -> None:
    """What the statements are: nothing but these operations, on int32, float32, float64 and the two 8-bit types."""
    model = settled(Digits())
    adapter = opened(model, [torch.randn(2, 1, 8, 8)])
    pipeline = standard().with_(quantisation(Scheme(Calibration([(torch.rand(2, 1, 8, 8),)]))), before="remove_dead")
    block, _ = pipeline.run(adapter.block, adapter)
    plain = {"constant_pad_nd", "_to_copy", "conv2d", "linear", "add", "sub", "mul", "round", "clamp", "cat", "max_pool2d", "flatten"}
    assert set(ops(block)) <= plain
    kinds = {value.type for node in block.nodes for value in node.outputs}
    assert {kind.dtype for kind in kinds if isinstance(kind, TensorType)} <= {"int32", "float32", "float64", "uint8"}
