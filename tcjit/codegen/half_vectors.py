"""Halves of a loop over lanes converted a vector at a time: before the loop what it reads, and behind it what it writes.

gcc 12 has no vectors of halves: in a loop, a conversion becomes twenty operations on integers where a processor has one. So lanes are
taken in blocks, and read and write floats in arrays as long as a block, which the C compiler keeps in registers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product

from tcjit.codegen.address import Address
from tcjit.codegen.loops import For, Run
from tcjit.codegen.reads import ReadEmitter
from tcjit.codegen.text import stack_array
from tcjit.codegen.tile_vectors import suffix
from tcjit.dataclass import dataclass
from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access, Call, Cast, Expr
from tcjit.grammar.linear import Linear
from tcjit.grammar.walk import walk
from tcjit.mapping.machine import Machine
from tcjit.mapping.nest.vector_forms import WORDS
from tcjit.mapping.scop import ScopStatement

HALF = "float16"
VECTORS = 2  # of floats in a block: a vector of halves


@dataclass(frozen=True)
class HalfLanes:
    """Neighbours in memory that the lanes of a loop read and write, ``strided`` reads of one place, each with what runs, and
    ``interleaved`` writes; ``width``: floats of a vector."""

    variable: str
    width: int
    reads: tuple[tuple[Address, tuple[Access, ...]], ...]
    writes: tuple[tuple[Address, ScopStatement], ...]
    strided: tuple[tuple[tuple[Access, ...], Run], ...] = ()
    interleaved: tuple[tuple[Address, ScopStatement], ...] = ()

    def block(self, trips: int | None) -> int:
        """Lanes of a block; 0 where a loop has not so many iterations."""
        vectors = VECTORS if trips is None else min(VECTORS, trips // self.width)
        return vectors * self.width


def find_half_lanes(emitter: ReadEmitter, loop: For, machine: Machine) -> HalfLanes | None:
    """What a loop over lanes converts, None where that is nothing: halves that are neighbours, and exist for all of its iterations."""
    runs = [node for node in loop.body if isinstance(node, Run)]
    if loop.step != 1 or len(runs) < len(loop.body):
        return None
    scop = emitter.mapped.scop
    statements = [(run, scop.statement(run.statement)) for run in runs]
    written = [s.tensor for _, s in statements]
    with emitter.ranged(loop):
        places: dict[int, set[Address | None]] = {}  # by id of an access: a block holds the elements of a single place for it
        for run, s in statements:
            for access, _ in guarded_accesses(s.value):
                places.setdefault(id(access), set()).add(emitter.operand(access, run))
        reads: dict[Address, list[Access]] = {}
        strided: dict[Address | int, tuple[list[Access], Run]] = {}
        for run, s in statements:
            for access in _reads(emitter, s):
                if access.tensor in written or len(places[id(access)]) > 1:
                    continue
                address = emitter.operand(access, run)
                if address is not None and address.follows(loop.variable):
                    reads.setdefault(address, []).append(access)
                elif not emitter.gathers(access, run) and emitter.moves(access, run, loop.variable):
                    strided.setdefault(id(access) if address is None else address, ([], run))[0].append(access)
        halves = [(run, s) for run, s in statements if scop.tensor(s.tensor).dtype == HALF]
        writes = [(emitter.target(s, run), s) for run, s in halves if not _is_moved(emitter, s)]
    read = {access.tensor for _, s in statements for access, _ in guarded_accesses(s.value)}
    stores = tuple(
        (address, s)
        for address, s in writes
        if address is not None and address.follows(loop.variable) and written.count(s.tensor) == 1 and s.tensor not in read
    )
    once = Counter(run.statement for run in runs)  # a statement has one array of results
    writers = [(address, s) for address, s in writes if s.tensor not in read and once[s.name] == 1]
    own = {tensor: [address for address, s in writers if s.tensor == tensor] for tensor in written}
    apart = {tensor for tensor, places in own.items() if len(places) == written.count(tensor) and _are_interleaved(places, loop.variable)}
    interleaved = tuple((address, s) for address, s in writers if address is not None and s.tensor in apart and s.operator == "=")
    loads = tuple((address, tuple(accesses)) for address, accesses in reads.items())
    gathered = tuple((tuple(accesses), run) for accesses, run in strided.values())
    found = HalfLanes(loop.variable, machine.lanes(4), loads, stores, gathered, interleaved)
    return found if loads or stores or strided or interleaved else None


def _are_interleaved(places: Sequence[Address | None], variable: str) -> bool:
    """Whether elements lie between one another, a step of more than one apart, and no two of all iterations are the same."""
    first = places[0] if places else None
    step = None if first is None else first.stride(variable)
    if first is None or step is None or abs(step) <= 1 or variable in (first.fixed - Linear.of(variable).times(step)).variables:
        return False
    alike = [place for place in places if place is not None and (place.base, place.runtime) == (first.base, first.runtime)]
    ways = [place.fixed - first.fixed for place in alike]
    offsets = {way.constant % abs(step) for way in ways if way.is_constant}
    return len(offsets) == len(places)


def _is_moved(emitter: ReadEmitter, s: ScopStatement) -> bool:
    """Whether a statement moves bits, and computes no value."""
    dtype = emitter.mapped.scop.tensor(s.tensor).dtype
    same = s.operator == "=" and isinstance(s.value, Access) and emitter.mapped.scop.tensor(s.value.tensor).dtype == dtype
    return same or any(isinstance(node, Call) and node.function in WORDS for node in walk(s.value))


def _reads(emitter: ReadEmitter, s: ScopStatement) -> Iterator[Access]:
    """The reads of halves whose values a statement computes with."""
    for access, guards in guarded_accesses(s.value) if not _is_moved(emitter, s) else ():
        known = id(access) in emitter.hoisted or access in emitter.places
        if emitter.mapped.scop.tensor(access.tensor).dtype == HALF and not known and emitter.exists(access, guards, s):
            yield access


def unrounded(value: Expr) -> Expr:
    """A value that is stored as a half, without the conversion to one."""
    return value.operand if isinstance(value, Cast) and value.dtype == HALF and value.operand.dtype == "float32" else value


def rounding_lines(count: int, width: int) -> list[str]:
    """Between a loop that writes so many floats to ``tc_c`` and one that reads them as the bits of halves from ``tc_b``; the first line
    stands before the loops, and opens a block."""
    ending = suffix("float32", width)
    rounded = [f"tc_store_f16{ending}(tc_b + {v}, tc_load{ending}(tc_c + {v}));" for v in range(0, count, width)]
    opening = f"{{ float tc_c[{count}] __attribute__((aligned(64))) = {{0}};"
    return [opening, f"uint16_t tc_b[{count}] __attribute__((aligned(64)));", *rounded]


@contextmanager
def converted(emitter: ReadEmitter, found: HalfLanes, first: str, count: int) -> Iterator[None]:
    """Around a loop over so many lanes from ``first`` on: its halves are floats."""
    start, ending = {found.variable: Linear.of(first)}, suffix("float32", found.width)
    at = f"[{found.variable} - {first}]"

    def parts(array: str, address: Address) -> Sequence[tuple[str, str]]:
        for line in stack_array("float", array, count):
            emitter.line(line)
        emitter.mentioned.add(address.base)
        place = address.substitute(start).written(emitter.index)
        return [(f"{array} + {v}", f"&{place} + {v}") for v in range(0, count, found.width)]

    with emitter.bindings():
        for number, (address, accesses) in enumerate(found.reads):
            for array, place in parts(f"tc_from{number}", address):
                emitter.line(f"tc_store{ending}({array}, tc_load_f16{ending}({place}));")
            emitter.hoisted |= {id(access): [f"tc_from{number}{at}"] for access in accesses}
        loop = f"for (int64_t {found.variable} = {first}; {found.variable} < {first} + {count}; ++{found.variable})"
        moves = []  # in one loop: those side by side are loaded together
        for number, (accesses, run) in enumerate(found.strided):
            emitter.run_now = run
            for line in (*stack_array("float", f"tc_strided{number}", count), *stack_array("uint16_t", f"tc_bits{number}", count)):
                emitter.line(line)
            moves.append(f"tc_bits{number}{at} = {emitter.place(accesses[0].tensor, accesses[0].subscripts)};")
            emitter.hoisted |= {id(access): [f"tc_strided{number}{at}"] for access in accesses}
        if moves:
            emitter.line(f"{loop} {{ {' '.join(moves)} }}")
        for number, v in product(range(len(found.strided)), range(0, count, found.width)):
            emitter.line(f"tc_store{ending}(tc_strided{number} + {v}, tc_load_f16{ending}(tc_bits{number} + {v}));")
        behind, moves = [], []
        for number, (address, s) in enumerate(found.writes):
            for array, place in parts(f"tc_to{number}", address):
                if s.operator != "=":
                    emitter.line(f"tc_store{ending}({array}, tc_load_f16{ending}({place}));")
                behind.append(f"tc_store_f16{ending}({place}, tc_load{ending}({array}));")
            emitter.stored[s.name] = f"tc_to{number}{at}"
        for number, (address, s) in enumerate(found.interleaved):
            emitter.mentioned.add(address.base)
            floats, bits = f"tc_apart{number}", f"tc_rounded{number}"
            for line in (*stack_array("float", floats, count), *stack_array("uint16_t", bits, count)):
                emitter.line(line)
            behind += [f"tc_store_f16{ending}({bits} + {v}, tc_load{ending}({floats} + {v}));" for v in range(0, count, found.width)]
            moves.append(f"{address.written(emitter.index)} = {bits}{at};")
            emitter.stored[s.name] = f"{floats}{at}"
        if moves:
            behind.append(f"{loop} {{ {' '.join(moves)} }}")
        yield
    for line in behind:
        emitter.line(line)
