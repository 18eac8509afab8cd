"""What the analytic model must know of a processor; the runtime fills it in."""

from __future__ import annotations

from dataclasses import dataclass

from tcjit.mapping.costs import Costs, DeviceCosts


@dataclass(frozen=True)
class Machine:
    """``vector_bytes``: width of a vector register; ``vector_registers``: how many; ``threads``: cores worth using; ``near_bytes``: of the
    cache next to a core, for data; ``cache_bytes``: of the last cache that a core has for itself; ``costs``: what its work costs;
    ``dot_ways``: narrow integers in 32 bits whose products one instruction adds up, two of 16 bits or four of 8; ``shared_bytes``: of the
    last cache, which cores share; ``bfloat16_dots``: whether an instruction adds the products of two pairs of bfloat16 to a float32."""

    vector_bytes: int = 32
    vector_registers: int = 16
    threads: int = 2
    near_bytes: int = 1 << 15
    cache_bytes: int = 1 << 20
    costs: Costs = Costs()
    dot_ways: int = 2
    shared_bytes: int = 1 << 24
    bfloat16_dots: bool = False

    def lanes(self, element_bytes: int) -> int:
        return max(1, self.vector_bytes // element_bytes)


BASELINE = Machine()


BUFFER_REGISTERS = 160  # 32-bit words of the buffers that one thread of a GPU keeps in registers, all together


@dataclass(frozen=True)
class Device:
    """A GPU, or what a target language promises of one. Bytes and counts are per block of threads, ``registers`` per multiprocessor.

    ``capabilities``: of ``shuffle``, ``warp_barrier``, ``async_copy``, ``mma``, ``half`` and ``bfloat``.
    """

    name: str
    warp: int = 32
    max_threads: int = 1024
    shared_bytes: int = 48 << 10  # what a kernel may declare statically
    max_shared_bytes: int = 48 << 10  # what it may ask for at launch
    registers: int = 64 << 10
    processors: int = 132
    max_grid: tuple[int, int, int] = ((1 << 31) - 1, 65535, 65535)
    resident_threads: int = 2048  # of one multiprocessor, all its blocks together
    resident_blocks: int = 32
    capabilities: frozenset[str] = frozenset()
    costs: DeviceCosts = DeviceCosts()


_NVIDIA = frozenset({"shuffle", "warp_barrier", "async_copy", "mma", "half", "bfloat"})
SM_80 = Device("sm_80", max_shared_bytes=163 << 10, processors=108, capabilities=_NVIDIA)
SM_90 = Device("sm_90", max_shared_bytes=227 << 10, processors=132, capabilities=_NVIDIA)
# what every OpenCL 1.2 device has; the runtime fills in the sizes of the one at hand
OPENCL = Device("opencl", warp=1, max_threads=256, shared_bytes=32 << 10, max_shared_bytes=32 << 10, processors=8)
