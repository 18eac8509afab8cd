"""Loops over lanes whose results are written past the caches: line by line out of an array that the C compiler keeps in registers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tcjit.codegen.address import Address
from tcjit.codegen.expression import ctype
from tcjit.codegen.loops import For, Run, substitute
from tcjit.codegen.reads import ReadEmitter
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear
from tcjit.mapping.scop import ScopStatement

LINE = 64  # bytes
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
