"""Rows of a table that data pick, asked for before they are needed.

Where a table is larger than the cache a processor finds out too late which rows it needs. The subscripts of what comes next are there
to be read: those of the next result where a result is the sum of a few rows, and further on in the same sum where it is long.
"""

from __future__ import annotations

from collections.abc import Sequence

from tcjit.codegen.emitter import Emitter
from tcjit.codegen.loops import For, Run, substitute
from tcjit.grammar.ast import Access
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear
from tcjit.grammar.walk import walk
from tcjit.mapping.machine import Machine
from tcjit.mapping.nest.cost import LINE

LONG, DISTANCE = 32, 16  # terms from which on a sum looks ahead in itself, and how far
MOST_LINES = 8  # of a row: longer ones are found by the processor


def prefetches(
    emitter: Emitter, access: Access, run: Run, loops: Sequence[For], lane: For, machine: Machine
) -> tuple[list[str], list[str]]:
    """Lines in front of the reduction loops and inside of them that ask for rows of a tensor that the cache does not hold."""
    storage = emitter.mapped.scop.tensor(access.tensor)
    size = DTYPES[storage.dtype].bytes
    found = emitter.gathered(access, run)
    row = (lane.trips or 0) * size
    if found is None or storage.elements * size <= machine.cache_bytes or not 0 < row <= MOST_LINES * LINE:
        return [], []
    if not _are_known(emitter, access, run):
        return [], []
    moving = [one for one in (*emitter.around, *loops) if found.depends(run, one.variable)]
    inner = next((one for one in reversed(moving) if one in loops and (one.trips or 0) >= LONG), None)
    loop = inner or next((one for one in reversed(moving) if one not in loops), None)
    if loop is None:
        return [], []
    step = loop.step * (DISTANCE if inner else 1)
    name = f"tc_ahead_{loop.variable}"
    around = next((one for one in reversed(moving) if one not in loops), None) if inner else None
    joined = around is not None and _continues(emitter, access, run, around, loop)
    end = loop.upper if step == 1 else loop.upper - (step - 1)
    until = f"{around.variable} < {emitter.index(around.upper)}" if joined and around else f"{loop.variable} < {emitter.index(end)}"
    distance = f"const int64_t {name} = {until} ? {step} : 0;"
    later = substitute(run, {loop.variable: Linear.of(loop.variable) + Linear.of(name)})
    emitter.run_now = later
    names = {place: Linear.of(f"({emitter.printer.index(sub)})") for place, sub in found.subscripts}
    far = emitter.gathered(access, later)
    assert far is not None
    lines = []
    for start in range(0, lane.trips or 0, LINE // size):
        element = far.address.substitute({**names, lane.variable: lane.lower + start}).written(emitter.index)
        lines.append(f"__builtin_prefetch(&{element});")
    return ([], [distance, *lines]) if inner and not joined else ([distance], lines)


def _continues(emitter: Emitter, access: Access, run: Run, around: For, loop: For) -> bool:
    """Whether behind the last subscripts of a sum those of the next one lie in memory."""
    reads = [read for sub in access.subscripts for read in walk(sub) if isinstance(read, Access)]
    places = [emitter.operand(read, run) for read in reads]
    if loop.step != 1 or around.step != 1 or loop.trips is None:
        return False
    steps = [(place.stride(around.variable), place.stride(loop.variable)) for place in places if place is not None]
    return len(steps) == len(places) and all(None not in pair and pair[0] == loop.trips * (pair[1] or 0) for pair in steps)


def _are_known(emitter: Emitter, access: Access, run: Run) -> bool:
    """Whether the subscripts of every later iteration can be read by now: arguments hold them, and every iteration of the loops is one
    of the statement, for which they are proved to lie inside."""
    scop = emitter.mapped.scop
    inner = [read for sub in access.subscripts for read in walk(sub) if isinstance(read, Access)]
    return not scop.statement(run.statement).constraints and all(scop.tensor(read.tensor).role == "input" for read in inner)
