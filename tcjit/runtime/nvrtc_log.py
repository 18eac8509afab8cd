"""What a CUDA kernel takes of a multiprocessor: read from the compiler's log, and how many blocks that leaves room for."""
from __future__ import annotations

import re
from collections.abc import Sequence

from tcjit.dataclass import dataclass
from tcjit.errors import CompileError
from tcjit.mapping.machine import Device

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_REGISTER_UNIT = 256  # registers are given to a warp in such steps, and belong to one of four parts of the multiprocessor
_PARTS = 4
_SHARED_UNIT = 128  # bytes
RESERVED = 1024  # bytes of shared memory that the system takes for each block, from sm_80 on


@dataclass(frozen=True)
class Resources:
    """One kernel: ``registers`` per thread; bytes per thread of ``stack`` (arrays in local memory, too) and of spills, counted per
    instruction and with those of the functions that it calls; ``shared``: the bytes declared statically."""

    registers: int
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    shared: int = 0


@dataclass(frozen=True)
class Occupancy:
    """``blocks`` and ``warps`` resident on a multiprocessor, the part of its warps that this is, and what ``limit`` sets it."""

    blocks: int
    warps: int
    fraction: float
    limit: str


def resources(log: str, symbols: Sequence[str]) -> dict[str, Resources]:
    """The resources of each symbol, out of the log of ``--ptxas-options=-v``; a CompileError where one is not in it."""
    by_kernel: dict[str, Resources] = {}
    sections = _ENTRY.split(log)
    for symbol, section in zip(sections[1::2], sections[2::2]):
        used = _USED.search(section)
        if used is None:
            continue
        frames = [tuple(map(int, frame)) for frame in _FRAME.findall(section)]
        stack, stores, loads = (sum(column) for column in zip(*frames)) if frames else (0, 0, 0)
        line = section[used.start() :].partition("\n")[0]
        shared = _SHARED.search(line)
        by_kernel[symbol] = Resources(int(used[1]), stack, stores, loads, int(shared[1]) if shared else 0)
    missing = [symbol for symbol in symbols if symbol not in by_kernel]
    if missing:
        raise CompileError(f"the compiled text has no kernel {', '.join(missing)}", hint='extern "C" __global__ void NAME(...)')
    return {symbol: by_kernel[symbol] for symbol in symbols}


def occupancy(taken: Resources, threads: int, device: Device, dynamic: int = 0) -> Occupancy:
    """How many blocks of ``threads`` threads a multiprocessor holds, each with ``dynamic`` bytes of shared memory beside its static ones.

    The rules of NVIDIA's occupancy calculator from sm_80 on; no blocks where one alone does not fit.

    >>> from tcjit.mapping.machine import SM_90
    >>> occupancy(Resources(registers=128, shared=8192), 256, SM_90)
    Occupancy(blocks=2, warps=16, fraction=0.25, limit='registers')
    """
    warps = _up(threads, device.warp) // device.warp
    per_warp = max(1, _up(taken.registers * device.warp, _REGISTER_UNIT))
    fitting = device.registers // _PARTS // per_warp * _PARTS
    shared = _up(taken.shared + dynamic + RESERVED, _SHARED_UNIT)
    limits = {
        "threads": device.resident_threads // device.warp // warps,
        "registers": fitting // warps if per_warp * _up(warps, _PARTS) <= device.registers else 0,
        "shared": (device.max_shared_bytes + RESERVED) // shared,
        "blocks": device.resident_blocks,
    }
    limit = min(limits, key=lambda name: limits[name])
    blocks = limits[limit]
    return Occupancy(blocks, blocks * warps, blocks * warps * device.warp / device.resident_threads, limit)


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
