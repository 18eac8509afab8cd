"""Which regions and which cut stay, by the clock: with clocks that say what a test wants, and with the real one.

Modules: byoc.select_variant
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tcjit
from tcjit.byoc import measure, select_variant
from tcjit.byoc.measure import Run


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was measured before."""
    monkeypatch.setenv("TCJIT_CACHE_DIR", str(tmp_path))


class Net(nn.Module):
    """A convolution with a batch norm, a chain of elementwise operations and a linear layer; counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.conv(x)))
        y = torch.tanh(y * 2 + 1) * torch.sigmoid(y)
        self.calls.add_(1)
        x.mul_(0.5)
        return self.linear(y.mean((2, 3)))


def net() -> tuple[Net, Tensor]:
    torch.manual_seed(0)
    return Net().eval(), torch.randn(2, 3, 12, 12)


def clock(monkeypatch: pytest.MonkeyPatch, seconds: Mapping[str, Iterable[float]], counts: list[list[str]] | None = None) -> None:
    """Each contender runs once and takes what is said of it, 1 by default."""

    def interleaved_timing(runs: Mapping[str, Run], least: float = 0) -> dict[str, list[float]]:
        for run in runs.values():
            run()
        if counts is not None:
            counts.append(list(runs))
        return {name: list(itertools.islice(seconds.get(name, [1.0] * 4), 4)) for name in runs}

    monkeypatch.setattr(measure, "interleaved_timing", interleaved_timing)
    monkeypatch.setattr(select_variant, "interleaved_timing", interleaved_timing)


def assert_agrees(partitioned: tcjit.PartitionedModule, model: Net, x: Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(partitioned(x.clone()), model(x.clone()), atol=1e-5, rtol=1e-5)


def test_by_the_real_clock_results_inputs_and_buffers_are_as_before() -> None:
    model, x = net()
    before = x.clone()
    done = tcjit.partition(model, (x,), measure=True)
    assert torch.equal(x, before) and model.calls.item() == 0
    assert_agrees(done, model, x)


def test_a_model_that_is_no_faster_cut_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = net()
    clock(monkeypatch, {"ours": [0.5] * 4, "whole": [0.9] * 4})
    done = tcjit.partition(model, (x,), measure=True)
    assert not done.regions and isinstance(done.model, Net) and done.model is not model
    assert done.model.linear.weight is model.linear.weight
    model.train()
    assert not done.model.training
    assert_agrees(done, model.eval(), x)


def test_regions_stay_if_they_are_faster_and_the_model_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = net()
    clock(monkeypatch, {"ours": [0.5] * 4, "0": [0.8] * 4, "1": [0.9] * 4})
    done = tcjit.partition(model, (x,), measure=True)
    assert done.regions and "channels_last" not in done.report().splitlines()[2]
    assert "aten 1e+03 ms" in done.report()
    assert_agrees(done, model, x)


def test_layouts_change_where_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = net()
    clock(monkeypatch, {"ours": [1.5] * 4, "0": [0.8] * 4})
    done = tcjit.partition(model, (x,), measure=True)  # no region stays, so that the only way is the one with other layouts
    assert not done.regions and "channels_last" in done.report().splitlines()[2]
    assert_agrees(done, model, x)


@pytest.mark.parametrize("config", [tcjit.PartitionConfig(opt_level=0), tcjit.PartitionConfig(without=("channels_last",))])
def test_layouts_stay_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch, config: tcjit.PartitionConfig) -> None:
    model, x = net()
    counts: list[list[str]] = []
    clock(monkeypatch, {"ours": [0.5] * 4, "0": [0.5] * 4}, counts)
    done = tcjit.partition(model, (x,), config, measure=True)
    assert counts[-1] == ["whole", "0"]
    assert_agrees(done, model, x)


def test_a_win_in_half_of_the_rounds_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = net()
    clock(monkeypatch, {"ours": [0.5] * 4, "0": [0.5, 0.5, 1.5, 1.5], "1": [0.1, 0.1, 1.1, 1.1]})
    assert not tcjit.partition(model, (x,), measure=True).regions


def test_a_win_that_is_not_sure_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = net()
    races: list[list[str]] = []
    config = tcjit.PartitionConfig(without=("channels_last",))
    disturbed, quiet = [0.5, 0.5, 0.5, 1.5], [0.5] * 4
    readings = {"ours": itertools.repeat(0.5), "0": itertools.chain(disturbed, quiet)}
    clock(monkeypatch, readings, races)
    assert tcjit.partition(model, (x,), config, measure=True).regions
    assert [names for names in races if "whole" in names] == [["whole", "0"]] * 2
    clock(monkeypatch, {"ours": itertools.repeat(0.5), "0": itertools.cycle(disturbed)}, races := [])
    assert not tcjit.partition(model, (x,), config, measure=True).regions
    assert len([names for names in races if "whole" in names]) == select_variant.RACES


FORMS: list[Callable[[Net, Tensor], Any]] = [
    lambda model, x: model,
    lambda model, x: torch.jit.script(model),
    lambda model, x: torch.export.export(model, (x,)),
]


@pytest.mark.parametrize("form", FORMS, ids=["module", "script", "program"])
def test_inputs_that_the_model_fails_on(form: Callable[[Net, Tensor], Any]) -> None:
    model, x = net()
    with pytest.raises(tcjit.errors.PartitionError, match="the model fails on its example inputs"):
        tcjit.partition(form(model, x), (torch.randn(2, 4, 12, 12),), measure=True)
    with pytest.raises(tcjit.errors.PartitionError, match="config must be tcjit.PartitionConfig, not dict"):
        tcjit.partition(model, (x,), {"cost": False})  # type: ignore[arg-type]


def test_what_was_measured_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = net()
    counts: list[list[str]] = []
    clock(monkeypatch, {"ours": [0.5] * 4, "0": [0.8] * 4}, counts)
    first = tcjit.partition(model, (x,), measure=True)
    assert ["ours", "aten"] in counts
    counts.clear()
    second = tcjit.partition(model, (x,), measure=True)
    assert ["ours", "aten"] not in counts and second.regions == first.regions


def test_scripts_and_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = net()
    script, program = torch.jit.script(model), torch.export.export(model, (x,))
    clock(monkeypatch, {"whole": [0.5] * 4})
    for each in (script, program):
        done = tcjit.partition(each, (x,), measure=True)
        assert not done.regions
        assert_agrees(done, model, x)
