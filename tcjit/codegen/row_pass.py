"""A pass over a row, in vectors: what each point needs is loaded once, statements run in lanes, reductions end in one value.

The lanes of a vector are written as a loop over arrays of its length, which the C compiler keeps in registers, so that whatever functions
a statement has are vectorised like any other. What is left of a row behind its last whole vector is loaded and stored under a mask. Where
the whole row is a few vectors, their values stay at hand for the passes behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count

from tcjit.codegen.address import Address
from tcjit.codegen.expression import vtype
from tcjit.codegen.half_vectors import HALF
from tcjit.codegen.lanes import LaneEmitter
from tcjit.codegen.loops import For, RowLoops, Run, nest, runs, substitute
from tcjit.codegen.narrow_vectors import narrow_name
from tcjit.codegen.profile import trips
from tcjit.codegen.tile_vectors import across, combined, halved, suffix, vector_type
from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear
from tcjit.mapping.machine import LINE
from tcjit.mapping.passes.schedule_rows import BYTES
from tcjit.mapping.reduction import identity
from tcjit.mapping.scop import ScopStatement

AT_HAND = 8  # vectors of a row whose values stay in registers, or where the stack is in the nearest cache
TOGETHER = 4  # vectors that a step takes of a longer row: partial results that do not wait for one another
ACCUMULATORS = 8  # registers of partial results, at most, for all reductions of a pass
LANE = "tc_l"
HALVES = ("float16", "bfloat16")
Key = tuple[str, Address]  # an element of a row, as a place that moves with the lane
Values = tuple[str, ...]  # arrays with what elements of a row are, one for each vector, in the type that lanes compute in


class RowValues:
    """What the passes over one row so far, of the tile with a number and in arrays of so many points, have left at hand; ``numbers`` are
    those of arrays."""

    def __init__(self) -> None:
        self.found: dict[Key, Values] = {}
        self.tile, self.points = -1, 0
        self.numbers = count()

    def enter(self, tile: int, points: int) -> None:
        """Begin or go on with the rows of a tile: what others left may have been overwritten, and stands in arrays of another length."""
        if (tile, points) != (self.tile, self.points):
            self.found, self.tile, self.points = {}, tile, points

    @contextmanager
    def of_another_row(self) -> Iterator[None]:
        """Inside a loop, nothing is at hand."""
        found, self.found = self.found, {}
        yield
        self.found = found


def computed(dtype: str) -> str:
    """The type in which lanes compute with elements of a type."""
    return "float32" if dtype in HALVES else "int32" if dtype in BYTES else dtype


def write(emitter: LaneEmitter, node: RowLoops, row: RowValues) -> None:
    """Write a pass."""
    writer = _RowPassWriter(emitter, node, row)
    row.enter(node.tile, writer.unit)
    writer.write()


class _RowPassWriter:
    def __init__(self, emitter: LaneEmitter, node: RowLoops, row: RowValues) -> None:
        self.emitter, self.row = emitter, row
        loops, _ = nest(node.loop)
        self.around, self.lanes = loops[:-1], loops[-1]
        self.scop = emitter.mapped.scop
        self.statements = [(run, self.scop.statement(run.statement)) for run in runs((node,))]
        self.reductions = [(run, s) for run, s in self.statements if s.operator != "=" and not s.reduces_rows]
        self.reduced = {s.name for _, s in self.reductions}
        self.unit = self.lanes_together()
        self.whole = not self.around and self.lanes.trips is not None and self.lanes.trips <= AT_HAND * self.unit

    def lanes_together(self) -> int:
        """Points whose values one vector of the narrowest type holds; as many as the row has where that is a whole short vector."""
        reads = [access for _, s in self.statements for access, _ in guarded_accesses(s.value)]
        types = {s.value.dtype for _, s in self.statements} | {self.dtype(access.tensor) for access in reads}
        most = max(self.emitter.lanes_of(computed(dtype)) for dtype in types)
        row = self.lanes.trips or 0
        return row if 4 <= row < most and row & (row - 1) == 0 else most

    def dtype(self, tensor: str) -> str:
        return self.scop.tensor(tensor).dtype

    def write(self) -> None:
        emitter, row = self.emitter, self.lanes.trips
        emitter.profile.vector = True
        emitter.profile.width = max(emitter.profile.width, self.unit)
        if self.whole:
            assert row is not None
            step = _Step(self, self.lanes.lower, -(-row // self.unit), str(row - 1) if row % self.unit else "")
            step.declare()
            with self.accumulated(step.vectors), emitter.invariants(self.lanes):
                step.write()
            return
        vectors = max(1, min(TOGETHER, ACCUMULATORS // max(1, len(self.reductions))))
        with self.accumulated(vectors), emitter.looped(*self.around), emitter.invariants(self.lanes):
            self.steps(vectors)

    def steps(self, vectors: int) -> None:
        """All steps along a row: whole ones, and what is left behind them."""
        emitter, loop, size = self.emitter, self.lanes, vectors * self.unit
        first, kind = Linear.of("tc_first"), emitter.counter(loop)
        with emitter.indented("{"), emitter.ranged(loop), emitter.profile.loop(loop.variable, trips(loop)):
            emitter.line(f"{kind} tc_first = {emitter.index(loop.lower)};")
            if loop.trips is None or loop.trips >= size:
                with emitter.blocks(loop, size):
                    self.step(first, vectors, "")
            if loop.trips is None:
                with emitter.indented(f"for (; tc_first <= {emitter.index(loop.upper)}; tc_first += {self.unit}) {{"):
                    self.step(first, 1, emitter.index(loop.upper - first))
            elif left := loop.trips % size:
                self.step(loop.upper - (left - 1), -(-left // self.unit), str(left - 1) if left % self.unit else "")

    def step(self, first: Linear, vectors: int, last: str) -> None:
        step = _Step(self, first, vectors, last)
        with self.emitter.indented("{"):
            step.declare()
            step.write()

    # ------------------------------------------------------------ accumulators

    @contextmanager
    def accumulated(self, vectors: int) -> Iterator[None]:
        """Reductions have accumulators meanwhile, which are combined with what their elements are."""
        emitter = self.emitter
        with emitter.indented("{"):
            for number, (_, s) in enumerate(self.reductions):
                dtype = self.declared(s.value.dtype)
                kind = vector_type(dtype, self.width(dtype))
                start = f"{self.call('splat', dtype)}({emitter.printer.value(identity(s.operator, dtype))})"
                sums = self.sums(number, dtype, vectors)
                emitter.line(f"{kind} {', '.join(f'{name} = {start}' for name in sums)};")
            yield
            for number, (run, s) in enumerate(self.reductions):
                dtype = computed(s.value.dtype)
                sums, ending = self.sums(number, dtype, vectors), suffix(dtype, self.width(dtype))
                for line in halved(sums, partial(combined, s.operator, ending)):
                    emitter.write(line)
                emitter.run_now, total = run, across(s.operator, ending, sums[0])
                stored, place = self.dtype(s.tensor), emitter.place(s.tensor, s.subscripts)
                value = emitter.printer.combine(s.operator, s.value.dtype, emitter.printer.load(stored, place), total)
                emitter.write(emitter.printer.store(stored, place, value), stores=True)

    def sums(self, number: int, dtype: str, vectors: int) -> list[str]:
        """The accumulators of a reduction, in the order of points."""
        return [f"tc_a{number}_{at}" for at in range(vectors * self.unit // self.width(dtype))]

    # ------------------------------------------------------------ vectors of a type

    def width(self, dtype: str) -> int:
        """Lanes of a C vector of a type."""
        return min(self.unit, self.emitter.lanes_of(dtype))

    def declared(self, dtype: str) -> str:
        """The type in which lanes compute with elements of a type, whose functions then stand above the kernel."""
        wide = computed(dtype)
        self.emitter.declare_vectors(wide, self.width(wide), *([dtype] if dtype != wide else []), rounds=dtype == HALF)
        return wide

    def call(self, function: str, dtype: str) -> str:
        return f"tc_{function}{suffix(dtype, self.width(dtype))}"


class _Step:
    """Some vectors of points from ``first`` on; ``last``: the last point that counts, from there, where not all do."""

    def __init__(self, row_pass: _RowPassWriter, first: Linear, vectors: int, last: str) -> None:
        self.row_pass, self.first, self.vectors, self.last = row_pass, first, vectors, last
        self.emitter = row_pass.emitter
        self.known: dict[Key, Values] = {}  # what is read, and was not written in this step before
        self.loads: dict[Key, tuple[Run, Access]] = {}  # of these, what is not at hand
        self.results: dict[str, Values] = {}  # by statement: its elements, or terms
        self.goes_on: dict[str, Values] = {}  # the elements that reductions over the rows add to
        self.at_hand: set[str] = set()  # the reductions whose terms are elements in arrays

    def declare(self) -> None:
        """The arrays of the step."""
        row_pass, written = self.row_pass, dict[Key, Values]()
        for run, s in row_pass.statements:
            for access in self.reads(s):
                key = self.key(access, run)
                if key is None or key in self.known or any(tensor == access.tensor for tensor, _ in written):
                    continue
                if row_pass.whole and key in row_pass.row.found:
                    self.known[key] = row_pass.row.found[key]
                else:
                    dtype = row_pass.declared(row_pass.dtype(access.tensor))
                    self.known[key], self.loads[key] = self.arrays(vtype(dtype)), (run, access)
            if s.reduces_rows:
                target = self.key(s.element, run)
                assert target is not None, "partial results lie along the row"
                self.goes_on[s.name] = self.known[target]
            reduced = s.name in row_pass.reduced
            dtype = row_pass.declared(s.value.dtype if reduced else row_pass.dtype(s.tensor))
            element = self.key(s.value, run) if isinstance(s.value, Access) and reduced else None
            given = written.get(element, self.known.get(element)) if element is not None else None
            self.results[s.name] = given or self.arrays(vtype(dtype))
            if given is not None:
                self.at_hand.add(s.name)
            if not reduced and (target := self.key(s.element, run)) is not None:
                written[target] = self.results[s.name]

    @staticmethod
    def reads(s: ScopStatement) -> list[Access]:
        """What a statement reads, the element that a reduction over the rows goes on with among it."""
        return [*(access for access, _ in guarded_accesses(s.value)), *([s.element] if s.reduces_rows else [])]

    def arrays(self, kind: str) -> Values:
        names = tuple(f"tc_x{next(self.row_pass.row.numbers)}" for _ in range(self.vectors))
        for name in names:
            self.emitter.line(f"{kind} {name}[{self.row_pass.unit}] __attribute__((aligned(64)));")
        return names

    def key(self, access: Access, run: Run) -> Key | None:
        """An element of a row in terms of its lane; None for one that is the same for all lanes."""
        address = self.emitter.operand(access, self.moved(run, Linear.of(LANE)))
        return (access.tensor, address) if address is not None and address.stride(LANE) == 1 else None

    def moved(self, run: Run, point: Linear) -> Run:
        return substitute(run, {self.row_pass.lanes.variable: point})

    def write(self) -> None:
        """Loads, lanes and stores, vector by vector; what a whole row has is at hand from then on."""
        row_pass = self.row_pass
        for v in range(self.vectors):
            with self.emitter.bindings():
                self.vector(v)
        if row_pass.whole:
            row_pass.row.found |= self.known
            for run, s in row_pass.statements:
                if s.name not in row_pass.reduced:
                    kept = {key: values for key, values in row_pass.row.found.items() if key[0] != s.tensor}
                    key = self.key(s.element, run)
                    row_pass.row.found = kept | ({key: self.results[s.name]} if key is not None else {})

    def vector(self, v: int) -> None:
        """The points of one vector."""
        start = self.first + v * self.row_pass.unit
        for key, (run, access) in self.loads.items():
            self.load(self.known[key][v], self.moved(run, start), access, v)
        row_pass, known, lanes = self.row_pass, dict(self.known), list[tuple[Run, ScopStatement]]()
        for run, s in row_pass.statements:
            for access, _ in guarded_accesses(s.value):
                place = self.key(access, run)
                if place is not None and place in known:
                    self.emitter.hoisted[id(access)] = [f"{known[place][v]}[{LANE}]"]
            if s.name not in self.at_hand:
                lanes.append((self.moved(run, start + Linear.of(LANE)), s))
            if s.name in row_pass.reduced:
                continue
            if row_pass.dtype(s.tensor) == HALF:  # gcc has no vectors for the rounding of one
                self.lane_loop(lanes, v)
                self.round(self.results[s.name][v])
                lanes = []
            if (target := self.key(s.element, run)) is not None:
                known[target] = self.results[s.name]
        self.lane_loop(lanes, v)
        number = 0
        for run, s in row_pass.statements:
            if s.name in row_pass.reduced:
                self.accumulate(number, s, v)
                number += 1
            else:
                self.store(self.results[s.name][v], self.moved(run, start), s, v)

    def lane_loop(self, statements: Sequence[tuple[Run, ScopStatement]], v: int) -> None:
        """Statements for each lane, into their arrays."""
        emitter, printer = self.emitter, self.emitter.printer
        if not statements:
            return
        loop = For(LANE, Linear.of(0), Linear.of(self.row_pass.unit - 1), 1, tuple(run for run, _ in statements))
        emitter.line("#pragma omp simd")
        with emitter.looped(loop):
            for run, s in statements:
                place, stored = f"{self.results[s.name][v]}[{LANE}]", self.row_pass.dtype(s.tensor)
                with emitter.repeated_values(run):
                    value = emitter.value(s.value, run)
                    if s.name in self.goes_on:
                        value = printer.combine(s.operator, s.value.dtype, f"{self.goes_on[s.name][v]}[{LANE}]", value)
                    if s.name in self.row_pass.reduced:
                        emitter.write(f"{place} = {value};")
                    elif stored in HALVES:
                        exact = printer.unrounded(stored, value)
                        emitter.write(f"{place} = {exact if stored == HALF else printer.convert('float32', stored, exact)};")
                    else:
                        emitter.write(printer.store(stored, place, value))

    # ------------------------------------------------------------ memory

    def mask(self, dtype: str, at: int) -> str:
        """The lanes that count of a C vector that begins ``at`` points behind the first one of the step; nothing where all do."""
        width = self.row_pass.width(dtype)
        if not self.last or self.last.isdigit() and int(self.last) >= at + width - 1:
            return ""
        number = str(int(self.last) - at) if self.last.isdigit() else f"{self.last} - {at}"
        return f"{self.row_pass.call('opaque', dtype)}({self.row_pass.call('until', dtype)}({number}))"

    def pieces(self, dtype: str, v: int) -> Iterator[tuple[int, int, str]]:
        """The C vectors of a vector's points: where each begins in the array, its number in the step, and its mask."""
        width = self.row_pass.width(dtype)
        for first in range(0, self.row_pass.unit, width):
            at = v * self.row_pass.unit + first
            yield first, at // width, self.mask(dtype, at)

    def load(self, array: str, begin: Run, access: Access, v: int) -> None:
        """Elements into an array, as lanes compute with them."""
        call, narrow = self.row_pass.call, self.row_pass.dtype(access.tensor)
        dtype, place = computed(narrow), self.emitter.pointer(access.tensor, access.subscripts, begin)
        load = f"load_{narrow_name(narrow)}" if narrow != dtype else "load"
        for first, _, mask in self.pieces(dtype, v):
            source = f"{place} + {first}" if first else place
            value = f"{call(f'{load}_masked', dtype)}({source}, {mask})" if mask else f"{call(load, dtype)}({source})"
            self.emitter.profile.count("loads")
            self.emitter.write(f"{call('store', dtype)}({array} + {first}, {value});")

    def store(self, array: str, begin: Run, s: ScopStatement, v: int) -> None:
        """An array to memory, as far as it counts."""
        call, dtype, place = self.row_pass.call, self.row_pass.dtype(s.tensor), self.emitter.pointer(s.tensor, s.subscripts, begin)
        wide = computed(dtype)
        function = f"store_{narrow_name(dtype)}" if dtype != wide else "store"
        for first, at, mask in self.pieces(wide, v):
            target, value = f"{place} + {first}" if first else place, f"{call('load', wide)}({array} + {first})"
            if not mask and self.is_line(wide) and s.name in self.emitter.nontemporal:
                self.emitter.streams += 1
                self.emitter.write(f"{self.emitter.printer.helper('tc_store_vector')}({target}, {array} + {first});", stores=True)
            elif not mask:
                self.emitter.write(f"{call(function, wide)}({target}, {value});", stores=True)
            elif dtype == wide:
                self.emitter.write(f"{call('store_masked', wide)}({target}, {value}, {mask});", stores=True)
            else:
                self.part(f"{call(function, wide)}(tc_b, {value});", target, at * self.row_pass.width(wide))

    def is_line(self, dtype: str) -> bool:
        """Whether a C vector has as many bytes as a line of a cache."""
        return self.row_pass.width(dtype) * DTYPES[dtype].bytes == LINE

    def part(self, narrowing: str, target: str, at: int) -> None:
        """The halves that count of a C vector, which a line leaves in ``tc_b``."""
        width = self.row_pass.width("float32")
        with self.emitter.indented("{"):
            self.emitter.line(f"uint16_t tc_b[{width}] __attribute__((aligned(64)));")
            self.emitter.write(narrowing)
            if self.last.isdigit():
                if (left := int(self.last) + 1 - at) > 0:
                    self.emitter.write(f"__builtin_memcpy({target}, tc_b, {2 * left});", stores=True)
                return
            self.emitter.line(f"const int64_t tc_n = {self.last} - {at - 1};")
            self.emitter.write(f"for (int64_t {LANE} = 0; {LANE} < {width} && {LANE} < tc_n; ++{LANE}) ({target})[{LANE}] = tc_b[{LANE}];")

    def round(self, array: str) -> None:
        """Floats in an array to what they are as halves."""
        call, width = self.row_pass.call, self.row_pass.width("float32")
        for first in range(0, self.row_pass.unit, width):
            with self.emitter.indented("{"):
                self.emitter.line(f"uint16_t tc_b[{width}] __attribute__((aligned(64)));")
                self.emitter.write(f"{call('store_f16', 'float32')}(tc_b, {call('load', 'float32')}({array} + {first}));")
                self.emitter.write(f"{call('store', 'float32')}({array} + {first}, {call('load_f16', 'float32')}(tc_b));")

    def accumulate(self, number: int, s: ScopStatement, v: int) -> None:
        """The terms of an array into the accumulators of a reduction."""
        row_pass, dtype = self.row_pass, computed(s.value.dtype)
        sums, ending = row_pass.sums(number, dtype, self.vectors), suffix(dtype, row_pass.width(dtype))
        for first, at, mask in self.pieces(dtype, v):
            term = f"{row_pass.call('load', dtype)}({self.results[s.name][v]} + {first})"
            new = combined(s.operator, ending, sums[at], term)
            kept = f"{row_pass.call('blend', dtype)}({sums[at]}, {new}, {mask})" if mask else new
            self.emitter.write(f"{sums[at]} = {kept};")
