"""Timing: when calls are made, in which order, and that it takes nothing but the standard library."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from support.calls import child

from tcjit.runtime import timing

pytestmark = pytest.mark.text


class Clock:
    """Time passes where something runs, and nowhere else."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.order: list[str] = []
        monkeypatch.setattr(timing, "perf_counter", lambda: self.now)

    def takes(self, seconds: float, name: str = "") -> Callable[[], float]:
        def run() -> float:
            self.now += seconds
            self.order.append(name)
            return seconds

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_reading_waits_once_for_all_calls(clock: Clock) -> None:
    assert timing.reading(clock.takes(2.0), 3, clock.takes(3.0)) == 3.0
    assert timing.reading(clock.takes(2.0)) == 2.0


@pytest.mark.parametrize(("seconds", "count"), [(0.0, 3), (3.5, 4), (100.0, 5)])
def test_samples_end_with_the_time_within_limits(clock: Clock, seconds: float, count: int) -> None:
    assert timing.sampled(clock.takes(1.0), 3, 5, seconds) == [1.0] * count


@pytest.mark.parametrize(
    ("order", "expected"), [(timing.as_given, "abcabcabc"), (timing.rotated, "abcbcacab"), (timing.alternating, "abccbaabc")]
)
def test_contenders_take_turns(clock: Clock, order: timing.Order, expected: str) -> None:
    times = timing.interleaved({name: clock.takes(float(n), name) for n, name in enumerate("abc")}, 3, order)
    assert "".join(clock.order) == expected and times == {"a": [0.0] * 3, "b": [1.0] * 3, "c": [2.0] * 3}


def test_a_seed_makes_the_same_orders() -> None:
    one, two = timing.shuffled(0), timing.shuffled(0)
    orders = ["".join(one("abcdef", turn)) for turn in range(4)]
    assert orders == ["".join(two("abcdef", turn)) for turn in range(4)] and len(set(orders)) > 1
    assert {*map(frozenset, orders)} == {frozenset("abcdef")}


def test_rounds_end_with_the_time_once_there_were_enough(clock: Clock) -> None:
    readers = {"a": clock.takes(1.0, "a")}
    assert len(timing.interleaved(readers, 9, least=2, seconds=0.5)["a"]) == 2
    assert len(timing.interleaved(readers, 9, least=2, seconds=3.5)["a"]) == 4
    clock.order.clear()
    timing.interleaved(readers, 2, before=clock.takes(0.0, "-"))
    assert clock.order == ["-", "a", "-", "a"]


def test_ratios_are_of_the_same_round() -> None:
    assert timing.ratios([1.0, 4.0], [2.0, 2.0]) == [0.5, 2.0]
    assert [timing.quantile_ratio([1.0, 2.0, 3.0, 4.0], [1.0] * 4, part) for part in (0.0, 0.5, 0.75)] == [1.0, 3.0, 4.0]
    with pytest.raises(ValueError, match="longer"):
        timing.ratios([1.0], [1.0, 2.0])


@pytest.mark.cold
def test_the_standard_library_is_enough() -> None:
    path = timing.__file__
    code = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("timing", {path!r})
spec.loader.exec_module(importlib.util.module_from_spec(spec))
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("tcjit", "numpy", "torch")))
"""
    assert child(code) == "[]"
