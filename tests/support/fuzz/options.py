"""Mapping options drawn at random, and the threshold that keeps threads from the small loops of tests lifted."""
from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from tcjit.mapping.options import Options
from tcjit.mapping.passes import parallelise

# what a field takes besides the choices it declares for the tuner
BESIDES: Mapping[str, tuple[Any, ...]] = {
    "vector_width": (2,),
    "register_tile": ((1, 1), (3, 2), (5, 3), (7, 1), (2, 4)),
    "reduction_chunks": (2, 3, 5, 4096),
    "block": (1, 32, 33, 100),
    "threads": ((1, 1), (3, 5), (1, 32), (32, 1), (4, 64), (32, 32)),
    "registers": ((1, 8), (3, 2), (5, 3), (16, 1), (13, 12)),
    "reduction_tile": (1, 2, 3, 5, 7, 64, 256),
    "pipeline_stages": (5, 8),
}
TILES = (0, 0, 1, 2, 3, 4, 5, 7, 8, 16, 32, 1000)


def drawn(rng: random.Random, target: str = "cpu") -> Options:
    """Valid options: each field that ``target`` heeds takes one of its declared choices or something odd beside them."""
    values: dict[str, Any] = {}
    for option in Options.described():
        if target in option.metadata["targets"]:
            values[option.name] = rng.choice((*option.metadata["choices"], *BESIDES.get(option.name, ())))
            if target != "cpu" and rng.random() < 0.4:  # what most fields ask for at once suits hardly any def
                values[option.name] = option.default
    if target == "cpu" and rng.random() < 0.7:
        values["tile"] = tuple(rng.choice(TILES) for _ in range(rng.choice((0, 1, 2, 2, 3))))
    return Options(**values)


def refused(what: str) -> bool:
    """Whether a failure says no more than that a device cannot serve some options: others are then to be drawn."""
    return what.startswith("MappingError: option ")


def changed(options: Options) -> dict[str, Any]:
    """The fields that differ from the defaults, as JSON values."""
    plain = Options().to_dict()
    return {name: value for name, value in options.to_dict().items() if value != plain[name]}


def nearer(options: Options | None) -> Iterator[Options | None]:
    """Simpler options, the simplest first: none at all, then one field less, then fewer and smaller tile sizes."""
    if options is None:
        return
    yield None
    plain = Options()
    for option in fields(Options):
        if getattr(options, option.name) != getattr(plain, option.name):
            yield options.but(**{option.name: getattr(plain, option.name)})
    for position, size in enumerate(options.tile):
        yield options.but(tile=options.tile[:position] + options.tile[position + 1 :])
        if size:
            yield options.but(tile=(*options.tile[:position], 0, *options.tile[position + 1 :]))


@contextmanager
def threads_for_all() -> Iterator[None]:
    """Threads share even small loops."""
    before = parallelise.WORTH_THREADS
    parallelise.WORTH_THREADS = 1
    try:
        yield
    finally:
        parallelise.WORTH_THREADS = before
