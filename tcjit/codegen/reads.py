"""What statements read, as C: elements, checked gathers, and what does not change in a loop, evaluated before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial, reduce
from itertools import product

import islpy as isl

from tcjit.codegen.dialect import Dialect
from tcjit.codegen.emitter import Emitter
from tcjit.codegen.expression import ExpressionPrinter, vtype
from tcjit.codegen.loops import For, Run, runs
from tcjit.codegen.scope import Gathers
from tcjit.grammar.affine import Guard, affine, condition, guarded_accesses
from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Expr, Index, Select, TargetSubscript, Unary
from tcjit.grammar.builtins import ONE_OPERATION
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names as names_in
from tcjit.grammar.walk import children, walk
from tcjit.mapping.operations import divides_integers, is_power_of_two
from tcjit.mapping.pipeline import Mapped
from tcjit.mapping.scop import ScopStatement
from tcjit.mapping.strides import affine_form

FAR = 1 << 61  # what divisors and constants are at most whose sums with indices and 32 bits of data do not wrap
MANY = 64  # iterations of a loop that are worth the inverse of what all of them divide by


class ReadEmitter(Emitter):
    """Gathers are checked in GNU statement expressions."""

    def __init__(self, mapped: Mapped, dialect: Dialect, checked: bool) -> None:
        super().__init__(mapped, dialect, checked)
        # by id of an Access: the name of its value bound before the loop, or those of its check, if it needs one, and gather subscripts
        self.hoisted: dict[int, list[str]] = {}
        self.subscripts: dict[tuple[int, int], str] = {}  # by id of an Access and axis: the name of what a gather's is before the loop
        self.everywhere: dict[tuple[str, Access], bool] = {}  # by statement and read: whether all instances have the element
        self.stored: dict[str, str] = {}  # by statement: the element of an array that holds its result for the time being
        self.places: Mapping[Access, str] = {}  # of what the epilogue at hand reads

    def read(self, access: Access, printer: ExpressionPrinter) -> str:
        if access in self.places:
            own = access.tensor.startswith("@")  # an array of a tile, in the type that it computes in
            return self.places[access] if own else self.printer.load(self.mapped.scop.tensor(access.tensor).dtype, self.places[access])
        return super().read(access, printer)

    def addends(self, expr: Binary) -> tuple[Expr, Expr] | None:
        """Indices within a row, and data that are added to them, in ``(i + Shift(b)) % N``: a division for each element becomes one for
        each of the data, and a comparison."""
        if self.run_now is None:
            return None
        scop = self.mapped.scop
        s, divisor = scop.statement(self.run_now.statement), affine_form(expr.right, scop.values)
        if divisor is None or divisor[0] or divisor[1] <= 0 or s.dynamic_bounds or scop.program.dynamic:
            return None
        terms = list(_addends(expr.left))
        forms = [affine_form(term, scop.values) for term in terms]
        data = [term for term, form in zip(terms, forms, strict=True) if form is None]
        near = [term for term, form in zip(terms, forms, strict=True) if form is not None and form[0]]
        fixed = [term for term, form in zip(terms, forms, strict=True) if form is not None and not form[0]]
        checked = id(expr) in self.in_subscripts and not fixed
        if len(data) != 1 or not near or not (_is_narrow(data[0]) or checked and _is_element(data[0])):
            return None  # what is as wide as the dividend may wrap before indices are added
        if max(divisor[1], abs(sum(form[1] for form in forms if form is not None))) > FAR:
            return None
        moving = {name: factor for form in forms if form is not None for name, factor in form[0].items()}
        if len(moving) != sum(len(form[0]) for form in forms if form is not None) or any(name not in s.ranges for name in moving):
            return None
        ends = [sorted(factor * end for end in (s.ranges[name][0], s.ranges[name][1] - 1)) for name, factor in moving.items()]
        least, greatest = (sum(pair[side] for pair in ends) for side in (0, 1))
        if -divisor[1] <= least and greatest <= 0 and least < 0:
            near.append(Const(divisor[1], dtype="int64"))
        elif least < 0 or greatest > divisor[1]:
            return None
        first, second = (reduce(partial(Binary, "+", dtype="int64"), part) for part in (near, [*data, *fixed]))
        return first, second

    def element(self, access: Access) -> str:
        bound = self.hoisted.get(id(access))
        return bound[0] if bound else super().element(access)

    def gather(self, access: Access, gathers: Gathers) -> str:
        storage = self.mapped.scop.tensor(access.tensor)
        if id(access) in self.hoisted:
            names = self.hoisted[id(access)]
            if len(names) == 1:
                return names[0]
            element = self.printer.load(storage.dtype, self.place(access.tensor, access.subscripts, names[1:]))
            return f"({names[0]} ? {element} : 0)" if names[0] else element
        names = [f"tc_at{axis}" for axis, _ in gathers]
        texts = [self.data_subscript(sub) for _, sub in gathers]
        if not self.checked:
            return self.printer.load(storage.dtype, self.place(access.tensor, access.subscripts, [f"({t})" for t in texts]))
        site = self.printer.site("gather", tensor=access.tensor, where=access.where)
        known = storage.elements and not any(storage.dynamic_extents)
        if known and all(storage.shape[axis] > 1 and storage.strides[axis] != 0 for axis, _ in gathers):  # the address has all of them
            checked = [
                self.subscripts.get((id(access), axis)) or str(self.printer.inside(text, str(storage.shape[axis]), site))
                for text, (axis, _) in zip(texts, gathers, strict=True)
            ]
            return self.printer.load(storage.dtype, self.place(access.tensor, access.subscripts, checked))
        bindings = " ".join(f"const int64_t {name} = {text};" for name, text in zip(names, texts, strict=True))
        inside = self.inside(access, names, gathers)
        element = self.printer.load(storage.dtype, self.place(access.tensor, access.subscripts, names))
        return f"({{ {bindings} const int tc_ok = {inside}; TC_FLAG(!tc_ok, {site}); tc_ok ? {element} : 0; }})"

    def inside(self, access: Access, names: list[str], gathers: Gathers) -> str:
        """The test of a gather's subscripts."""
        extents = [self.printer.index(self.memory.extent(access.tensor, axis)) for axis, _ in gathers]
        return " && ".join(f"0 <= {n} && {n} < {extent}" for n, extent in zip(names, extents, strict=True))

    @contextmanager
    def bindings(self) -> Iterator[None]:
        """What is bound meanwhile, reads, results, calls and divisors, is forgotten behind it."""
        printer = self.printer
        hoisted, subscripts, stored, bound, quotients = self.hoisted, self.subscripts, self.stored, printer.bound, printer.quotients
        self.hoisted, self.subscripts, self.stored = dict(hoisted), dict(subscripts), dict(stored)
        printer.bound, printer.quotients = dict(bound), dict(quotients)
        yield
        self.hoisted, self.subscripts, self.stored, printer.bound, printer.quotients = hoisted, subscripts, stored, bound, quotients

    @contextmanager
    def invariants(self, loop: For) -> Iterator[None]:
        """Evaluate, before a loop, the reads in its body that do not depend on it, and the calls on them.

        A C compiler cannot: in the function that OpenMP makes of a parallel loop, it no longer knows that pointers are distinct. And gcc
        takes half of a call out of the loop, whose other half then keeps it from vectors.
        """
        with self.bindings():
            self.depth += 1
            with self.captured() as lines:
                self.bind_all(loop)
            self.depth -= 1
            with self.indented("{") if lines else nullcontext():
                self.lines += lines
                yield

    def bind_all(self, loop: For) -> None:
        """Bind the invariant reads and calls of a loop's statements."""
        statements = [(run, self.mapped.scop.statement(run.statement)) for run in runs(loop.body)]
        written = {s.tensor for _, s in statements}
        spoken: set[int] = set()  # reads in the subscripts of a gather that is bound with them
        for run, s in statements:
            for access, guards in guarded_accesses(s.value):
                if (
                    id(access) not in self.hoisted
                    and id(access) not in spoken
                    and written.isdisjoint(a.tensor for a in walk(access) if isinstance(a, Access))
                    and not (guards and self.gathers(access, run))
                    and not any(self.moves(sub, run, loop.variable) for sub in access.subscripts if guards)
                    and self.exists(access, guards, s)
                ):
                    self.bind(access, run, loop)
                    if id(access) in self.hoisted:
                        spoken |= {id(a) for sub in access.subscripts for a in walk(sub)}
            self.bind_calls(s.value, run, loop.variable)
            if loop.trips is None or loop.trips >= MANY:
                self.bind_divisors(s.value, run, loop.variable)

    def exists(self, access: Access, guards: Sequence[Guard], s: ScopStatement) -> bool:
        """Whether an element is there for all indices, as one that is read under conditions need not be: it is where, whatever the indices
        in its subscripts are, the conditions hold for some values of the others. Conditions on data are no reason for it to be there."""
        scop = self.mapped.scop
        facts = [text if holds else f"not ({text})" for guard, holds in guards if (text := condition(guard, scop.values)) is not None]
        if not facts:
            return True
        used = {name for sub in access.subscripts for name in names_in(sub)}
        every = scop.instances(s)
        where = isl.Set.read_from_str(every.get_ctx(), f"{scop.parameters}{{ {s.tuple_text} : {' and '.join(facts)} }}")
        some = every.intersect(where)
        for at in reversed([number for number, dim in enumerate(s.dims) if dim not in used]):
            every, some = (domain.project_out(isl.dim_type.set, at, 1) for domain in (every, some))
        return bool(some.is_equal(every))

    def bind_calls(self, expr: Expr, run: Run, variable: str) -> None:
        """Bind the calls of an expression whose value is the same for all of a loop, and whose evaluation cannot fail."""
        if isinstance(expr, Call) and DTYPES[expr.dtype].kind == "float" and self.constant(expr, run, variable):
            if id(expr) not in self.printer.bound:
                self.write(self.printer.bind([expr], self.value(expr, run)))
            return
        for child in children(expr):
            self.bind_calls(child, run, variable)

    def bind_divisors(self, expr: Expr, run: Run, variable: str) -> None:
        """Bind the inverses of what float32 are divided by all through a loop: a division takes several times as long as a product."""
        for child in children(expr):
            self.bind_divisors(child, run, variable)
        if not (isinstance(expr, Binary) and expr.op == "/" and expr.dtype == "float32" and self.constant(expr.right, run, variable)):
            return
        known = self.printer.quotients
        exact = is_power_of_two(expr.right, self.mapped.scop.values)
        if id(expr) in known or exact or self.constant(expr.left, run, variable):
            return
        divisor, scaled, inverse, scale = names = tuple(f"tc_d{len(known)}{part}" for part in ("", "_scaled", "_inverse", "_scale"))
        self.write(f"const float {divisor} = {self.value(expr.right, run)};")
        self.write(f"const float {scale} = {self.printer.helper('tc_scale_of_divisor_f32')}({divisor});")
        self.write(f"const float {scaled} = {divisor} * {scale}, {inverse} = 1.0f / {scaled};")
        known[id(expr)] = "tc_scaled_quotient_f32", names

    @contextmanager
    def repeated_values(self, run: Run) -> Iterator[None]:
        """Evaluate once the calls and choices that a statement's value has several times, of which one is evaluated in any case: a C
        compiler cannot see that they are the same behind the branches that it makes of them, and vectorises no branches with calls."""
        with self.bindings():
            with self.captured() as lines:
                for equal in repeated(self.mapped.scop.statement(run.statement).value):
                    if not any(id(one) in self.printer.bound or self.may_flag(one, run) for one in equal):
                        self.write(self.printer.bind(equal, self.value(equal[0], run)))
            with self.indented("{") if lines else nullcontext():
                self.lines += lines
                yield

    @contextmanager
    def speculated_loads(self, run: Run) -> Iterator[None]:
        """Load before a statement what it reads under conditions that are not the same for all lanes, where it is there whatever these say:
        vectors of what may not be read are loaded under masks, which takes several times as long."""
        s = self.mapped.scop.statement(run.statement)
        with self.bindings():
            with self.captured() as lines:
                for loop, (access, guards) in product(self.around[-1:], guarded_accesses(s.value)):
                    varies = any(self.moves(guard, run, loop.variable) for guard, _ in guards)
                    if varies and id(access) not in self.hoisted and self.is_plain(access, s, run, loop):
                        name = f"tc_e{len(self.hoisted)}"
                        self.run_now = run
                        self.write(f"const {vtype(access.dtype)} {name} = {self.place(access.tensor, access.subscripts)};")
                        self.hoisted[id(access)] = [name]
            with self.indented("{") if lines else nullcontext():
                self.lines += lines
                yield

    def is_plain(self, access: Access, s: ScopStatement, run: Run, loop: For) -> bool:
        """Whether a read is of a float that is the neighbour in memory of that before it in a loop, in a tensor of which all instances have
        an element: buffers hold those that are read."""
        storage = self.mapped.scop.tensor(access.tensor)
        buffered = access.tensor in self.memory.contracted or self.memory.private(access.tensor, self.marks) is not None
        if buffered or storage.dtype not in ("float32", "float64") or storage.dtype != access.dtype or access.tensor == s.tensor:
            return False
        address = self.operand(access, run)
        if any(storage.dynamic_extents) or address is None or address.stride(loop.variable) != 1:
            return False
        key = s.name, access
        if key not in self.everywhere:
            self.everywhere[key] = self.is_inside(access, s, storage.shape)
        return self.everywhere[key]

    def is_inside(self, access: Access, s: ScopStatement, shape: Sequence[int]) -> bool:
        """Whether the subscripts of a read are within a shape for all instances of a statement."""
        scop = self.mapped.scop
        texts = [affine(sub, scop.values) for sub in access.subscripts]
        if None in texts:
            return False
        inside = [f"0 <= {text} < {extent}" for text, extent in zip(texts, shape, strict=True)]
        every = scop.instances(s)
        where = isl.Set.read_from_str(every.get_ctx(), f"{scop.parameters}{{ {s.tuple_text} : {' and '.join(inside)} }}")
        return bool(every.is_subset(where))

    def may_flag(self, expr: Expr, run: Run) -> bool:
        """Whether evaluating an expression may find a subscript out of range, or a divisor of zero."""
        gathers = isinstance(expr, TargetSubscript) or (isinstance(expr, Access) and bool(self.gathers(expr, run)))
        return divides_integers(expr) or gathers or any(self.may_flag(child, run) for child in children(expr))

    def constant(self, expr: Expr, run: Run, variable: str) -> bool:
        """Whether an expression over reads that are bound is the same in all iterations, and cannot flag a divisor."""
        if isinstance(expr, Access):
            return len(self.hoisted.get(id(expr), ())) == 1
        if isinstance(expr, Index):
            return variable not in run.index(expr.name).variables
        if divides_integers(expr):
            return False
        return all(self.constant(child, run, variable) for child in children(expr))

    def bind(self, access: Access, run: Run, loop: For) -> None:
        if not self.memory.exists(access.tensor, self.marks):
            return  # ``read`` has no place for it either
        variable = loop.variable
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
            self.bind_subscripts(access, gathers, run, loop)
            return
        names = [f"tc_g{number}_{axis}" for axis, _ in gathers]
        lines = [f"const int64_t {name} = {self.data_subscript(sub)};" for name, (_, sub) in zip(names, gathers, strict=True)]
        ok = f"tc_ok{number}" if self.checked else ""
        if ok:
            lines.append(f"const int {ok} = {self.inside(access, names, gathers)};")
            flag = f"TC_FLAG(!{ok}, {self.printer.site('gather', tensor=access.tensor, where=access.where)});"
            # a loop that may not run at all reads nothing then
            runs_at_all = f"if ({self.index(loop.lower)} <= {self.index(loop.upper)}) " if loop.trips is None else ""
            lines.append(runs_at_all + flag)
        for line in lines:
            self.line(line)
        self.profile.count("runs", len(lines) - bool(ok))
        if ok and self.gathered(access, run) is not None:  # what is out of range, and flagged, reads row 0: choices in loops cost vectors
            rows = [name.replace("tc_g", "tc_row") for name in names]
            for row, name in zip(rows, names, strict=True):
                self.write(f"const int64_t {row} = {ok} ? {name} : 0;")
            ok, names = "", rows
        self.hoisted[id(access)] = [ok, *names]
        if not ok and loop.trips and not any(self.moves(sub, run, variable) for sub in access.subscripts):
            value = self.printer.load(storage.dtype, self.place(access.tensor, access.subscripts, names))
            self.write(f"const {vtype(storage.dtype)} tc_v{number} = {value};")
            self.hoisted[id(access)] = [f"tc_v{number}"]

    def bind_subscripts(self, access: Access, gathers: Gathers, run: Run, loop: For) -> None:
        """Bind the subscripts of a gather that are the same all through a loop that runs, while others move with it."""
        storage = self.mapped.scop.tensor(access.tensor)
        if not (self.checked and loop.trips and storage.elements) or any(storage.dynamic_extents):
            return
        for axis, sub in gathers:
            if not self.moves(sub, run, loop.variable):
                name = f"tc_index{len(self.subscripts)}_{axis}"
                site = self.printer.site("gather", tensor=access.tensor, where=access.where)
                self.write(f"const int64_t {name} = {self.printer.inside(self.data_subscript(sub), str(storage.shape[axis]), site)};")
                self.subscripts[id(access), axis] = name

    def moves(self, expr: Expr, run: Run, variable: str) -> bool:
        """Whether an expression depends on a loop's variable."""
        return any(variable in run.index(dim).variables for dim in names_in(expr))


def _addends(value: Expr) -> Iterator[Expr]:
    """The terms of a sum of int64; those that are subtracted are negated."""
    if isinstance(value, Binary) and value.op in ("+", "-") and value.dtype == "int64":
        yield from _addends(value.left)
        yield from _addends(value.right) if value.op == "+" else (Unary("-", one, dtype="int64") for one in _addends(value.right))
    else:
        yield value


def _is_narrow(value: Expr) -> bool:
    """Whether an int64 value, or what it is negated from, is one of fewer bits."""
    inner = _without_sign(value)
    inner = inner.operand if isinstance(inner, Cast) else inner
    return DTYPES[inner.dtype].is_integer and DTYPES[inner.dtype].bits < 64


def _is_element(value: Expr) -> bool:
    """Whether a value is in memory, perhaps with the other sign."""
    return isinstance(_without_sign(value), Access)


def _without_sign(value: Expr) -> Expr:
    """What a value is negated from, or the value itself."""
    return value.operand if isinstance(value, Unary) and value.op == "-" else value


def repeated(value: Expr) -> list[list[Call | Select]]:
    """The choices and the calls of functions of more than one operation, of floats, that a value has several times, once under no
    condition; those inside others first."""
    found: dict[Call | Select, list[Call | Select]] = {}
    always: set[Call | Select] = set()

    def visit(expr: Expr, certain: bool) -> None:
        first, *others = children(expr) or (None,)
        guarded = isinstance(expr, Select) or (isinstance(expr, Binary) and expr.op in ("&&", "||"))
        if first is not None:
            visit(first, certain)
        for child in others:
            visit(child, certain and not guarded)
        several = isinstance(expr, Select) or (isinstance(expr, Call) and expr.function not in ONE_OPERATION)
        if isinstance(expr, (Call, Select)) and several and DTYPES[expr.dtype].kind == "float":
            found.setdefault(expr, []).append(expr)
            if certain:
                always.add(expr)

    visit(value, True)
    return [equal for one, equal in found.items() if len(equal) > 1 and one in always]
