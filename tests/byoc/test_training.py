"""Partitioned models train: gradients of regions are those of the model as it was, of any order, in files and copies as well.

Modules: byoc.tcjit_backend byoc.vendor_gradients
"""
from __future__ import annotations

import copy
import io
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.byoc.passes import FORMS
from support.gradients import second_order
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import tcjit
from tcjit.byoc import runtime
from tcjit.byoc.backends import Backend, Row, register, unregister
from tcjit.byoc.patterns import is_op, wildcard

pytestmark = pytest.mark.host
OWN = tcjit.PartitionConfig(backends=("tcjit",), cost=False)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The regions that ran in plain ATen; none has said why so far, and a warning is an error."""
    calls: list[str] = []
    run = runtime._plain
    monkeypatch.setattr(runtime, "_TOLD", {})
    monkeypatch.setattr(runtime, "_plain", lambda spec, inputs: (calls.append(spec), run(spec, inputs))[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield calls


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.gate, self.norm, self.outer = nn.Linear(6, 8), nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(self.outer(self.norm(torch.tanh(self.inner(x)) * torch.sigmoid(self.gate(x)))), 1)


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.max_pool2d(functional.relu(self.norm(self.conv(x))), 2)
        return functional.log_softmax(self.last(y.flatten(1)), -1)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.query, self.key = nn.Embedding(11, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, words: Tensor) -> Tensor:
        x = self.table(words)
        scores = self.query(x) @ self.key(x).transpose(-2, -1) / 6**0.5
        return functional.gelu(torch.softmax(scores, -1) @ x)


def words() -> Tensor:
    return torch.randint(0, 11, (2, 5), generator=torch.Generator().manual_seed(1))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "gate": (Gate, lambda: torch.randn(5, 6)),
    "pictures": (lambda: Pictures().eval(), lambda: torch.randn(2, 2, 4, 4)),
    "words": (Words, words),
}


def gradients(run: Callable[..., Any], x: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """By the input, if it can require one, and by parameters that do."""
    by = [*([x.requires_grad_()] if x.is_floating_point() else []), *(each for each in parameters if each.requires_grad)]
    y = run(x)
    cotangent = torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=y.dtype)
    return list(torch.autograd.grad(y, by, cotangent))


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_the_model(name: str, plain: list[str]) -> None:
    build, given = MODELS[name]
    model, x = build(), given()
    fast = tcjit.partition(model, (x,), OWN)
    assert fast.regions and "gradients:" not in fast.report()
    parameters = list(model.parameters())
    torch.testing.assert_close(gradients(fast, x.clone(), parameters), gradients(model, x.clone(), parameters), rtol=1e-4, atol=1e-5)
    assert not plain


@pytest.mark.parametrize("name", MODELS)
def test_both_orders_in_float64(name: str, plain: list[str]) -> None:
    build, given = MODELS[name]
    model, x = build().double(), given()
    x = x.double() if x.is_floating_point() else x
    fast = tcjit.partition(model, (x,), OWN)
    names, values = zip(*model.named_parameters())

    def run(*changed: Tensor) -> Any:
        return torch.func.functional_call(fast.model, dict(zip(names, changed)), (x,))

    assert gradcheck(run, values) and second_order(run, values)
    assert not plain


def test_steps_of_an_optimiser(plain: list[str]) -> None:
    model = Gate()
    other = copy.deepcopy(model)
    x, target = torch.randn(5, 6), torch.randn(5, 3)
    fast = tcjit.partition(other, (x,), OWN)
    for run, owner in ((model, model), (fast, other)):
        step = torch.optim.Adam(owner.parameters(), lr=1e-2)
        for _ in range(3):
            step.zero_grad()
            (run(x) - target).square().mean().backward()
            step.step()
    torch.testing.assert_close(dict(other.named_parameters()), dict(model.named_parameters()), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close([*fast.parameters()], [*other.parameters()], rtol=0, atol=0)
    assert not plain


def test_frozen_parameters_cost_nothing(plain: list[str]) -> None:
    model, x = nn.Sequential(nn.Linear(6, 8), nn.Tanh()), torch.randn(5, 6)
    model[0].weight.requires_grad_(False)
    fast = tcjit.partition(model, (x,), OWN)
    y = fast(x)
    assert sorted(tuple(each.shape) for each in saved_by(y)) == [(5, 8)]  # tanh's result; neither x nor the weight
    y.sum().backward()
    assert model[0].weight.grad is None and not plain
    torch.testing.assert_close(model[0].bias.grad, (1 - model(x) ** 2).sum(0))


def saved_by(y: Tensor) -> list[Tensor]:
    node: Any = y.grad_fn
    while not hasattr(node, "saved_tensors") or not node.saved_tensors:
        node = node.next_functions[0][0]
    return list(node.saved_tensors)


def test_products_are_saved(plain: list[str]) -> None:
    """And not computed again, where that takes longer than reading them."""
    model, x = nn.Sequential(nn.Linear(64, 16), nn.GELU()), torch.randn(8, 64)
    fast = tcjit.partition(model, (x,), OWN)
    kept = [tuple(each.shape) for each in saved_by(fast(x))]
    assert (8, 16) in kept
    torch.testing.assert_close(gradients(fast, x, [*model.parameters()]), gradients(model, x, [*model.parameters()]), rtol=1e-4, atol=1e-5)


def test_hooks_and_checkpoints(plain: list[str]) -> None:
    model, x = Gate(), torch.randn(5, 6)
    fast, seen = tcjit.partition(model, (x,), OWN), []
    wanted = gradients(model, x.clone(), [*model.parameters()])
    cotangent = torch.randn(5, 3, generator=torch.Generator().manual_seed(3))
    for reentrant in (False, True):
        y = x.clone().requires_grad_()
        checkpoint(fast, y, use_reentrant=reentrant).backward(cotangent)
        torch.testing.assert_close(y.grad, wanted[0], rtol=1e-4, atol=1e-5)
    model.zero_grad()
    y = x.clone().requires_grad_()
    y.register_hook(lambda gradient: seen.append(gradient) or gradient * 2)
    model.inner.weight.register_hook(lambda gradient: gradient * 0)
    fast(y).square().sum().backward()
    torch.testing.assert_close(y.grad, 2 * seen[0])
    assert not model.inner.weight.grad.any() and not plain


@pytest.mark.parametrize("form", FORMS)
def test_files_and_copies_train(form: str, tmp_path: Path, plain: list[str]) -> None:
    model, x = Gate(), torch.randn(5, 6)
    fast = tcjit.partition(torch.jit.script(model) if form == "torchscript" else model, (x,), OWN)
    fast.save(tmp_path / "gate.pt")
    wanted = gradients(model, x, [*model.parameters()])
    stream = io.BytesIO(pickle.dumps(fast))
    for again in (tcjit.load(tmp_path / "gate.pt"), copy.deepcopy(fast), pickle.load(stream)):
        held = dict(again.named_parameters())
        named = [next(each for key, each in held.items() if key.endswith(name)) for name, _ in model.named_parameters()]
        torch.testing.assert_close(gradients(again, x, named), wanted, rtol=1e-4, atol=1e-5)
        assert not set(map(id, held.values())) & set(map(id, model.parameters()))
    assert not plain


def test_modes_of_training(plain: list[str]) -> None:
    """Statistics of a batch are PyTorch's, and dropout draws its numbers: the rest of the model is in regions."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 3), nn.Tanh())
    other, x = copy.deepcopy(model), torch.randn(7, 6)
    fast = tcjit.partition(other, (x,), OWN)
    assert fast.training and {row["op"] for row in fast.rows if not row["region"]} >= {"aten.dropout"}
    assert {row["op"] for row in fast.rows if row["region"]} >= {"aten.linear", "aten.tanh", "aten.gelu"}
    found = []
    for run, owner in ((model, model), (fast, other)):
        torch.manual_seed(5)
        found.append(gradients(run, x, [*owner.parameters()]))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close([*fast.buffers()], [*model.buffers()])
    assert int(next(value for name, value in fast.named_buffers() if name.endswith("num_batches_tracked"))) == 1 and not plain


def test_batch_norms_that_train_are_not_folded() -> None:
    model, x = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).eval(), torch.randn(1, 2, 5, 5)
    assert not any("folded" in name for name, _ in tcjit.partition(model, (x,)).named_buffers())
    fast = tcjit.partition(model, (x,), OWN)
    torch.testing.assert_close(
        gradients(fast, x.clone(), [*model.parameters()]), gradients(model, x.clone(), [*model.parameters()]), rtol=1e-4, atol=1e-4
    )
    assert any("folded" in name for name, _ in tcjit.partition(model.requires_grad_(False), (x,)).named_buffers())


def test_sizes_that_vary(plain: list[str]) -> None:
    model = Gate()
    fast = tcjit.partition(model, {"x": torch.randn(5, 6)}, OWN, dynamic=True)
    for batch in (5, 2, 9):
        x = torch.randn(batch, 6)
        wanted = gradients(model, x.clone(), [*model.parameters()])
        torch.testing.assert_close(gradients(fast, x.clone(), [*model.parameters()]), wanted, rtol=1e-4, atol=1e-5)
    assert not plain


def mixed(x: Tensor) -> Tensor:
    return functional.max_pool2d(x, 2) * x.amax((2, 3), True)


def cut(x: Tensor) -> Tensor:
    return x.exp() * x.exp().detach()


class Calling(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize(("function", "why"), [(mixed, "the first of equal elements, and aten.amax shares it"), (cut, "aten.detach has")])
def test_what_has_no_adjoint_runs_in_plain_aten_and_says_why(function: Any, why: str, plain: list[str]) -> None:
    x = torch.randn(1, 2, 4, 4)
    fast = tcjit.partition(Calling(function), (x,), OWN)
    with pytest.warns(UserWarning, match=why):
        found = gradients(fast, x.clone(), [])
    assert len(plain) == 1
    torch.testing.assert_close(found, gradients(function, x.clone(), []))
    with torch.no_grad():
        fast(x)
    gradients(fast, x.clone(), [])  # it is said once
    assert len(plain) == 2


class Doubles(Backend):
    """x + x, with or without a runner for gradients."""

    name, merges = "doubles", False
    patterns = (Row("exp", is_op("aten.exp")(wildcard())),)

    def __init__(self, records: bool) -> None:
        self.records = records

    def lower(self, region: Any) -> Mapping[str, Any]:
        return {}

    def without_gradients(self, spec: Mapping[str, Any]) -> str:
        return "" if self.records else super().without_gradients(spec)

    def load(self, spec: Mapping[str, Any]) -> Any:
        def run(tensors: Sequence[Tensor]) -> list[Tensor]:
            return [tensors[0].exp()]

        if self.records:
            run.recorded = lambda tensors: [tensors[0].exp() * 3]  # type: ignore[attr-defined]
        return run


@pytest.mark.parametrize("records", [False, True])
def test_other_backends(records: bool, plain: list[str]) -> None:
    register(Doubles(records))
    try:
        x = torch.randn(3, requires_grad=True)
        layer = nn.Linear(3, 3)
        fast = tcjit.partition(nn.Sequential(layer, Calling(torch.exp)), (x,), tcjit.PartitionConfig(backends=("doubles",), cost=False))
        if records:
            torch.testing.assert_close(fast(x), layer(x).exp() * 3)
        else:
            with pytest.warns(UserWarning, match="plain ATen: backend doubles has no gradients"):
                torch.testing.assert_close(fast(x), layer(x).exp())
        assert len(plain) == (not records)
    finally:
        unregister("doubles")
        runtime.forget("doubles")


def test_a_report_says_what_trains_in_plain_aten() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), Calling(lambda x: x.exp() * x.detach())), torch.randn(2, 8)
    assert "runs in plain ATen: aten.detach has no gradient" in tcjit.partition(model, (x,), OWN).report()
    assert "gradients:" not in tcjit.partition(model.requires_grad_(False), (x,), OWN).report()


# ---------------------------------------------------------------- the vendor's operators


def residual(layer: nn.Module, act: bool) -> nn.Module:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x) + x
            return functional.relu(y) if act else y

    return Residual()


VENDORS: dict[str, Callable[[], nn.Module]] = {
    **{
        f"convolution and {type(act).__name__}": lambda act=act: nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), act)
        for act in (nn.ReLU(), nn.GELU(), nn.GELU("tanh"), nn.LeakyReLU(0.1), nn.Hardtanh(-0.5, 0.5), nn.SiLU(), nn.Hardswish(), nn.Tanh())
    },
    "grouped": lambda: nn.Sequential(nn.Conv2d(4, 4, (3, 1), stride=(1, 2), dilation=(1, 1), groups=2, bias=False), nn.Sigmoid()),
    "linear": lambda: nn.Sequential(nn.Linear(6, 6), nn.Hardsigmoid()),
    "sum": lambda: residual(nn.Linear(6, 6), False),
    "sum of a convolution": lambda: residual(nn.Conv2d(4, 4, 1), True),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", VENDORS)
def test_gradients_through_the_vendors_operators(name: str, form: str, plain: list[str]) -> None:
    """A layer in front of them trains, or an input does; their own weights do not."""
    layers, x = VENDORS[name](), torch.randn(2, 4, 6, 6)
    model = nn.Sequential(nn.Linear(6, 6), layers.requires_grad_(False)).eval()
    given = torch.jit.script(model) if form == "torchscript" and not name.startswith("sum") else model
    given = torch.jit.trace(model, x) if form == "torchscript" and name.startswith("sum") else given
    fast = tcjit.partition(given, (x,), tcjit.PartitionConfig(backends=("vendor",), cost=False))
    assert fast.regions or form == "fx"  # sums have no form in exported programs
    wanted = gradients(model, x.clone(), [*model.parameters()])
    trained = [each for each in fast.parameters() if each.requires_grad]
    torch.testing.assert_close(gradients(fast, x.clone(), trained), wanted, rtol=1e-4, atol=1e-4)
    along = torch.randn_like(x)
    torch.testing.assert_close(
        torch.func.jvp(fast.model, (x,), (along,)), torch.func.jvp(model, (x,), (along,)), rtol=1e-4, atol=1e-4
    )
    assert not plain


def test_a_product_with_a_sum(plain: list[str]) -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(6, 5), False), nn.Parameter(torch.randn(5), False)

        def forward(self, x: Tensor) -> Tensor:
            return functional.gelu(torch.addmm(self.bias, x, self.weight, beta=2, alpha=3))

    model, x = Product(), torch.randn(4, 6)
    fast = tcjit.partition(model, (x,), tcjit.PartitionConfig(backends=("vendor",), cost=False))
    assert fast.regions
    torch.testing.assert_close(gradients(fast, x.clone(), []), gradients(model, x.clone(), []), rtol=1e-4, atol=1e-4)


# ---------------------------------------------------------------- what looks at the operator


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_again(backend: str) -> None:
    model, x = Gate(), torch.randn(5, 6)
    fast = tcjit.partition(model, (x,), OWN)
    run = torch.compile(fast.model, backend=backend)
    wanted = gradients(model, x.clone(), [*model.parameters()])
    torch.testing.assert_close(gradients(run, x.clone(), [*model.parameters()]), wanted, rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


def test_transforms_and_tangents() -> None:
    model, x = Gate().double(), torch.randn(5, 6, dtype=torch.float64)
    fast = tcjit.partition(model, (x,), OWN).model
    for transform in (
        lambda f: torch.func.grad(lambda x: f(x).square().sum())(x),
        lambda f: torch.func.jacrev(lambda x: f(x).square().sum(0))(x),
        lambda f: torch.func.hessian(lambda x: f(x).square().sum())(x),
        lambda f: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
        lambda f: torch.func.vmap(torch.func.grad(lambda row: f(row).square().sum()))(torch.stack([x, x + 1])),
    ):
        torch.testing.assert_close(transform(fast), transform(model))


def test_autocast_is_that_of_the_model() -> None:
    model, x = Gate(), torch.randn(5, 6)
    fast = tcjit.partition(model, (x,), OWN)
    found = []
    for run in (fast, model):
        with torch.autocast("cpu", torch.bfloat16):
            found.append(gradients(run, x.clone(), [*model.parameters()]))
    torch.testing.assert_close(*found)


