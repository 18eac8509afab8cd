"""A mapped program as C: loops with OpenMP pragmas, statements, and contractions on explicit vectors (see ``patch``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import prod

from tcjit.codegen import prelude
from tcjit.codegen.build import build
from tcjit.codegen.dialect import Dialect
from tcjit.codegen.emitter import Emitter, Gathers
from tcjit.codegen.expression import ctype, vtype
from tcjit.codegen.integers import limits
from tcjit.codegen.linear import Linear
from tcjit.codegen.loops import For, Mark, Node, Run, nest, runs, substitute
from tcjit.codegen.memory import ALIGNMENT, Address, stride_name
from tcjit.codegen.memory import symbol as kernel_symbol
from tcjit.codegen.parallel_regions import ALONE, Loop, loop, teams
from tcjit.codegen.patch import Found, Patch, match, starts
from tcjit.codegen.rows import GatheredRows
from tcjit.codegen.soon import requests
from tcjit.codegen.source import Numbers, Source
from tcjit.codegen.trip_counts import below, fewest, work
from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access, Binary, Call, Expr, Index
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names as names_in
from tcjit.grammar.walk import children, walk
from tcjit.mapping import marks
from tcjit.mapping.machine import Machine
from tcjit.mapping.passes import parallelise
from tcjit.mapping.pipeline import Mapped
from tcjit.mapping.scop import ScopStatement

# iterations that collapsed parallel loops should offer: enough for a fair share of every thread
FAIR_SHARE = 64
# variables that share a sum along lanes, each of which reads a stretch of its own: more disturb what is read ahead of need more than
# they help; and the terms that each should have
SUMS, SHORT = 2, 64


def emit(mapped: Mapped, dialect: Dialect, machine: Machine, *, checked: bool) -> Source:
    """The C text of a mapped program; ``checked`` tests gathers and integer divisors at run time."""
    return Writer(mapped, dialect, machine, checked).source()


class Writer(Emitter):
    """Threads, lanes and register patches; gathers are checked in GNU statement expressions."""

    def __init__(self, mapped: Mapped, dialect: Dialect, machine: Machine, checked: bool) -> None:
        super().__init__(mapped, dialect, checked)
        self.machine = machine
        # by id of an Access: the name of its value bound before the loop, or the names of its check and gather subscripts
        self.hoisted: dict[int, list[str]] = {}
        self.declarations: dict[str, None] = {}
        self.early: dict[int, list[str]] = {}  # by id of a For: lines for the start of its body
        self.rows = GatheredRows(self, machine)

    # ------------------------------------------------------------ the kernel

    def source(self) -> Source:
        symbol = kernel_symbol(self.mapped.scop.program.definition.name, self.dialect)
        self.block(build(self.mapped))
        body = self.lines
        self.lines = []
        numbers = self.prologue()
        text = "\n".join(self.lines + body)
        helpers = [name for name in ("tc_fdiv", "tc_mod", "tc_min_index", "tc_max_index") if name + "(" in text]
        head = prelude.text([*helpers, *self.printer.used], self.dialect)
        parts = [f"/* {self.title()} */", head, *self.declarations]
        signature = f"int64_t {symbol}(void *const *tensors, const int64_t *numbers, void *workspace, int threads)"
        parts += [signature + " {", text, "  return tc_flag;", "}", ""]
        text = "\n".join(p for p in parts if p)
        return Source(text, symbol, numbers, self.memory.workspace, tuple(self.printer.sites), host=self.memory.host)

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

    def mark(self, node: Mark) -> None:
        if node.mark == marks.Parallel():
            self.parallel(node)
        elif node.mark == marks.Simd():
            self.lanes(node)
        elif node.mark == marks.RegisterTile():
            self.registers(node)
        elif declared := self.memory.below(node.mark):
            with self.indented("{"):
                for private in declared:
                    kind = ctype(self.mapped.scop.tensor(private.tensor).dtype, self.dialect)
                    self.write(f"{kind} {self.memory.private_name(private)}[{private.elements}] __attribute__((aligned({ALIGNMENT})));")
                if (asked := requests(self, node, self.machine)) is not None:
                    self.early[id(asked[0])] = asked[1]
                self.block(node.body)
        else:
            self.block(node.body)

    def loop(self, node: For) -> None:
        with self.ranged(node), self.indented(self.header(node) + " {"):
            for line in self.early.pop(id(node), ()):
                self.write(line)
            self.block(node.body)

    def parallel(self, node: Mark) -> None:
        """One parallel region over as many of the tile loops as a fair share takes."""
        body = node.body
        while len(body) == 1 and isinstance(body[0], Mark) and body[0].mark == marks.TileLoops():
            body = body[0].body
        if len(body) != 1 or not isinstance(body[0], For):
            self.block(node.body)
            return
        loops, _ = nest(body[0])
        sizes = {d.name for d in self.mapped.scop.program.dynamic}
        depth, iterations = 0, 1
        for one in loops:
            if iterations >= FAIR_SHARE or not (one.lower.variables | one.upper.variables) <= sizes:
                break
            trips = one.trips if one.trips is not None else fewest(one, self.ranges)
            depth += 1
            iterations *= max(1, trips)
        before = len(self.lines)
        self.block(body)
        worth = self.worth(loops[:depth]) if depth else None
        if worth is not None:
            clauses = (f" collapse({depth})" if depth > 1 else "") + (f" if ({worth})" if worth else "")
            self.lines.insert(before, f"{ALONE}{clauses} num_threads(threads) schedule(static){self.flags(before)}")

    def worth(self, loops: list[For]) -> str | None:
        """The condition on dynamic sizes under which loops are worth threads; empty if they always are, None if they never are."""
        dynamic = [one for one in loops if one.trips is None]
        if not dynamic:
            return ""
        ranges = self.ranges
        for one in loops:
            ranges = below(one, ranges)
        each = work(loops[-1].body, self.mapped.scop, ranges)
        rounds = prod(one.trips or 1 for one in loops)
        alike = prod(one.step for one in dynamic)  # iterations in which sizes are counted as one
        enough = alike * max(-(-parallelise.WORTH_THREADS // max(1, each * rounds)), -(-2 // rounds))
        spans = [one.upper - one.lower + one.step for one in dynamic]
        found = [limits(span, self.ranges) for span in spans]
        if all(found) and prod(most for _, most in filter(None, found)) < enough:
            return None
        if all(found) and prod(max(0, least) for least, _ in filter(None, found)) >= enough:
            return ""
        texts = [self.index(span) for span in spans]
        return f"{' * '.join(f'({text})' if len(texts) > 1 else text for text in texts)} >= {enough}"

    def flags(self, since: int) -> str:
        """The clause that joins the flag of threads or lanes, where the lines written since set it."""
        return " reduction(max : tc_flag)" if any("TC_FLAG" in line for line in self.lines[since:]) else ""

    def lanes(self, node: Mark) -> None:
        if len(node.body) != 1 or not isinstance(node.body[0], For) or not all(isinstance(n, Run) for n in node.body[0].body):
            self.block(node.body)
            return
        loop = node.body[0]
        statement = self.mapped.scop.statement(runs(loop.body)[0].statement)
        with self.ranged(loop):
            target = self.target(statement, runs(loop.body)[0])
        if len(loop.body) == 1 and statement.operator != "=" and target is not None and target.stride(loop.variable) == 0:
            self.reduction_lanes(loop, runs(loop.body)[0], statement, target)
            return
        with self.invariants(loop):
            before = len(self.lines)
            self.loop(loop)
            self.lines.insert(before, f"#pragma omp simd{self.flags(before)}")

    def reduction_lanes(self, loop: For, run: Run, statement: ScopStatement, target: Address) -> None:
        """A reduction whose only result stays in variables while lanes accumulate parts of it.

        One variable would make every step wait for the one before; each of several sums up an equal stretch of the loop.
        """
        dtype = statement.value.dtype
        storage = self.mapped.scop.tensor(statement.tensor)
        clause = self.lane_reduction(statement.operator, dtype)
        count = (loop.trips or 0) // SHORT if clause and loop.step == 1 else 1
        count = max(1, min(count, self.mapped.options.sums or (SUMS if statement.operator in ("+=", "*=") else 1)))
        stretch = (loop.trips or 0) // count
        names = [f"tc_sum{number}" for number in range(count)] if count > 1 else ["tc_sum"]

        def pass_over(part: For, names: list[str]) -> None:
            before = len(self.lines)
            with self.ranged(part), self.indented(self.header(part) + (" {" if len(names) > 1 else ""), "}" if len(names) > 1 else ""):
                for number, name in enumerate(names):
                    moved = substitute(run, {loop.variable: Linear.of(loop.variable) + number * stretch}) if number else run
                    assert isinstance(moved, Run)
                    self.run_now = moved
                    value = self.printer.value(statement.value)
                    self.write(f"{name} = {self.printer.combine(statement.operator, dtype, name, value)};")
            if len(names) == 1:
                self.lines.pop()
            if clause:
                self.lines.insert(before, f"#pragma omp simd reduction({clause} : {', '.join(names)}){self.flags(before)}")

        with self.indented("{"), self.invariants(loop):
            self.write(f"{vtype(dtype)} {names[0]} = {self.printer.load(storage.dtype, target.text)};")
            for name in names[1:]:
                self.write(f"{vtype(dtype)} {name} = {self.printer.identity(statement.operator, dtype)};")
            pass_over(replace(loop, upper=loop.lower + (stretch - 1)) if count > 1 else loop, names)
            if count > 1 and count * stretch < (loop.trips or 0):
                pass_over(replace(loop, lower=loop.lower + count * stretch), names[:1])
            while len(names) > 1:
                for left, right in zip(names[: len(names) // 2], names[-(len(names) // 2) :], strict=True):
                    self.write(f"{left} = {self.printer.combine(statement.operator, dtype, left, right)};")
                names = names[: -(len(names) // 2)]
            self.write(self.printer.store(storage.dtype, target.text, names[0]))

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

    def block(self, nodes: tuple[Node, ...]) -> None:
        """What sets the results of a patch to 0 in front of it is left to the patch; parallel loops in a row are one team's."""
        left = list(nodes)
        in_a_row: list[Loop] = []
        while left:
            node = left.pop(0)
            before = len(self.lines)
            self.first(node, left)
            written = loop(self.lines[before:], node, self.mapped.scop)
            if written is not None:
                in_a_row.append(written)
                del self.lines[before:]
            if written is None or not left:
                self.lines[before:before] = teams(in_a_row, "  " * self.depth)
                in_a_row = []

    def first(self, node: Node, left: list[Node]) -> None:
        """One of the nodes of a block, and what is written together with it of those that are left."""
        if left and isinstance(after := left[0], Mark) and after.mark == marks.RegisterTile():
            found = self.found(after)
            with self.within(node):
                begins = found is not None and starts(found, node, self.mapped, self.target)
            if found is not None and begins:
                self.patch(found, zero=True)
                left.pop(0)
                return
        super().block((node,))

    def found(self, node: Mark) -> Found | None:
        """What stands below a ``RegisterTile`` mark, if it is a patch."""
        with self.within(node):
            return match(self.mapped, node, self.target, self.operand, self.rows)

    @contextmanager
    def within(self, node: Node) -> Iterator[None]:
        """Knows the ranges of the loops below a node that stand in one another."""
        with ExitStack() as loops:
            while isinstance(node, (For, Mark)):
                if isinstance(node, For):
                    loops.enter_context(self.ranged(node))
                if len(node.body) != 1:
                    break
                node = node.body[0]
            yield

    def registers(self, node: Mark) -> None:
        found = self.found(node)
        if found is None:
            self.block(node.body)
        else:
            self.patch(found, zero=False)

    def patch(self, found: Found, *, zero: bool) -> None:
        made = Patch(found, self.mapped.options, self.machine, self.printer, self.declarations, self.rows, zero=zero)
        for line in made.lines():
            self.write(line)

    # ------------------------------------------------------------ reads

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
        texts = [self.gathered(sub) for _, sub in gathers]
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
        kept, called = self.hoisted, self.printer.bound
        self.hoisted, self.printer.bound = dict(kept), dict(called)
        with self.indented("{"):
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
            opened = len(self.hoisted) > len(kept) or len(self.printer.bound) > len(called)
            yield
        if not opened:  # nothing was bound: no braces needed
            self.unwrap()
        self.hoisted, self.printer.bound = kept, called

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

    def unwrap(self) -> None:
        """Drop the braces just written, and their indentation."""
        closing = "  " * self.depth + "}"
        opening = "  " * self.depth + "{"
        assert self.lines[-1] == closing
        start = max(i for i, line in enumerate(self.lines[:-1]) if line == opening)
        inner = [line[2:] if line.startswith("  ") else line for line in self.lines[start + 1 : -1]]
        self.lines[start:] = inner

    def bind(self, access: Access, run: Run, variable: str) -> None:
        storage = self.mapped.scop.tensor(access.tensor)
        gathers = self.gathers(access, run)
        moving = {dim for dim, value in run.indices if variable in value.variables}
        self.run_now = run
        number = len(self.hoisted)
        if not gathers:
            if not any(dim in moving for sub in access.subscripts for dim in names_in(sub)):
                value = self.printer.load(storage.dtype, self.place(access.tensor, access.subscripts))
                self.write(f"const {vtype(storage.dtype)} tc_v{number} = {value};")
                self.hoisted[id(access)] = [f"tc_v{number}"]
            return
        if any(dim in moving for _, sub in gathers for dim in names_in(sub)):
            return
        lines, names, ok = self.subscripts(access, gathers, number)
        for line in lines:
            self.write(line)
        self.hoisted[id(access)] = [ok, *names]

    def subscripts(self, access: Access, gathers: Gathers, number: int) -> tuple[list[str], list[str], str]:
        """Lines that hold the data-dependent subscripts of a read in variables and check them, the names of these, and of the check."""
        names = [f"tc_g{number}_{axis}" for axis, _ in gathers]
        lines = [f"const int64_t {name} = {self.gathered(sub)};" for name, (_, sub) in zip(names, gathers, strict=True)]
        if not self.checked:
            return lines, names, ""
        ok = f"tc_ok{number}"
        lines.append(f"const int {ok} = {self.inside(access, names, gathers)};")
        lines.append(f"TC_FLAG(!{ok}, {self.printer.site('gather', tensor=access.tensor, where=access.where)});")
        return lines, names, ok
