"""The families that operators are drawn from: each makes an Operator of a random generator and an amount of work in seconds."""
from __future__ import annotations

import random
from collections.abc import Callable

from generality import sizes
from generality.families import bands, contractions, convolutions, elements, guards, masks, narrow, programs, rows, stencils
from generality.operators import Operator, drawn_for

FAMILIES: dict[str, Callable[[random.Random, float], Operator]] = {
    "contraction": contractions.contraction,
    "convolution": convolutions.convolution,
    "transposed_convolution": convolutions.transposed_convolution,
    "border": masks.border,
    "pool": convolutions.pool,
    "reduction": rows.reduction,
    "norm": rows.norm,
    "softmax": rows.softmax,
    "stencil": stencils.stencil,
    "triangular": guards.triangular,
    "masked": masks.masked,
    "band": bands.band,
    "scan": guards.scan,
    "gather": elements.gather,
    "one_hot": elements.one_hot,
    "int8": narrow.int8,
    "bfloat16": narrow.bfloat16,
    "permutation": elements.permutation,
    "broadcast": elements.broadcast,
    "program": programs.program,
}
TRIES = 100


def draw(family: str, rng: random.Random, seconds: float | None = None) -> Operator:
    """An operator of a family with about so many seconds of estimated work: by default between the least and the most that are drawn."""
    machine = drawn_for()
    for _ in range(TRIES):
        made = FAMILIES[family](rng, sizes.seconds(rng) if seconds is None else seconds)
        if seconds is not None or machine.least <= made.work.seconds <= machine.most:
            return made
    raise RuntimeError(f"no {family} within {TRIES} tries has between {machine.least} and {machine.most} seconds of work")


def numbered(seed: int, family: str, number: int) -> Operator:
    """The operator that a seed has at this place of a family."""
    return draw(family, random.Random(f"{seed}/{family}/{number}"))
