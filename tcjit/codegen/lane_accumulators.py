"""Reductions whose results are neighbours along lanes: vector registers hold these while the loops over the terms run.

The terms of each register go through an array, of which a C compiler makes one too; arrays of results gcc 12 leaves in memory. Rows that
data pick are found and checked once for all lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from tcjit.codegen.address import Address
from tcjit.codegen.bounded_loops import bounded
from tcjit.codegen.lanes import LaneEmitter
from tcjit.codegen.loops import For, Node, Run, SimdLoop, nest, substitute
from tcjit.codegen.tile_vectors import combined, suffix, vector_type
from tcjit.dataclass import dataclass
from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access, Const
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear
from tcjit.grammar.walk import walk
from tcjit.mapping.machine import LINE
from tcjit.mapping.plan_loops import ACCUMULATORS, is_accumulated
from tcjit.mapping.scop import ScopStatement

TYPES = ("float32", "float64", "int32")  # that vectors have
LONG, DISTANCE = 32, 16  # terms from which on a sum looks ahead in itself, and how far
MOST_LINES = 8  # of a row: longer ones are found by the processor


@dataclass(frozen=True)
class LaneAccumulators:
    """The loops of a reduction, outermost first, around the one over lanes, and the lanes of a register."""

    loops: tuple[For, ...]
    lane: For
    run: Run
    target: Address
    width: int

    @property
    def firsts(self) -> list[Linear]:
        """The first lane of each register; the last one has lanes of the one before too, where their number is no multiple of ``width``."""
        trips = self.lane.trips or 0
        starts = [*range(0, trips - self.width + 1, self.width), *([trips - self.width] if trips % self.width else [])]
        return [self.lane.lower + start for start in starts]


def find_lane_accumulators(emitter: LaneEmitter, node: Node) -> LaneAccumulators | None:
    """The loops of a reduction around one over lanes, if registers hold its results."""
    loops, body = nest(node)
    inner = body[0] if len(body) == 1 and loops else None
    if not isinstance(inner, SimdLoop) or inner.reduction is not None or len(inner.loop.body) != 1:
        return None
    lane, run = inner.loop, inner.loop.body[0]
    if not isinstance(run, Run) or lane.trips is None or lane.step != 1:
        return None
    s = emitter.mapped.scop.statement(run.statement)
    moving = [dim for dim, value in run.indices if lane.variable in value.variables]
    if len(moving) != 1 or s.value.dtype not in TYPES or not is_accumulated(emitter.mapped.scop, s, moving[0]):
        return None
    most = emitter.machine.lanes(DTYPES[s.value.dtype].bytes)
    width = min(emitter.mapped.options.vector_width or most, most)
    while width > max(1, lane.trips or 0):
        width //= 2
    with emitter.ranged(*loops, lane):
        target = emitter.target(s, run)
    if target is None or target.stride(lane.variable) != 1 or target.variables & {loop.variable for loop in loops}:
        return None
    found = LaneAccumulators(tuple(loops), lane, run, target, width)
    return found if 1 < width and len(found.firsts) <= ACCUMULATORS else None


def starting_value(emitter: LaneEmitter, node: Node, found: LaneAccumulators) -> str:
    """The constant that the results have behind a node, if that does no more than give it to them; nothing otherwise."""
    loop = node.loop if isinstance(node, SimdLoop) else None
    run = loop.body[0] if loop is not None and len(loop.body) == 1 else None
    if loop is None or not isinstance(run, Run) or loop.trips != found.lane.trips:
        return ""
    s = emitter.mapped.scop.statement(run.statement)
    updated = emitter.mapped.scop.statement(found.run.statement)
    if s.operator != "=" or not isinstance(s.value, Const) or (s.tensor, s.value.dtype) != (updated.tensor, updated.value.dtype):
        return ""
    with emitter.ranged(loop):
        target = emitter.target(s, run)
    if target is None or target.stride(loop.variable) != 1:
        return ""
    first = target.substitute({loop.variable: loop.lower})
    return str(emitter.printer.value(s.value)) if first == found.target.substitute({found.lane.variable: found.lane.lower}) else ""


def write(emitter: LaneEmitter, found: LaneAccumulators, start: str) -> None:
    """Write the loops; the results start from what memory has, or from a constant."""
    s = emitter.mapped.scop.statement(found.run.statement)
    ending, vector = suffix(s.value.dtype, found.width), vector_type(s.value.dtype, found.width)
    emitter.declare_vectors(s.value.dtype, found.width)
    emitter.profile.width = max(emitter.profile.width, found.width)
    emitter.profile.counts["accumulators"] += len(found.firsts)
    before, inside = _prefetches(emitter, s, found)
    places = [f"&{found.target.substitute({found.lane.variable: first}).written(emitter.index)}" for first in found.firsts]
    with emitter.indented("{"):
        for number, place in enumerate(places):
            emitter.write(f"{vector} tc_sum{number} = {f'tc_splat{ending}({start})' if start else f'tc_load{ending}({place})'};")
        for line in before:
            emitter.line(line)
        with ExitStack() as around:
            for loop in found.loops:
                around.enter_context(emitter.looped(around.enter_context(bounded(emitter, loop))))
            value = emitter.mapped.scop.statement(found.run.statement).value
            for line in inside:
                emitter.line(line)
            with emitter.invariants(found.lane):
                emitter.profile.count("sums", len(found.firsts))
                emitter.profile.count("loads", len(found.firsts))
                for number, first in enumerate(found.firsts):
                    with emitter.indented("{"):
                        emitter.line(f"const int64_t tc_first = {emitter.index(first)};")
                        for line in emitter.terms(s.value.dtype, found.width, found.lane, found.run, value):
                            emitter.line(line)
                        name = f"tc_sum{number}"
                        emitter.write(f"{name} = {combined(s.operator, ending, name, f'tc_load{ending}(tc_terms)')};")
        for number, place in reversed([*enumerate(places)]):  # so that a whole vector is read again where one was stored
            total = f"tc_sum{number}"
            if (found.lane.trips or 0) % found.width:
                # what reads parts of a result takes them from memory: gcc 12 would leave the vector there while it changes
                total = f"tc_in_register{ending}({total})"
            emitter.write(f"tc_store{ending}({place}, {total});", stores=True)


def _prefetches(emitter: LaneEmitter, s: ScopStatement, found: LaneAccumulators) -> tuple[list[str], list[str]]:
    """Lines in front of the loops over terms and inside of them that ask for rows early, each once."""
    before: dict[str, None] = {}
    inside: dict[str, None] = {}
    for access in _gathers(emitter, s, found.run):
        lines = _rows_ahead(emitter, access, found.run, found.loops, found.lane)
        before |= dict.fromkeys(lines[0])
        inside |= dict.fromkeys(lines[1])
    return [*before], [*inside]


def _gathers(emitter: LaneEmitter, s: ScopStatement, run: Run) -> Iterator[Access]:
    return (access for access, _ in guarded_accesses(s.value) if emitter.gathers(access, run))


# ---------------------------------------------------------------- rows that data pick


def _rows_ahead(emitter: LaneEmitter, access: Access, run: Run, loops: Sequence[For], lane: For) -> tuple[list[str], list[str]]:
    """Lines in front of the reduction loops and inside of them that ask for rows of a table that data pick before they are needed.

    Where a table is larger than the cache a processor finds out too late which rows it needs. The subscripts of what comes next are there
    to be read: those of the next result where a result is the sum of a few rows, and further on in the same sum where it is long.
    """
    storage = emitter.mapped.scop.tensor(access.tensor)
    size = DTYPES[storage.dtype].bytes
    found = emitter.gathered(access, run)
    row = (lane.trips or 0) * size
    if found is None or storage.elements * size <= emitter.machine.cache_bytes or not 0 < row <= MOST_LINES * LINE:
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


def _continues(emitter: LaneEmitter, access: Access, run: Run, around: For, loop: For) -> bool:
    """Whether behind the last subscripts of a sum those of the next one lie in memory."""
    reads = [read for sub in access.subscripts for read in walk(sub) if isinstance(read, Access)]
    places = [emitter.operand(read, run) for read in reads]
    if loop.step != 1 or around.step != 1 or loop.trips is None:
        return False
    steps = [(place.stride(around.variable), place.stride(loop.variable)) for place in places if place is not None]
    return len(steps) == len(places) and all(None not in pair and pair[0] == loop.trips * (pair[1] or 0) for pair in steps)


def _are_known(emitter: LaneEmitter, access: Access, run: Run) -> bool:
    """Whether the subscripts of every later iteration can be read by now: arguments hold them, and every iteration of the loops is one
    of the statement, for which they are proved to lie inside."""
    scop = emitter.mapped.scop
    inner = [read for sub in access.subscripts for read in walk(sub) if isinstance(read, Access)]
    return not scop.statement(run.statement).constraints and all(scop.tensor(read.tensor).role == "input" for read in inner)
