"""`torch.compile(model, backend="tcjit")`: inference and training agree with eager, whatever the model does."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support import PYTHONPATH, ROOT
from support.byoc.toy import Toy
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from tcjit.byoc import compiled
from tcjit.byoc.backends import register, unregister
from tcjit.byoc.runtime import forget
from tcjit.errors import PartitionError

pytestmark = pytest.mark.host



@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def toy() -> Iterator[Toy]:
    backend = Toy()
    yield register(backend)
    unregister(backend.name)
    forget(backend.name)


def taken(model: Callable[..., Any], backend: str = "toy", **settings: Any) -> Callable[..., Any]:
    return torch.compile(model, backend="tcjit", options={"backends": (backend,), "cost": False}, **settings)


def assert_close(one: Any, other: Any, tolerance: float = 1e-6) -> None:
    ones, others = pytree.tree_leaves(one), pytree.tree_leaves(other)
    assert len(ones) == len(others)
    for a, b in zip(ones, others):
        if isinstance(a, Tensor):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
            assert a.stride() == b.stride()
        else:
            assert a == b


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(functional.gelu(self.first(x)))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # a bias would have gradients of nothing but noise before the norm, and Adam would make steps of them
        self.first, self.norm, self.last = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm(self.first(x)), inplace=True)
        return self.last(functional.max_pool2d(y, 2).mean((2, 3)))


class Block(nn.Module):
    """A transformer's: attention and two layers, each behind a norm and beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(8), nn.LayerNorm(8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (each.view(batch, length, 2, width // 2).transpose(1, 2) for each in self.qkv(self.one(x)).chunk(3, -1))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.two(x))))


MODELS: list[tuple[Callable[[], nn.Module], tuple[int, ...]]] = [
    (Perceptron, (5, 6)),
    (Convolutions, (3, 2, 8, 8)),
    (Block, (2, 5, 8)),
]


@pytest.mark.parametrize("build, shape", MODELS)
def test_inference(build: Callable[[], nn.Module], shape: tuple[int, ...], toy: Toy) -> None:
    model, x = build().eval(), torch.randn(shape)
    run = taken(model)
    with torch.no_grad():
        assert_close(run(x), model(x))
        count = len(toy.calls)
        assert_close(run(x + 1), model(x + 1))
    assert count and len(toy.calls) == 2 * count


@pytest.mark.parametrize("build, shape", MODELS)
@pytest.mark.parametrize("backend", ["toy", "tcjit"])
def test_training_steps_are_those_of_eager(build: Callable[[], nn.Module], shape: tuple[int, ...], backend: str, toy: Toy) -> None:
    model = build()
    other = copy.deepcopy(model)
    run = taken(other, backend)
    steps = [torch.optim.Adam(each.parameters(), lr=1e-2) for each in (model, other)]
    for _ in range(3):
        x = torch.randn(shape, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        for each, given, step in ((model, x, steps[0]), (run, y, steps[1])):
            step.zero_grad()
            each(given).square().mean().backward()
        assert_close(y.grad, x.grad, 1e-5)
        assert_close([each.grad for each in other.parameters()], [each.grad for each in model.parameters()], 1e-5)
        for step in steps:
            step.step()
    assert_close(dict(other.named_buffers()), dict(model.named_buffers()), 1e-5)
    assert backend != "toy" or len(toy.calls) >= 6


# what regions do not take of these models in training: products of ATen's libraries, and views that are kept for backwards
LEFT = {"convolution_backward", "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"}
VIEWS = {"view", "transpose", "t", "split", "unsqueeze", "expand", "detach", "permute", "slice"}


@pytest.mark.parametrize("build, shape", MODELS)
def test_forward_and_backward_graphs_are_cut_and_that_is_logged(
    build: Callable[[], nn.Module], shape: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "tcjit")
    run = taken(build(), "tcjit")
    run(torch.randn(shape, requires_grad=True)).square().mean().backward()
    graphs = [record.getMessage() for record in caplog.records if " graph: " in record.getMessage()]
    assert [message.partition(":")[0] for message in graphs] == ["forward graph", "backward graph"]
    for message in graphs:
        assert "covered: " in message
        lines = [line for line in message.splitlines() if line.startswith("aten.")]
        outside = {line.split()[0].removeprefix("aten.") for line in lines if " tcjit_" not in line}
        assert lines and outside <= LEFT | VIEWS, message


def test_dropout_draws_the_numbers_of_its_seed(toy: Toy) -> None:
    def model(x: Tensor) -> Tensor:
        return functional.dropout(x * 2, 0.5, training=True).relu() + torch.rand_like(x)

    run, x = taken(model), torch.ones(40, requires_grad=True)
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        found.append(run(x))
    assert torch.equal(*found) and toy.calls
    found[0].sum().backward()
    kept = (found[0] >= 4).float()
    assert 5 < kept.sum() < 35 and torch.equal(x.grad, kept * 4)


@pytest.mark.parametrize("dynamic", [True, None])
def test_sizes_that_change(dynamic: bool | None, toy: Toy) -> None:
    model, width = (Block().eval(), 8) if dynamic else (Perceptron(), 6)
    run = taken(model, dynamic=dynamic)
    with torch.no_grad():
        for batch, length in ((2, 5), (3, 5), (4, 7), (1, 2)):
            x = torch.randn(batch, length, width)
            assert_close(run(x), model(x))
    assert toy.calls


def test_sizes_as_numbers(toy: Toy) -> None:
    def model(x: Tensor, n: int) -> tuple[Tensor, int, float]:
        y = x.view(-1, x.shape[1] // 2) * n + x.shape[0]
        return y.relu(), x.shape[0] * 2 + n, x.shape[1] / 4

    run = taken(model, dynamic=True)
    for shape, n in (((3, 4), 2), ((5, 8), 3), ((2, 2), 7)):
        x = torch.randn(shape)
        assert_close(run(x, n), model(x, n))


def test_writes_to_inputs_and_buffers(toy: Toy) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.total.add_(x.sum(0))
            x.view(-1)[0] = 7
            x.mul_(2)
            return x.exp() + self.total

    model, other = Counts(), Counts()
    run = taken(other)
    for _ in range(3):
        x = torch.randn(2, 3)
        y = x.clone()
        assert_close(run(x), model(y))
        assert_close(x, y)
        assert_close(other.total, model.total)
    assert toy.calls


def views(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x * 2
    return y, y.view(-1), x.t()


def outputs(x: Tensor) -> Any:
    y = x.relu()
    return {"one": y, "again": [y, y], "three": 3, "none": None, "text": "text", "pair": (x, x.max(1))}


def branch(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda t: t.sin() * 2 + 1, lambda t: t.cos().exp(), (x,)) * 2


def broken(x: Tensor) -> Tensor:
    y = x.relu() * 2
    torch._dynamo.graph_break()
    return y.exp() if float(y.sum()) > 0 else y - 1


def whole_numbers(x: Tensor) -> Tensor:
    return ((x * 10).to(torch.int64) % 3 + 1).to(torch.uint8) << 2


def complexes(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.complex(x, x + 1) * (2 + 1j)
    return y.abs(), torch.view_as_real(y * y.conj())


def halves(x: Tensor) -> Tensor:
    return (x.to(torch.bfloat16) * 2).softmax(-1).float() + x.double().exp()


def last_channels(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.view(1, 3, 2, 2).to(memory_format=torch.channels_last).relu() * 2
    return y, y.permute(0, 2, 3, 1).view(4, 3)


FUNCTIONS = [views, outputs, branch, broken, whole_numbers, complexes, halves, last_channels]


@pytest.mark.parametrize("backend", ["toy", "tcjit"])
@pytest.mark.parametrize("model", FUNCTIONS)
def test_models_of_all_kinds(model: Callable[[Tensor], Any], backend: str, toy: Toy) -> None:
    toy.contiguous = True
    run = taken(model, backend)
    for sign in (1, -1):
        x = sign * torch.rand(3, 4)
        y = x.clone()
        assert_close(run(x), model(y))
        assert_close(x, y)
    assert toy.calls or backend == "tcjit"


def test_results_that_share_memory_go_on_sharing_it(toy: Toy) -> None:
    run, x = taken(views), torch.ones(2, 3)
    y, flat, turned = run(x)
    flat[0] = 9
    turned[0, 0] = 8
    assert y[0, 0] == 9 and x[0, 0] == 8


def test_gradients_of_views_and_of_results_given_twice(toy: Toy) -> None:
    def model(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x.exp()
        return y, y.t(), y

    run, grads = taken(model), []
    for each in (run, model):
        x = torch.linspace(0, 1, 6).view(2, 3).requires_grad_()
        one, two, three = each(x)
        (one.sum() + (two * 2).sum() + (three * three).sum()).backward()
        grads.append(x.grad)
    assert_close(*grads)


def test_a_model_that_computes_nothing(toy: Toy) -> None:
    run, x = taken(lambda x: (x, 4)), torch.ones(2)
    assert run(x)[0] is x or torch.equal(run(x)[0], x)
    assert run(x)[1] == 4 and not toy.calls


def test_without_regions_a_graph_stays_with_torch() -> None:
    register(Toy("nobody", ("aten.nothing",)))
    try:
        x = torch.randn(3, 4)
        assert_close(taken(branch, "nobody")(x), branch(x))
    finally:
        unregister("nobody")


def test_gradients_of_branches(toy: Toy) -> None:
    run, grads = taken(branch), []
    for each in (run, branch):
        for sign in (1, -1):
            x = (sign * torch.rand(3, generator=torch.Generator().manual_seed(1))).requires_grad_()
            each(x).sum().backward()
            grads.append(x.grad)
    assert_close(grads[:2], grads[2:])


def test_modes_and_options(toy: Toy) -> None:
    x = torch.randn(3)
    assert_close(torch.compile(lambda x: x.exp() * 2, backend="tcjit", mode="max-autotune")(x), x.exp() * 2)
    for mode, options, said in (
        (None, {"speed": 1}, "no 'speed'"),
        (None, {"opt_level": 9}, "opt_level=9"),
        (None, {"backends": ("nowhere",)}, "no backend 'nowhere'"),
        ("quick", {}, "mode='quick'"),
    ):
        torch._dynamo.reset()
        with pytest.raises((PartitionError, torch._dynamo.exc.BackendCompilerFailed), match=said):
            torch.compile(lambda x: x.exp(), backend=compiled.compiled, mode=mode, options=options or None)(x)


def test_torch_knows_the_backend_by_its_name() -> None:
    """From the package's entry point, without tcjit being imported; where it is not installed, from the module."""
    assert "tcjit = tcjit.byoc.compiled:compiled" in (ROOT / "setup.py").read_text(encoding="utf-8")
    code = """
import sys, torch
import tcjit
assert "tcjit.byoc.compiled" not in sys.modules and "torch._dynamo" not in sys.modules
import tcjit.byoc.compiled
assert "tcjit" in torch._dynamo.list_backends()
print(torch.compile(lambda x: x.exp() + 1, backend="tcjit")(torch.zeros(2)).tolist())
"""
    own = {"PYTHONPATH": PYTHONPATH, "TCJIT_CACHE_DIR": os.environ["TCJIT_CACHE_DIR"]}  # not the user's, which may hold measured constants
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=own)
    assert done.stdout.strip() == "[2.0, 2.0]", done.stderr
