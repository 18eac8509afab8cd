"""Random extents for an amount of work."""
from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from generality.operators import Work, drawn_for

ROUND = (4, 8, 16, 32, 64, 128)


def seconds(rng: random.Random) -> float:
    """An amount of work between the least and the most, each order of magnitude as likely as the others."""
    machine = drawn_for()
    return math.exp(rng.uniform(math.log(machine.least), math.log(machine.most)))


def extent(rng: random.Random, size: float, least: int = 1) -> int:
    """About ``size``: an odd number or a multiple of a power of two, one as likely as the other.

    >>> extent(random.Random(1), 100.0) % 2
    1
    """
    fitting = [unit for unit in ROUND if unit <= size]
    if fitting and rng.random() < 0.5:
        unit = rng.choice(fitting)
        return max(least, round(size / unit) * unit)
    return max(least, int(size) | 1 if size >= 4 else round(size))


def extents(rng: random.Random, target: float, cost: Callable[..., Work], least: Sequence[int]) -> list[int]:
    """As many extents as there are in ``least``, none smaller, in random proportion, with which ``cost`` says about ``target`` seconds."""
    shares = [0.1 + rng.random() for _ in least]

    def grown(exponent: float) -> list[float]:
        return [low * math.exp(exponent * share / sum(shares)) for low, share in zip(least, shares)]

    low, high = 0.0, 60.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(*grown(middle)).seconds < target else (low, middle)
    return [extent(rng, size, floor) for size, floor in zip(grown(low), least)]


def layout(rng: random.Random, rank: int, usual: float = 0.7) -> tuple[int, ...] | None:
    """The order of a tensor's dimensions in memory; None for the usual one."""
    if rank < 2 or rng.random() < usual:
        return None
    order = tuple(rng.sample(range(rank), rank))
    return None if order == tuple(range(rank)) else order
