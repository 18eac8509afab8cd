"""Machines with small caches, on which small programs are mapped like large ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tcjit.jit.targets import cpu
from tcjit.mapping.machine import Machine


@contextmanager
def small_caches(size: int = 64) -> Iterator[None]:
    """Cores of the CPU have a cache of ``size`` bytes for themselves. Kernels depend on more than their keys say: none is to be kept."""
    machine_of = cpu.machine_of

    def smaller(*args: Any) -> Machine:
        return replace(machine_of(*args), cache_bytes=size)

    cpu.machine_of = smaller  # type: ignore[assignment]
    try:
        yield
    finally:
        cpu.machine_of = machine_of
