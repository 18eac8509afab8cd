"""Non-temporal stores: results that the caches would not keep are written past them, so that their lines are not read first.

A line that is written whole needs no reading, but only such a store says so: loops over lanes write line by line out of an array that the
C compiler keeps in registers. What follows finds nothing of the results in a cache then. This pays for kernels that use twice what the
last cache holds, of whose results little would be left in it anyway; where statements hand values on to others of the kernel, as soon as
it is full: results that go through it drive these values out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tcjit.codegen.address import Address
from tcjit.codegen.expression import ctype
from tcjit.codegen.loops import For, Run, substitute
from tcjit.codegen.reads import ReadEmitter
from tcjit.dataclass import dataclass
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear
from tcjit.mapping.machine import LINE, Machine
from tcjit.mapping.scop import Scop, ScopStatement

LEAST_LINES = 16  # of a loop, whose ends are written as usual


@dataclass(frozen=True)
class StreamedLanes:
    """The only statement of a loop over lanes, which writes neighbours."""

    s: ScopStatement
    target: Address
    loop: For
    run: Run

    @property
    def line(self) -> int:
        """Elements."""
        return LINE // DTYPES[self.s.value.dtype].bytes

    def over_line(self) -> For:
        """The loop over a line: from 0 on, as its constant length lets a C compiler keep the results of a vector in a register."""
        moved = substitute(self.run, {self.loop.variable: Linear.of("tc_first") + Linear.of(self.loop.variable)})
        return replace(self.loop, lower=Linear.of(0), upper=Linear.of(self.line - 1), body=(moved,))

    def at(self, first: Linear, emitter: ReadEmitter) -> str:
        """The place of the result of an iteration."""
        emitter.mentioned.add(self.target.base)
        return self.target.substitute({self.loop.variable: first}).written(emitter.index)


def find_streamed_lanes(emitter: ReadEmitter, loop: For, statements: frozenset[str]) -> StreamedLanes | None:
    """What a loop over lanes writes past the caches, where that is one of some statements."""
    if len(loop.body) != 1 or loop.step != 1 or not isinstance(run := loop.body[0], Run) or run.statement not in statements:
        return None
    s = emitter.mapped.scop.statement(run.statement)
    with emitter.ranged(loop):
        target = emitter.target(s, run)
    if target is None or not target.follows(loop.variable):
        return None
    found = StreamedLanes(s, target, loop, run)
    return found if loop.trips is None or loop.trips >= LEAST_LINES * found.line else None


@contextmanager
def streamed(emitter: ReadEmitter, found: StreamedLanes) -> Iterator[None]:
    """Around the loop over a line from ``tc_first`` on: its results are in an array, and stored at the end."""
    emitter.line(f"{ctype(found.s.value.dtype, emitter.dialect)} tc_to[{found.line}] __attribute__((aligned({LINE})));")
    with emitter.bindings():
        emitter.stored[found.s.name] = f"tc_to[{found.loop.variable}]"
        yield
    helper = emitter.printer.helper("tc_store_line")
    emitter.line(f"{helper}(&{found.at(Linear.of('tc_first'), emitter)}, tc_to);")


WIDE = 4, 8  # bytes of an element, a few of which fill a line
BEYOND = 2.0  # times the last cache that a kernel uses: what reads the results next has little of them in a cache anyway
FULL = 0.95  # of the last cache, in which there is more than a kernel's tensors


def nontemporal(scop: Scop, machine: Machine) -> frozenset[str]:
    """The names of the statements whose results are stored past the caches."""
    if scop.program.dynamic:
        return frozenset()
    read, points = set[str](), Counter[str]()  # no more elements than there are accesses: a gather may take a few rows of a table
    for s in scop.statements:
        accesses = [access.tensor for access, _ in s.reads]
        accesses += [flat.tensor for tiled in s.tiled for flat in tiled.statement.accesses]
        read |= set(accesses)
        points.update({tensor: count * s.points for tensor, count in Counter([*accesses, s.tensor]).items()})
    written = {s.tensor for s in scop.statements}
    own = [t for t in scop.tensors if t.role != "temporary"]
    touched = sum(min(t.elements, points[t.name]) * DTYPES[t.dtype].bytes for t in own)
    if touched <= (FULL if written & read else BEYOND) * machine.shared_bytes:
        return frozenset()
    return frozenset(s.name for s in scop.statements if s.tensor not in read and _is_streamed(scop, s))


def _is_streamed(scop: Scop, s: ScopStatement) -> bool:
    """Whether a statement sets results, whose elements are wide."""
    storage = scop.tensor(s.tensor)
    plain = s.operator == "=" and not s.tiled and not s.fused and storage.role == "output"
    return plain and storage.dtype == s.value.dtype and DTYPES[storage.dtype].bytes in WIDE
