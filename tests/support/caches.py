"""Machines with small caches, on which small programs are mapped like large ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

from tcjit.jit.targets import cpu
from tcjit.mapping import fused_run
from tcjit.mapping.machine import Machine
from tcjit.mapping.passes import block_panels, fold_contractions, fuse_column_reductions, fuse_outer_loops, overlap_tiles, parallelise

# of what makes outer loops, chunks of rows and blocks of panels worth sharing, blocks of rows worth overlapping, and short dimensions worth
# folding
LEAST = {
    fold_contractions: {"WORK": 1, "WORTH": 2},
    fuse_outer_loops: {"ITERATIONS": 1, "FEWER": 2, "REUSE": 4, "MOVES": 1 << 20, "LOST": 1 << 20, "MARGIN": 0, "STORES": 0},
    fused_run: {"REUSE": 4},
    overlap_tiles: {"ITERATIONS": 1, "BUDGETS": ((0.5, 0),)},
    fuse_column_reductions: {"WORTH": 1, "ROWS": 1, "CPU_CHUNKS": 4},
    block_panels: {"WORK": 1},
}


@contextmanager
def small_caches(size: int = 64) -> Iterator[None]:
    """Cores of the CPU have a cache of ``size`` bytes for themselves, few uses pay, and threads share even small loops. Kernels depend on
    more than their keys say: none is to be kept."""
    machine_of = cpu.machine_of
    kept = {module: {name: getattr(module, name) for name in least} for module, least in LEAST.items()}
    threads = parallelise.WORTH_THREADS

    def smaller(*args: Any) -> Machine:
        machine = machine_of(*args)
        return replace(machine, near_bytes=min(machine.near_bytes, size), cache_bytes=size, shared_bytes=size)

    cpu.machine_of = smaller
    parallelise.WORTH_THREADS = 1
    _set(LEAST)
    try:
        yield
    finally:
        cpu.machine_of = machine_of
        parallelise.WORTH_THREADS = threads
        _set(kept)


def _set(constants: Mapping[ModuleType, Mapping[str, int]]) -> None:
    for module, values in constants.items():
        for name, value in values.items():
            setattr(module, name, value)
