"""Where a search begins: beside the model's choice, the choices that the model ranks next, and those that suit kernels of a kind."""
from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import zip_longest
from math import prod

from tcjit.grammar.ast import Program
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.machine import Machine, core_of
from tcjit.mapping.nest.plan_nest import register_tiles
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import build_scop
from tcjit.mapping.scop import ScopStatement
from tcjit.mapping.tile_time import TILES

RANKED = 6  # plans of each contraction
# on a CPU, for defs with the trait: what the model weighs last
STREAMING = (Options(fusion="maximal"), Options(fusion="minimal"), Options(parallel=False))
SUMMING = tuple(Options(reduction_chunks=chunks) for chunks in (1, 8, 32))
# on a GPU
ROWS = tuple(Options(block=block) for block in (128, 256, 512))
STEPS = (Options(pipeline_stages=1), Options(pipeline_stages=2), Options(reduction_tile=32))


def cpu_seeds(program: Program, machine: Machine, layouts: Mapping[str, str], traits: Collection[str]) -> list[Options]:
    """The next best register tiles of every nest, then what changes the mapping in other ways."""
    nests = [_register_tiles(s, machine) for s in build_scop(program, Options(), layouts, machine).statements if s.tiled]
    next_best = dict.fromkeys(tile for ranked in zip_longest(*nests) for tile in ranked if tile is not None)
    seeds = [Options(register_tile=tile) for tile in list(next_best)[:RANKED]]
    return [*seeds, *(SUMMING if "reduction" in traits else ()), *STREAMING]


def _register_tiles(s: ScopStatement, machine: Machine) -> list[tuple[int, int]]:
    """Of a nest, those that the model ranks first beside its own."""
    core, leaf = core_of(machine, s.tiled[0].width, DTYPES[s.value.dtype].bytes), s.tiled[0].nest.leaf
    own = prod(count for _, count in leaf.rows), leaf.vectors
    return [tile for tile in register_tiles(s.tiled[0].statement, core) if tile != own][:RANKED]


def gpu_seeds(traits: Collection[str]) -> list[Options]:
    """The tiles that the model chooses from, steps and stages; for what has no contraction, sizes of blocks."""
    tiles = [Options(threads=(ty, tx), registers=(ry, rx)) for ty, tx, ry, rx in TILES]
    return [*(tiles[:5] if "reduction" in traits else ()), *ROWS, *(STEPS if "reduction" in traits else ())]
