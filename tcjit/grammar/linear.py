"""Integer expressions in a normal form: sums of integer multiples of variables, of quotients and remainders, of minima and maxima.

The normal form makes the questions of a code generator one-liners: by how much does an address move along a loop, is a trip count constant,
what remains after unrolling. Intervals of the variables decide more of the divisions and extremes. Sizes that are not numbers, and
products of them, are for `polynomial`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from math import gcd

from tcjit.dataclass import dataclass
from tcjit.grammar.ast import Binary, Call, Const, Expr, Size

# the functions of the generated code
HELPERS = {"floor": "tc_fdiv", "mod": "tc_mod", "min": "tc_min_index", "max": "tc_max_index"}

Limits = tuple[int, int]  # least and greatest value
Ranges = Mapping[str, Limits]  # of variables, where both are constants
NO_RANGES: Ranges = {}


class BoundedVariable(str):
    """A variable's name, or the text of any other integer, with the limits of its values; variables of one name are equal."""

    limits: Limits

    def __new__(cls, name: str, least: int, greatest: int) -> BoundedVariable:
        variable = super().__new__(cls, name)
        variable.limits = least, greatest
        return variable


@dataclass(frozen=True)
class Opaque:
    """``floor`` (args: expression, positive divisor), ``mod`` (the same), ``min`` or ``max`` of expressions."""

    op: str
    args: tuple[Linear, ...]

    @property
    def text(self) -> str:
        inner = [a.text for a in self.args]
        result = inner[0]
        for other in inner[1:]:
            result = f"{HELPERS[self.op]}({result}, {other})"
        return result

    def __str__(self) -> str:
        if self.op in ("min", "max"):
            return f"{self.op}({', '.join(map(str, self.args))})"
        left, right = (text if text.isidentifier() or text.isdigit() else f"({text})" for text in map(str, self.args))
        return f"({left}{'/' if self.op == 'floor' else '%'}{right})"

    def expression(self) -> Expr:
        """The same as an expression over sizes."""
        args = tuple(argument.expression() for argument in self.args)
        if self.op in ("floor", "mod"):
            return Binary("/" if self.op == "floor" else "%", *args, dtype="int64")
        return Call(self.op, args, dtype="int64")


Term = tuple[str | Opaque, int]  # an atom, a variable or an Opaque, and its coefficient


@dataclass(frozen=True)
class Linear:
    """``sum(coefficient * atom) + constant``; ``str`` of it is in the notation of the language.

    >>> i, j = Linear.of("i"), Linear.of("j")
    >>> print(i.times(4) + j - 1, (i.times(4) + j) // 4, (i.times(4) + j) % 4)
    4*i+j-1 i+(j/4) (j%4)
    """

    terms: tuple[Term, ...]
    constant: int = 0

    @staticmethod
    def of(value: int | str | Opaque) -> Linear:
        return Linear((), value) if isinstance(value, int) else Linear(((value, 1),))

    def __add__(self, other: Linear | int) -> Linear:
        if isinstance(other, int):
            return Linear(self.terms, self.constant + other)
        if not self.terms or not other.terms:
            return Linear(self.terms or other.terms, self.constant + other.constant)
        total = dict(self.terms)
        divides = False
        for atom, coefficient in other.terms:
            total[atom] = total.get(atom, 0) + coefficient
            divides = divides or isinstance(atom, Opaque)
        result = Linear(tuple((a, c) for a, c in total.items() if c), self.constant + other.constant)
        return _without_remainder(result) if divides else result

    def __sub__(self, other: Linear | int) -> Linear:
        return self + (-other if isinstance(other, int) else other.times(-1))

    def __floordiv__(self, divisor: int) -> Linear:
        return combine("floor", (self, Linear.of(divisor)))

    def __mod__(self, divisor: int) -> Linear:
        return combine("mod", (self, Linear.of(divisor)))

    def times(self, factor: int) -> Linear:
        if factor in (0, 1):
            return self if factor else Linear(())
        return Linear(tuple((a, c * factor) for a, c in self.terms), self.constant * factor)

    @property
    def is_constant(self) -> bool:
        return not self.terms

    def coefficient(self, variable: str) -> int | None:
        """How far the value moves when the variable moves by one; None when that is not fixed."""
        result = 0
        for atom, coefficient in self.terms:
            if atom == variable:
                result += coefficient
            elif isinstance(atom, Opaque) and variable in Linear.of(atom).variables:
                return None
        return result

    @cached_property
    def variables(self) -> frozenset[str]:
        found: set[str] = set()
        for atom, _ in self.terms:
            if isinstance(atom, str):
                found.add(atom)
            else:
                for argument in atom.args:
                    found |= argument.variables
        return frozenset(found)

    @cached_property
    def operators(self) -> frozenset[str]:
        """Those of the opaque atoms, nested ones included."""
        opaque = [atom for atom, _ in self.terms if isinstance(atom, Opaque)]
        return frozenset(atom.op for atom in opaque).union(*(argument.operators for atom in opaque for argument in atom.args))

    def substitute(self, values: Mapping[str, Linear], ranges: Ranges = NO_RANGES) -> Linear:
        """With variables replaced, and simplified by the ranges of those that stay."""
        if all(isinstance(atom, str) and atom not in values for atom, _ in self.terms):
            return self
        result = Linear((), self.constant)
        for atom, coefficient in self.terms:
            if isinstance(atom, str):
                replacement = values[atom] if atom in values else Linear.of(atom)
            else:
                replacement = combine(atom.op, tuple(a.substitute(values, ranges) for a in atom.args), ranges)
            result = result + replacement.times(coefficient)
        return result

    @cached_property
    def text(self) -> str:
        """C text, unparenthesised."""
        return self.written(lambda atom: atom if isinstance(atom, str) else atom.text)

    def __str__(self) -> str:
        return self.written(str, space="")

    def written(self, operand: Callable[[str | Opaque], str], space: str = " ") -> str:
        """The text of the sum, unparenthesised, given that of its atoms; ``space`` stands around operators."""
        parts: list[str] = []
        for atom, coefficient in self.terms:
            name = operand(atom)
            size = abs(coefficient)
            factor = name if size == 1 else f"{size}{space}*{space}{name}"
            sign = ("-" if not parts else f"{space}-{space}") if coefficient < 0 else ("" if not parts else f"{space}+{space}")
            parts.append(sign + factor)
        if self.constant or not parts:
            sign = ("-" if not parts else f"{space}-{space}") if self.constant < 0 else ("" if not parts else f"{space}+{space}")
            parts.append(f"{sign}{abs(self.constant)}")
        return "".join(parts)

    def expression(self) -> Expr:
        """The same as an expression over sizes."""
        total: Expr = Const(self.constant, dtype="int64")
        for atom, coefficient in self.terms:
            value: Expr = Size(atom, dtype="int64") if isinstance(atom, str) else atom.expression()
            term = Binary("*", Const(coefficient, dtype="int64"), value, dtype="int64")
            total = Binary("+", total, term, dtype="int64")
        return total

    @property
    def is_operand(self) -> bool:
        """Whether the text can stand as an operand without parentheses."""
        return (len(self.terms) == 1 and not self.constant and self.terms[0][1] == 1) or (not self.terms and self.constant >= 0)


# ---------------------------------------------------------------- intervals


def limits(value: Linear, ranges: Ranges = NO_RANGES) -> Limits | None:
    """Least and greatest value of an expression; None where a variable has no range.

    >>> limits(Linear.of("i").times(3) - Linear.of("j"), {"i": (0, 7), "j": (1, 4)})
    (-4, 20)
    """
    least = greatest = value.constant
    for atom, coefficient in value.terms:
        if isinstance(atom, Opaque):
            found = _opaque_limits(atom, ranges)
        else:
            found = atom.limits if isinstance(atom, BoundedVariable) else ranges.get(atom)
        if found is None:
            return None
        ends = (coefficient * found[0], coefficient * found[1])
        least += min(ends)
        greatest += max(ends)
    return least, greatest


def _opaque_limits(atom: Opaque, ranges: Ranges) -> Limits | None:
    found = [limits(argument, ranges) for argument in atom.args]
    if atom.op in ("min", "max"):
        known = [each for each in found if each is not None]
        choose = min if atom.op == "min" else max
        return (choose(low for low, _ in known), choose(high for _, high in known)) if len(known) == len(found) else None
    value, divisor = found[0], atom.args[1].constant
    if not atom.args[1].is_constant or divisor <= 0:
        return None
    if atom.op == "floor":
        return None if value is None else (value[0] // divisor, value[1] // divisor)
    if value is not None and value[0] // divisor == value[1] // divisor:
        return value[0] % divisor, value[1] % divisor
    return 0, divisor - 1


def simplified(value: Linear, ranges: Ranges) -> Linear:
    """The same value: divisions, remainders, minima and maxima that the ranges decide are gone."""
    return value.substitute({}, ranges)


# ---------------------------------------------------------------- divisions and extremes


def combine(op: str, args: tuple[Linear, ...], ranges: Ranges = NO_RANGES) -> Linear:
    """floor, mod, min or max of expressions, simplified; a variable in ``ranges`` has no other values."""
    if op in ("min", "max"):
        return _extreme(op, args, ranges)
    value, divisor = args
    if not divisor.is_constant or divisor.constant <= 0:
        return Linear.of(Opaque(op, args))
    return (_quotient if op == "floor" else _remainder)(value, divisor.constant, ranges)


def _extreme(op: str, args: Iterable[Linear], ranges: Ranges) -> Linear:
    sign = 1 if op == "min" else -1
    kept: list[Linear] = []
    for candidate in args:
        if not any(_never_beyond(other, candidate, sign, ranges) for other in kept):
            kept = [*(other for other in kept if not _never_beyond(candidate, other, sign, ranges)), candidate]
    others = [a for a in kept if not a.is_constant]
    others += [a for a in kept if a.is_constant]  # one at most: two can be compared
    return others[0] if len(others) == 1 else Linear.of(Opaque(op, tuple(others)))


def _never_beyond(one: Linear, other: Linear, sign: int, ranges: Ranges) -> bool:
    """Whether ``sign * one <= sign * other`` always."""
    found = limits((other - one).times(sign), ranges)
    return found is not None and found[0] >= 0


def _quotient(value: Linear, by: int, ranges: Ranges) -> Linear:
    whole, rest = _split(value, by)
    found = limits(rest, ranges)
    if found is not None and found[0] // by == found[1] // by:
        return whole + found[0] // by
    step, coarse, _ = _steps(rest, by, ranges)
    if step > 1:
        return whole + _quotient(coarse, by // step, ranges)
    if (inner := _single(rest, "floor")) is not None:  # floor((floor(x/n) + r) / d) = floor((x + r n) / (n d))
        base, n = inner
        return whole + _quotient(base + rest.constant * n, n * by, ranges)
    return whole + Linear.of(Opaque("floor", (rest, Linear.of(by))))


def _remainder(value: Linear, by: int, ranges: Ranges) -> Linear:
    _, rest = _split(value, by)
    found = limits(rest, ranges)
    if found is not None and found[0] // by == found[1] // by:
        return rest - found[0] // by * by
    step, coarse, fine = _steps(rest, by, ranges)
    if step > 1:
        return _remainder(coarse, by // step, ranges).times(step) + fine
    if (inner := _single(rest, "mod")) is not None and not inner[1] % by:  # (x mod n d + r) mod d = (x + r) mod d
        return _remainder(inner[0] + rest.constant, by, ranges)
    return Linear.of(Opaque("mod", (rest, Linear.of(by))))


def _split(value: Linear, by: int) -> tuple[Linear, Linear]:
    """``whole`` and ``rest`` with value = by whole + rest; the rest's constant is in ``0:by``, no coefficient is a multiple of ``by``."""
    whole = tuple((atom, c // by) for atom, c in value.terms if not c % by)
    rest = tuple((atom, c) for atom, c in value.terms if c % by)
    return Linear(whole, value.constant // by), Linear(rest, value.constant % by)


def _steps(value: Linear, by: int, ranges: Ranges) -> tuple[int, Linear, Linear]:
    """The greatest divisor of ``by`` in whose steps the value moves but for something less than a step: value = step coarse + fine."""
    for step in sorted({gcd(by, c) for _, c in value.terms} - {1}, reverse=True):
        coarse, fine = _split(value, step)
        found = limits(fine, ranges)
        if found is not None and 0 <= found[0] and found[1] < step:
            return step, coarse, fine
    return 1, value, Linear(())


def _single(value: Linear, op: str) -> tuple[Linear, int] | None:
    """The operand and the divisor where a value is one quotient (or remainder) and a constant."""
    if len(value.terms) != 1 or value.terms[0][1] != 1:
        return None
    atom = value.terms[0][0]
    if not isinstance(atom, Opaque) or atom.op != op or not atom.args[1].is_constant:
        return None
    return atom.args[0], atom.args[1].constant


def _without_remainder(value: Linear) -> Linear:
    """``n floor(x/n) + x mod n`` is ``x``."""
    coefficients = dict(value.terms)
    for atom, coefficient in value.terms:
        if not isinstance(atom, Opaque) or atom.op != "mod" or not atom.args[1].is_constant:
            continue
        quotient = Opaque("floor", atom.args)
        if coefficients.get(quotient, 0) == coefficient * atom.args[1].constant:
            rest = tuple(term for term in value.terms if term[0] not in (atom, quotient))
            return Linear(rest, value.constant) + atom.args[0].times(coefficient)
    return value
