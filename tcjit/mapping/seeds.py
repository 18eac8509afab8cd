"""Where a search begins: beside the model's choice, the choices that the model ranks next, and those that suit kernels of a kind."""
from __future__ import annotations

from collections.abc import Collection, Mapping

from tcjit.grammar.ast import Program
from tcjit.mapping.dependences import dependences
from tcjit.mapping.machine import Machine
from tcjit.mapping.options import Options
from tcjit.mapping.passes.fuse import fuse, groups_of
from tcjit.mapping.pipeline import build_scop
from tcjit.mapping.plan import patches
from tcjit.mapping.plan_contraction import TILES
from tcjit.mapping.schedule import schedule

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
STEPS = (Options(reduction_tile=16), Options(reduction_tile=16, pipeline_stages=2), Options(pipeline_stages=2))


def cpu_seeds(program: Program, machine: Machine, layouts: Mapping[str, str], traits: Collection[str]) -> list[Options]:
    """Tile sizes of the next best patches of every contraction, then what changes the mapping in other ways."""
    options = Options(nest=False)
    scop = build_scop(program, options, layouts)
    found: list[Options] = []
    if scop.statements:
        deps = dependences(scop)
        for group in groups_of(scop, fuse(scop, deps, schedule(scop, deps), options)) or ():
            tiles = dict.fromkeys(c.tile for c in patches(scop, group, options, machine))
            found += [Options(nest=False, tile=tile) for tile in list(tiles)[1 : RANKED + 1]]
    return [*found, *(SUMMING if "reduction" in traits else ()), *STREAMING]


def gpu_seeds(traits: Collection[str]) -> list[Options]:
    """The tiles that the model chooses from, steps and stages; for what has no contraction, sizes of blocks."""
    tiles = [Options(threads=(ty, tx), registers=(ry, rx)) for ty, tx, ry, rx in TILES]
    return [*(tiles[:5] if "reduction" in traits else ()), *ROWS, *(STEPS if "reduction" in traits else ())]
