"""Solve ``f(i) = x`` for the indices ``i``, over polynomials with symbolic coefficients: the algebra of `invert`.

1. A division ``A / c`` becomes ``q`` with ``A = c*q + t`` and ``t in 0:c``, and ``A / (b*c)`` is ``(A / b) / c``. Where a condition says
   ``A % c == 0``, ``t`` is 0.
2. Equations are solved one by one, the cheapest first: for the only index, with coefficient 1 or -1; for a digit; for the only index
   with another coefficient ``c``, which gives ``v = R / c`` and the guard ``R % c == 0``; for any, quotients first, then the index with
   the most values, as far as hints say how many these are, or left indices before reduction indices. Other equations are multiplied by
   ``c`` first: no fraction appears.
3. A digit is ``t in 0:m`` with coefficient 1 where ``m`` divides every other coefficient: ``t = R % m``, and ``R / m`` is left.
4. A residue is ``v in 0:m`` with coefficient 1 beside a quotient with coefficient ``m``, both in no other equation: ``v = R % m``, where
   ``R`` may have more indices, which stay. ``(i - j) % m == x`` is ``i == (j + x) % m``.
5. What remains of an equation without indices is a guard, and so are the bounds of every index that was solved for.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping

from tcjit.dataclass import dataclass
from tcjit.grammar import polynomial
from tcjit.grammar.affine import linear_form
from tcjit.grammar.ast import Binary, Expr, Index, Scalar, Size
from tcjit.grammar.differentiate.simplify import FALSE, compare, index, integer_of
from tcjit.grammar.differentiate.size_hints import SizeHints, order
from tcjit.grammar.polynomial import NOTHING, Polynomial, Value, divide, from_terms, names, number
from tcjit.grammar.walk import with_indices

Interval = tuple[Value, Value]  # lower, upper
_Cost = tuple[tuple[int, bool], Value | None, tuple[bool, bool, int]]  # of a step: its kind, the extent of its index, what decides then
_Step = tuple[_Cost, int, str, Value, bool]  # with its equation, its index and that one's coefficient, whether it takes a digit


class NotSolved(Exception):
    """The equations have no solution of this form."""


@dataclass(frozen=True)
class Solution:
    """``values`` are those of the indices solved for, over the right sides and the indices of ``kept``, where ``guards`` hold."""

    values: Mapping[str, Value]
    kept: Mapping[str, Interval]
    guards: tuple[Expr, ...]


def eliminate(
    equations: Iterable[tuple[Value, Value]],
    ranges: Mapping[str, Interval],
    left: Iterable[str],
    exact: Iterable[Binary],
    size_hints: SizeHints | None = None,
) -> Solution:
    """Solve ``left == right`` for the indices of ``ranges``; ``exact`` are remainders ``A % c`` known to be 0.

    Names of new indices end in ``'``, which no text has. Raises NotSolved.
    """
    system = _System(ranges, frozenset(left), tuple(exact), size_hints or SizeHints())
    system.equations = [system.without_divisions(one) - other for one, other in equations]
    system.equations = [system.current(equation) for equation in (*system.equations, *system.divisions)]
    system.solve()
    return system.solution()


class _System:
    def __init__(self, ranges: Mapping[str, Interval], left: frozenset[str], exact: tuple[Binary, ...], size_hints: SizeHints) -> None:
        self.size_hints = size_hints
        self.unknown: dict[str, Interval | None] = dict(ranges)  # None for a quotient, which has no range of its own
        self.left = left
        self.exact = exact
        self.equations: list[Value] = []  # each is 0
        self.divisions: list[Value] = []  # likewise
        self.values: dict[str, Value] = {}
        self.guards: list[Expr] = []
        self.bounds: list[tuple[Value, Value, Value]] = []  # lower <= value < upper
        self.known: dict[Binary, Value] = {}  # what divisions are
        self.quotients: dict[tuple[Value, Value], Value] = {}
        self.hulls: dict[str, Interval] = {}  # what a quotient's numerator says of it; a guard on that numerator stands beside it
        self.count = 0

    # ------------------------------------------------------------ divisions

    def without_divisions(self, value: Value) -> Value:
        """``value`` with a new index for each division of an index."""
        if isinstance(value, int):
            return value
        result: Value = 0
        for monomial, c in value.terms.items():
            product: Value = c
            for factor in monomial:
                if isinstance(factor, Binary) and names(factor):
                    if factor not in self.known:
                        numerator, divisor = integer_of(factor.left), integer_of(factor.right)
                        self.known[factor] = self._quotient(self.without_divisions(numerator), divisor)
                    product = product * self.current(self.known[factor])
                else:
                    product = product * polynomial.atom(factor)
            result = result + product
        return self.current(result)

    def current(self, value: Value) -> Value:
        """``value`` with what is known of the indices in it."""
        found = {name: polynomial.expression(self.values[name]) for name in names_in(value) if name in self.values}
        return integer_of(with_indices(polynomial.expression(value), found)) if found else value

    def _quotient(self, numerator: Value, divisor: Value) -> Value:
        value = divide(self.current(numerator), divisor)
        division = _division(value)
        if division is None:
            return value
        return value - polynomial.atom(division) + self._split(integer_of(division.left), integer_of(division.right))

    def _split(self, numerator: Value, divisor: Value) -> Value:
        """The quotient of what is not divisible."""
        form = linear_form(numerator)
        if form is None:
            raise NotSolved
        for name, coefficient in form[0].items():
            interval = self.unknown.get(name) or self.hulls.get(name)
            if coefficient != 1 or interval is None or interval[0] != 0:
                continue
            limit, rest = interval[1], numerator - polynomial.atom(index(name))
            if rest == 0 and (limit == divisor or (isinstance(limit, int) and isinstance(divisor, int) and limit <= divisor)):
                return 0
            if rest != 0 and limit != 1 and divides(limit, divisor) and divides(limit, rest):
                return self._quotient(divide(rest, limit), divide(divisor, limit))
        parts = _factors(divisor)
        if len(parts) > 1:
            for part in parts:
                numerator = self._quotient(numerator, part)
            return numerator
        if (numerator, divisor) not in self.quotients:
            quotient = self._new("q", None)
            self.quotients[numerator, divisor] = polynomial.atom(index(quotient))
            whole = self.quotients[numerator, divisor] * divisor
            if not self._is_exact(numerator, divisor):
                whole = whole + polynomial.atom(index(self._new("t", (0, divisor))))
            name = next(iter(form[0]))
            if numerator == polynomial.atom(index(name)) and name in self.unknown:
                if (interval := self.unknown[name]) is not None:
                    self.hulls[quotient] = divide(interval[0], divisor), -divide(-interval[1], divisor)
                self._define(name, whole)
            else:
                self.divisions.append(numerator - whole)
        return self.quotients[numerator, divisor]

    def _is_exact(self, numerator: Value, divisor: Value) -> bool:
        for remainder in self.exact:
            whole = polynomial.integer(remainder.left)
            if whole is None or _division(whole) is not None:
                continue
            division = _division(divide(self.current(whole), integer_of(remainder.right)))
            if division is not None and (integer_of(division.left), integer_of(division.right)) == (numerator, divisor):
                return True
        return False

    def _new(self, kind: str, interval: Interval | None) -> str:
        """The name of a new index."""
        name = f"{kind}{self.count}'"
        self.count += 1
        self.unknown[name] = interval
        return name

    # ------------------------------------------------------------ elimination

    def solve(self) -> None:
        self._use_divisions()
        while (step := self._cheapest()) is not None:
            cost, position, name, coefficient, is_digit = step
            residue = self._residue() if cost[0][0] > 1 else None
            if residue is not None:
                self._take_residue(*residue)
            else:
                (self._take_digit if is_digit else self._eliminate)(position, name, coefficient)

    def _use_divisions(self) -> None:
        """Replace ``A - c*q`` by ``t`` in the other equations, for each division of ``A``."""
        for division in self.divisions:
            for name in names_in(division):
                factor = _coefficient_of(division, name)
                if self.unknown.get(name, 0) is not None or factor == 0:
                    continue  # no quotient
                for place, other in enumerate(self.equations):
                    own = _coefficient_of(other, name)
                    if own != 0 and other != division and divides(factor, own):
                        self.equations[place] = other - divide(own, factor) * division

    def _residue(self) -> tuple[int, str, str] | None:
        """An equation, the index that is a residue in it, and the quotient beside that."""
        for position, equation in enumerate(self.equations):
            coefficients = self._coefficients(equation)
            others = [other for place, other in enumerate(self.equations) if place != position]
            own = [name for name in coefficients if all(_coefficient_of(other, name) == 0 for other in others)]
            for quotient in (name for name in own if self.unknown[name] is None and name not in self.hulls):
                modulus = coefficients[quotient]
                for name in sorted(own, key=lambda name: name not in self.left):
                    interval = self.unknown[name]
                    if coefficients[name] in (1, -1) and interval is not None and interval[0] == 0 and interval[1] in (modulus, -modulus):
                        return position, name, quotient
        return None

    def _cheapest(self) -> _Step | None:
        """The next step."""
        best: _Step | None = None
        for position, equation in enumerate(self.equations):
            coefficients = self._coefficients(equation)
            for name, coefficient in coefficients.items():
                unit, alone = coefficient in (1, -1), len(coefficients) == 1
                digit = unit and not alone and self._is_digit(name, coefficients)
                kind = (0 if unit else 2) if alone else 1 if digit else 3
                ranged = self.unknown[name] is not None or name in self.hulls
                cost = (kind, ranged), self._extent(name), (name not in self.left, not unit, position)
                if best is None or self._is_less(cost, best[0]):
                    best = cost, position, name, coefficient, digit
        return best

    def _is_less(self, one: _Cost, other: _Cost) -> bool:
        """What stays is summed over: the short ones, and rather numbers than sizes that no hint is given for."""
        if one[0] != other[0]:
            return one[0] < other[0]
        is_choice = one[0][0] == 3  # elsewhere nothing stays, whatever comes first
        longer = self.size_hints.order(one[1], other[1]) if is_choice else order(one[1], other[1], NOTHING)
        return longer > 0 if longer else one[2] < other[2]

    def _extent(self, name: str) -> Value | None:
        """The number of values of an index, where that is known."""
        interval = self.unknown[name] or self.hulls.get(name)
        return None if interval is None else interval[1] - interval[0]

    def _coefficients(self, equation: Value) -> dict[str, Value]:
        """Those of the indices that are not solved for. Raises NotSolved where one is not linear."""
        if isinstance(equation, int):
            return {}
        found: dict[str, Value] = {}
        for monomial, c in equation.terms.items():
            inside = [factor for factor in monomial if any(name in self.unknown for name in names(factor))]
            if not inside:
                continue
            if len(inside) > 1 or not isinstance(inside[0], Index):
                raise NotSolved
            others = tuple(factor for factor in monomial if factor is not inside[0])
            found[inside[0].name] = found.get(inside[0].name, 0) + from_terms({others: c})
        return found

    def _is_digit(self, name: str, coefficients: Mapping[str, Value]) -> bool:
        interval = self.unknown[name] or self.hulls.get(name)
        if interval is None or interval[0] != 0 or interval[1] == 1:
            return False
        return all(divides(interval[1], other) for n, other in coefficients.items() if n != name)

    def _take_digit(self, position: int, name: str, coefficient: Value) -> None:
        interval = self.unknown.pop(name) or self.hulls.get(name)
        assert interval is not None  # a digit has a range
        base = interval[1]
        equation = self.equations[position]
        equation = equation if coefficient == 1 else -equation
        others = sum((c * polynomial.atom(index(n)) for n, c in self._coefficients(equation).items()), start=_ZERO)
        right = others + polynomial.atom(index(name)) - equation  # name + others == right
        self.equations[position] = divide(others, base) - divide(right, base)
        self._define(name, right - divide(right, base) * base)

    def _take_residue(self, position: int, name: str, quotient: str) -> None:
        equation = self.equations.pop(position)
        equation = equation if _coefficient_of(equation, name) == 1 else -equation
        factor = _coefficient_of(equation, quotient)
        rest = polynomial.atom(index(name)) + factor * polynomial.atom(index(quotient)) - equation  # name + factor * quotient == rest
        interval = self.unknown.pop(name)
        assert interval is not None  # a residue has a range
        del self.unknown[quotient]
        whole = divide(rest, interval[1])
        self._set(name, rest - whole * interval[1])
        self._set(quotient, whole if factor == interval[1] else -whole)

    def _eliminate(self, position: int, name: str, coefficient: Value) -> None:
        equation = self.equations.pop(position)
        rest = coefficient * polynomial.atom(index(name)) - equation  # coefficient * name == rest
        if isinstance(coefficient, int) and coefficient < 0 or isinstance(coefficient, Polynomial) and max(coefficient.terms.values()) < 0:
            coefficient, rest = -coefficient, -rest
        interval = self.unknown.pop(name)
        if coefficient == 1:
            value = rest
        else:
            remainder = Binary("%", polynomial.expression(rest), polynomial.expression(coefficient), dtype="int64")
            self.guards.append(compare("==", remainder, number(0)))
            value = divide(rest, coefficient)
        for place, other in enumerate(self.equations):
            own = _coefficient_of(other, name)
            if own != 0:
                factor = 1 if divides(coefficient, own) else coefficient
                own = own * factor
                self.equations[place] = other * factor - own * polynomial.atom(index(name)) + divide(own, coefficient) * rest
        if interval is not None:
            if _is_positive(coefficient):
                self.bounds.append((rest, interval[0] * coefficient, interval[1] * coefficient))
            else:
                self.bounds.append((value, *interval))
        self._set(name, value)

    def _define(self, name: str, value: Value) -> None:
        """Replace an index everywhere; one that still has a range keeps it as a bound."""
        interval = self.unknown.pop(name, None)
        if interval is not None:
            self.bounds.append((value, *interval))
        self._set(name, value)
        self.equations = [self.current(equation) for equation in self.equations]
        self.divisions = [self.current(equation) for equation in self.divisions]

    def _set(self, name: str, value: Value) -> None:
        self.values = {n: _replaced(v, name, value) for n, v in self.values.items()}
        self.values[name] = value
        self.bounds = [(_replaced(v, name, value), lower, upper) for v, lower, upper in self.bounds]
        self.guards = [with_indices(guard, {name: polynomial.expression(value)}) for guard in self.guards]

    # ------------------------------------------------------------ the result

    def solution(self) -> Solution:
        guards = list(self.guards)
        for equation in self.equations:
            if isinstance(equation, int):
                guards += [FALSE] if equation else []
            else:
                positive = from_terms({monomial: c for monomial, c in equation.terms.items() if c > 0})
                sides = sorted((positive, positive - equation), key=lambda side: isinstance(side, int))
                guards.append(compare("==", *map(polynomial.expression, sides)))
        for value, lower, upper in self.bounds:
            guards.append(compare(">=", polynomial.expression(value), polynomial.expression(lower)))
            guards.append(compare("<", polynomial.expression(value), polynomial.expression(upper)))
        kept = {}
        for name, interval in self.unknown.items():
            interval = interval or self.hulls.get(name)
            if interval is None:
                raise NotSolved  # a quotient that nothing bounds
            kept[name] = interval
        return Solution(self.values, kept, tuple(guards))


_ZERO: Value = 0


def divides(divisor: Value, value: Value) -> bool:
    """Whether a division leaves nothing, whatever the names in it are."""
    if divisor == 0 or value == 0:
        return value == 0
    quotient = divide(value, divisor)
    return quotient * divisor == value and _division(quotient, every=True) is None


def names_in(value: Value) -> dict[str, None]:
    return {} if isinstance(value, int) else names(value)


def _division(value: Value, every: bool = False) -> Binary | None:
    """The first division of an index in a value, or the first ``every`` one."""
    if isinstance(value, Polynomial):
        for monomial in value.terms:
            for factor in monomial:
                if isinstance(factor, Binary) and (every or names(factor)):
                    return factor
    return None


def _factors(divisor: Value) -> list[Value]:
    if isinstance(divisor, int) or len(divisor.terms) != 1:
        return [divisor]
    ((monomial, c),) = divisor.terms.items()
    symbols: list[Value] = [polynomial.atom(factor) for factor in monomial]
    return [c, *symbols] if c != 1 else symbols


def _is_positive(coefficient: Value) -> bool:
    """Whether a coefficient is at least 1: strides and extents are."""
    if isinstance(coefficient, int):
        return coefficient > 0
    plain = all(isinstance(factor, (Size, Scalar)) for monomial in coefficient.terms for factor in monomial)
    return plain and min(coefficient.terms.values()) > 0


def _coefficient_of(value: Value, name: str) -> Value:
    terms = {} if isinstance(value, int) else value.terms
    result: Value = 0
    for monomial, c in terms.items():
        if any(isinstance(factor, Index) and factor.name == name for factor in monomial):
            others = tuple(factor for factor in monomial if not (isinstance(factor, Index) and factor.name == name))
            result = result + from_terms({others: c})
    return result


def _replaced(value: Value, name: str, replacement: Value) -> Value:
    if name not in names_in(value):
        return value
    return integer_of(with_indices(polynomial.expression(value), {name: polynomial.expression(replacement)}))
