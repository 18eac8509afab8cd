"""What the analytic models know of a processor, and what its work costs; the runtime fills it in.

Costs are tables of constants of a CPU and of a GPU, each with its unit, what it means, and how it is measured. The defaults of CPUs are
those of a server's core with two vector units; ``tcjit doctor --calibrate`` measures those of the machine at hand (``runtime.calibrate``)
and keeps them beside the kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import Field, field, fields
from math import prod
from typing import Any

from tcjit.dataclass import dataclass

LINE = 64  # bytes of a line of a cache
TORN = 4  # times that a line goes from one core to another one where both write parts of it
MOVES = 3  # of a copied element between caches: it is read, and its place is read before it is written


def _constant(default: float, unit: str, meaning: str, measured: str) -> Any:
    return field(default=default, metadata={"unit": unit, "meaning": meaning, "measured": measured})


@dataclass(frozen=True)
class Costs:
    """Constants of one processor; every one is positive."""

    frequency: float = _constant(3e9, "Hz", "clock of a core at work", "dependent exclusive ors of integers, one a cycle")
    fma_latency: float = _constant(4.0, "cycles", "from a vector multiply-add to one that needs it", "dependent multiply-adds")
    fma_rate: float = _constant(2.0, "per cycle", "vector multiply-adds that a core starts", "twelve independent chains of multiply-adds")
    vector_load: float = _constant(0.75, "cycles", "a vector read by a core from its first cache", "sums over half that cache")
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
    parallel_region: float = _constant(1.5e-6, "seconds", "to start and end a region of threads", "empty OpenMP regions")
    passed_line: float = _constant(40.0, "cycles", "a line that one core writes and another one reads", "32 KiB, again and again")
    matrix_multiply: float = _constant(16.0, "cycles", "an instruction of a matrix unit", "independent products, where it has one")

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
    comparison: float = _constant(3.0, "per cycle", "pairs of a term and a result, compared", "sums of terms that data pick, as gathers")
    atomic: float = _constant(85.0, "per cycle", "atomic updates of many elements, by all processors", "a histogram with many bins")
    atomic_one: float = _constant(0.57, "per cycle", "atomic updates of one element, by all processors", "a histogram with one bin")


@dataclass(frozen=True)
class Machine:
    """``vector_bytes``: width of a vector register; ``vector_registers``: how many; ``threads``: cores worth using; ``near_bytes``: of the
    cache next to a core, for data; ``cache_bytes``: of the last cache that a core has for itself; ``costs``: what its work costs;
    ``dot_ways``: narrow integers in 32 bits whose products one instruction adds up, two of 16 bits or four of 8; ``shared_bytes``: of the
    last cache, which cores share; ``bfloat16_dots``: whether an instruction adds the products of two pairs of bfloat16 to a float32;
    ``matrix_types``: elements whose products a matrix unit sums, ``bfloat16`` in float32 and ``int8``, signed or not, in int32."""

    vector_bytes: int = 32
    vector_registers: int = 16
    threads: int = 2
    near_bytes: int = 1 << 15
    cache_bytes: int = 1 << 20
    costs: Costs = Costs()
    dot_ways: int = 2
    shared_bytes: int = 1 << 24
    bfloat16_dots: bool = False
    matrix_types: frozenset[str] = frozenset()

    def lanes(self, element_bytes: int) -> int:
        return max(1, self.vector_bytes // element_bytes)


BASELINE = Machine()


@dataclass(frozen=True)
class Core:
    """Constants of one core of a machine. Cycles unless said otherwise; ``element``, caches and pages in bytes; ``lanes`` of elements in a
    vector."""

    lanes: int
    element: int
    registers: int
    multiply_add: float  # until the next one starts
    latency: float  # of a multiply-add
    load: float  # of a vector, or of an element to all lanes
    gather: float  # of a vector whose lanes are strided
    scatter: float  # of a vector to places that are apart
    copy: float  # of an element whose neighbours stay together
    transpose: float  # of an element whose neighbours part
    beyond: float  # the more of either beyond the second cache
    l2_line: float  # a line from the second cache
    l3_byte: float  # from the last cache
    memory_byte: float  # from memory, while all cores read from it
    branch: float  # a short loop's exit
    region: float  # of threads, to start and end
    passed_line: float  # that one core writes and another reads
    l1: int
    l2: int
    last: int  # cache, which cores share
    ways: int  # lines that are whole pages apart in the first cache
    page: int
    tlb: int  # entries of the first level
    matrix_types: frozenset[str] = frozenset()  # as in Machine
    matrix_multiply: float = 16.0  # two tiles of a matrix unit
    threads: int = 1  # cores that work together

    def copy_cycles(self, elements: int, *, together: bool = True) -> float:
        """Those of a copy of so many elements, whose neighbours stay ``together`` or part."""
        return elements * ((self.copy if together else self.transpose) + self.far(elements * self.element))

    def passed_cycles(self, size: float) -> float:
        """Those in which a core waits for so many bytes that another one wrote: for what one's first cache holds line by line, while
        prefetchers are behind what follows."""
        near = min(size, self.l1)
        return near / LINE * self.passed_line + (size - near) * self.l3_byte

    def far_byte(self, size: int) -> float:
        """Cycles of a byte of what is read again, all of it so many bytes, where the second cache does not hold these."""
        return 0.0 if size <= self.l2 else self.l3_byte if size <= self.last else self.memory_byte

    def far(self, size: int) -> float:
        """What the copy of an element takes more where all of them, of so many bytes, do not fit into the second cache, or into any."""
        return 0.0 if size <= self.l2 else self.beyond if size <= self.last else MOVES * self.element * self.memory_byte


def torn_lines(block: int, around: Iterable[tuple[int, int]], threads: int) -> int:
    """Lines of which two threads write parts, where each of them has a block of so many bytes; ``around``: steps in bytes and extents of
    the dimensions outside of it."""
    outside = list(around)
    apart = block % LINE or any(step % LINE for step, _ in outside)
    return (threads - 1) * prod(extent for _, extent in outside) if apart else 0


def core_of(machine: Machine, lanes: int, element: int) -> Core:
    """A core of a machine for elements of so many bytes, so many in a vector."""
    costs = machine.costs
    return Core(
        lanes=lanes,
        element=element,
        registers=machine.vector_registers,
        multiply_add=1 / costs.fma_rate,
        latency=costs.fma_latency,
        load=costs.vector_load,
        gather=costs.gather,
        scatter=costs.scatter * lanes,
        copy=costs.copy,
        transpose=costs.transpose,
        beyond=MOVES * element / costs.l3_load,
        l2_line=LINE / costs.l2_load,
        l3_byte=1 / costs.l3_load,
        memory_byte=machine.threads * costs.frequency / costs.memory_read,
        branch=costs.branch_miss,
        region=costs.parallel_region * costs.frequency,
        passed_line=costs.passed_line,
        l1=machine.near_bytes,
        l2=machine.cache_bytes,
        last=machine.shared_bytes,
        ways=max(1, machine.near_bytes // int(costs.page)),
        page=int(costs.page),
        tlb=int(costs.tlb),
        matrix_types=machine.matrix_types,
        matrix_multiply=costs.matrix_multiply,
        threads=machine.threads,
    )



BUFFER_REGISTERS = 160  # 32-bit words of the buffers that one thread of a GPU keeps in registers, all together


@dataclass(frozen=True)
class Device:
    """A GPU, or what a target language promises of one. Bytes and counts are per block of threads, ``registers`` per multiprocessor.

    ``capabilities``: of ``shuffle``, ``warp_barrier``, ``async_copy``, ``mma``, ``half`` and ``bfloat``; ``atomic32`` and ``atomic64``:
    atomic updates of so many bits; ``atomic_float_sums``: also of sums of floats, whose last bits then depend on the order of threads.
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


_NVIDIA = frozenset({"shuffle", "warp_barrier", "async_copy", "mma", "half", "bfloat", "atomic32", "atomic64", "atomic_float_sums"})
SM_80 = Device("sm_80", max_shared_bytes=163 << 10, processors=108, capabilities=_NVIDIA)
SM_90 = Device("sm_90", max_shared_bytes=227 << 10, processors=132, capabilities=_NVIDIA)
# what every OpenCL 1.2 device has; the runtime fills in the sizes of the one at hand
OPENCL = Device(
    "opencl", warp=1, max_threads=256, shared_bytes=32 << 10, max_shared_bytes=32 << 10, processors=8,
    capabilities=frozenset({"atomic32", "atomic_float_sums"}),
)  # fmt: skip
