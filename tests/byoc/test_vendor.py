"""The backend ``vendor``: what ATen has fused operators for, as plain nodes that run without tcjit.

Modules: byoc.backends byoc.settings
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.byoc.graphs import Build
from support.byoc.passes import ACTIVATIONS, FORMS, Acting, Function, computed, opened, ops, settled
from torch import Tensor, nn

import tcjit
from tcjit.byoc.adapter import Adapter
from tcjit.byoc.graph import Argument, Value
from tcjit.byoc.grouping import group
from tcjit.byoc.partition_blocks import Partitioning, cut
from tcjit.byoc.regions import merge
from tcjit.byoc.settings import PartitionConfig
from tcjit.byoc.vendor import VENDOR

pytestmark = pytest.mark.filterwarnings("ignore")
forms = pytest.mark.parametrize("form", FORMS)
CONFIG = PartitionConfig(backends=("vendor",))

CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), (2, 4, 9)),
    "2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=(0, 1), dilation=(1, 2)), (2, 4, 9, 9)),
    "3d": (lambda: nn.Conv3d(4, 6, 2, bias=False), (2, 4, 5, 5, 5)),
    "groups": (lambda: nn.Conv2d(4, 8, 3, groups=4, padding=2), (2, 4, 6, 6)),
}


def divided(model: nn.Module, inputs: list[Tensor], form: str) -> tuple[Adapter, Partitioning]:
    adapter = opened(model, inputs, form)
    return adapter, cut(adapter, CONFIG)


def assert_same(adapter: Adapter, done: Partitioning, model: nn.Module, inputs: list[Tensor]) -> None:
    with torch.no_grad():
        torch.testing.assert_close(computed(adapter, done.block, inputs), model(*inputs), atol=2e-5, rtol=2e-5)


@forms
@pytest.mark.parametrize("act", list(ACTIVATIONS))
def test_layers_with_activations(form: str, act: str) -> None:
    model, inputs = settled(Acting(act)), [torch.randn(2, 3, 8, 8)]
    adapter, done = divided(model, inputs, form)
    assert ops(done.block) == ["mkldnn._convolution_pointwise", "mkldnn._linear_pointwise"]
    assert_same(adapter, done, model, inputs)


@forms
@pytest.mark.parametrize("name", list(CONVOLUTIONS))
def test_convolutions(form: str, name: str) -> None:
    make, shape = CONVOLUTIONS[name]
    model, inputs = settled(nn.Sequential(make(), nn.ReLU())), [torch.randn(shape)]
    adapter, done = divided(model, inputs, form)
    if name == "1d" and form == "fx":  # PyTorch's rule for shapes does not know it
        assert not done.regions and any("no rule for shapes" in row.reason for row in done.placed)
    else:
        assert ops(done.block) == ["mkldnn._convolution_pointwise"]
        assert [region.rows for region in done.regions] == [("convolution_activation",)]
    assert_same(adapter, done, model, inputs)


class Residual(nn.Module):
    def __init__(self, relu: bool) -> None:
        super().__init__()
        self.conv, self.linear, self.relu = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(8, 8), relu

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.conv(x)
        y = torch.relu(y) if self.relu else y
        return self.linear(y) + y


@pytest.mark.parametrize("relu", [False, True])
def test_sums_in_torchscript(relu: bool) -> None:
    model, inputs = settled(Residual(relu)), [torch.randn(2, 3, 8, 8)]
    adapter, done = divided(model, inputs, "torchscript")
    assert [region.rows[0] for region in done.regions] == ["convolution_add_relu" if relu else "convolution_add", "linear_add"]
    assert ops(done.block) == ["mkldnn._convolution_pointwise", "mkldnn._linear_pointwise"]
    assert_same(adapter, done, model, inputs)


def test_sums_have_no_form_in_exported_programs() -> None:
    model, inputs = settled(Residual(True)), [torch.randn(2, 3, 8, 8)]
    adapter, done = divided(model, inputs, "fx")
    assert not done.regions and any("no rule for shapes" in row.reason for row in done.placed)
    assert_same(adapter, done, model, inputs)


def test_a_layer_added_to_itself() -> None:
    model = Function(lambda x, w: (lambda y: torch.relu(y + y))(F.conv2d(x, w)), w=torch.randn(4, 3, 3, 3))
    adapter, done = divided(model, [torch.randn(2, 3, 8, 8)], "torchscript")
    assert not done.regions and any("adds a layer to itself" in row.reason for row in done.placed)


@forms
@pytest.mark.parametrize("act", ["relu", "gelu"])
def test_addmm(form: str, act: str) -> None:
    table = {"w": torch.randn(5, 6), "b": torch.randn(6)}
    model, inputs = Function(lambda x, w, b: ACTIVATIONS[act](torch.addmm(b, x, w)), **table), [torch.randn(3, 5)]
    adapter, done = divided(model, inputs, form)
    assert ops(done.block) == ["_addmm_activation"]
    assert_same(adapter, done, model, inputs)


# --- attention

ATTENTIONS: dict[str, Callable[..., Tensor]] = {
    "scaled scores": lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) * 0.25, -1) @ v,
    "divided scores": lambda q, k, v: torch.softmax(q @ k.transpose(2, 3) / 3.0, 3) @ v,
    "scaled queries": lambda q, k, v: torch.softmax((q * 0.5) @ k.permute(0, 1, 3, 2), -1) @ v,
    "no scale": lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1), -1) @ v,
    "mask": lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) * 0.25 + torch.ones(5, 6).tril().log().clamp(-9), -1) @ v,
    "turned keys seen elsewhere": lambda q, k, v: (
        lambda t: torch.softmax(q @ t * 0.25, -1) @ v + torch.exp(t).sum()
    )(k.transpose(-2, -1)),
}


@forms
@pytest.mark.parametrize("name", list(ATTENTIONS))
def test_attention(form: str, name: str) -> None:
    model = Function(ATTENTIONS[name])
    inputs = [torch.randn(2, 3, 5, 4), torch.randn(2, 3, 6, 4), torch.randn(2, 3, 6, 7)]
    adapter, done = divided(model, inputs, form)
    assert "scaled_dot_product_attention" in ops(done.block) and "softmax" not in ops(done.block)
    assert [region.rows for region in done.regions] == [("attention",)]
    assert_same(adapter, done, model, inputs)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "softmax over queries": (lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1), -2) @ v, "not over the keys"),
    "scores seen": (lambda q, k, v: (lambda s: torch.softmax(s, -1) @ v + s.sum())(q @ k.transpose(-2, -1)), "used outside"),
    "batches broadcast": (lambda q, k, v: torch.softmax(q @ k[:, :1].transpose(-2, -1), -1) @ v, "batches differ"),
    "scale is a tensor": (lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) * q.sum(), -1) @ v, ""),
    "matrices": (lambda q, k, v: torch.softmax(q[0, 0] @ k[0, 0].t(), -1) @ v[0, 0], "same rank"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_is_no_attention(name: str) -> None:
    function, words = REFUSED[name]
    model, inputs = Function(function), [torch.randn(2, 3, 5, 4), torch.randn(2, 3, 6, 4), torch.randn(2, 3, 6, 7)]
    adapter, done = divided(model, inputs, "fx")
    assert not done.regions and any(words in row.reason for row in done.placed)
    assert_same(adapter, done, model, inputs)


# --- what is refused

NO_LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "double": (lambda: nn.Conv2d(3, 4, 1).double(), (1, 3, 4, 4), "takes float32 or bfloat16"),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 2), (1, 3, 4, 4), ""),
    "no batch": (lambda: nn.Conv2d(3, 4, 1), (3, 4, 4), "no batch"),
    "padded by a word": (lambda: nn.Conv2d(3, 4, 3, padding="same"), (1, 3, 4, 4), "padded by a word"),
}


@pytest.mark.parametrize("name", list(NO_LAYERS))
def test_refused_layers(name: str) -> None:
    make, shape, words = NO_LAYERS[name]
    model = settled(nn.Sequential(make(), nn.ReLU()))
    inputs = [torch.randn(shape, dtype=next(model.parameters()).dtype)]
    adapter, done = divided(model, inputs, "fx")
    assert not done.regions and any(words in row.reason for row in done.placed)
    assert_same(adapter, done, model, inputs)


@forms
def test_weights_that_train_are_left_alone(form: str) -> None:
    model, inputs = settled(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())).requires_grad_(True), [torch.randn(1, 3, 4, 4)]
    adapter, done = divided(model, inputs, form)
    assert not done.regions and any("trains" in row.reason for row in done.placed)


def test_gpus_get_the_operators_of_cudnn() -> None:
    b = Build()
    x, z = (b.input(2, 4, 8, 8, device="cuda") for _ in range(2))
    w, bias = b.input(4, 4, 3, 3, constant=True, device="cuda"), b.input(4, constant=True, device="cuda")
    told = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}

    def conv(at: Value) -> Value:
        return b("aten.conv2d", at, w, bias, overload="default", shape=(2, 4, 8, 8), **told)

    first = b("aten.relu", conv(x), overload="default")
    second = b("aten.relu", b("aten.add", conv(first), z, 1, overload="Tensor"), overload="default")
    third = b("aten.sigmoid", conv(second), overload="default")
    block = b.block(third)
    groups = group(block, [VENDOR])
    assert sorted(each.row for each in groups) == ["convolution_activation", "convolution_add_relu"]
    assert any("cuDNN fuses relu only" in node.reason for node in block.nodes)
    holder: Any = SimpleNamespace(form="fx", read=lambda value: torch.empty(0))
    made = {region.rows[0]: VENDOR.rewrite(region, holder)[-1] for region in merge(block, groups)}
    relu, total = made["convolution_activation"], made["convolution_add_relu"]
    assert (relu.op, total.op) == ("aten.cudnn_convolution_relu", "aten.cudnn_convolution_add_relu")
    assert relu.arguments == {"self": x, "weight": w, "bias": bias, **told}
    assert total.arguments == {"self": first, "weight": w, "z": z, "alpha": 1.0, "bias": bias, **told} and total.outputs == (second,)


@pytest.mark.parametrize(
    ("device", "act", "named", "taken"),
    [
        ("cpu", "aten.gelu", {"approximate": "none"}, True),
        ("cpu", "aten.gelu", {"approximate": "tanh"}, False),
        ("cuda", "aten.gelu", {"approximate": "none"}, False),
        ("cuda", "aten.relu", {}, True),
    ],
)
def test_activations_that_addmm_has_on_a_device(device: str, act: str, named: dict[str, Argument], taken: bool) -> None:
    """On GPUs ATen's fused operator computes gelu by its tanh, which is another function."""
    b = Build()
    x, w, bias = b.input(3, 5, device=device), b.input(5, 6, device=device), b.input(6, device=device)
    layer = b("aten.addmm", bias, x, w, overload="default", shape=(3, 6), beta=1, alpha=1)
    block = b.block(b(act, layer, overload="default", **named))
    assert [each.row for each in group(block, [VENDOR])] == (["addmm_activation"] if taken else [])
    assert taken or any("the fused operator has relu, and gelu on CPUs" in node.reason for node in block.nodes)


# --- files

RUN = """
import sys, torch
made = torch.jit.load(sys.argv[1]) if sys.argv[1].endswith(".pt") else torch.export.load(sys.argv[1]).module()
given, expected = torch.load(sys.argv[2])
with torch.no_grad():
    print("tcjit" in sys.modules, float((made(given) - expected).abs().max()) < 2e-5)
"""


@forms
def test_files_run_without_tcjit(form: str, tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            y = F.gelu(self.linear(F.relu(self.conv(x))))
            return torch.softmax(y @ y.transpose(-2, -1) * 0.5, -1) @ y

    model, x = settled(Net()), torch.randn(2, 3, 8, 8)
    adapter, done = divided(model, [x], form)
    assert len(done.regions) == 3
    made: Any = adapter.realise(done.block)
    file = tmp_path / ("model.pt2" if form == "fx" else "model.pt")
    torch.export.save(made, file) if form == "fx" else torch.jit.save(made, str(file))
    torch.save((x, model(x)), tmp_path / "values")
    command = [sys.executable, "-W", "ignore", "-c", RUN, str(file), str(tmp_path / "values")]
    said = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert said.stdout.split() == ["False", "True"], said.stderr


@pytest.mark.sample(2)
@pytest.mark.parametrize("act", [nn.ReLU(), nn.LeakyReLU(0.1), nn.Hardtanh(-1.0, 2.0), nn.GELU()], ids=lambda act: type(act).__name__)
def test_convolutions_of_modules_are_exported(act: nn.Module, tmp_path: Path) -> None:
    """PyTorch's tracer has no lists of optional numbers, which these operators take."""
    model = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), act, nn.Flatten(), nn.Linear(512, 4), nn.ReLU()).eval().requires_grad_(False)
    x = torch.linspace(-2, 2, 2 * 8 * 8 * 8).view(2, 8, 8, 8)
    done = tcjit.partition(model, (x,), tcjit.PartitionConfig(backends=("vendor",), cost=False))
    assert len(done.regions) == 2
    done.export(tmp_path / "out")
    made = torch.jit.load(str(tmp_path / "out" / "model.pt"))
    kinds = [node.kind() for node in made.inlined_graph.nodes()]
    assert kinds.count("mkldnn::_convolution_pointwise") == kinds.count("mkldnn::_linear_pointwise") == 1
    torch.testing.assert_close(made(x), model(x))


def test_why_trainable_weights_are_refused() -> None:
    x = torch.ones(2, 8, 8, 8)
    done = tcjit.partition(nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()).eval(), (x,), tcjit.PartitionConfig(backends=("vendor",)))
    reasons = {row["reason"] for row in done.rows}
    (reason,) = reasons
    assert "trains, and the fused operator has no derivative (try model.requires_grad_(False))" in reason
    assert all(reason in line for line in done.report().splitlines()[-2:]), "one row each"
