"""Loops over lanes as C: vectors by ``omp simd``, sums in accumulators, scans, scatters, branches taken out of a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from textwrap import dedent

from tcjit.codegen import copy_functions, vector_copies
from tcjit.codegen.bounded_loops import bounded
from tcjit.codegen.dialect import Dialect
from tcjit.codegen.expression import vtype
from tcjit.codegen.half_vectors import HALF, HalfLanes, converted, find_half_lanes
from tcjit.codegen.loops import Compare, For, Reduction, Run, SimdLoop, runs, substitute
from tcjit.codegen.narrow_vectors import narrow_declarations
from tcjit.codegen.prefetch_rows import row_prefetches
from tcjit.codegen.profile import scaled
from tcjit.codegen.reads import ReadEmitter
from tcjit.codegen.split_lanes import LaneConditions
from tcjit.codegen.streaming import StreamedLanes, find_streamed_lanes, nontemporal, streamed
from tcjit.codegen.strided_vectors import SHUFFLED
from tcjit.codegen.text import stack_array
from tcjit.codegen.tile_vectors import declarations, halved
from tcjit.codegen.vector_reduction import EXTREMA, SHORT, VectorReduction, VectorScan, find_vector_reduction, neighbours, vector_scan
from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access, Binary, Call, Expr, Select
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear
from tcjit.grammar.walk import walk
from tcjit.mapping.data_bounds import LONG_ROW
from tcjit.mapping.machine import Machine
from tcjit.mapping.pipeline import Mapped
from tcjit.mapping.scans import recurrence
from tcjit.mapping.scop import ScopStatement

FEWEST_LANES = 4  # of vectors
PART = 16  # bytes of a vector among which words move fast on all processors
LEAST_SPLIT = 32  # iterations of a loop that is worth more text


class LaneEmitter(ReadEmitter):
    """What stands above the kernel for them is in ``declarations``."""

    def __init__(self, mapped: Mapped, dialect: Dialect, machine: Machine, checked: bool) -> None:
        super().__init__(mapped, dialect, checked)
        self.machine = machine
        self.declarations: dict[str, None] = {}
        self.nontemporal = nontemporal(mapped.scop, machine)
        self.streams = 0  # loops whose results are on their way past the caches
        self.lane_loop = ""  # the variable of the loop that is written next, if its iterations are lanes

    def lanes_of(self, dtype: str) -> int:
        """As many as options ask for, or as a vector of a type has."""
        return self.mapped.options.vector_width or self.machine.lanes(DTYPES[dtype].bytes)

    def flags(self, before: int) -> str:
        """The clause that joins the flag of threads or lanes, where it is set since so many checks were printed."""
        return " reduction(max : tc_flag)" if self.printer.checks > before else ""

    @contextmanager
    def iterated(self, node: For, *, braces: bool = True) -> Iterator[None]:
        """Each lane tells at its end of what it found: of a private copy that ``omp simd`` keeps for the flag and that is read under a
        condition, gcc 12 reads what lies behind it."""
        lanes, self.lane_loop = node.variable == self.lane_loop, ""
        with super().iterated(node, braces=braces or lanes):
            if not lanes:
                yield
                return
            checks = self.printer.checks
            with self.captured() as body:
                yield
            if self.printer.checks == checks:
                self.lines += body
                return
            self.line("int64_t tc_found = tc_flag;")
            self.line("{ int64_t tc_flag = 0;")
            self.lines += body
            self.line("tc_found = tc_found < tc_flag ? tc_flag : tc_found; }")
            self.line("tc_flag = tc_found;")

    def simd(self, node: SimdLoop) -> None:
        dtype = self.mapped.scop.statement(runs(node.loop.body)[0].statement).value.dtype
        is_long = node.loop.trips is not None and node.loop.trips >= LONG_ROW * self.lanes_of(dtype)
        with bounded(self, node.loop) if is_long else nullcontext(node.loop) as loop:
            self.simd_alone(replace(node, loop=loop))

    def simd_alone(self, node: SimdLoop) -> None:
        if node.reduction is not None:
            self.reduction(node.loop, node.reduction)
            return
        if self.machine.vector_bytes >= vector_copies.MASKED and vector_copies.write_padded(self, node.loop):
            self.declarations |= dict.fromkeys(copy_functions.PADDED)
            return
        if (branch := self.unswitched(node.loop)) is not None:
            self.unswitch(runs(node.loop.body)[0], branch, partial(self.simd, node))
            return
        if (conditions := self.conditions(node.loop)) is not None:
            self.split(conditions)
            return
        self.unconditional(node)

    def conditions(self, loop: For) -> LaneConditions | None:
        """The conditions on indices in the only statement of a loop that is long enough to be split for them."""
        run, *others = runs(loop.body)
        if others or (loop.trips or 0) < LEAST_SPLIT:
            return None
        value = self.mapped.scop.statement(run.statement).value
        found = LaneConditions(loop, run, self.mapped.scop.values, self.lanes_of(value.dtype))
        return found if found.comparisons(value) or len(found.periods(value)) > 1 else None

    def split(self, conditions: LaneConditions) -> None:
        """A loop without conditions where those that do not move with it hold, and one that asks them elsewhere, each cut where others
        change."""
        value = self.mapped.scop.statement(conditions.run.statement).value
        segments, branch = conditions.segments(value, self.ranges), conditions.branch(value)
        if segments is not None:
            self.segments(conditions, *segments)
        elif branch is None:
            self.cut(conditions)
        else:
            self.unswitch(conditions.run, branch, partial(self.cut, conditions))

    def segments(self, conditions: LaneConditions, variable: str, segments: list[tuple[int, Expr]]) -> None:
        """The loop for each segment of an outer one's values, with the value there."""
        for number, (last, value) in enumerate(segments):
            test = Compare(Linear.of(variable), "<=", Linear.of(last)).written(self.index)
            opening = "else {" if number == len(segments) - 1 else f"else if ({test}) {{" if number else f"if ({test}) {{"
            self.profile.count("tested", number < len(segments) - 1)
            with self.indented(opening), self.valued(conditions.run, value):
                self.split(conditions)

    def cut(self, conditions: LaneConditions) -> None:
        whole = self.mapped.scop.statement(conditions.run.statement).value
        parts = [part for loop in conditions.periods(whole) for part in replace(conditions, loop=loop).parts(whole)]
        for loop, value in parts:
            with self.valued(conditions.run, value):
                self.unconditional(SimdLoop(loop))

    def unconditional(self, node: SimdLoop) -> None:
        """A loop over lanes as it stands."""
        if vector_copies.write_interleaved(self, node.loop):
            self.declarations |= dict.fromkeys(copy_functions.INTERLEAVE)
            return
        with self.invariants(node.loop):
            self.profile.vector = True
            halves = find_half_lanes(self, node.loop, self.machine)
            if halves is not None and (count := halves.block(node.loop.trips)):
                self.convert(node.loop, halves, count)
                return
            if (lines := find_streamed_lanes(self, node.loop, self.nontemporal)) is not None:
                self.stream(node.loop, lines)
                return
            for line in row_prefetches(self, node.loop, self.machine):
                self.line(line)
            lanes = self.overlapping_lanes(node.loop)
            with self.vectors(node.loop, lanes) if lanes else nullcontext(node.loop) as loop:
                self.lanes(loop)

    def lanes(self, loop: For) -> None:
        """A loop whose iterations are lanes."""
        checks, self.lane_loop = self.printer.checks, loop.variable
        with self.captured() as body:
            self.loop(loop)
        length = f" simdlen({PART // size})" if (size := self.interleaved(loop)) else ""
        self.line(f"#pragma omp simd{length}{self.flags(checks)}")
        self.lines += body

    def interleaved(self, loop: For) -> int:
        """Bytes of the elements of which a loop reads or writes every second to fourth where vectors have two parts, between which
        words move slowly; 0 where it has none, or elements of other sizes."""
        scop, sizes, found = self.mapped.scop, set[int](), False
        if self.machine.vector_bytes != 2 * PART:
            return 0
        with self.ranged(loop):
            for run in runs(loop.body):
                s = scop.statement(run.statement)
                places = [self.target(s, run), *(self.operand(access, run) for access, _ in guarded_accesses(s.value))]
                tensors = (s.tensor, *(access.tensor for access, _ in guarded_accesses(s.value)))
                sizes |= {DTYPES[scop.tensor(tensor).dtype].bytes for tensor in tensors}
                found |= any(abs(place.stride(loop.variable) or 0) in SHUFFLED for place in places if place is not None)
        return min(sizes) if found and len(sizes) == 1 and min(sizes) >= copy_functions.WORD else 0

    def overlapping_lanes(self, loop: For) -> int:
        """The lanes of vectors that a loop runs in, fewer in a short one, of which the last overlaps the one before; 0 where iterations
        cannot be computed twice, or nothing costly is left behind whole vectors: an ``exp`` alone takes as long as one for all lanes."""
        scop, statements = self.mapped.scop, [self.mapped.scop.statement(run.statement) for run in runs(loop.body)]
        lanes = min(self.lanes_of(dtype) for s in statements for dtype in (s.value.dtype, scop.tensor(s.tensor).dtype))
        lanes = _fitting(lanes, loop.trips or 0)
        left = loop.trips is not None and loop.trips > lanes and loop.trips % lanes != 0
        return lanes if left and self.runs_again(loop) and any(_is_costly(s.value) for s in statements) else 0

    def runs_again(self, loop: For) -> bool:
        """Whether iterations may be computed twice: what they write they do not read."""
        statements = [self.mapped.scop.statement(run.statement) for run in runs(loop.body)]
        read = {access.tensor for s in statements for access, _ in guarded_accesses(s.value)}
        return loop.step == 1 and all(s.operator == "=" and s.tensor not in read for s in statements)

    @contextmanager
    def vectors(self, loop: For, lanes: int) -> Iterator[For]:
        """The loop over the lanes of a vector, inside one over vectors, of which the last overlaps the one before."""
        last, kind = self.index(loop.upper - (lanes - 1)), self.counter(loop)
        with self.ranged(loop), self.indented(
            f"for ({kind} tc_vector = {self.index(loop.lower)}; tc_vector <= {self.index(loop.upper)}; tc_vector += {lanes}) {{"
        ):
            self.line(f"const {kind} tc_first = tc_vector < {last} ? tc_vector : {last};")
            yield replace(loop, lower=Linear.of("tc_first"), upper=Linear.of("tc_first") + (lanes - 1))

    @contextmanager
    def blocks(self, loop: For, count: int) -> Iterator[None]:
        """A loop over whole blocks of so many iterations; ``tc_first``, which is declared before, is the first of each, and of the rest."""
        with self.indented(f"for (; tc_first <= {self.index(loop.upper - (count - 1))}; tc_first += {count}) {{"):
            yield

    def convert(self, loop: For, halves: HalfLanes, count: int) -> None:
        """A loop over lanes in blocks, with what they read and write of halves converted around each; what is left behind the last whole
        block stands in a block that overlaps it, or in a loop of its own."""
        self.declare_vectors("float32", halves.width, HALF, rounds=bool(halves.writes or halves.interleaved))
        if loop.trips is not None and self.runs_again(loop):
            with self.vectors(loop, count) as block, converted(self, halves, "tc_first", count):
                self.lanes(block)
            return
        first, kind = Linear.of("tc_first"), self.counter(loop)
        with self.indented("{"):
            self.line(f"{kind} tc_first = {self.index(loop.lower)};")
            with self.ranged(loop), self.blocks(loop, count), converted(self, halves, "tc_first", count):
                self.lanes(replace(loop, lower=first, upper=first + (count - 1)))
            if loop.trips is None or loop.trips % count:
                with self.ranged(loop):
                    self.lanes(replace(loop, lower=first))

    def stream(self, loop: For, lines: StreamedLanes) -> None:
        """A loop over lanes up to the first whole line of its results, then lines that are stored past the caches, and the rest."""
        self.streams += 1
        first, kind, size = Linear.of("tc_first"), self.counter(loop), DTYPES[lines.s.value.dtype].bytes
        with self.indented("{"):
            place = f"(uintptr_t)&{lines.at(loop.lower, self)}"
            self.line(f"{kind} tc_first = {self.index(loop.lower)} + ({kind})(-({place}) / {size} % {lines.line});")
            if loop.trips is None:
                self.line(f"if (tc_first > {self.index(loop.upper)}) tc_first = {self.index(loop.upper)} + 1;")
            with self.ranged(loop):
                self.lanes(replace(loop, upper=first - 1))
                whole = replace(loop, variable="tc_first", upper=loop.upper - (lines.line - 1), step=lines.line)
                with self.ranged(whole), self.blocks(loop, lines.line), streamed(self, lines):
                    self.lanes(lines.over_line())
                self.lanes(replace(loop, lower=first))

    def declare_vectors(self, dtype: str, width: int, *narrow: str, rounds: bool = False) -> None:
        """Vectors of a type, and loads of ``narrow`` types into them; ``rounds``: what stores floats as halves, too."""
        self.declarations |= dict.fromkeys(declarations(dtype, width))
        for one in dict.fromkeys((*narrow, *([HALF] if rounds else []))):
            self.declarations |= dict.fromkeys(narrow_declarations(one, dtype, width, stores=rounds and one == HALF))
        if rounds:
            self.printer.helper("tc_float_to_half")

    def statement(self, run: Run) -> None:
        with self.speculated_loads(run), self.repeated_values(run):
            self.one_statement(run)

    def one_statement(self, run: Run) -> None:
        if run.statement not in self.stored:
            super().statement(run)
            return
        s, place = self.mapped.scop.statement(run.statement), self.stored[run.statement]
        value = self.value(s.value, run)
        if s.operator != "=":
            value = self.printer.combine(s.operator, s.value.dtype, place, value)
        self.write(f"{place} = {self.printer.unrounded(HALF, value)};", stores=True)

    def unswitched(self, loop: For) -> Select | None:
        """The value of a loop's only statement where that chooses, for all iterations alike, whether a row of a gather is read.

        A C compiler leaves the choice in the loop, with the check of the row.
        """
        run, *others = runs(loop.body)
        value = self.mapped.scop.statement(run.statement).value
        if others or not isinstance(value, Select) or self.moves(value.condition, run, loop.variable):
            return None
        if loop.trips is None and self.may_flag(value.condition, run):  # a loop that may not run at all
            return None
        found = (self.gathers(node, run) for node in walk(value.then) if isinstance(node, Access))
        rows = [[sub for _, sub in gathers] for gathers in found if gathers]
        return value if any(not any(self.moves(sub, run, loop.variable) for sub in row) for row in rows) else None

    def unswitch(self, run: Run, branch: Select, write: Callable[[], None]) -> None:
        """The loop over a statement for each side of a branch."""
        with self.when([self.value(branch.condition, run)]), self.valued(run, branch.then):
            write()
        with self.indented("else {"), self.valued(run, branch.other):
            write()

    def scan(self, loop: For) -> None:
        """The result of an iteration stays in a variable for the next one; those of a vector are computed at once where they are
        neighbours in memory."""
        (run,) = runs(loop.body)
        s = self.mapped.scop.statement(run.statement)
        start, before, value = recurrence(s)
        s, storage = replace(s, value=value), self.mapped.scop.tensor(s.tensor)
        with self.indented("{"):
            self.run_now = substitute(run, {loop.variable: loop.lower})
            first = self.element(before) if start is None else self.value(start, self.run_now)
            self.write(f"{vtype(value.dtype)} tc_running = {first};")
            vectors = vector_scan(self, loop, run, s, self.lanes_of(value.dtype))
            if vectors is not None:
                self.scan_vectors(vectors, loop, run, s)
                if vectors.masked:
                    return
                loop = replace(loop, lower=Linear.of("tc_first"))
            with self.bindings(), self.looped(loop):
                self.hoisted[id(before)] = ["tc_running"]
                self.write(f"tc_running = {self.value(value, run)};")
                target = self.place(s.tensor, s.subscripts)
                self.write(self.printer.store(storage.dtype, target, "tc_running"), stores=True)

    def scan_vectors(self, found: VectorScan, loop: For, run: Run, s: ScopStatement) -> None:
        """The results of vectors."""
        first = Linear.of("tc_first")

        def place(tensor: str, subscripts: tuple[Expr, ...], backwards: bool) -> str:
            moved = substitute(run, {loop.variable: first + (found.width - 1 if backwards else 0)})
            return self.pointer(tensor, subscripts, moved)

        source, before = "tc_terms", []
        if found.step is not None and isinstance(found.term, Access):
            source = place(found.term.tensor, found.term.subscripts, found.step == -1)
        else:
            before = self.terms(found.dtype, found.width, loop, run, found.term)
        target = place(s.tensor, s.subscripts, found.backwards)
        self.declare_vectors(found.dtype, found.width)
        self.profile.vector = True
        bounds = self.index(loop.lower), self.index(loop.upper)
        for line in found.lines(bounds, loop.trips, self.printer.identity(found.operator, found.dtype), target, source, before):
            self.line(line)

    def reduction(self, loop: For, reduction: Reduction) -> None:
        """Every accumulator sums up an equal stretch of the loop; they are combined in a fixed tree."""
        statement = self.mapped.scop.statement(reduction.run.statement)
        dtype = statement.value.dtype
        storage = self.mapped.scop.tensor(statement.tensor)
        element = reduction.target.written(self.index)
        clause = self.lane_reduction(statement.operator, dtype)
        width = self.lanes_of(dtype)
        vectors = find_vector_reduction(loop, statement, min(width, self.machine.lanes(DTYPES[dtype].bytes)), self.index)
        if vectors is not None:
            if statement.operator in EXTREMA:
                pays = reduction.accumulators == 1
            else:
                near = vectors.trips <= SHORT and neighbours(loop, reduction.run, statement, self) is not None
                short = vectors.trips <= SHORT and _is_costly(statement.value)
                pays = near or short or self.loaded_halves(loop, vectors.step) is not None
            vectors = vectors if pays else None
        count = 1 if vectors is not None or loop.trips is None else reduction.accumulators
        trips = loop.trips or 0
        width = _fitting(width, trips) if _is_costly(statement.value) else width
        in_vectors = loop.step == 1 and width < trips
        stretch = trips // count // width * width if in_vectors else trips // count
        names = [f"tc_sum{number}" for number in range(count)] if count > 1 else ["tc_sum"]
        with self.indented("{"), self.invariants(loop):
            self.write(f"{vtype(dtype)} {names[0]} = {self.printer.load(storage.dtype, element)};")
            for name in names[1:]:
                self.write(f"{vtype(dtype)} {name} = {self.printer.identity(statement.operator, dtype)};")
            if vectors is not None:
                self.reduce(vectors, loop, reduction.run, statement)
            elif loop.trips is None:
                self.accumulate(loop, reduction.run, names, clause)
            else:
                if stretch:
                    part = replace(loop, upper=loop.lower + (stretch - 1) * loop.step)
                    self.accumulate(part, reduction.run, names, clause, stretch * loop.step)
                self.remainder(loop, reduction.run, names[0], clause, count * stretch, width if in_vectors else 0)
            for line in halved(names, partial(self.printer.combine, statement.operator, dtype)):
                self.write(line)
            self.scaled += scaled(reduction.target.fixed)
            self.write(self.printer.store(storage.dtype, element, names[0]), stores=True)

    def reduce(self, found: VectorReduction, loop: For, run: Run, s: ScopStatement) -> None:
        """A reduction of neighbours in memory, or of values that are computed for a few vectors at once, in vectors."""
        access = neighbours(loop, run, s, self)
        identity = self.printer.identity(found.operator, found.dtype)
        before = [] if access is not None else self.terms(found.dtype, found.step, loop, run, s.value)

        def place(at: str) -> str:
            if before:
                return "tc_terms"
            assert access is not None
            return self.pointer(access.tensor, access.subscripts, substitute(run, {loop.variable: Linear.of(at)}))

        self.declare_vectors(found.dtype, found.width)
        self.profile.vector = True
        for line in found.lines(identity, partial(self.printer.combine, found.operator, found.dtype), place, before):
            self.line(line)

    def loaded_halves(self, loop: For, count: int) -> HalfLanes | None:
        """What so many terms of a loop convert."""
        halves = find_half_lanes(self, loop, self.machine)
        return replace(halves, writes=(), interleaved=()) if halves is not None and halves.reads and count % halves.width == 0 else None

    def terms(self, dtype: str, count: int, loop: For, run: Run, value: Expr) -> list[str]:
        """So many values of an expression over a loop, from ``tc_first`` on, in an array."""
        checks, first = self.printer.checks, Linear.of("tc_first")
        self.run_now = run
        halves = self.loaded_halves(loop, count)
        with self.captured() as before, converted(self, halves, "tc_first", count) if halves is not None else nullcontext():
            self.lane_loop = loop.variable
            with self.captured() as body, self.ranged(loop):
                with self.iterated(replace(loop, lower=first, upper=first + (count - 1))), self.speculated_loads(run):
                    self.write(f"tc_terms[{loop.variable} - tc_first] = {self.printer.value(value)};")
        if halves is not None:
            self.declare_vectors("float32", halves.width, HALF)
        declared = stack_array(vtype(dtype), "tc_terms", count)
        lines = [*dedent("\n".join(before)).splitlines(), *declared, f"#pragma omp simd{self.flags(checks)}"]
        return [*lines, *dedent("\n".join(body)).splitlines()]

    def remainder(self, loop: For, run: Run, name: str, clause: str, done: int, width: int) -> None:
        """The terms that are left, in whole vectors: the last one begins among those before it, which count as the identity there."""
        assert loop.trips is not None
        whole = done + ((loop.trips - done) // width * width if width else loop.trips - done)
        if whole > done:
            end = loop.lower + (whole - 1) * loop.step
            part = replace(loop, lower=loop.lower + done * loop.step, upper=end)
            self.accumulate(part, run, [name], clause)
        if whole < loop.trips:
            last = replace(loop, lower=loop.upper - (width - 1))
            self.accumulate(last, run, [name], clause, first=loop.lower + whole)

    def accumulate(self, loop: For, run: Run, names: list[str], clause: str, stretch: int = 0, first: Linear | None = None) -> None:
        """A loop that adds the terms of a run to accumulators, to each those so many iterations after the one before; those before
        ``first`` count as the identity."""
        s = self.mapped.scop.statement(run.statement)
        checks = self.printer.checks
        self.profile.vector = bool(clause)
        self.lane_loop = loop.variable if clause else ""
        with self.captured() as body, self.ranged(loop), self.iterated(loop, braces=len(names) > 1 or first is not None):
            for number, name in enumerate(names):
                at = substitute(run, {loop.variable: Linear.of(loop.variable) + number * stretch}) if number else run
                value = self.value(s.value, at)
                term = str(value)
                if first is not None:  # evaluated for all lanes: under a condition the compiler computes on what masked lanes had before
                    self.write(f"const {vtype(s.value.dtype)} tc_term = {value};")
                    identity = self.printer.identity(s.operator, s.value.dtype)
                    term = f"({loop.variable} >= {self.index(first)} ? tc_term : {identity})"
                self.write(f"{name} = {self.printer.combine(s.operator, s.value.dtype, name, term)};")
        if clause:
            self.line(f"#pragma omp simd reduction({clause} : {', '.join(names)}){self.flags(checks)}")
        self.lines += body

    def lane_reduction(self, operator: str, dtype: str) -> str:
        """OpenMP's name for a reduction; the NaN-keeping min and max of floats are declared, bool has none."""
        kind = DTYPES[dtype].kind
        if kind == "bool":
            return ""
        if operator in ("+=", "*="):
            return operator[0]
        if kind != "float":
            return operator[:3]
        name = f"tc_{operator[:3]}_{vtype(dtype)}"
        combined = self.printer.combine(operator, dtype, "omp_out", "omp_in")
        start = self.printer.identity(operator, dtype)
        declared = f"#pragma omp declare reduction({name} : {vtype(dtype)} : omp_out = {combined}) initializer(omp_priv = {start})"
        self.declarations[declared] = None
        return name


def _fitting(lanes: int, trips: int) -> int:
    """As many lanes, or a half, a quarter of them, as a short loop has iterations."""
    while FEWEST_LANES < lanes > trips:
        lanes //= 2
    return lanes


def _is_costly(value: Expr) -> bool:
    """Whether what is left behind whole vectors would take long one by one."""
    return any(isinstance(node, Call) or (isinstance(node, Binary) and node.op == "/") for node in walk(value))
