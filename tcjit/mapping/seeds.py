"""Where a search begins: beside the model's choice, the choices that the model ranks next, and those that suit kernels of a kind."""
from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import zip_longest
from math import prod

from tcjit.grammar.ast import Program
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.dependences import dependences
from tcjit.mapping.machine import Machine
from tcjit.mapping.nest.cost import core_of
from tcjit.mapping.nest.plan_nest import register_tiles
from tcjit.mapping.options import Options
from tcjit.mapping.passes.fuse import fuse, groups_of
from tcjit.mapping.pipeline import build_scop
from tcjit.mapping.plan import patches
from tcjit.mapping.schedule import schedule
from tcjit.mapping.scop import ScopStatement
from tcjit.mapping.tile_time import TILES

RANKED = 6  # plans of each contraction
# on a CPU, for defs with the trait: what the model weighs last
STREAMING = (Options(fusion="maximal"), Options(fusion="minimal"), Options(parallel=False))
SUMMING = (
    Options(nest=False),
    *(Options(nest=False, reduction_chunks=chunks) for chunks in (8, 32)),
    Options(accumulators=4),
    Options(nest=False, unroll=2),
    *(Options(nest=False, vector_dim=dim) for dim in (2, 3)),
)
# on a GPU
ROWS = tuple(Options(block=block) for block in (128, 256, 512))
STEPS = (Options(pipeline_stages=1), Options(pipeline_stages=2), Options(reduction_tile=32))


def cpu_seeds(program: Program, machine: Machine, layouts: Mapping[str, str], traits: Collection[str]) -> list[Options]:
    """The next best register tiles of every nest, and of loops without nests, then what changes the mapping in other ways."""
    nests = [_register_tiles(s, machine) for s in build_scop(program, Options(), layouts, machine).statements if s.tiled]
    next_best = dict.fromkeys(tile for ranked in zip_longest(*nests) for tile in ranked if tile is not None)
    options = Options(nest=False)
    scop = build_scop(program, options, layouts)
    found: list[Options] = []
    if scop.statements:
        deps = dependences(scop)
        for group in groups_of(scop, fuse(scop, deps, schedule(scop, deps), options)) or ():
            tiles = dict.fromkeys(c.tile for c in patches(scop, group, options, machine))
            found += [Options(nest=False, tile=tile) for tile in list(tiles)[1 : RANKED + 1]]
    seeds = [Options(register_tile=tile) for tile in list(next_best)[:RANKED]]
    return [*seeds, *found, *(SUMMING if "reduction" in traits else ()), *STREAMING]


def _register_tiles(s: ScopStatement, machine: Machine) -> list[tuple[int, int]]:
    """Of a nest, those that the model ranks first beside its own."""
    core, leaf = core_of(machine, s.tiled[0].width, DTYPES[s.value.dtype].bytes), s.tiled[0].nest.leaf
    own = prod(count for _, count in leaf.rows), leaf.vectors
    return [tile for tile in register_tiles(s.tiled[0].statement, core) if tile != own][:RANKED]


def gpu_seeds(traits: Collection[str]) -> list[Options]:
    """The tiles that the model chooses from, steps and stages; for what has no contraction, sizes of blocks."""
    tiles = [Options(threads=(ty, tx), registers=(ry, rx)) for ty, tx, ry, rx in TILES]
    return [*(tiles[:5] if "reduction" in traits else ()), *ROWS, *(STEPS if "reduction" in traits else ())]
