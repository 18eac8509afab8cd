"""The constants of a machine: their table, what is kept of them, and that they can be measured here."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tcjit.mapping.machine import Costs
from tcjit.runtime import calibrate


def test_every_constant_has_a_unit_a_meaning_and_a_way_to_measure_it() -> None:
    assert len(Costs.described()) > 8
    for constant in Costs.described():
        assert all(constant.metadata[fact] for fact in ("unit", "meaning", "measured")), constant.name
    assert all(value > 0 for value in asdict(Costs()).values())


def test_what_was_kept_is_read_again() -> None:
    costs = Costs(frequency=2.5e9)
    assert Costs.of_note({**asdict(costs), "of another version": 1}) == costs


@pytest.mark.parametrize("wrong", [{"frequency": 0}, {"frequency": "3 GHz"}, {"gather": None}, {"gather": True}, {"l2_load": float("nan")}])
def test_damaged_notes_are_none(wrong: dict[str, object]) -> None:
    assert Costs.of_note({**asdict(Costs()), **wrong}) is None
    assert Costs.of_note({}) is None


def test_the_best_run_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, runs = [0.0], []

    def program(count: int) -> None:
        runs.append(count)
        clock[0] += count * 1e-6 * (1 if len(runs) % 2 else 3)  # every second run is disturbed

    monkeypatch.setattr(calibrate.time, "perf_counter", lambda: clock[0])
    assert calibrate.best(program, 1000) == pytest.approx(1e-6)
    assert all(count % 1000 == 0 for count in runs) and runs[-1] * 3e-6 >= calibrate.LEAST


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right by far: other tests run at the same time."""
    import torch  # noqa: F401 - whose OpenMP runtime is used

    monkeypatch.setattr(calibrate, "SHARE", 0.0)
    monkeypatch.setattr(calibrate, "LEAST", 0.002)
    costs = calibrate.calibrate()
    assert 1e8 < costs.frequency < 8e9, "no processor is faster: what was timed was not executed"
    assert 1 < costs.fma_latency < 40 and 0.01 < costs.fma_rate < 8
    assert 0.1 < costs.vector_load < 20 and 0.01 < costs.copy < 40 and 0.01 < costs.transpose < 80 and 0.1 < costs.scatter < 40
    assert costs.page >= 4096 and costs.tlb in calibrate.PAGES
    assert 0 < costs.l3_load and 1e7 < costs.memory_read < 1e13 and 1e-8 < costs.parallel_region < 1 and 1 <= costs.passed_line < 1e5
    assert Costs.of_note(asdict(costs)) == costs
