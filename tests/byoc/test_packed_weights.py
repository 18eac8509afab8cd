"""The backend ``packed`` as its weights change and other inputs come: never a result of weights as they were."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.byoc.packed import CONFIG, Form, assert_same, conv, lowered, weight_of
from support.byoc.passes import FORMS, settled
from torch import Tensor, nn

import tcjit
from tcjit.byoc import onednn_prepacked, runtime
from tcjit.byoc.spec import Unserved

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of PyTorch has no oneDNN"),
]
forms = pytest.mark.parametrize("form", FORMS)


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of inputs that weights were packed for, since the test began."""
    seen: list[tuple[int, ...]] = []
    real = onednn_prepacked._PrepackedRegion._packed

    def noted(self: Any, weight: Tensor, shape: list[int]) -> Tensor:
        seen.append(tuple(shape))
        return real(self, weight, shape)

    monkeypatch.setattr(onednn_prepacked._PrepackedRegion, "_packed", noted)
    runtime.forget("packed")
    return seen


# --- weights that change


@forms
def test_a_write_is_seen_at_the_next_call(form: str, packs: list[tuple[int, ...]]) -> None:
    model, x = conv()
    done = Form(model, x, form)
    done(x), done(x)
    assert len(packs) == 1
    writes: list[Callable[[Tensor], object]] = [
        lambda w: w.mul_(2), lambda w: w.detach().add_(1), lambda w: w[0].zero_(), lambda w: w.copy_(torch.randn_like(w)),
    ]  # fmt: skip
    for write in writes:
        for weight in (weight_of(model), *(each for each in done.made.model.parameters() if each.dim() == 4)):
            before = weight._version
            with torch.no_grad():
                write(weight)
            assert weight._version > before
        with torch.no_grad():
            expected = torch.relu(F.conv2d(x, weight, model.get_parameter("0.bias"), padding=1))
        assert_same(done(x), expected, 1e-4)
    assert len(packs) == 1 + len(writes)


def test_a_loaded_state_is_seen(packs: list[tuple[int, ...]]) -> None:
    model, x = conv()
    done, other = Form(model, x), settled(conv()[0], 1)
    nn.init.normal_(weight_of(other))
    done(x)
    model.load_state_dict(other.state_dict())
    assert_same(done(x), other(x))
    assert len(packs) == 2
    done.made.load_state_dict({name: torch.zeros_like(each) for name, each in done.made.state_dict().items()}, assign=True)
    assert not done(x).any() and other(x).any()
    assert len(packs) == 3


def test_other_memory_is_seen_and_writes_around_the_count_after_forgetting(packs: list[tuple[int, ...]]) -> None:
    model, x = conv()
    done, weight = Form(model, x), weight_of(model)
    done(x)
    for _ in range(3):  # what is freed comes again, and must not be taken for what it was
        weight.data = torch.randn_like(weight)
        weight.data = torch.randn_like(weight)
        assert_same(done(x), model(x))
    assert len(packs) == 4
    stale = done(x)
    weight.data.mul_(2)  # PyTorch does not count it
    assert torch.equal(done(x), stale) and len(packs) == 4
    runtime.forget("packed")
    assert_same(done(x), model(x))
    assert len(packs) == 5 and not torch.allclose(model(x), stale)


def test_inference_tensors_are_not_kept(packs: list[tuple[int, ...]]) -> None:
    model, x = conv()
    run = onednn_prepacked.PACKED.load({"code": lowered(model, x)})
    with torch.inference_mode():
        weight, bias = torch.randn(6, 4, 3, 3), torch.randn(6)
        for _ in range(2):
            assert_same(run([x, weight, bias])[0], torch.relu(F.conv2d(x, weight, bias, padding=1)))
            weight.add_(1)
        assert not packs
        done = Form(model, x)
        first = done.made(x)
        weight_of(model).mul_(0.5)  # of tensors made outside they are counted
        assert_same(done.made(x), model(x))
    assert not torch.equal(done(x), first)
    assert_same(done(x), model(x))  # a copy that was made in inference mode serves outside


def test_copies_die_with_their_weights(packs: list[tuple[int, ...]]) -> None:
    model, x = conv()
    code = lowered(model, x)
    packing = onednn_prepacked._PrepackedRegion(code)
    weight = torch.randn(6, 4, 3, 3)
    made = packing.copy(weight, (x.shape, x.dtype), x)
    assert len(packing.held) == 1 and made.is_mkldnn
    packing.copy(weight.add_(1), (x.shape, x.dtype), x)
    assert len(packing.held) == 1 and len(packs) == 2
    del weight
    gc.collect()
    assert not packing.held


# --- inputs of other kinds


@forms
def test_other_sizes_and_an_empty_batch(form: str, packs: list[tuple[int, ...]]) -> None:
    model, x = conv()
    given: Any = torch.jit.script(model)
    if form == "fx":
        sizes = {0: torch.export.Dim("batch"), 2: torch.export.Dim("height"), 3: torch.export.Dim("width")}
        assert not tcjit.partition(torch.export.export(model, (x,), dynamic_shapes=(sizes,)), (x,), CONFIG).regions  # not known: refused
        run = onednn_prepacked.PACKED.load({"code": lowered(model, x)})
        call: Callable[[Tensor], Tensor] = lambda x: run([x, *model.parameters()])[0]  # noqa: E731
    else:
        call = tcjit.partition(given, (x,), CONFIG)
    shapes = [(2, 4, 8, 8), (5, 4, 8, 8), (1, 4, 30, 17)]
    with torch.no_grad():
        for _ in range(3):
            for shape in shapes:
                other = torch.randn(shape)
                assert_same(call(other), model(other))
        assert packs == shapes
        if form == "torchscript":
            assert call(x[:0]).shape == (0, 6, 8, 8)
        else:
            with pytest.raises(Unserved, match="is empty"):
                call(x[:0])


def test_few_shapes_are_kept_and_share_what_is_equal(packs: list[tuple[int, ...]]) -> None:
    model, x = conv()
    packing, weight = onednn_prepacked._PrepackedRegion(lowered(model, x)), weight_of(model)
    for size in range(1, 2 * onednn_prepacked.SHAPES):
        other = torch.randn(size, 4, 8, 8)
        packing.copy(weight, (other.shape, other.dtype), other)
    (held,) = packing.held.values()
    assert len(held.ready) == onednn_prepacked.SHAPES and len(set(map(id, held.ready.values()))) < onednn_prepacked.SHAPES


@pytest.mark.parametrize("x", [torch.randn(2, 3, 8, 8), torch.randn(2, 4, 8, 8).double(), torch.randn(2, 4, 8, 8).bfloat16()])
def test_what_eager_refuses_is_refused_in_its_words(x: Tensor) -> None:
    model, example = conv()
    done = tcjit.partition(torch.jit.script(model), (example,), CONFIG)
    with pytest.raises(RuntimeError) as expected:
        model(x)
    for _ in range(2):
        with pytest.raises(RuntimeError) as found:
            done(x)
        assert str(expected.value).splitlines()[0] in str(found.value)


def test_a_sum_that_broadcasts_at_the_run_is_left_to_aten() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear = nn.Conv2d(3, 3, 1), nn.Linear(8, 8)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.linear(self.conv(x) + y) + y

    model, x, y = settled(Sum()), torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8)
    done = tcjit.partition(torch.jit.script(model), (x, y), CONFIG)
    assert len(done.regions) == 2
    with torch.no_grad():
        for other in (y, y[:1], y[:, :1, :1, :1], torch.randn(8), torch.randn(4, 2, 3, 8, 8)):
            assert_same(done(x, other), model(x, other))


def test_without_onednn_it_is_aten() -> None:
    model, x = conv()
    done = Form(model, x)
    done(x)
    with torch.backends.mkldnn.flags(enabled=False):
        assert_same(done(x), model(x))
        with pytest.raises(Unserved, match="switched off"):
            onednn_prepacked.PACKED.load({"code": lowered_before(model, x)})([x, *model.parameters()])


def test_files_run_where_there_is_no_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = conv()
    done = Form(model, x)
    runtime.forget("packed")
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert_same(done(x), model(x))
    runtime.forget("packed")
    with pytest.raises(Unserved, match="no oneDNN"):
        onednn_prepacked.PACKED.load({"code": {"places": {}, "numbers": {}, "behind": []}})([x])


def test_buffers_that_the_model_writes_to() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.register_buffer("state", torch.zeros(2, 4, 6, 6))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.conv(x)
            self.state.copy_(y * 0.5)
            return y, y

    model, x = settled(Net()), torch.randn(2, 3, 8, 8)
    done = Form(copy.deepcopy(model), x)
    first, second = done(x)
    assert_same(first, model(x)[0])
    assert first is second and first.is_contiguous()
    assert_same(dict(done.made.model.named_buffers())["state"], model.get_buffer("state"))


def lowered_before(model: nn.Module, x: Tensor) -> dict[str, Any]:
    """As `lowered`, with oneDNN switched on for that long."""
    with torch.backends.mkldnn.flags(enabled=True):
        return lowered(model, x)


def test_gradients_and_tensors_without_data() -> None:
    model, x = conv()
    done = Form(model, x)
    given = x.clone().requires_grad_(True)
    done.made(given).sum().backward()
    expected = x.clone().requires_grad_(True)
    model(expected).sum().backward()
    assert_same(given.grad, expected.grad)
    again = torch.export.export(done.made.model, (x,))  # traced with tensors that have no data
    assert any(node.target == runtime.CALL for node in again.graph.nodes)
    assert_same(again.module()(x), model(x))
    assert done.made.model.to("meta")(x.to("meta")).shape == (2, 6, 8, 8)


def test_under_torch_compile(packs: list[tuple[int, ...]]) -> None:
    model, x = conv()
    done = Form(model, x)
    compiled = torch.compile(done.made.model, backend="eager")
    with torch.no_grad():
        for _ in range(2):
            assert_same(compiled(x), model(x))
    assert packs == [tuple(x.shape)]


def test_threads() -> None:
    model, x = conv()
    done, wrong = Form(model, x), list[float]()
    start = threading.Barrier(4)
    inputs = [torch.randn(1 + place % 2, 4, 8, 8) for place in range(4)]
    run = onednn_prepacked.PACKED.load({"code": lowered(model, x)})

    def work(given: Tensor) -> None:
        with torch.no_grad():
            expected = model(given)
            start.wait()
            wrong.extend(float((run([given, *model.parameters()])[0] - expected).abs().max()) for _ in range(50))
            if given.shape == x.shape:
                wrong.append(float((done.made(given) - expected).abs().max()))

    threads = [threading.Thread(target=work, args=(each,)) for each in inputs]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(wrong) == 202 and max(wrong) < 2e-5
