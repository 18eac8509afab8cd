"""The backend ``packed``: layers whose weights are kept in oneDNN's layout: what it takes, files, and the clock."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.byoc.packed import CONFIG, Form, assert_same, conv, lowered, weight_of
from support.byoc.passes import ACTIVATIONS, FORMS, Acting, Function, settled
from torch import Tensor, nn

import tcjit
from tcjit.byoc import measure, onednn_prepacked, select_variant
from tcjit.byoc.measure import Run
from tcjit.errors import PartitionError

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of PyTorch has no oneDNN"),
]
forms = pytest.mark.parametrize("form", FORMS)
LAST = torch.channels_last

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "plain": (lambda: nn.Conv2d(4, 6, 3, padding=1), (2, 4, 9, 9)),
    "strided and dilated": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=(0, 1), dilation=(1, 2)), (2, 4, 9, 9)),
    "groups": (lambda: nn.Conv2d(4, 8, 3, groups=2, padding=2), (2, 4, 6, 6)),
    "depthwise, no bias": (lambda: nn.Conv2d(8, 8, 3, groups=8, bias=False), (1, 8, 6, 6)),
    "3d": (lambda: nn.Conv3d(4, 6, 2, bias=False), (2, 4, 5, 5, 5)),
    "linear": (lambda: nn.Linear(6, 5), (2, 3, 6)),
    "linear, no bias": (lambda: nn.Linear(6, 5, bias=False), (4, 6)),
}


# --- what it takes


@forms
@pytest.mark.parametrize("name", list(LAYERS))
def test_layers_by_themselves(form: str, name: str) -> None:
    make, shape = LAYERS[name]
    model, x = settled(make()), torch.randn(shape)
    done = Form(model, x, form)
    assert done.rows == ["linear" if name.startswith("linear") else "convolution"]
    for _ in range(2):
        found = done(x)
        assert_same(found, model(x))
        assert found.stride() == model(x).stride()  # though oneDNN computes in channels last


@forms
@pytest.mark.parametrize("act", list(ACTIVATIONS))
def test_layers_with_activations(form: str, act: str) -> None:
    model, x = settled(Acting(act)), torch.randn(2, 3, 8, 8)
    done = Form(model, x, form)
    assert done.rows == ["convolution_activation", "linear_activation"]
    assert_same(done(x), model(x))


@forms
@pytest.mark.parametrize("relu", [False, True])
def test_sums(form: str, relu: bool) -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            y = x + self.conv(x)
            y = torch.relu(y) if relu else y
            return self.linear(y) + y

    model, x = settled(Residual()), torch.randn(2, 3, 8, 8)
    before, done = x.clone(), Form(model, x, form)
    assert done.rows == ["convolution_add_relu" if relu else "convolution_add", "linear_add"]
    for _ in range(2):
        assert_same(done(x), model(x))
    assert torch.equal(x, before)


@forms
def test_a_layer_added_to_itself(form: str) -> None:
    model, x = Function(lambda x, w: (lambda y: y + y)(F.conv2d(x, w)), w=torch.randn(4, 3, 3, 3)), torch.randn(2, 3, 8, 8)
    done = Form(model, x, form)
    assert done.rows == ["convolution"] and "adds a layer to itself" in done.made.report()
    assert_same(done(x), model(x))


@forms
def test_bfloat16(form: str) -> None:
    model, x = conv()
    model, x = model.bfloat16(), x.bfloat16()
    done = Form(model, x, form)
    assert done.rows == ["convolution_activation"] and done(x).dtype == torch.bfloat16
    assert_same(done(x).float(), model.float()(x.float()), 3e-2)


@forms
def test_channels_last(form: str) -> None:
    model, x = conv(torch.randn(2, 4, 8, 8).to(memory_format=LAST))
    done = Form(model, x, form)
    found = done(x)
    assert_same(found, model(x))
    if form == "fx":  # which says what the model's strides are
        assert found.is_contiguous(memory_format=LAST)
    run = onednn_prepacked.PACKED.load({"code": lowered(model, x)})
    assert run([x, *model.parameters()])[0].stride() == model(x).stride()


@forms
def test_a_result_can_be_viewed_as_before(form: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(144, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.conv(x)
            return torch.cos(y), self.linear(y.view(2, -1))

    model, x = settled(Net()), torch.randn(2, 3, 8, 8)
    done = Form(model, x, form)
    assert done.rows == ["convolution", "linear"]
    first, second = done(x)
    assert first.is_contiguous()
    assert_same(first.view(2, -1), model(x)[0].view(2, -1))
    assert_same(second, model(x)[1])


def test_results_that_share_memory_still_do() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            y = self.conv(x)
            z = torch.sigmoid(y)
            return x.permute(0, 2, 3, 1), z, z[0], y[:, 0]

    model, x = settled(Net()), torch.randn(2, 3, 8, 8)
    done = tcjit.partition(torch.jit.script(model), (x,), CONFIG)
    assert len(done.regions) == 1
    with torch.no_grad():
        turned, whole, part, last = done(x)
        assert_same((turned, whole, part, last), model(x))
    assert turned.data_ptr() == x.data_ptr() and part.data_ptr() == whole.data_ptr() and last.is_contiguous()


def test_views_inside_of_branches() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor, flat: bool) -> Tensor:
            y = self.conv(x)
            if flat:
                y = y.view(2, -1)
            return y

    model, x = settled(Net()), torch.randn(2, 3, 8, 8)
    made = tcjit.partition(torch.jit.script(model), (x, True), CONFIG)
    with torch.no_grad():
        assert len(made.regions) == 1
        assert_same(made(x, True), model(x, True))
        assert_same(made(x, False), model(x, False))


REFUSED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "double": (lambda: nn.Conv2d(3, 4, 1).double(), (1, 3, 4, 4), "takes float32 or bfloat16"),
    "one dimension": (lambda: nn.Conv1d(3, 4, 1), (1, 3, 4), "weights of one dimension"),
    "no batch": (lambda: nn.Conv2d(3, 4, 1), (3, 4, 4), "no batch"),
    "padded by a word": (lambda: nn.Conv2d(3, 4, 3, padding="same"), (1, 3, 4, 4), "padded by a word"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_is_refused_has_a_reason(name: str) -> None:
    make, shape, words = REFUSED[name]
    model = settled(make())
    done = tcjit.partition(model, (torch.randn(shape, dtype=next(model.parameters()).dtype),), CONFIG)
    assert not done.regions and words in done.report()


def test_weights_that_train_are_refused() -> None:
    model, x = conv()
    done = tcjit.partition(model.requires_grad_(True), (x,), CONFIG)
    assert not done.regions and "trains" in done.report()


def test_small_layers_by_themselves_are_no_gain() -> None:
    config = tcjit.PartitionConfig(backends=("packed",))
    small = tcjit.partition(settled(nn.Conv2d(4, 4, 1)), (torch.randn(1, 4, 8, 8),), config)
    large = tcjit.partition(settled(nn.Conv2d(64, 64, 3)), (torch.randn(1, 64, 32, 32),), config)
    assert not small.regions and "no gain" in small.report() and len(large.regions) == 1


# --- copies and files


def test_a_copy_has_weights_of_its_own() -> None:
    model, x = conv()
    done = Form(model, x)
    first = done(x)
    other = copy.deepcopy(done.made.model)
    with torch.no_grad():
        for each in other.parameters():
            each.zero_()
        assert torch.equal(done(x), first)
        assert_same(other(x), torch.zeros_like(first))


RUN = """
import sys, torch, tcjit
made = tcjit.load(sys.argv[1])
given, expected = torch.load(sys.argv[2])
with torch.no_grad():
    print(len(made.regions), *(float((made(given) - expected).abs().max()) < 2e-5 for _ in range(2)))
"""


@forms
def test_files(form: str, tmp_path: Path) -> None:
    model, x = conv()
    done = Form(model, x, form)
    done(x)
    done.made.save(tmp_path / "model.pt")
    torch.save((x, model(x)), tmp_path / "values")
    command = [sys.executable, "-W", "ignore", "-c", RUN, str(tmp_path / "model.pt"), str(tmp_path / "values")]
    said = subprocess.run(command, capture_output=True, text=True)
    assert said.stdout.split() == ["1", "True", "True"], said.stderr
    held: Any = tcjit.load(tmp_path / "model.pt").model
    kept = [each for _, each in (*held.named_parameters(), *held.named_buffers()) if each.dim() == 4]
    assert kept and all(torch.equal(each, weight_of(model)) and not each.is_mkldnn for each in kept)


def test_a_program_stays_one(tmp_path: Path) -> None:
    model, x = conv()
    done = tcjit.partition(torch.export.export(model, (x,)), (x,), CONFIG)
    done.save(tmp_path / "model.pt2")
    again = tcjit.load(tmp_path / "model.pt2")
    assert again.regions == done.regions == ("packed_0_convolution_activation",)
    with torch.no_grad():
        assert_same(again(x), model(x))


@pytest.mark.host
@forms
def test_exported_for_cpp_it_is_aten(form: str, tmp_path: Path) -> None:
    model, x = conv()
    done = Form(model, x, form)
    folder = done.made.export(tmp_path / "out")
    assert not folder.served and "packed" in next(iter(folder.left.values()))
    with torch.no_grad():
        assert_same(torch.jit.load(tmp_path / "out" / "model.pt")(x), model(x))


def test_a_spec_of_another_kind_is_refused() -> None:
    with pytest.raises(PartitionError, match="does not say how it is called"):
        onednn_prepacked.PACKED.load({"name": "mine", "code": {"text": ""}})


# --- measured


def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: Callable[[int], float]) -> list[list[str]]:
    """Regions take the seconds that are said of the n-th race, cut models half of the time of whole ones; nothing was measured before."""
    races: list[list[str]] = []

    def interleaved_timing(runs: dict[str, Run], least: float = 0) -> dict[str, list[float]]:
        for run in runs.values():
            run()
        races.append(list(runs))
        return {name: [{"ours": seconds(len(races)), "0": 0.5}.get(name, 1.0)] * 4 for name in runs}

    monkeypatch.setenv("TCJIT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measure, "interleaved_timing", interleaved_timing)
    monkeypatch.setattr(select_variant, "interleaved_timing", interleaved_timing)
    return races


@pytest.mark.parametrize("fastest", [1, 2])
def test_measuring_chooses_among_backends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fastest: int) -> None:
    model, x = settled(nn.Sequential(nn.Conv2d(16, 16, 3), nn.ReLU())), torch.randn(1, 16, 32, 32)
    clock(monkeypatch, tmp_path, lambda number: 0.2 if number == fastest else 0.4)
    config = tcjit.PartitionConfig(backends=("vendor", "packed"), without=("channels_last",))
    done = tcjit.partition(model, (x,), config, measure=True)
    assert done.regions[0].startswith(("vendor", "packed")[fastest - 1]) and len(done.regions) == 1
    with torch.no_grad():
        assert_same(done(x), model(x))


def test_measuring_asks_it_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # nothing behind it: vendor has no row for a convolution by itself, and it is too large for tcjit
    model, x = settled(nn.Conv2d(64, 64, 3)), torch.randn(1, 64, 32, 32)
    clock(monkeypatch, tmp_path, lambda number: 0.5)
    usual = tcjit.PartitionConfig(without=("channels_last",))
    assert [name[:6] for name in tcjit.partition(model, (x,), usual, measure=True).regions] == ["packed"]
    assert not tcjit.partition(model, (x,), usual).regions
    given = tcjit.PartitionConfig(backends=("tcjit", "vendor"), without=("channels_last",))
    assert not tcjit.partition(model, (x,), given, measure=True).regions


def test_by_the_real_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TCJIT_CACHE_DIR", str(tmp_path))
    model, x = settled(nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))), torch.randn(1, 8, 16, 16)
    timed, real = list[list[str]](), measure.interleaved_timing

    def interleaved_timing(runs: dict[str, Run], least: float = measure.LEAST) -> dict[str, list[float]]:
        found = real(runs, least)
        timed.append(list(found))
        assert all(each and min(each) > 0 for each in found.values())
        return found

    monkeypatch.setattr(measure, "interleaved_timing", interleaved_timing)
    done = tcjit.partition(model, (x,), measure=True)
    assert timed.count(["ours", "aten"]) >= 2, "both layers are packed, whatever is faster then"
    with torch.no_grad():
        assert_same(done(x), model(x))
