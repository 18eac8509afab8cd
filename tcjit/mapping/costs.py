"""What work costs: a table of constants of a CPU and one of a GPU, each with its unit, what it means, and how it is measured.

The defaults of CPUs were measured on one of them; ``tcjit doctor --calibrate`` measures those of the machine at hand
(``runtime.calibrate``) and keeps them beside the kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any


def _constant(default: float, unit: str, meaning: str, measured: str) -> Any:
    return field(default=default, metadata={"unit": unit, "meaning": meaning, "measured": measured})


@dataclass(frozen=True)
class Costs:
    """Constants of one processor; every one is positive."""

    frequency: float = _constant(3e9, "Hz", "clock of a core at work", "dependent exclusive ors of integers, one a cycle")
    fma_latency: float = _constant(4.0, "cycles", "from a vector multiply-add to one that needs it", "dependent multiply-adds")
    fma_rate: float = _constant(1.0, "per cycle", "vector multiply-adds that a core starts", "twelve independent chains of multiply-adds")
    vector_load: float = _constant(1.0, "cycles", "a vector read by a core from its first cache", "sums over half that cache")
    l2_load: float = _constant(25.6, "bytes per cycle", "read by a core from its second cache", "sums over half that cache")
    l3_load: float = _constant(12.0, "bytes per cycle", "read by a core from the last cache", "sums over four times its second cache")
    gather: float = _constant(16.0, "cycles", "a vector read at indices from memory, in the first cache", "sums over indices in a vector")
    scatter: float = _constant(3.0, "cycles", "an element of a vector written to a place of its own", "vectors stored element by element")
    copy: float = _constant(0.3, "cycles", "an element copied from a row to a panel", "a matrix of a quarter of the second cache")
    transpose: float = _constant(1.2, "cycles", "an element copied from a column to a panel", "a matrix of a quarter of the second cache")
    branch_miss: float = _constant(12.0, "cycles", "a branch that was predicted wrong", "branches on random bits against constant ones")
    page: float = _constant(4096.0, "bytes", "a page of memory", "told by the system")
    tlb: float = _constant(64.0, "entries", "pages whose addresses a core has at hand", "a chain of reads, each on another page")
    memory_read: float = _constant(2e10, "bytes per second", "read from memory by all cores", "sums over 256 MiB, in threads")
    memory_copy: float = _constant(1.5e10, "bytes per second", "read and written by all cores in a copy", "a copy of 128 MiB, in threads")
    parallel_region: float = _constant(3e-6, "seconds", "to start and end a region of threads", "empty OpenMP regions")

    def peak_flops(self, lanes: int, cores: int) -> float:
        """Operations per second of so many cores whose vectors have so many lanes; a multiply-add is two."""
        return 2 * self.fma_rate * self.frequency * lanes * cores

    @classmethod
    def described(cls) -> tuple[Field[Any], ...]:
        """The fields; ``metadata`` has ``unit``, ``meaning`` and ``measured``."""
        return fields(cls)

    @classmethod
    def of_note(cls, note: Mapping[str, Any]) -> Costs | None:
        """Those that ``calibrate`` kept; None where the note is another version's or damaged."""
        values = {f.name: note.get(f.name) for f in fields(cls)}
        sound = all(isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1e15 for value in values.values())
        return cls(**values) if sound else None  # type: ignore[arg-type]


@dataclass(frozen=True)
class DeviceCosts:
    """Constants of a GPU; cycles are those of its processors, and rates those of one processor unless it says otherwise."""

    fma_rate: float = _constant(128.0, "per cycle", "float32 multiply-adds", "independent chains in all warps that fit")
    mma_rate: float = _constant(1280.0, "per cycle", "multiply-adds of halves by mma.sync", "independent chains of mma.sync in eight warps")
    load_latency: float = _constant(800.0, "cycles", "from a load of memory to a barrier behind it", "a chain of loads and barriers")
    l2_load: float = _constant(3200.0, "bytes per cycle", "read from the L2 cache by all processors", "sums over half that cache")
    memory: float = _constant(1900.0, "bytes per cycle", "read from memory or written to it by all processors", "a copy of 1 GiB")
    block: float = _constant(1500.0, "cycles", "a block's start, first loads and last stores", "blocks of one multiply-add each")
    launch: float = _constant(4000.0, "cycles", "from the end of a kernel to the work of the next", "a graph of empty kernels")
