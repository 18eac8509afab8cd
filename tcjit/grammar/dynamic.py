"""Programs for many sizes at once: some sizes stay names, each with a least and a greatest value (``generalise``).

The numbers of such a program are those that hold for all its sizes: the greatest extents, the widest ranges. That a call's own sizes fit
the def is for ``specialise`` to say.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from tcjit.errors import ShapeError
from tcjit.grammar import polynomial, printer
from tcjit.grammar.affine import affine, condition, isl_name, text
from tcjit.grammar.ast import Def, Dynamic, Expr, Index, Program, RangeClause, Size, Statement
from tcjit.grammar.bind import refuse_beyond
from tcjit.grammar.bounds_check import Isl, OutOfBudget, ends
from tcjit.grammar.infer import INT32, reached
from tcjit.grammar.polynomial import Value
from tcjit.grammar.ranges import Analysis, Interval, Ranges, analyse, solve
from tcjit.grammar.walk import rebuild, walk

PREFIX = "tc_size_"  # of the names of dynamic sizes: no tensor is called so in generated code


def generalise(
    definition: Def, sizes: Mapping[str, int], scalars: Mapping[str, int], dynamic: Mapping[str, tuple[int, int]]
) -> Program:
    """The program for these sizes and specialised scalars, with the sizes in ``dynamic`` anywhere between two limits, the least above 0.

    ``definition`` is inferred. Raises ShapeError for a size that cannot be dynamic: isl has no symbolic coefficients, divisors or
    extents that are products.
    """
    for name in dynamic:
        if name in definition.specialised:
            raise refusal(definition, name, "it is a factor, divisor or modulus in index arithmetic")
    taken = {d.name for d in definition.tensors} | {p.name for p in definition.params} | set(definition.sizes)
    for statement in definition.statements:
        taken |= {r.index for r in statement.domain} | {e.name for e in walk(statement.value) if isinstance(e, Index)}
    found = []
    for name, (least, greatest) in dynamic.items():
        own = PREFIX + name
        while own in taken:
            own += "_"
        found.append(Dynamic(name, own, least, greatest))
    known = {name: value for name, value in sizes.items() if name not in dynamic}
    return _Generalisation(definition, known, scalars, tuple(found)).run()


def refusal(definition: Def, size: str, why: str) -> ShapeError:
    """The error for a size that cannot be dynamic."""
    others = [name for name in definition.sizes if name not in definition.specialised]
    return ShapeError(
        f"the size {size} of {definition.name}() cannot be dynamic: {why}",
        hint=f"dynamic={others} without what is refused, or none: a kernel is then compiled for every value",
    )


class _Generalisation:
    def __init__(self, definition: Def, sizes: Mapping[str, int], scalars: Mapping[str, int], dynamic: tuple[Dynamic, ...]) -> None:
        names = {d.size: d.name for d in dynamic}
        self.original = definition
        self.definition = _renamed(definition, names)
        self.dynamic = dynamic
        self.sizes = sizes
        self.scalars = {p.name: scalars[p.name] for p in definition.params if not p.dims and p.name in definition.specialised}
        self.values = {**sizes, **self.scalars}
        self.isl = Isl()
        self.parameters = f"[{', '.join(d.name for d in dynamic)}] -> "
        self.context = tuple(f"{d.least} <= {d.name} <= {d.greatest}" for d in dynamic)
        self.extents: dict[str, tuple[Value, ...]] = {}
        for tensor in self.definition.tensors:
            if tensor.role == "input":
                self.extents[tensor.name] = tuple(self._known(extent) for extent in tensor.shape)

    def run(self) -> Program:
        analysed = [self._statement(statement) for statement in self.definition.statements]
        found = [[(ranges[index].lower, ranges[index].upper) for index in analysis.indices] for analysis, ranges in analysed]
        try:
            total = self._restrict(analysed)
        except OutOfBudget:
            raise self._refusal("for which of its values the def is legal could not be decided") from None
        shapes = {t.name: self.extents[t.name] for t in self.definition.tensors}
        return Program(
            self.definition,
            tuple(self.sizes.items()),
            tuple(self.scalars.items()),
            tuple((name, tuple(self._limits(extent)[1] for extent in extents)) for name, extents in shapes.items()),
            tuple(tuple((self._limits(low)[0], self._limits(high)[1]) for low, high in box) for box in found),
            self.dynamic,
            tuple((name, tuple(map(_open, extents))) for name, extents in shapes.items()),
            tuple(tuple(_pair(low, high) for low, high in box) for box in found),
            self.context,
            total and self._fits(found),
        )

    def _restrict(self, statements: list[tuple[Analysis, dict[str, Interval]]]) -> bool:
        """Leave out of the context the sizes for which a range is negative or an access leaves its tensor; whether there are none.

        The boxes of the program are then as tight as can be: isl would take a loop that the context makes idle out of its place.
        """
        illegal = []
        for analysis, ranges in statements:
            ends = {index: (self._text(ranges[index].lower), self._text(ranges[index].upper)) for index in analysis.indices}
            illegal += [f": {high} < {low}" for low, high in ends.values()]
            shape = self.extents[analysis.statement.tensor]
            illegal += [f": {self._text(shape[position])} < 1" for position in analysis.statement.targets]  # terms need elements
            for subscript in analysis.subscripts:
                target = affine(subscript.expr, self.values)
                if subscript.value is None or target is None:
                    continue  # tested at run time
                without_terms = subscript.role == "write"  # a result is written where it has none
                indices = [i for i in analysis.indices if not (without_terms and i in analysis.statement.reduction)]
                where = [f"{ends[i][0]} <= {isl_name(i)} < {ends[i][1]}" for i in indices]
                for guard, holds in subscript.guards:
                    if (known := condition(guard, self.values)) is not None:
                        where.append(known if holds else f"not ({known})")
                where.append(f"not (0 <= {target} < {self._text(self.extents[subscript.tensor][subscript.position])})")
                illegal.append(f"[{', '.join(map(isl_name, indices))}] : {' and '.join(where)}")
        sizes = self._set(": " + " and ".join(self.context))
        legal = sizes
        for one in dict.fromkeys(illegal):
            legal = self.isl.answer(partial(self._without, legal, one))
        if legal.is_empty():
            raise self._refusal("the def is legal for none of its values")
        if legal.is_equal(sizes):
            return True
        # `[B] -> {  : ... }`: what stands between colon and brace
        self.context = (f"({str(legal).partition(':')[2].rpartition('}')[0].strip()})",)
        return False

    def _fits(self, domains: list[list[tuple[Value, Value]]]) -> bool:
        """Whether no size or index is too large for a value, and nothing else depends on the sizes of a call."""
        ends = [self._limits(value) for box in domains for pair in box for value in pair] + [(d.least, d.greatest) for d in self.dynamic]
        return not self.definition.agreements and all(INT32[0] <= least and greatest <= INT32[1] for least, greatest in ends)

    def _without(self, sizes: Any, illegal: str) -> Any:
        return sizes.subtract(self._set(illegal).params()).coalesce()

    def _set(self, body: str) -> Any:
        return self.isl.set(f"{self.parameters}{{ {body} }}")

    def _text(self, value: Value) -> str:
        written = text(value)
        if written is None:
            raise self._refusal(f"{printer.extent(polynomial.expression(value)).replace(PREFIX, '')} is not linear in it")
        return written

    def _known(self, extent: Expr) -> Value:
        value = polynomial.integer(extent, self.values)
        assert value is not None  # extents are built from sizes, scalars and numbers
        return value

    def _statement(self, statement: Statement) -> tuple[Analysis, dict[str, Interval]]:
        analysis = analyse(statement, self.extents)
        ranges = solve(analysis, self.extents, self.values)
        for index in analysis.indices:
            if ranges[index].assumed:
                raise self._refusal(f"the range of `{index}` depends on a sign that only the sizes of a call tell")
        if statement.tensor not in self.extents:
            self._define(analysis, ranges)
        return analysis, ranges

    def _define(self, analysis: Analysis, ranges: Ranges) -> None:
        extents = []
        for position, (least, extent, assumed) in enumerate(reached(analysis, ranges, self.values)):
            if least != 0 or assumed:
                what = f"dimension {position} of `{analysis.statement.tensor}` does not start at 0 for all of them"
                raise self._refusal(what)
            extents.append(extent)
        name = analysis.statement.tensor
        self.extents[name] = tuple(extents)
        fixed = [extent for extent in extents if isinstance(extent, int)]  # what depends on the call is checked there
        refuse_beyond(f"`{name}`", fixed, self.definition.tensor(name).dtype, self.sizes)

    def _limits(self, value: Value) -> tuple[int, int]:
        """The least and greatest value over all dynamic sizes."""
        if isinstance(value, int):
            return value, value
        written = self._text(value)
        names = ", ".join(d.name for d in self.dynamic)
        try:
            return ends(self.isl.answer(lambda: self.isl.map(f"{{ [{names}] -> [({written})] : {' and '.join(self.context)} }}").range()))
        except OutOfBudget:
            raise self._refusal(f"the values of {written} could not be decided") from None

    def _refusal(self, why: str) -> ShapeError:
        return refusal(self.original, ", ".join(d.size for d in self.dynamic), why)


def _open(value: Value) -> Expr | None:
    """An extent that depends on the call, None for a number."""
    return None if isinstance(value, int) else polynomial.expression(value)


def _pair(lower: Value, upper: Value) -> tuple[Expr, Expr] | None:
    if isinstance(lower, int) and isinstance(upper, int):
        return None
    return polynomial.expression(lower), polynomial.expression(upper)


# ---------------------------------------------------------------- dynamic sizes by their own names


def _renamed(definition: Def, names: Mapping[str, str]) -> Def:
    def visit(expr: Expr) -> Expr:
        if isinstance(expr, Size) and expr.name in names:
            return replace(expr, name=names[expr.name])
        return rebuild(expr, visit)

    statements = tuple(_renamed_statement(statement, visit) for statement in definition.statements)
    tensors = tuple(replace(t, shape=tuple(map(visit, t.shape))) for t in definition.tensors)
    return replace(definition, statements=statements, tensors=tensors)


def _renamed_statement(s: Statement, visit: Callable[[Expr], Expr]) -> Statement:
    def clause(c: RangeClause) -> RangeClause:
        return replace(c, lower=visit(c.lower), upper=visit(c.upper))

    return replace(
        s,
        subscripts=tuple(map(visit, s.subscripts)),
        value=visit(s.value),
        clauses=tuple(map(clause, s.clauses)),
        exists=tuple(map(visit, s.exists)),
        extents=tuple(extent and visit(extent) for extent in s.extents),
        domain=tuple(replace(r, lower=visit(r.lower), upper=visit(r.upper)) for r in s.domain),
    )
