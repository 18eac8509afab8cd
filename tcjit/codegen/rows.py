"""Rows that subscripts read from memory point to, in patches: subscripts bound and checked once, rows asked for before they are needed.

Where a table is larger than the cache a processor finds out too late which rows it needs. The subscripts of what comes next are there
to be read: those of the next result where a result is the sum of a few rows, and further on in the same sum where it is long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tcjit.codegen.emitter import Emitter
from tcjit.codegen.loops import For, Run, substitute
from tcjit.codegen.scope import Gathers
from tcjit.grammar.ast import Access
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear
from tcjit.grammar.walk import walk
from tcjit.mapping.machine import Machine
from tcjit.mapping.plan_order import LINE

# lines that hold the data-dependent subscripts of a read and check them, the names of these, and of the check
Subscripts = Callable[[Access, Gathers, int], tuple[list[str], list[str], str]]

LONG, AHEAD = 32, 16  # terms from which on a sum looks ahead in itself, and how far
MOST_LINES = 8  # of a row: longer ones are found by the processor


class GatheredRows:
    """The rows of one kernel, for its writer."""

    def __init__(self, writer: Emitter, subscripts: Subscripts, machine: Machine) -> None:
        self.writer = writer
        self.subscripts = subscripts
        self.machine = machine

    def bound(self, access: Access, run: Run, number: int) -> tuple[list[str], list[str]]:
        """See ``patch.Rows``."""
        writer = self.writer
        writer.run_now = run
        lines, names, ok = self.subscripts(access, writer.gathers(access, run), number)
        if not ok:
            return lines, names
        inside = [f"tc_row{number}_{count}" for count in range(len(names))]
        return [*lines, *(f"const int64_t {new} = {ok} ? {name} : 0;" for new, name in zip(inside, names, strict=True))], inside

    def ahead(self, access: Access, run: Run, loops: Sequence[For], lane: For) -> tuple[list[str], list[str]]:
        """See ``patch.Rows``."""
        writer = self.writer
        storage = writer.mapped.scop.tensor(access.tensor)
        size = DTYPES[storage.dtype].bytes
        found = writer.gathered(access, run)
        row = (lane.trips or 0) * size
        if found is None or storage.elements * size <= self.machine.cache_bytes or not 0 < row <= MOST_LINES * LINE:
            return [], []
        if not self._there(access, run):
            return [], []
        moving = [one for one in (*writer.around, *loops) if found.depends(run, one.variable)]
        inner = next((one for one in reversed(moving) if one in loops and (one.trips or 0) >= LONG), None)
        loop = inner or next((one for one in reversed(moving) if one not in loops), None)
        if loop is None:
            return [], []
        step = loop.step * (AHEAD if inner else 1)
        name = f"tc_ahead_{loop.variable}"
        around = next((one for one in reversed(moving) if one not in loops), None) if inner else None
        joined = around is not None and self._follows(access, run, around, loop)
        end = loop.upper if step == 1 else loop.upper - (step - 1)
        until = f"{around.variable} < {writer.index(around.upper)}" if joined and around else f"{loop.variable} < {writer.index(end)}"
        distance = f"const int64_t {name} = {until} ? {step} : 0;"
        later = substitute(run, {loop.variable: Linear.of(loop.variable) + Linear.of(name)})
        assert isinstance(later, Run)
        writer.run_now = later
        names = {place: Linear.of(f"({writer.printer.index(sub)})") for place, sub in found.subscripts}
        far = writer.gathered(access, later)
        assert far is not None
        lines = []
        for start in range(0, lane.trips or 0, LINE // size):
            element = far.address.substitute({**names, lane.variable: lane.lower + start}).written(writer.index)
            lines.append(f"__builtin_prefetch(&{element});")
        return ([], [distance, *lines]) if inner and not joined else ([distance], lines)

    def _follows(self, access: Access, run: Run, around: For, loop: For) -> bool:
        """Whether behind the last subscripts of a sum those of the next one lie in memory."""
        reads = [read for sub in access.subscripts for read in walk(sub) if isinstance(read, Access)]
        places = [self.writer.operand(read, run) for read in reads]
        if loop.step != 1 or around.step != 1 or loop.trips is None:
            return False
        steps = [(place.stride(around.variable), place.stride(loop.variable)) for place in places if place is not None]
        return len(steps) == len(places) and all(None not in pair and pair[0] == loop.trips * (pair[1] or 0) for pair in steps)

    def _there(self, access: Access, run: Run) -> bool:
        """Whether the subscripts of every later iteration can be read by now: arguments hold them, and every iteration of the loops is one
        of the statement, for which they are proved to lie inside."""
        scop = self.writer.mapped.scop
        inner = [read for sub in access.subscripts for read in walk(sub) if isinstance(read, Access)]
        return not scop.statement(run.statement).constraints and all(scop.tensor(read.tensor).role == "input" for read in inner)
