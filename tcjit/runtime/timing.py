"""Timing of calls: readings of the clock, contenders in turns, and ratios of their times.

Whatever disturbs a machine disturbs what runs in the same round alike, so that contenders are timed in turns and compared within rounds.
Needs the standard library alone: benchmarks import it in environments that have nothing else.
"""
from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from time import perf_counter
from typing import Any, TypeVar

Name = TypeVar("Name", bound=Hashable)
# the order of the contenders in a round, by its number
Order = Callable[[Sequence[Any], int], Sequence[Any]]


def reading(run: Callable[[], object], calls: int = 1, wait: Callable[[], object] | None = None) -> float:
    """Seconds per call of so many calls back to back; ``wait`` returns when all that they started is done."""
    start = perf_counter()
    for _ in range(calls):
        run()
    if wait is not None:
        wait()
    return (perf_counter() - start) / calls


def calls_for(seconds: float, estimate: float) -> int:
    """How many calls a reading takes to cover so many seconds, where one takes about ``estimate``.

    >>> calls_for(2e-3, 3e-4), calls_for(2e-3, 1.0)
    (7, 1)
    """
    return max(1, math.ceil(seconds / max(estimate, 1e-7)))


def sampled(read: Callable[[], float], least: int, most: int, seconds: float) -> list[float]:
    """Readings until ``seconds`` have gone by: no fewer than ``least``, no more than ``most``."""
    readings: list[float] = []
    start = perf_counter()
    while len(readings) < most and (len(readings) < least or perf_counter() - start < seconds):
        readings.append(read())
    return readings


# ---------------------------------------------------------------- in turns


def as_given(names: Sequence[Name], turn: int) -> Sequence[Name]:
    """The same order in every round."""
    return names


def rotated(names: Sequence[Name], turn: int) -> list[Name]:
    """Another one first in each round.

    >>> rotated("abc", 1)
    ['b', 'c', 'a']
    """
    shift = turn % len(names) if names else 0
    return [*names[shift:], *names[:shift]]


def alternating(names: Sequence[Name], turn: int) -> Sequence[Name]:
    """Forwards and backwards by turns."""
    return names if turn % 2 == 0 else names[::-1]


def shuffled(seed: int | None = None) -> Order:
    """A random order in every round; the same ones for a seed."""
    rng = random.Random(seed)
    return lambda names, turn: rng.sample(list(names), len(names))


def interleaved(
    readers: Mapping[Name, Callable[[], float]],
    rounds: int,
    order: Order = as_given,
    *,
    before: Callable[[], object] | None = None,
    least: int = 0,
    seconds: float = math.inf,
) -> dict[Name, list[float]]:
    """What each reader returns in every round, in which all of them take turns.

    ``before`` is called before each round. After ``seconds`` there are no more rounds, once there were ``least``.
    """
    readings: dict[Name, list[float]] = {name: [] for name in readers}
    start = perf_counter()
    for turn in range(rounds):
        if turn >= least and perf_counter() - start > seconds:
            break
        if before is not None:
            before()
        for name in order(list(readers), turn):
            readings[name].append(readers[name]())
    return readings


# ---------------------------------------------------------------- what they say


def ratios(times: Sequence[float], others: Sequence[float]) -> list[float]:
    """Of each round the one time over the other."""
    return [one / other for one, other in zip(times, others, strict=True)]


def quantile_ratio(times: Sequence[float], others: Sequence[float], part: float) -> float:
    """The part of the other time that is taken at most in such a part of the rounds.

    >>> quantile_ratio([1.0, 1.0, 1.0, 3.0], [2.0, 2.0, 2.0, 2.0], 0.5)
    0.5
    """
    ordered = sorted(ratios(times, others))
    return ordered[int(part * len(ordered))]


def percentile(ordered: Sequence[float], part: float) -> float:
    """Of an ascending list, between neighbours by distance.

    >>> percentile([1.0, 2.0, 4.0], 0.75)
    3.0
    """
    position = part * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def geometric_mean(values: Sequence[float]) -> float:
    """Of times in seconds; none counts as less than a nanosecond.

    >>> round(geometric_mean([1.0, 4.0]), 9)
    2.0
    """
    return math.exp(sum(math.log(max(value, 1e-9)) for value in values) / len(values))
