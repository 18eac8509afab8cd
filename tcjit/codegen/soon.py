"""What a round of shared loops works on, asked for before it is needed: what it will write, and what the next round reads.

A round goes over its part of the tensors several times, but only the first time brings it from memory, all at once; a core that computes at
full speed waits for it then. So the requests are spread over the round before. Group convolutions gain by it, the peers' gconv_14 most.
Where little is computed for a line of memory, as in the peers' tbmm, there is nothing to spread them over, and the processor, which sees
one tensor read after the other, is better left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tcjit.codegen.loops import For, MarkNode, Node, Prefetch, Run, children
from tcjit.codegen.scope import LoopScope
from tcjit.codegen.trip_counts import below, work
from tcjit.grammar.ast import Access
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear, Ranges, limits
from tcjit.mapping.machine import Machine
from tcjit.mapping.marks import Tile, TileLoops
from tcjit.mapping.plan_order import LINE

WORTH = 32  # vector operations for each line, from which on it pays to ask
SMALL = 8  # of a core's cache, the part that what is asked for may take
NEW = 0.75  # of a round's part, what the round before did not have


@dataclass(frozen=True)
class Part:
    """What a round has of a tensor: ``count`` elements from ``start`` on, the next one ``step`` further; ``variable`` counts rounds."""

    tensor: str
    start: Linear
    count: int
    variable: str
    step: int

    def lines(self, size: int) -> int:
        return -(-self.count * size // LINE)


def requests(scope: LoopScope, round_: MarkNode, machine: Machine) -> tuple[For, tuple[Prefetch, ...]] | None:
    """A loop inside of a round, and nodes for the start of its body; None where nothing should be asked for."""
    loop = _spread(round_.body)
    if loop is None:
        return None
    scop = scope.mapped.scop
    parts = [part for name in _tensors(scope, round_) if (part := _part(scope, round_, name, machine)) is not None]
    sizes = {part.tensor: DTYPES[scop.tensor(part.tensor).dtype].bytes for part in parts}
    wanted = sum(part.lines(sizes[part.tensor]) for part in parts)
    trips = loop.trips or 1
    lanes = machine.lanes(max(sizes.values(), default=4))
    if not parts or work(round_.body, scop, scope.ranges) // lanes < WORTH * wanted:
        return None
    written = {scop.statement(run.statement).tensor for run, _ in _runs(round_.body, scope.ranges)}
    prefetches = []
    for part in parts:
        share = -(-part.lines(sizes[part.tensor]) // trips)
        start = part.start + (Linear.of(loop.variable) - loop.lower).times(share * LINE // sizes[part.tensor])
        if part.tensor in written:
            prefetches.append(Prefetch(part.tensor, start, share, write=True))
        else:
            around = next(one for one in scope.around if one.variable == part.variable)
            last = around.upper - (around.step - 1)
            prefetches.append(Prefetch(part.tensor, start, share, False, part.variable, last, part.step))
    return loop, tuple(prefetches)


def _spread(nodes: tuple[Node, ...]) -> For | None:
    """The first loop of a round, if it runs several times."""
    first = nodes[0]
    while isinstance(first, MarkNode) and isinstance(first.mark, TileLoops | Tile):
        first = first.body[0]
    return first if isinstance(first, For) and first.step == 1 and (first.trips or 0) > 1 else None


def _tensors(scope: LoopScope, round_: MarkNode) -> list[str]:
    """The tensors in memory that a round reads or writes."""
    scop = scope.mapped.scop
    names: dict[str, None] = {}
    for run, _ in _runs(round_.body, scope.ranges):
        s = scop.statement(run.statement)
        names |= dict.fromkeys([s.tensor, *(access.tensor for access, _ in s.reads())])
    return [name for name in names if name not in scope.memory.contracted]


def _part(scope: LoopScope, round_: MarkNode, tensor: str, machine: Machine) -> Part | None:
    """What a round has of a tensor, if that is one small part and mostly another one each time."""
    scop = scope.mapped.scop
    storage = scop.tensor(tensor)
    size = DTYPES[storage.dtype].bytes
    outside = frozenset(one.variable for one in scope.around)
    origin: Linear | None = None
    least = greatest = 0
    for run, ranges in _runs(round_.body, scope.ranges):
        s = scop.statement(run.statement)
        for access in (Access(s.tensor, s.subscripts, dtype=s.value.dtype), *(access for access, _ in s.reads())):
            if access.tensor != tensor:
                continue
            address = scope.operand(access, run)
            if address is None or address.runtime:
                return None
            steady = Linear(tuple((atom, factor) for atom, factor in address.fixed.terms if isinstance(atom, str) and atom in outside), 0)
            moving = limits(address.fixed - steady, ranges)
            if moving is None or (origin is not None and origin != steady):
                return None
            least = min(least, moving[0]) if origin is not None else moving[0]
            greatest = max(greatest, moving[1]) if origin is not None else moving[1]
            origin = steady
    inner = next((one for one in reversed(scope.around) if one.trips != 1), None)
    if origin is None or inner is None or not origin.coefficient(inner.variable):  # that stays from one round to the next
        return None
    count, step = greatest - least + 1, (origin.coefficient(inner.variable) or 0) * inner.step
    small = count * size * SMALL <= machine.cache_bytes < storage.elements * size
    return Part(tensor, origin + least, count, inner.variable, step) if small and abs(step) >= NEW * count else None


def _runs(nodes: tuple[Node, ...], ranges: Ranges) -> Iterator[tuple[Run, Ranges]]:
    """Every instance below, with the ranges of the loops around it."""
    for node in nodes:
        if isinstance(node, Run):
            yield node, ranges
        else:
            yield from _runs(children(node), below(node, ranges) if isinstance(node, For) else ranges)
