"""Prefetch: rows that a loop over lanes reads a few lines of, far from one another, as the copy of a panel does.

Processors follow lines one after the other, and steps of less than half a page. They do not follow from one short row to the next one, on
another page: its lines are asked for some rows early.
"""

from __future__ import annotations

from tcjit.codegen.loops import For, Run
from tcjit.codegen.reads import ReadEmitter
from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear
from tcjit.mapping.machine import LINE, Machine

MOST_LINES = 8  # of a row: the processor finds the rest of longer ones
DISTANCE = 8  # rows


def row_prefetches(emitter: ReadEmitter, lanes: For, machine: Machine) -> list[str]:
    """Lines in front of a loop over lanes that ask for what it reads some iterations of the loop around it later."""
    if len(lanes.body) != 1 or not isinstance(run := lanes.body[0], Run) or not emitter.around or not lanes.trips:
        return []
    around, lines = emitter.around[-1], list[str]()
    for access, guards in guarded_accesses(emitter.mapped.scop.statement(run.statement).value):
        storage = emitter.mapped.scop.tensor(access.tensor)
        size = DTYPES[storage.dtype].bytes
        with emitter.ranged(lanes):
            place = None if guards else emitter.operand(access, run)
        if place is None or storage.elements * size <= machine.cache_bytes or lanes.trips * size > MOST_LINES * LINE:
            continue
        step = place.stride(around.variable)
        if place.stride(lanes.variable) != 1 or step is None or 2 * abs(step * around.step) * size < machine.costs.page:
            continue
        later = place.substitute({around.variable: Linear.of(around.variable) + DISTANCE * around.step})
        firsts = (later.substitute({lanes.variable: lanes.lower + first}) for first in range(0, lanes.trips, LINE // size))
        lines += [f"__builtin_prefetch(&{first.written(emitter.index)});" for first in firsts]
    return [*dict.fromkeys(lines)]  # one for what is read twice
