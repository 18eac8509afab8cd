"""Range inference: domains and extents of a checked def, symbolically (``infer``), for given sizes (``specialise``), and explained."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tcjit.errors import ArgumentError, CheckError, ShapeError
from tcjit.grammar import hints, polynomial, printer
from tcjit.grammar.ast import Agreement, Cast, Const, Def, Expr, Index, Program, Range, Size, Statement
from tcjit.grammar.bind import bind, refuse_beyond
from tcjit.grammar.bounds_check import Numbers, Symbols, shown, whole
from tcjit.grammar.polynomial import NOTHING, Value, ZeroDivisor
from tcjit.grammar.ranges import Analysis, Interval, Ranges, RangeSource, Subscript, analyse, reach, solve
from tcjit.grammar.specialised import specialised
from tcjit.grammar.walk import MAX_DEPTH, measure, rebuild, walk

INT32 = (-(1 << 31), (1 << 31) - 1)
MAX_NODES = 10_000  # of a range: the extents of one statement enter those of the next, sometimes twice


def infer(definition: Def) -> Def:
    """The def with the domains of its statements and the shapes of its tensors, as expressions over sizes and specialised scalars.

    A stride that is a scalar is taken to be positive in those expressions; ``specialise`` uses its value. Raises CheckError for
    everything that no sizes could mend.
    """
    return _Inference(definition).run()


class _Inference:
    def __init__(self, definition: Def) -> None:
        self.definition = definition
        self.symbols = Symbols(definition)
        self.extents: dict[str, tuple[Value, ...]] = {}
        self.assumed: set[str] = set()  # extents, as `T.0`, whose formula takes a scalar to be positive
        self.agreements = list(definition.agreements)
        for tensor in definition.tensors:
            if tensor.role == "input":
                self.extents[tensor.name] = tuple(_value(extent) for extent in tensor.shape)

    def run(self) -> Def:
        statements = []
        for statement in self.definition.statements:
            try:
                statements.append(self._statement(self._resolved(statement)))
            except ZeroDivisor as error:
                raise CheckError("an index is divided by zero", where=error.where or statement.where) from None
        for agreement in self.agreements:
            self._agree(agreement)
        shapes = {name: tuple(polynomial.expression(extent) for extent in extents) for name, extents in self.extents.items()}
        tensors = tuple(t if t.role == "input" else replace(t, shape=shapes[t.name]) for t in self.definition.tensors)
        return replace(
            self.definition,
            specialised=specialised(self.definition.params, statements, tensors),
            tensors=tensors,
            statements=tuple(statements),
            agreements=tuple(self.agreements),
        )

    def _statement(self, statement: Statement) -> Statement:
        analysis = analyse(statement, self.extents)
        hints.refuse_open(analysis, self.definition)
        ranges = solve(analysis, self.extents, NOTHING)
        domain = tuple(Range(i, polynomial.expression(ranges[i].lower), polynomial.expression(ranges[i].upper)) for i in analysis.indices)
        for index, found in zip(analysis.indices, domain):
            depth, _, nodes = measure((found.lower, found.upper))
            if depth > MAX_DEPTH or nodes > MAX_NODES:
                raise hints.intricate(analysis, ranges[index])
            if not self.symbols.is_possible(ranges[index].lower, "<", ranges[index].upper):
                raise hints.empty(analysis, ranges[index])
        if statement.tensor not in self.extents:
            self._define(analysis, ranges)
        self.symbols.check(analysis, ranges, self.extents)
        return replace(statement, domain=domain)

    def _define(self, analysis: Analysis, ranges: Ranges) -> None:
        """Set the extents of a tensor by the first statement that writes it."""
        statement = analysis.statement
        extents: list[Value] = []
        for position, (least, extent, assumed) in enumerate(reached(analysis, ranges, NOTHING)):
            if not self.symbols.is_possible(least, "=", 0):
                raise hints.shifted(analysis, position, least, extent)
            extents.append(extent)
            if assumed:
                self.assumed.add(f"{statement.tensor}.{position}")
        self.extents[statement.tensor] = tuple(extents)

    def _resolved(self, statement: Statement) -> Statement:
        """The statement with extents of tensors (``T.0``) written as expressions over sizes."""
        return replace(
            statement,
            subscripts=tuple(map(self._resolve, statement.subscripts)),
            value=self._resolve(statement.value),
            clauses=tuple(replace(c, lower=self._resolve(c.lower), upper=self._resolve(c.upper)) for c in statement.clauses),
            exists=tuple(map(self._resolve, statement.exists)),
            extents=tuple(extent and self._resolve(extent) for extent in statement.extents),
        )

    def _resolve(self, expr: Expr) -> Expr:
        if not isinstance(expr, Size):
            return rebuild(expr, self._resolve)
        if "." not in expr.name:
            return expr
        tensor, _, position = expr.name.rpartition(".")
        own = polynomial.expression(self.extents[tensor][int(position)])
        if expr.name in self.assumed:
            # the formula holds for positive strides only: have it compared with the true extent once the scalars are known
            what = f"the extent {position} of `{tensor}`, which a stride that is not positive makes another than {printer.extent(own)}"
            agreement = Agreement(Size(expr.name, dtype="int64"), own, what, expr.where)
            if agreement not in self.agreements:
                self.agreements.append(agreement)
        if isinstance(own, (Size, Const)):
            return replace(own, dtype=expr.dtype, where=expr.where)
        return own if expr.dtype == "int64" else Cast(own, dtype=expr.dtype, where=expr.where)

    def _agree(self, agreement: Agreement) -> None:
        sides = []
        for side in (agreement.left, agreement.right):
            named = isinstance(side, Size) and "." in side.name
            tensor, _, position = side.name.rpartition(".") if isinstance(side, Size) and named else ("", "", "0")
            sides.append(self.extents[tensor][int(position)] if named else _value(side))
        if not self.symbols.is_possible(sides[0], "=", sides[1]):
            left, right = map(shown, sides)
            raise CheckError(f"{agreement.what}: {left} and {right} differ whatever the sizes", where=agreement.where)


def _value(expr: Expr) -> Value:
    value = polynomial.integer(expr)
    assert value is not None  # extents and bounds are built from sizes, scalars and numbers
    return value


def reached(analysis: Analysis, ranges: Ranges, values: Mapping[str, int]) -> list[tuple[Value, Value, bool]]:
    """Per dimension of the tensor written: the least subscript, one more than the greatest, whether a sign was assumed."""
    result: list[tuple[Value, Value, bool]] = []
    for position, subscript in enumerate(analysis.left):
        if subscript is None:
            given = analysis.statement.extents[position]
            extent = None if given is None else polynomial.integer(given, values)
            assert extent is not None  # check admits nothing else
            result.append((0, extent, False))
        else:
            least, greatest, assumed = reach(subscript, ranges, values)
            result.append((least, greatest + 1, assumed))
    return result


# ---------------------------------------------------------------- for given sizes


def specialise(definition: Def, shapes: Mapping[str, tuple[int, ...]], scalars: Mapping[str, int]) -> Program:
    """The program for tensor inputs of these shapes and these values of the specialised scalars; ``definition`` is inferred.

    Raises ShapeError where shapes disagree, an extent is negative, a divisor zero, an access leaves its tensor, or a size used
    as a value does not fit int32; ArgumentError where a scalar is missing.
    """
    sizes = bind(definition.params, [shapes.get(param.name) for param in definition.params])
    return _Specialisation(definition, sizes, shapes, scalars).run()


class _Specialisation:
    def __init__(
        self, definition: Def, sizes: dict[str, int], shapes: Mapping[str, tuple[int, ...]], scalars: Mapping[str, int]
    ) -> None:
        self.definition = definition
        self.sizes = sizes
        names = [param.name for param in definition.params if not param.dims and param.name in definition.specialised]
        missing = [name for name in names if name not in scalars]
        if missing:
            raise ArgumentError(f"`{definition.name}` is specialised to `{missing[0]}`, and no value is given", hint=f"{missing[0]}=...")
        self.scalars = {name: int(scalars[name]) for name in names}
        self.values = {**sizes, **self.scalars}
        self.numbers = Numbers(definition, self.values)
        self.extents: dict[str, tuple[int, ...]] = {t.name: shapes[t.name] for t in definition.tensors if t.role == "input"}

    def run(self) -> Program:
        given = {f"{name}.{position}" for name, shape in self.extents.items() for position in range(len(shape))}
        later = []
        for agreement in self.definition.agreements:
            if isinstance(agreement.left, Size) and agreement.left.name in given:  # an argument's, before accesses to it are looked at
                self._agree(agreement)
            else:
                later.append(agreement)
        domains = tuple(map(self._statement, self.definition.statements))
        for agreement in later:
            self._agree(agreement)
        shapes = tuple((tensor.name, self.extents[tensor.name]) for tensor in self.definition.tensors)
        return Program(self.definition, tuple(self.sizes.items()), tuple(self.scalars.items()), shapes, domains)

    def _statement(self, statement: Statement) -> tuple[tuple[int, int], ...]:
        analysis = analyse(statement, self.extents)
        for divisor in analysis.divisors:
            self._refuse_zero(divisor)
        ranges = solve(analysis, self.extents, self.values)
        for index in analysis.indices:
            self._refuse_negative(ranges[index])
        if statement.tensor not in self.extents:
            self._define(analysis, ranges)
        self.numbers.check(analysis, ranges, self.extents)
        if all(whole(interval.lower) < whole(interval.upper) for interval in ranges.values()):
            hints.refuse_no_elements(statement, self.extents[statement.tensor], self.values)
        self._refuse_wide(statement, ranges)
        written = self.definition.tensor(statement.tensor)
        refuse_beyond(f"`{written.name}`", self.extents[written.name], written.dtype, self.values)
        for index in analysis.indices:
            lengths = [whole(ranges[index].lower), whole(ranges[index].upper)]
            refuse_beyond(f"the range of the index `{index}`", [max(map(abs, lengths))], "uint8", self.values)
        return tuple((whole(ranges[i].lower), whole(ranges[i].upper)) for i in analysis.indices)

    def _define(self, analysis: Analysis, ranges: Ranges) -> None:
        written = reached(analysis, ranges, self.values)
        for position, (least, extent, _) in enumerate(written):
            if least != 0:
                raise hints.shifted(analysis, position, least, extent, self.values)
            if whole(extent) < 0:
                raise hints.negative_extent(analysis, position, whole(extent), self.values)
        self.extents[analysis.statement.tensor] = tuple(whole(extent) for _, extent, _ in written)

    def _refuse_zero(self, divisor: Expr) -> None:
        try:
            if polynomial.integer(divisor, self.values) != 0:
                return
        except ZeroDivisor:
            pass
        raise ShapeError(f"an index is divided by `{printer.show(divisor)}`, which is zero", where=divisor.where, sizes=self.values)

    def _refuse_negative(self, interval: Interval) -> None:
        if whole(interval.upper) < whole(interval.lower):
            raise hints.negative(interval, self.values)

    def _refuse_wide(self, statement: Statement, ranges: Ranges) -> None:
        """Sizes and indices are int32 as values; one that does not fit would wrap silently."""
        ends = (whole(end) for interval in ranges.values() for end in (interval.lower, interval.upper))
        extents = (extent for shape in self.extents.values() for extent in shape)
        if all(INT32[0] <= number <= INT32[1] for number in (*ends, *self.sizes.values(), *extents)):
            return
        for node in _values(statement.value):
            limits = self._limits(node, ranges)
            if limits[0] < INT32[0] or limits[1] > INT32[1]:
                kind = "index" if isinstance(node, Index) else "size"
                raise ShapeError(
                    f"the {kind} `{printer.show(node)}` is used as a value and does not fit int32: it is {limits[1]}",
                    where=node.where,
                    sizes=self.values,
                    hint="a scalar parameter of type int64 or float64 in its place",
                )

    def _limits(self, node: Expr, ranges: Ranges) -> tuple[int, int]:
        if isinstance(node, Index):
            return whole(ranges[node.name].lower), whole(ranges[node.name].upper) - 1
        value = polynomial.integer(node.operand if isinstance(node, Cast) else node, self.values)
        return (value, value) if isinstance(value, int) else (0, 0)

    def _agree(self, agreement: Agreement) -> None:
        known = {f"{name}.{position}": extent for name, shape in self.extents.items() for position, extent in enumerate(shape)}
        try:
            left, right = (polynomial.integer(side, {**known, **self.values}) for side in (agreement.left, agreement.right))
        except ZeroDivisor:
            hint = "a divisor other than 0"
            raise ShapeError(f"{agreement.what}: a division by zero", where=agreement.where, sizes=self.values, hint=hint) from None
        if left != right:
            hint = f"an extent of {right} there, or other sizes"
            raise ShapeError(f"{agreement.what}: {left} is not {right}", where=agreement.where, sizes=self.values, hint=hint)


def _values(expr: Expr) -> list[Expr]:
    """The sizes and indices used as int32 values, not in index arithmetic: that is int64."""
    return [
        node
        for node in walk(expr)
        if (isinstance(node, (Index, Size)) and node.dtype == "int32")
        or (isinstance(node, Cast) and node.dtype == "int32" and node.operand.dtype == "int64" and polynomial.names(node.operand, Size))
    ]


# ---------------------------------------------------------------- for people


def explain_ranges(definition: Def) -> str:
    """Statement by statement, each index of an inferred def with its range, what it is for, and the clause or access that gave it.

    >>> from tcjit.grammar.front import read
    >>> print(explain_ranges(read("def f(float(N) I, float(K) W) -> (O) { O(i) +=! I(i + k) * W(k) }")[0]))
    O(i) +=! I(i + k) * W(k)
      i  0:N - K + 1  left       I(i + k)
      k  0:K          reduction  W(k)
    output O(N - K + 1)
    """
    lines: list[str] = []
    known = {tensor.name for tensor in definition.tensors if tensor.role == "input"}
    for statement in definition.statements:
        steps = {step.index: step for step in analyse(statement, known).steps}
        lines.append(printer.show(replace(statement, domain=(), clauses=())))
        rows = [
            (
                found.index,
                f"{printer.extent(found.lower)}:{printer.extent(found.upper)}",
                "reduction" if found.index in statement.reduction else "left",
                _sources(steps[found.index]),
            )
            for found in statement.domain
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(3)] if rows else []
        lines += ["  " + "  ".join([*(text.ljust(width) for text, width in zip(row, widths)), row[3]]) for row in rows]
        known.add(statement.tensor)
    for tensor in definition.tensors:
        extents = ", ".join(map(printer.extent, tensor.shape))
        if tensor.role != "input":
            lines.append(f"{tensor.role} {tensor.name}({extents})")
    return "\n".join(lines)


def _sources(step: RangeSource) -> str:
    given = [f"where {printer.show(clause)}" for clause in step.clauses] + [_source(s) for s in step.subscripts]
    return ", ".join(dict.fromkeys(given))


def _source(subscript: Subscript) -> str:
    text = printer.show(subscript.access)
    return text if subscript.role == "read" else f"{'written' if subscript.role == 'write' else 'exists'} {text}"

