"""Random programs with sizes left open, at several values of them."""
from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from math import prod

from support.cases import Case
from support.fuzz.programs import WORK
from tcjit.errors import TCError

VALUES = (1, 2, 3, 5, 8, 16, 31, 32, 33, 40, 65)


def opened(case: Case, rng: random.Random) -> Case:
    """The case with some of its sizes dynamic, none that is part of the code."""
    definition = case.definition()
    free = [size for size in definition.sizes if size not in definition.specialised]
    return replace(case, dynamic=tuple(size for size in free if rng.random() < 0.6))


def resized(case: Case, rng: random.Random, count: int) -> Iterator[Case]:
    """The case at other values of its dynamic sizes, as many of ``count`` as the program allows."""
    params = {param.name: param.dims for param in case.definition().params}
    for _ in range(count):
        values = {size: rng.choice(VALUES) for size in case.dynamic}
        shapes = {
            name: tuple(values.get(dim, extent) for dim, extent in zip(params[name], shape, strict=True))
            for name, shape in case.shapes.items()
        }
        other = replace(case, shapes=shapes)
        try:
            program = other.program()
            if any(prod(upper - lower for lower, upper in box) > WORK for box in program.domains):
                continue
            if not case.faults:
                other.expected(program)  # gathers that were drawn inside may now be outside
        except TCError:
            continue
        yield other
