"""A mapped program as C: loops with OpenMP pragmas, statements, and contractions on explicit vectors (see ``patch``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from math import prod

from tcjit.codegen import prelude, vector_copies
from tcjit.codegen.build import build
from tcjit.codegen.dialect import Dialect
from tcjit.codegen.emitter import Emitter
from tcjit.codegen.expression import ExpressionPrinter, ctype, vtype
from tcjit.codegen.loops import (
    Declare,
    DeclareAccumulators,
    For,
    MicroKernel,
    Node,
    ParallelLoop,
    ParallelRegion,
    Prefetch,
    Reduction,
    Run,
    ScanLoop,
    ScatterLoop,
    SimdLoop,
    TileRun,
    nest,
    runs,
    substitute,
)
from tcjit.codegen.lower_cpu import lower
from tcjit.codegen.memory import ALIGNMENT, stride_name
from tcjit.codegen.memory import symbol as kernel_symbol
from tcjit.codegen.patch import Patch
from tcjit.codegen.profile import scaled, trips
from tcjit.codegen.rows import GatheredRows
from tcjit.codegen.scope import Gathers
from tcjit.codegen.source import Numbers, Source
from tcjit.codegen.tile_printer import TilePrinter
from tcjit.codegen.tile_vectors import declarations
from tcjit.codegen.vector_extrema import ExtremaLoop, extrema_loop
from tcjit.codegen.whole_vectors import overlapping_lanes
from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access, Binary, Call, Expr, Index, Select
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear
from tcjit.grammar.polynomial import names as names_in
from tcjit.grammar.walk import children, walk
from tcjit.mapping.machine import Machine, vector_cover
from tcjit.mapping.nest.statement import PointwiseStore
from tcjit.mapping.pipeline import Mapped


def emit_c(mapped: Mapped, dialect: Dialect, machine: Machine, *, checked: bool) -> Source:
    """The C text of a mapped program; ``checked`` tests gathers and integer divisors at run time."""
    return CEmitter(mapped, dialect, machine, checked).source()


class CEmitter(Emitter):
    """Walks the nodes that ``lower_cpu`` leaves; gathers are checked in GNU statement expressions."""

    def __init__(self, mapped: Mapped, dialect: Dialect, machine: Machine, checked: bool) -> None:
        super().__init__(mapped, dialect, checked)
        self.machine = machine
        # by id of an Access: the name of its value bound before the loop, or the names of its check and gather subscripts
        self.hoisted: dict[int, list[str]] = {}
        self.declarations: dict[str, None] = {}
        self.collapsed: set[str] = set()  # the variables of loops that a pragma collapses with the one inside
        self.places: Mapping[Access, str] = {}  # of what the epilogue at hand reads
        self.rows = GatheredRows(self, self.subscripts, machine)
        texts = self.memory.names, self.printer.value, self.pointwise
        self.tiles = {tiled.name: TilePrinter(tiled, s.value.dtype, *texts) for s in mapped.scop.statements for tiled in s.tiled}

    # ------------------------------------------------------------ the kernel

    def source(self) -> Source:
        symbol = kernel_symbol(self.mapped.scop.program.definition.name, self.dialect)
        self.block(lower(build(self.mapped), self.mapped, self.memory, self.machine))
        body = self.lines
        self.lines = []
        numbers = self.prologue()
        self.lines += body
        self.write("return tc_flag;")
        head = prelude.text(self.printer.used, self.dialect)
        parts = [f"/* {self.title()} */", head, *self.declarations]
        signature = f"int64_t {symbol}(void *const *tensors, const int64_t *numbers, void *workspace, int threads)"
        kernel = "\n".join([signature + " {", *self.lines, "}"])
        text = "\n".join(part for part in [*parts, kernel] if part)
        profile = {**self.profile.totals(), "lines": kernel.count("\n")}
        sites = tuple(self.printer.sites)
        return Source(text, symbol, numbers, self.memory.workspace, sites, host=self.memory.host, profile=profile)

    def prologue(self) -> Numbers:
        """Pointers, scalars and strides out of the ABI's arrays."""
        scop = self.mapped.scop
        definition = scop.program.definition
        tensors = [p.name for p in definition.params if p.dims]
        for position, name in enumerate([*definition.returns, *tensors]):
            storage = scop.tensor(name)
            const = "const " if storage.role == "input" else ""
            self.write(f"{const}{ctype(storage.dtype, self.dialect)} *restrict {self.memory.names[name]} = tensors[{position}];")
        numbers: list[tuple[str, str, str | int | Expr]] = []
        for name, value in self.memory.values:
            self.write(f"const int64_t {name} = numbers[{len(numbers)}];")
            numbers.append(("value", name, value))
        for name, offset in self.memory.places.items():
            kind = ctype(scop.tensor(name).dtype, self.dialect)
            self.write(f"{kind} *restrict {self.memory.names[name]} = ({kind} *)((char *)workspace + {offset});")
        for p in definition.params:
            if not p.dims and p.name not in scop.values:
                self.scalar(self.memory.names[p.name], p.dtype, len(numbers))
                numbers.append(("scalar", p.name, p.dtype))
        for name in tensors:
            for axis, stride in enumerate(scop.tensor(name).strides):
                if stride is None and scop.tensor(name).layout != "contiguous":
                    self.write(f"const int64_t {stride_name(self.memory.names[name], axis)} = numbers[{len(numbers)}];")
                    numbers.append(("stride", name, axis))
        self.write("int64_t tc_flag = 0;")
        return tuple(numbers)

    def scalar(self, name: str, dtype: str, position: int) -> None:
        """A scalar parameter: an integer as itself, a float as the bits of a double."""
        if DTYPES[dtype].kind == "float":
            self.write(f"double {name}_bits;")
            self.write(f"__builtin_memcpy(&{name}_bits, &numbers[{position}], 8);")
            self.write(f"const {vtype(dtype)} {name} = ({vtype(dtype)}){name}_bits;")
        else:
            self.write(f"const {vtype(dtype)} {name} = ({vtype(dtype)})numbers[{position}];")

    # ------------------------------------------------------------ structure

    def node(self, node: Node) -> None:
        match node:
            case ParallelLoop():
                self.profile.shares.append(prod(trips(loop) for loop in nest(node.loop)[0][: node.collapse]))
                self.parallel(node, "parallel for", " num_threads(threads)")
            case ParallelRegion():
                self.region(node)
            case SimdLoop():
                self.simd(node)
            case ScanLoop():
                self.scan(node.loop)
            case ScatterLoop():
                self.scatter(node.loop)
            case Declare():
                self.declare(node)
            case Prefetch():
                self.prefetch(node)
            case MicroKernel():
                self.micro_kernel(node)
            case DeclareAccumulators():
                self.accumulators(node)
            case TileRun():
                self.tile(node)
            case _:
                super().node(node)

    def loop(self, node: For) -> None:
        wide = self.machine.vector_bytes == vector_copies.BYTES and node.variable not in self.collapsed
        if wide and vector_copies.write_transposed(self, node):
            self.declarations |= dict.fromkeys(vector_copies.TRANSPOSE)
        else:
            super().loop(node)

    def micro_kernel(self, node: MicroKernel) -> None:
        kernel = Patch(node, self.mapped.options, self.machine, self.printer, self.declarations, self.rows, self.index)
        for line in kernel.lines():
            self.line(line)
        vectors = [width for _, width in vector_cover(node.lane.trips or 0, kernel.width)]
        results = prod(loop.trips or 1 for loop in node.patch) * len(vectors)
        profile = self.profile
        profile.width = max(profile.width, *vectors)
        profile.counts["accumulators"] += results
        profile.count("runs", 2 * results + len(kernel.early[0]))  # they are loaded and stored
        profile.count("stores", results)
        profile.count("strided", results * [*scaled(node.target.fixed)].count(profile.innermost))
        with ExitStack() as loops:
            for loop in node.outer:
                loops.enter_context(profile.loop(loop.variable, trips(loop)))
            profile.count("loads", len(kernel.loads))
            profile.count("sums", results)
            bindings = len(kernel.bindings) - self.checked * len(kernel.names)
            profile.count("runs", len(kernel.loads) + results + bindings + len(kernel.early[1]))

    def accumulators(self, node: DeclareAccumulators) -> None:
        printer = self.tiles[node.statement]
        for declaration in declarations(printer.dtype, printer.width):
            self.declarations[declaration] = None
        self.profile.width = max(self.profile.width, printer.width)
        self.profile.counts["accumulators"] += len(printer.rows) * printer.nest.leaf.vectors
        with self.indented("{"):
            self.line(printer.accumulators())
            self.block(node.body)

    def tile(self, node: TileRun) -> None:
        lines = self.tiles[node.statement].lines(node.kind, [self.index(digit) for digit in node.digits])
        for line in lines:
            self.line(line)
        self.profile.count("runs", len(lines) - 2)

    def pointwise(self, store: PointwiseStore, target: str, places: Mapping[Access, str]) -> str:
        """A store in the epilogue of a tile, whose elements have these places."""
        self.places = places
        text = self.printer.store(store.dtype, target, self.printer.value(store.value))
        self.places = {}
        return text

    def declare(self, node: Declare) -> None:
        with self.indented("{"), self.below(node.mark):
            for private in node.buffers:
                kind = ctype(self.mapped.scop.tensor(private.tensor).dtype, self.dialect)
                self.array(f"{kind} {self.memory.private_name(private)}", private.elements, f" __attribute__((aligned({ALIGNMENT})))")
            self.block(node.body)

    def prefetch(self, node: Prefetch) -> None:
        place = self.index(node.start)
        if node.step:
            place += f" + ({node.variable} < {self.index(node.last)} ? {node.step} : 0)"
        helper = self.printer.helper("tc_soon_written" if node.write else "tc_soon")
        self.write(f"{helper}(&{self.memory.names[node.tensor]}[{place}], {node.lines});")

    # ------------------------------------------------------------ threads and lanes

    def parallel(self, node: ParallelLoop, construct: str, clauses: str = "", ending: str = "") -> None:
        """A loop behind the pragma that shares its iterations."""
        checks = self.printer.checks
        self.collapsed = {loop.variable for loop in nest(node.loop)[0][: node.collapse - 1]}
        with self.captured() as body:
            self.loop(node.loop)
        self.collapsed = set()
        collapse = f" collapse({node.collapse})" if node.collapse > 1 else ""
        schedule = "schedule(static, 1)" if node.interleaved else "schedule(static)"
        self.line(f"#pragma omp {construct}{collapse}{clauses} {schedule}{self.flags(checks)}{ending}")
        self.lines += body

    def region(self, node: ParallelRegion) -> None:
        if node.worth is None:
            self.team(node)
            return
        self.profile.count("tested")
        self.line(f"if ({node.worth.written(self.index)}) {{")
        self.team(node)
        self.line("} else {")
        for one in node.loops:
            self.loop(one.loop)
        self.line("}")

    def team(self, node: ParallelRegion) -> None:
        """The loops of a region that are worth threads."""
        if len(node.loops) == 1:
            self.node(node.loops[0])
            return
        self.line("#pragma omp parallel num_threads(threads)")
        with self.indented("{"):
            for one, wait in zip(node.loops, node.waits, strict=True):
                self.parallel(one, "for", ending="" if wait else " nowait")

    def flags(self, before: int) -> str:
        """The clause that joins the flag of threads or lanes, where it is set since so many checks were printed."""
        return " reduction(max : tc_flag)" if self.printer.checks > before else ""

    def simd(self, node: SimdLoop) -> None:
        if node.reduction is not None:
            self.reduction(node.loop, node.reduction)
            return
        if (branch := self.unswitched(node.loop)) is not None:
            self.unswitch(node, branch)
            return
        if self.machine.vector_bytes == vector_copies.BYTES and vector_copies.write_interleaved(self, node.loop):
            self.declarations |= dict.fromkeys(vector_copies.INTERLEAVE)
            return
        with self.invariants(node.loop):
            checks = self.printer.checks
            self.profile.vector = True
            lanes = overlapping_lanes(node.loop, self.mapped.scop, self.machine, self.mapped.options.vector_width)
            with self.vectors(node.loop, lanes) if lanes else nullcontext(node.loop) as loop:
                with self.captured() as body:
                    self.loop(loop)
                self.line(f"#pragma omp simd{self.flags(checks)}")
                self.lines += body

    @contextmanager
    def vectors(self, loop: For, lanes: int) -> Iterator[For]:
        """The loop over the lanes of a vector, inside one over vectors, of which the last overlaps the one before."""
        last, kind = self.index(loop.upper - (lanes - 1)), self.counter(loop)
        with self.ranged(loop), self.indented(
            f"for ({kind} tc_vector = {self.index(loop.lower)}; tc_vector <= {self.index(loop.upper)}; tc_vector += {lanes}) {{"
        ):
            self.line(f"const {kind} tc_first = tc_vector < {last} ? tc_vector : {last};")
            yield replace(loop, lower=Linear.of("tc_first"), upper=Linear.of("tc_first") + (lanes - 1))

    def unswitched(self, loop: For) -> Select | None:
        """The value of a loop's only statement where that chooses, for all iterations alike, whether a row of a gather is read.

        A C compiler leaves the choice in the loop, with the check of the row.
        """
        run, *others = runs(loop.body)
        value = self.mapped.scop.statement(run.statement).value
        if others or not isinstance(value, Select) or self.moves(value.condition, run, loop.variable):
            return None
        found = (self.gathers(node, run) for node in walk(value.then) if isinstance(node, Access))
        rows = [[sub for _, sub in gathers] for gathers in found if gathers]
        return value if any(not any(self.moves(sub, run, loop.variable) for sub in row) for row in rows) else None

    def moves(self, expr: Expr, run: Run, variable: str) -> bool:
        """Whether an expression depends on a loop's variable."""
        return any(variable in run.index(dim).variables for dim in names_in(expr))

    def unswitch(self, node: SimdLoop, branch: Select) -> None:
        """A loop for each side of a branch."""
        (run,) = runs(node.loop.body)
        self.run_now = run
        with self.when([self.printer.value(branch.condition)]), self.valued(run, branch.then):
            self.simd(node)
        with self.indented("else {"), self.valued(run, branch.other):
            self.simd(node)

    @contextmanager
    def valued(self, run: Run, value: Expr) -> Iterator[None]:
        """A statement has the value that it has in a branch."""
        mapped, scop = self.mapped, self.mapped.scop
        statements = tuple(replace(s, value=value) if s.name == run.statement else s for s in scop.statements)
        self.mapped = replace(mapped, scop=replace(scop, statements=statements))
        yield
        self.mapped = mapped

    def scan(self, loop: For) -> None:
        """The result of an iteration stays in a variable for the next one."""
        (run,) = runs(loop.body)
        s = self.mapped.scop.statement(run.statement)
        storage = self.mapped.scop.tensor(s.tensor)
        (before,) = [access for access, _ in guarded_accesses(s.value) if access.tensor == s.tensor]
        first = substitute(run, {loop.variable: loop.lower})
        assert isinstance(first, Run)
        with self.indented("{"):
            self.run_now = first
            self.write(f"{vtype(s.value.dtype)} tc_running = {self.element(before)};")
            hoisted, self.hoisted = self.hoisted, {**self.hoisted, id(before): ["tc_running"]}
            with self.ranged(loop), self.iterated(loop):
                self.run_now = run
                self.write(f"tc_running = {self.printer.value(s.value)};")
                target = self.place(s.tensor, s.subscripts)
                self.write(self.printer.store(storage.dtype, target, "tc_running"), stores=True)
            self.hoisted = hoisted

    def scatter(self, loop: For) -> None:
        """The iteration that data pick, if there is such."""
        run = runs(loop.body)[0]
        choice = self.mapped.scop.statement(run.statement).value
        assert isinstance(choice, Select) and isinstance(choice.condition, Binary)
        self.run_now = run
        with self.indented("{"):
            self.write(f"const int64_t {loop.variable} = {self.printer.index(choice.condition.right)};")
            inside = f"{self.index(loop.lower)} <= {loop.variable}", f"{loop.variable} <= {self.index(loop.upper)}"
            with self.when(inside), self.ranged(loop), self.valued(run, choice.then):
                self.block(loop.body)

    def reduction(self, loop: For, reduction: Reduction) -> None:
        """Every accumulator sums up an equal stretch of the loop; they are combined in a fixed tree."""
        count = reduction.accumulators
        statement = self.mapped.scop.statement(reduction.run.statement)
        dtype = statement.value.dtype
        storage = self.mapped.scop.tensor(statement.tensor)
        element = reduction.target.written(self.index)
        clause = self.lane_reduction(statement.operator, dtype)
        width = self.mapped.options.vector_width or self.machine.lanes(DTYPES[dtype].bytes)
        trips, in_vectors = loop.trips or 0, loop.step == 1 and width < (loop.trips or 0)
        stretch = trips // count // width * width if in_vectors else trips // count
        names = [f"tc_sum{number}" for number in range(count)] if count > 1 else ["tc_sum"]
        with self.indented("{"), self.invariants(loop):
            self.write(f"{vtype(dtype)} {names[0]} = {self.printer.load(storage.dtype, element)};")
            for name in names[1:]:
                self.write(f"{vtype(dtype)} {name} = {self.printer.identity(statement.operator, dtype)};")
            extrema = extrema_loop(loop, reduction.run, statement, self.mapped.scop, width, self.index) if count == 1 else None
            if extrema is not None and isinstance(statement.value, Access):
                self.extremum(extrema, reduction.run, statement.value)
            elif loop.trips is None:
                self.accumulate(loop, reduction.run, names, clause)
            else:
                if stretch:
                    part = replace(loop, upper=loop.lower + (stretch - 1) * loop.step)
                    self.accumulate(part, reduction.run, names, clause, stretch * loop.step)
                self.remainder(loop, reduction.run, names[0], clause, count * stretch, width if in_vectors else 0)
            while len(names) > 1:
                for left, right in zip(names[: len(names) // 2], names[-(len(names) // 2) :], strict=True):
                    self.write(f"{left} = {self.printer.combine(statement.operator, dtype, left, right)};")
                names = names[: -(len(names) // 2)]
            self.scaled += scaled(reduction.target.fixed)
            self.write(self.printer.store(storage.dtype, element, names[0]), stores=True)

    def extremum(self, found: ExtremaLoop, run: Run, access: Access) -> None:
        """The least or greatest of neighbours in memory, in vectors."""

        def element(at: str) -> str:
            moved = substitute(run, {found.variable: Linear.of(at)})
            assert isinstance(moved, Run)
            self.run_now = moved
            return self.place(access.tensor, access.subscripts)

        self.declarations |= dict.fromkeys(declarations(found.dtype, found.width))
        self.profile.vector = True
        combine = partial(self.printer.combine, found.operator, found.dtype)
        for line in found.lines(self.printer.identity(found.operator, found.dtype), combine, element):
            self.line(line)

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
        with self.captured() as body, self.ranged(loop), self.iterated(loop, braces=len(names) > 1):
            for number, name in enumerate(names):
                moved = substitute(run, {loop.variable: Linear.of(loop.variable) + number * stretch}) if number else run
                assert isinstance(moved, Run)
                self.run_now = moved
                value = self.printer.value(s.value)
                identity = self.printer.identity(s.operator, s.value.dtype)
                term = str(value) if first is None else f"({loop.variable} >= {self.index(first)} ? {value} : {identity})"
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

    # ------------------------------------------------------------ reads

    def read(self, access: Access, printer: ExpressionPrinter) -> str:
        if access in self.places:
            return self.printer.load(self.mapped.scop.tensor(access.tensor).dtype, self.places[access])
        return super().read(access, printer)

    def element(self, access: Access) -> str:
        bound = self.hoisted.get(id(access))
        return bound[0] if bound else super().element(access)

    def gather(self, access: Access, gathers: Gathers) -> str:
        storage = self.mapped.scop.tensor(access.tensor)
        if id(access) in self.hoisted:
            names = self.hoisted[id(access)]
            element = self.printer.load(storage.dtype, self.place(access.tensor, access.subscripts, names[1:]))
            return f"({names[0]} ? {element} : 0)" if names[0] else element
        names = [f"tc_at{axis}" for axis, _ in gathers]
        texts = [self.data_subscript(sub) for _, sub in gathers]
        if not self.checked:
            return self.printer.load(storage.dtype, self.place(access.tensor, access.subscripts, [f"({t})" for t in texts]))
        bindings = " ".join(f"const int64_t {name} = {text};" for name, text in zip(names, texts, strict=True))
        inside = self.inside(access, names, gathers)
        element = self.printer.load(storage.dtype, self.place(access.tensor, access.subscripts, names))
        site = self.printer.site("gather", tensor=access.tensor, where=access.where)
        return f"({{ {bindings} const int tc_ok = {inside}; TC_FLAG(!tc_ok, {site}); tc_ok ? {element} : 0; }})"

    def inside(self, access: Access, names: list[str], gathers: Gathers) -> str:
        """The test of a gather's subscripts."""
        extents = [self.printer.index(self.memory.extent(access.tensor, axis)) for axis, _ in gathers]
        return " && ".join(f"0 <= {n} && {n} < {extent}" for n, extent in zip(names, extents, strict=True))

    @contextmanager
    def invariants(self, loop: For) -> Iterator[None]:
        """Evaluate, before a loop, the reads in its body that do not depend on it and are not under a condition, and the calls on them.

        A C compiler cannot: in the function that OpenMP makes of a parallel loop, it no longer knows that pointers are distinct. And gcc
        takes half of a call out of the loop, whose other half then keeps it from vectors.
        """
        hoisted, bound = self.hoisted, self.printer.bound
        self.hoisted, self.printer.bound = dict(hoisted), dict(bound)
        self.depth += 1
        with self.captured() as bindings:
            self.bind_all(loop)
        self.depth -= 1
        with self.indented("{") if bindings else nullcontext():
            self.lines += bindings
            yield
        self.hoisted, self.printer.bound = hoisted, bound

    def bind_all(self, loop: For) -> None:
        """Bind the invariant reads and calls of a loop's statements."""
        statements = [(run, self.mapped.scop.statement(run.statement)) for run in runs(loop.body)]
        written = {s.tensor for _, s in statements}
        spoken: set[int] = set()  # reads in the subscripts of a gather that is bound with them
        for run, s in statements:
            for access, guards in guarded_accesses(s.value):
                if (
                    not guards
                    and id(access) not in self.hoisted
                    and id(access) not in spoken
                    and written.isdisjoint(a.tensor for a in walk(access) if isinstance(a, Access))
                ):
                    self.bind(access, run, loop.variable)
                    if id(access) in self.hoisted:
                        spoken |= {id(a) for sub in access.subscripts for a in walk(sub)}
            self.bind_calls(s.value, run, loop.variable)

    def bind_calls(self, expr: Expr, run: Run, variable: str) -> None:
        """Bind the calls of an expression whose value is the same for all of a loop, and whose evaluation cannot fail."""
        if isinstance(expr, Call) and DTYPES[expr.dtype].kind == "float" and self.constant(expr, run, variable):
            if id(expr) not in self.printer.bound:
                self.run_now = run
                name = f"tc_c{len(self.printer.bound)}"
                self.write(f"const {vtype(expr.dtype)} {name} = {self.printer.value(expr)};")
                self.printer.bound[id(expr)] = name
            return
        for child in children(expr):
            self.bind_calls(child, run, variable)

    def constant(self, expr: Expr, run: Run, variable: str) -> bool:
        """Whether an expression over reads that are bound is the same in all iterations, and cannot flag a divisor."""
        if isinstance(expr, Access):
            return id(expr) in self.hoisted and not self.gathers(expr, run)
        if isinstance(expr, Index):
            return variable not in run.index(expr.name).variables
        if isinstance(expr, Binary) and expr.op in "/%" and DTYPES[expr.dtype].kind != "float":
            return False
        return all(self.constant(child, run, variable) for child in children(expr))

    def bind(self, access: Access, run: Run, variable: str) -> None:
        storage = self.mapped.scop.tensor(access.tensor)
        gathers = self.gathers(access, run)
        self.run_now = run
        number = len(self.hoisted)
        if not gathers:
            if not any(self.moves(sub, run, variable) for sub in access.subscripts):
                value = self.printer.load(storage.dtype, self.place(access.tensor, access.subscripts))
                self.write(f"const {vtype(storage.dtype)} tc_v{number} = {value};")
                self.hoisted[id(access)] = [f"tc_v{number}"]
            return
        if any(self.moves(sub, run, variable) for _, sub in gathers):
            return
        lines, names, ok = self.subscripts(access, gathers, number)
        for line in lines:
            self.line(line)
        self.profile.count("runs", len(lines) - bool(ok))
        self.hoisted[id(access)] = [ok, *names]

    def subscripts(self, access: Access, gathers: Gathers, number: int) -> tuple[list[str], list[str], str]:
        """Lines that hold the data-dependent subscripts of a read in variables and check them, the names of these, and of the check."""
        names = [f"tc_g{number}_{axis}" for axis, _ in gathers]
        lines = [f"const int64_t {name} = {self.data_subscript(sub)};" for name, (_, sub) in zip(names, gathers, strict=True)]
        if not self.checked:
            return lines, names, ""
        ok = f"tc_ok{number}"
        lines.append(f"const int {ok} = {self.inside(access, names, gathers)};")
        lines.append(f"TC_FLAG(!{ok}, {self.printer.site('gather', tensor=access.tensor, where=access.where)});")
        return lines, names, ok
