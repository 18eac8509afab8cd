"""Machines with small caches, on which small programs are mapped like large ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tcjit.jit.targets import cpu
from tcjit.mapping.machine import Machine
from tcjit.mapping.passes import fuse_outer_loops, parallelise

LEAST = {"REUSE": 4, "ITERATIONS": 1, "FEWER": 2}  # of what makes outer loops worth sharing


@contextmanager
def small_caches(size: int = 64) -> Iterator[None]:
    """Cores of the CPU have a cache of ``size`` bytes for themselves, few uses pay, and threads share even small loops. Kernels depend on
    more than their keys say: none is to be kept."""
    machine_of = cpu.machine_of
    kept = {name: getattr(fuse_outer_loops, name) for name in LEAST}
    threads = parallelise.WORTH_THREADS

    def smaller(*args: Any) -> Machine:
        return replace(machine_of(*args), cache_bytes=size)

    cpu.machine_of = smaller
    parallelise.WORTH_THREADS = 1
    for name, value in LEAST.items():
        setattr(fuse_outer_loops, name, value)
    try:
        yield
    finally:
        cpu.machine_of = machine_of
        parallelise.WORTH_THREADS = threads
        for name, value in kept.items():
            setattr(fuse_outer_loops, name, value)
