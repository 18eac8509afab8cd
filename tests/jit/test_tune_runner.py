"""How often a candidate is run: as often as it takes to know it, by what is known of the best.

Modules: jit.tune_compiler jit.tune_worker
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from tcjit.jit import tune_runner
from tcjit.jit.tune_compiler import Session
from tcjit.runtime import timing


class Clock:
    """Time passes where a candidate runs, and nowhere else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: Iterable[float], late: float = math.inf) -> None:
        self.now, self.count, self.seconds = 0.0, 0, iter(seconds)
        self.problem = SimpleNamespace(outs=[], expected=[], target=SimpleNamespace(first_launch_slack=late))
        monkeypatch.setattr(tune_runner, "_runner", lambda *_: self.run)
        monkeypatch.setattr(timing, "perf_counter", lambda: self.now)

    def run(self) -> None:
        self.now += next(self.seconds)
        self.count += 1

    def timed(self, best: float | None) -> float:
        return tune_runner.timed(Session(Path(), [cast(Any, self.problem)]), "code", best)


@pytest.mark.parametrize(("times_best", "count"), [(20.0, 2), (1.6, 2), (1.4, 5), (1.0, 5), (None, 5)])
def test_candidates_far_behind_are_soon_left(monkeypatch: pytest.MonkeyPatch, times_best: float | None, count: int) -> None:
    clock = Clock(monkeypatch, repeat(0.05))
    assert clock.timed(None if times_best is None else 0.05 / times_best) == pytest.approx(0.05)
    assert clock.count == count


def test_a_cold_start_of_a_short_kernel_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first run takes longer for reasons of the machine, or because a driver compiles it only then."""
    clock = Clock(monkeypatch, chain([0.5], repeat(9e-5)))
    assert clock.timed(1e-4) == pytest.approx(9e-5)


@pytest.mark.parametrize(("first", "count"), [(0.9, 2), (1.01, 2), (1.03, 1), (20.0, 1)])
def test_what_a_first_launch_cannot_be_late_by_is_run_once(monkeypatch: pytest.MonkeyPatch, first: float, count: int) -> None:
    clock = Clock(monkeypatch, chain([first], repeat(0.9)), late=0.02)
    assert clock.timed(0.1) == pytest.approx(min(first, 0.9) if count == 2 else first)
    assert clock.count == count


@pytest.mark.parametrize("strides", [(4, 1), (1, 3), (10, 2), (4, 0), (0, 1), (0, 0)])
def test_inputs_have_the_strides_of_the_problem(strides: tuple[int, ...]) -> None:
    """And the values drawn for it, where no two of them share memory."""
    x = torch.arange(12.0).reshape(3, 4)
    made = tune_runner._strided(x, strides)
    alone = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
    assert made.shape == x.shape and made.stride() == strides and torch.equal(made, x[alone].expand(3, 4))


@pytest.mark.parametrize("name", ["opencl", "cuda:sm_80"])
def test_where_drivers_load_or_compile_at_launch_no_first_run_is_a_verdict(name: str) -> None:
    from tcjit.jit import targets

    assert targets.find(name).first_launch_slack == math.inf
    assert targets.find("cpu").first_launch_slack < 0.1
