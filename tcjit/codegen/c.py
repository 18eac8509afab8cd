"""A mapped program as C: loops with OpenMP pragmas, statements, and register tiles on explicit vectors (see ``tile_printer``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from math import prod

from tcjit.codegen import copy_functions, lane_accumulators, matrix_tile, prelude, row_pass, vector_copies
from tcjit.codegen import loops as ir
from tcjit.codegen.bounded_loops import bounded
from tcjit.codegen.build import build
from tcjit.codegen.dialect import Dialect
from tcjit.codegen.expression import ctype, vtype
from tcjit.codegen.lane_accumulators import find_lane_accumulators, starting_value
from tcjit.codegen.lanes import LaneEmitter
from tcjit.codegen.lower_cpu import lower
from tcjit.codegen.matrix_tile import MatrixTilePrinter
from tcjit.codegen.memory import symbol as kernel_symbol
from tcjit.codegen.outline import outline
from tcjit.codegen.profile import trips
from tcjit.codegen.reads import repeated
from tcjit.codegen.source import Source
from tcjit.codegen.text import stack_array
from tcjit.codegen.tile_printer import TilePrinter
from tcjit.codegen.tile_text import Names
from tcjit.codegen.tile_vectors import bfloat16_dots, transposition
from tcjit.errors import MappingError
from tcjit.grammar.ast import Access, Call, Expr
from tcjit.grammar.builtins import ONE_OPERATION
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear
from tcjit.grammar.walk import children
from tcjit.mapping.machine import Machine
from tcjit.mapping.marks import Scan, Scatter
from tcjit.mapping.nest.statement import PointwiseStore
from tcjit.mapping.nest.vector_forms import is_dot_product
from tcjit.mapping.operations import operations
from tcjit.mapping.pipeline import Mapped

# gcc's partial redundancy elimination makes branches of the choices in functions of functions, log(1 + exp(x)) for one, and its vectoriser
# wants none; elsewhere it does good
WITHOUT_REDUNDANCY_ELIMINATION = '''#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize ("no-tree-pre")
#endif'''

# lines of a kernel for dynamic sizes: gcc 12 takes 6 s for 6,600 of them, over 90 s for 16,000 and over 5 minutes for 34,000 (EPYC, Zen 4)
DYNAMIC_LINES = 10_000

# updates of elements that data pick in a row: a processor guesses by the place of a load which store before it waits for, and where it once
# met the one just before, all that follow wait for that: 3 ns each instead of 0.8 (EPYC, Zen 1)
UPDATES = 8
FEW_OPERATIONS = 32  # of an update, of which so many copies do not make the text long

# threads of a team number themselves without a header, which costs more time than a kernel
THREAD_NUMBER = '''#ifdef _OPENMP
extern int omp_get_thread_num(void);
#define TC_THREAD omp_get_thread_num()
#else
#define TC_THREAD 0
#endif'''


def emit_c(mapped: Mapped, dialect: Dialect, machine: Machine, *, checked: bool) -> Source:
    """The C text of a mapped program; ``checked`` tests gathers and integer divisors at run time."""
    return CEmitter(mapped, dialect, machine, checked).source()


class CEmitter(LaneEmitter):
    """Walks the nodes that ``lower_cpu`` leaves."""

    def __init__(self, mapped: Mapped, dialect: Dialect, machine: Machine, checked: bool) -> None:
        super().__init__(mapped, dialect, machine, checked)
        self.shared: set[str] = set()  # the variables of loops that threads share
        self.collapsed: set[str] = set()  # the variables of loops that a pragma collapses
        self.in_team = False  # of threads, which share the loop at hand
        self.row = row_pass.RowValues()  # the one at hand
        names = Names(self.memory.names, lambda tensor, axis: self.memory.stride_name(mapped.scop.tensor(tensor), axis))
        texts = names, self.printer.value, self.pointwise
        self.matrix_tiles = 0  # statements with tiles of a matrix unit that were written so far
        self.configures = False  # the unit for the code at hand, outside teams, should it need one
        self.tiles: dict[str, TilePrinter] = {}
        pairs = [(s.value.dtype, tiled) for s in mapped.scop.statements for tiled in s.tiled]
        for dtype, tiled in pairs:
            kind = MatrixTilePrinter if tiled.nest.leaf.depth else TilePrinter
            self.tiles[tiled.name] = kind(tiled, dtype, *texts)

    # ------------------------------------------------------------ the kernel

    def source(self) -> Source:
        symbol = kernel_symbol(self.mapped.scop.program.definition.name, self.dialect)
        self.block(lower(build(self.mapped), self.mapped, self.memory))
        body = self.lines
        self.lines = []
        self.prologue()
        functions, body = outline(self.lines, body)
        self.lines += body
        if self.streams:
            self.finish_stores()
        self.write("return tc_flag;")
        sites = tuple(self.printer.sites)
        head = prelude.text(self.printer.used, self.dialect, len(sites))
        pragmas = [WITHOUT_REDUNDANCY_ELIMINATION] if any(_nested_calls(s.value) > 1 for s in self.mapped.scop.statements) else []
        parts = [f"/* {self.title()} */", *pragmas, head, *self.declarations, *functions]
        signature = f"int64_t {symbol}(void *const *tensors, const int64_t *numbers, void *workspace, int threads)"
        kernel = "\n".join([signature + " {", *self.lines, "}"])
        text = "\n".join(part for part in [*parts, kernel] if part)
        lines = sum(part.count("\n") for part in (*functions, kernel))
        if self.mapped.scop.program.dynamic and lines > DYNAMIC_LINES:
            what = f"{lines:,} lines of C, one case of tiles beside another, which a compiler would take minutes for"
            raise MappingError(what, hint="fixed sizes, or a smaller register_tile")
        profile = {**self.profile.totals(), "lines": lines}
        memory = self.memory
        return Source(
            text, symbol, memory.numbers, memory.workspace, sites, host=memory.host, profile=profile, functions=tuple(functions)
        )

    def prologue(self) -> None:
        """Pointers, scalars and strides out of the ABI's arrays."""
        scop = self.mapped.scop
        for position, name in enumerate(self.memory.arguments):
            storage = scop.tensor(name)
            const = "const " if storage.role == "input" else ""
            self.write(f"{const}{ctype(storage.dtype, self.dialect)} *restrict {self.memory.names[name]} = tensors[{position}];")
        for position, (name, _) in enumerate(self.memory.values):
            self.write(f"const int64_t {name} = numbers[{position}];")
        for name, offset in self.memory.places.items():
            kind = ctype(scop.tensor(name).dtype, self.dialect)
            self.write(f"{kind} *restrict {self.memory.names[name]} = ({kind} *)((char *)workspace + {offset});")
        for position, number in enumerate(self.memory.numbers):
            match number:
                case "scalar", name, str(dtype):
                    self.scalar(self.memory.names[name], dtype, position)
                case "stride", name, int(axis):
                    self.write(f"const int64_t {self.memory.stride_name(scop.tensor(name), axis)} = numbers[{position}];")
        if self.memory.slice_bytes:
            self.write(f"if (threads > {self.mapped.slots}) threads = {self.mapped.slots};")
        self.write("int64_t tc_flag = 0;")

    def scalar(self, name: str, dtype: str, position: int) -> None:
        """A scalar parameter: an integer as itself, a float as the bits of a double."""
        if DTYPES[dtype].kind == "float":
            self.write(f"double {name}_bits;")
            self.write(f"__builtin_memcpy(&{name}_bits, &numbers[{position}], 8);")
            self.write(f"const {vtype(dtype)} {name} = ({vtype(dtype)}){name}_bits;")
        else:
            self.write(f"const {vtype(dtype)} {name} = ({vtype(dtype)})numbers[{position}];")

    # ------------------------------------------------------------ structure

    def block(self, nodes: tuple[ir.Node, ...]) -> None:
        """Accumulators begin with what the node in front of a reduction gives its results, if it does nothing else."""
        remaining = list(nodes)
        while remaining:
            node = remaining.pop(0)
            found = find_lane_accumulators(self, remaining[0]) if remaining else None
            if found is not None and (start := starting_value(self, node, found)):
                lane_accumulators.write(self, found, start)
                remaining.pop(0)
            else:
                self.node(node)

    def node(self, node: ir.Node) -> None:
        match node:
            case ir.ParallelLoop():
                self.profile.shares.append(prod(trips(loop) for loop in ir.nest(node.loop)[0][: node.collapse]))
                self.parallel(node, "parallel for", " num_threads(threads)")
            case ir.ParallelRegion():
                self.region(node)
            case ir.SimdLoop():
                self.simd(node)
            case ir.RowLoops():
                row_pass.write(self, node, self.row)
            case ir.StatementLoop():
                (self.scan if node.mark == Scan() else self.scatter)(node.loop)
            case ir.Declare():
                self.declare(node)
            case ir.DeclareSlices():
                self.slices(node)
            case ir.DeclareAccumulators():
                self.accumulators(node)
            case ir.TileRun():
                self.tile(node)
            case _:
                super().node(node)

    def loop(self, node: ir.For) -> None:
        with self.matrix_unit():
            self.loop_alone(node)

    def loop_alone(self, node: ir.For) -> None:
        if node.variable not in self.collapsed and vector_copies.write_transposed(self, node):
            self.declarations |= dict.fromkeys(copy_functions.TRANSPOSE)
        elif (found := find_lane_accumulators(self, node)) is not None:
            lane_accumulators.write(self, found, "")
        else:
            below_pragma = node.variable in self.shared or node.variable == self.lane_loop
            with self.row.of_another_row(), nullcontext(node) if below_pragma else bounded(self, node) as inside:
                if below_pragma or not self.updates_few(node):
                    super().loop(inside)
                else:
                    self.unrolled(inside)

    def unrolled(self, node: ir.For) -> None:
        """A loop in blocks of so many iterations as are unrolled, and the rest."""
        block, rest = f"tc_{node.variable}", f"tc_rest_{node.variable}"
        lower, upper = self.index(node.lower), self.index(node.upper)
        with self.indented("{"):
            self.write(f"const int64_t {rest} = {upper} + 1 - ({upper} + 1 - ({lower})) % {UPDATES};")
            with self.indented(f"for (int64_t {block} = {lower}; {block} < {rest}; {block} += {UPDATES}) {{"):
                self.line(f"#pragma GCC unroll {UPDATES}")
                super().loop(replace(node, lower=Linear.of(block), upper=Linear.of(block) + (UPDATES - 1)))
            super().loop(replace(node, lower=Linear.of(rest)))

    def updates_few(self, node: ir.For) -> bool:
        """Whether an iteration of a loop only adds to a few elements that data pick."""
        inside: tuple[ir.Node, ...] = node.body
        while len(inside) == 1 and isinstance(inside[0], ir.StatementLoop) and inside[0].mark == Scatter():
            inside = inside[0].loop.body
        if inside is node.body or len(inside) != 1:
            return False
        elements = 1
        if isinstance(inside[0], ir.SimdLoop) and (count := trips(inside[0].loop)):
            elements, inside = count, inside[0].loop.body
        if len(inside) != 1 or not isinstance(inside[0], ir.Run):
            return False
        s = self.mapped.scop.statement(inside[0].statement)
        vectors = -(-elements // self.machine.lanes(DTYPES[s.value.dtype].bytes))
        return vectors * max(1, operations(s.value)) <= FEW_OPERATIONS

    @contextmanager
    def matrix_unit(self) -> Iterator[None]:
        """Code outside teams, and not in other code of this kind, with a configured matrix unit around it where it needs one."""
        if self.in_team or self.configures:
            yield
            return
        before, self.configures = self.matrix_tiles, True
        with self.captured() as body:
            yield
        self.configures = False
        if self.matrix_tiles == before:
            self.lines += body
        else:
            self.line(matrix_tile.CONFIGURE)
            self.lines += body
            self.line(matrix_tile.RELEASE)

    def accumulators(self, node: ir.DeclareAccumulators) -> None:
        with self.matrix_unit():
            self.accumulators_alone(node)

    def accumulators_alone(self, node: ir.DeclareAccumulators) -> None:
        printer = self.tiles[node.statement]
        if isinstance(printer, MatrixTilePrinter):
            self.matrix_tiles += 1
            self.declarations |= dict.fromkeys(matrix_tile.DECLARATIONS)
        self.declare_vectors(printer.dtype, printer.width, *printer.narrow, rounds=bool(printer.epilogue.rounded))
        if not printer.nest.leaf.depth and printer.dtype == "float32" and is_dot_product(printer.tiled.body):
            self.declarations[bfloat16_dots(printer.width)] = None
        if printer.epilogue.is_transposed:
            self.declarations[transposition(printer.dtype, printer.width)] = None
        self.profile.width = max(self.profile.width, printer.width)
        self.profile.counts["accumulators"] += len(printer.rows) * printer.nest.leaf.vectors
        with self.indented("{"):
            for line in printer.accumulators():
                self.line(line)
            if not printer.may_speculate:
                self.block(node.body)
                return
            self.line("int tc_again = 0;")
            printer.speculates = True
            self.block(node.body)
            printer.speculates = False
            with self.indented("if (tc_again) {"):
                self.block(node.body)

    def tile(self, node: ir.TileRun) -> None:
        lines = self.tiles[node.statement].lines(node.kind, [self.index(digit) for digit in node.digits])
        for line in lines:
            self.line(line)
        self.profile.count("runs", len(lines) - 2)

    def pointwise(self, store: PointwiseStore, target: str, places: Mapping[Access, str]) -> str:
        """A store in the epilogue of a tile, whose elements have these places."""
        self.places = places
        with self.bindings():
            bound = [self.printer.bind(equal, self.printer.value(equal[0])) for equal in repeated(store.value)]
            text = self.printer.store(store.dtype, target, self.printer.value(store.value))
        self.places = {}
        return f"{{ {' '.join(bound)} {text} }}" if bound else text

    def declare(self, node: ir.Declare) -> None:
        large = [private for private in node.buffers if (private.mark, private.tensor) in self.memory.large]
        with self.indented("{"), self.below(node.mark):
            if large:
                self.slice()
            for private in node.buffers:
                kind, name = ctype(self.mapped.scop.tensor(private.tensor).dtype, self.dialect), self.memory.private_name(private)
                if private in large:
                    self.line(f"{kind} *restrict {name} = ({kind} *)(tc_slice + {self.memory.large[private.mark, private.tensor]});")
                else:
                    self.profile.counts["private"] += private.elements
                    for line in stack_array(kind, name, private.elements):
                        self.line(line)
            self.block(node.body)

    def slice(self) -> None:
        """The part of the workspace that belongs to the thread at hand."""
        thread = "0"  # outside a team the number would be that of a team of the caller's
        if self.in_team:
            self.declarations[THREAD_NUMBER] = None
            thread = "TC_THREAD"
        first, size = self.memory.first_slice, self.memory.slice_bytes
        self.line(f"const intptr_t tc_slice = (intptr_t)workspace + {first} + (intptr_t){size} * {thread};")

    def slices(self, node: ir.DeclareSlices) -> None:
        """Pointers from which the elements of one iteration are where they would be in the whole tensor."""
        with self.indented("{"), self.below(node.mark):
            self.slice()
            for one, place in self.memory.slices_below(node.mark):
                kind = ctype(self.mapped.scop.tensor(one.tensor).dtype, self.dialect)
                shift = Linear.of(one.least - place // DTYPES[self.mapped.scop.tensor(one.tensor).dtype].bytes)
                for value, step in zip(node.loops, one.steps, strict=True):
                    shift = shift + value.times(step)
                name = self.memory.names[one.tensor]
                self.line(f"{kind} *restrict {name} = ({kind} *)(tc_slice - (intptr_t)sizeof({kind}) * ({self.index(shift)}));")
            self.block(node.body)

    # ------------------------------------------------------------ threads and lanes

    def parallel(self, node: ir.ParallelLoop, construct: str, clauses: str = "", ending: str = "") -> None:
        """A loop behind the pragma that shares its iterations."""
        checks, streams, matrix_tiles = self.printer.checks, self.streams, self.matrix_tiles
        shared = [loop.variable for loop in ir.nest(node.loop)[0][: node.collapse]]
        self.shared, self.collapsed = set(shared), set(shared) if len(shared) > 1 else set()  # nothing stands between them
        self.in_team = True
        with self.captured() as body:
            self.loop(node.loop)
        self.in_team = False
        self.shared, self.collapsed = set(), set()
        collapse = f" collapse({node.collapse})" if node.collapse > 1 else ""
        schedule = f"schedule(static, {node.chunk})" if node.chunk else "schedule(static)"
        pragma = f"{collapse}{{}} {schedule}{self.flags(checks)}{ending}"
        unit = self.matrix_tiles > matrix_tiles
        if (self.streams == streams and not unit) or construct == "for":
            self.line(f"#pragma omp {construct}{pragma.format(clauses)}")
            self.lines += body
            return
        self.line(f"#pragma omp parallel{clauses}")
        with self.indented("{"):
            if unit:
                self.line(matrix_tile.CONFIGURE)
            self.line(f"#pragma omp for{pragma.format('')} nowait")
            self.lines += body
            if unit:
                self.line(matrix_tile.RELEASE)
            if self.streams > streams:
                self.finish_stores()
        if unit and self.configures:  # for what follows: this thread was one of the team
            self.line(matrix_tile.CONFIGURE)

    def region(self, node: ir.ParallelRegion) -> None:
        if node.worth is None:
            self.team(node)
            return
        self.profile.count("tested")
        self.line(f"if ({node.worth.written(self.index)}) {{")
        self.team(node)
        self.line("} else {")
        for one in node.loops:
            self.loop(one if isinstance(one, ir.For) else one.loop)
        self.line("}")

    def team(self, node: ir.ParallelRegion) -> None:
        """The loops of a region that are worth threads."""
        if len(node.loops) == 1:
            self.node(node.loops[0])
            return
        self.line("#pragma omp parallel num_threads(threads)")
        with self.indented("{"):
            streams, matrix_tiles = self.streams, self.matrix_tiles
            with self.captured() as body:
                for one, wait in zip(node.loops, node.waits, strict=True):
                    ending = "" if wait else " nowait"
                    if isinstance(one, ir.For):
                        self.single(one, ending)
                    else:
                        self.parallel(one, "for", ending=ending)
            unit = self.matrix_tiles > matrix_tiles
            self.lines += [matrix_tile.CONFIGURE, *body, matrix_tile.RELEASE] if unit else body
            if self.streams > streams:
                self.finish_stores()
        if unit and self.configures:
            self.line(matrix_tile.CONFIGURE)

    def single(self, loop: ir.For, ending: str) -> None:
        """A loop that one thread of a team runs."""
        self.line(f"#pragma omp single{ending}")
        self.in_team = True
        with self.indented("{"):
            self.loop(loop)
        self.in_team = False

    def finish_stores(self) -> None:
        """What this thread has stored past the caches is there for others."""
        self.line(f"{self.printer.helper('tc_finish_stores')}();")


def _nested_calls(expr: Expr) -> int:
    """How deep functions of more than one operation stand in one another."""
    inside = max(map(_nested_calls, children(expr)), default=0)
    return inside + (isinstance(expr, Call) and expr.function not in ONE_OPERATION)
