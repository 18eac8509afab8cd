"""Range inference for one statement: which subscripts give which index its interval, in rounds, and what the intervals are.

The rounds follow from the text alone; the intervals are computed symbolically for a def and in plain ints for given sizes, by the
same code.
"""
from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tcjit.dataclass import dataclass
from tcjit.errors import ShapeError, Where
from tcjit.grammar import polynomial
from tcjit.grammar.affine import Guard, LinearForm, guarded_accesses, is_quasi_affine, linear, linear_form
from tcjit.grammar.ast import Access, Binary, Expr, Index, RangeClause, Scalar, Size, Statement
from tcjit.grammar.polynomial import Value, at
from tcjit.grammar.walk import walk

Extents = Mapping[str, tuple[Value, ...]]


@dataclass(frozen=True)
class Subscript:
    """One position of one access; ``value`` is None for a gather, ``linear`` for what is not linear in the indices."""

    access: Access
    position: int
    guards: tuple[Guard, ...]
    role: str  # read write exists
    value: Value | None
    linear: LinearForm | None

    @property
    def tensor(self) -> str:
        return self.access.tensor

    @property
    def expr(self) -> Expr:
        return self.access.subscripts[self.position]

    @property
    def where(self) -> Where | None:
        return self.expr.where or self.access.where

    @property
    def indices(self) -> tuple[str, ...]:
        return tuple(polynomial.names(self.expr) if self.linear is None else self.linear[0])


@dataclass(frozen=True)
class RangeSource:
    """An index and what gives it its interval: all the user's clauses for it, or all the subscripts of one round."""

    index: str
    clauses: tuple[RangeClause, ...] = ()
    subscripts: tuple[Subscript, ...] = ()


@dataclass(frozen=True)
class Interval:
    """``lower <= index < upper``. ``assumed``: the formula takes a scalar to be positive (numbers never need to)."""

    lower: Value
    upper: Value
    step: RangeSource
    assumed: bool = False


Ranges = Mapping[str, Interval]


@dataclass(frozen=True)
class Analysis:
    """What range inference knows of a statement from its text; ``divisors`` are the right sides of / and % in index arithmetic."""

    statement: Statement
    indices: tuple[str, ...]  # of the left side, then the reduction's
    left: tuple[LinearForm | None, ...]  # the subscripts of the element written, None for targets
    subscripts: tuple[Subscript, ...]
    steps: tuple[RangeSource, ...]
    divisors: tuple[Expr, ...]

    @property
    def open(self) -> tuple[str, ...]:
        """The indices that nothing gives a range."""
        solved = {step.index for step in self.steps}
        return tuple(index for index in self.indices if index not in solved)


def analyse(statement: Statement, known: Collection[str]) -> Analysis:
    """``known`` are the tensors whose extents are known before the statement. Raises ZeroDivisor."""
    left = [subscript.name for subscript in statement.subscripts if isinstance(subscript, Index)]
    subscripts = tuple(_collect(statement, known))
    index_arithmetic = [s.expr for s in subscripts] + [end for c in statement.clauses for end in (c.lower, c.upper)]
    index_arithmetic += filter(None, statement.extents)
    divisors = (node.right for expr in index_arithmetic for node in walk(expr) if isinstance(node, Binary) and node.op in "/%")
    indices = tuple(dict.fromkeys((*left, *statement.reduction)))
    written = tuple(map(linear, statement.subscripts))
    return Analysis(statement, indices, written, subscripts, tuple(_rounds(statement, subscripts)), tuple(divisors))


def _collect(statement: Statement, known: Collection[str]) -> Iterator[Subscript]:
    written = Access(statement.tensor, statement.subscripts, dtype=statement.value.dtype, where=statement.where)
    accesses: list[tuple[str, Access, tuple[Guard, ...]]] = [("write", written, ())]
    accesses += [("read", a, g) for subscript in statement.subscripts for a, g in guarded_accesses(subscript)]
    accesses += [("read", a, g) for a, g in guarded_accesses(statement.value)]
    accesses += [("exists", a, g) for expr in statement.exists for a, g in guarded_accesses(expr)]
    for role, access, guards in accesses:
        if access.tensor not in known:
            continue
        for position, expr in enumerate(access.subscripts):
            value = polynomial.integer(expr)
            if value is not None and not is_quasi_affine(value):
                value = None
            yield Subscript(access, position, guards, role, value, None if value is None else linear_form(value))


def _rounds(statement: Statement, subscripts: tuple[Subscript, ...]) -> Iterator[RangeSource]:
    given: dict[str, list[RangeClause]] = {}
    for clause in statement.clauses:
        given.setdefault(clause.index, []).append(clause)
    for index, clauses in given.items():
        yield RangeSource(index, clauses=tuple(clauses))
    candidates = [(s, s.indices) for s in subscripts if s.linear is not None]
    own = {s.indices[0] for s in subscripts if len(s.indices) == 1 and s.indices[0] in statement.reduction}
    solved = set(given)
    while True:
        found: dict[str, list[Subscript]] = {}
        for subscript, indices in candidates:
            unsolved = [index for index in indices if index not in solved]
            if len(unsolved) != 1:
                continue
            # a padded convolution must not shrink to its centre because its output has a range
            if unsolved[0] in own and any(index in given for index in indices):
                continue
            found.setdefault(unsolved[0], []).append(subscript)
        if not found:
            return
        solved.update(found)
        for index, sources in found.items():
            yield RangeSource(index, subscripts=tuple(sources))


def solve(analysis: Analysis, extents: Extents, values: Mapping[str, int]) -> dict[str, Interval]:
    """The intervals of the indices, names in ``values`` replaced by numbers. Raises ShapeError where a coefficient is zero."""
    ranges: dict[str, Interval] = {}
    for step in analysis.steps:
        lower: Value | None = None
        upper: Value = 0
        assumed = False
        for low, high, unsure in _intervals(step, extents, ranges, values):
            lower, upper = (low, high) if lower is None else (polynomial.greatest(lower, low), polynomial.least(upper, high))
            assumed |= unsure
        if lower is None:
            source = step.subscripts[0]
            zero = ", ".join(f"{name} = {values[name]}" for name in _numbers(source.expr) if name in values)
            raise ShapeError(
                f"nothing gives `{step.index}` a range when {zero}",
                where=source.where,
                sizes=values,
                hint=f"a value other than 0, or a range: `where {step.index} in 0:...`",
            )
        ranges[step.index] = Interval(lower, upper, step, assumed)
    return ranges


def _numbers(expr: Expr) -> tuple[str, ...]:
    return (*polynomial.names(expr, Size), *polynomial.names(expr, Scalar))


def _intervals(step: RangeSource, extents: Extents, ranges: Ranges, values: Mapping[str, int]) -> Iterator[tuple[Value, Value, bool]]:
    for clause in step.clauses:
        low, high = polynomial.integer(clause.lower, values), polynomial.integer(clause.upper, values)
        assert low is not None and high is not None  # check admits nothing else
        yield low, high, False
    for subscript in step.subscripts:
        interval = _widest(subscript, step.index, extents[subscript.tensor][subscript.position], ranges, values)
        if interval is not None:
            yield interval


def _widest(
    subscript: Subscript, index: str, extent: Value, ranges: Ranges, values: Mapping[str, int]
) -> tuple[Value, Value, bool] | None:
    """The largest interval of ``index`` with ``0 <= subscript < extent`` whatever the other indices; None where it has no influence."""
    assert subscript.linear is not None  # only linear subscripts take part in rounds
    coefficients, _ = subscript.linear
    coefficient = at(coefficients[index], values)
    if coefficient == 0:
        return None
    least, greatest, assumed = reach(subscript.linear, ranges, values, without=index)
    sign = sign_of(coefficient)
    if sign < 0:
        # 0 <= -d*i + rest < extent is 0 <= d*i + (extent - 1 - rest) < extent
        coefficient, least, greatest = -coefficient, extent - 1 - greatest, extent - 1 - least
    # rounding up is -floor(-x)
    return -(least // coefficient), (extent - 1 - greatest + coefficient) // coefficient, assumed or sign == 0


def reach(linear: LinearForm, ranges: Ranges, values: Mapping[str, int], without: str = "") -> tuple[Value, Value, bool]:
    """The least and greatest value of a linear form over the ranges (if none is empty), and whether a sign was assumed.

    ``without`` leaves one index out.
    """
    coefficients, rest = linear
    least = greatest = at(rest, values)
    assumed = False
    for index, symbolic in coefficients.items():
        if index == without:
            continue
        coefficient, interval = at(symbolic, values), ranges[index]
        low, high = coefficient * interval.lower, coefficient * (interval.upper - 1)
        sign = sign_of(coefficient)
        assumed |= interval.assumed or (sign == 0 and coefficient != 0)
        least, greatest = (least + high, greatest + low) if sign < 0 else (least + low, greatest + high)
    return least, greatest, assumed


def sign_of(value: Value) -> int:
    """1 or -1 where the sign is the same for all sizes >= 1; 0 where it is not known, or the value is 0."""
    if isinstance(value, int):
        return (value > 0) - (value < 0)
    if not all(isinstance(factor, Size) for monomial in value.terms for factor in monomial):
        return 0
    signs = {c > 0 for c in value.terms.values()}
    return 0 if len(signs) > 1 else 1 if signs == {True} else -1
