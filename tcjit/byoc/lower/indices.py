"""Index expressions: sums of index variables with integer factors, under division and remainder by numbers.

Views become arithmetic on subscripts; what is kept simple here are splits and merges of dimensions, so that a view of a view reads like
an access that somebody wrote. Every expression knows the interval of its values.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import TypeAlias


@dataclass(frozen=True)
class Variable:
    """An index, or the text of anything else, an access for one, whose value is ``low <= value <= high``."""

    name: str
    low: int
    high: int


@dataclass(frozen=True)
class Quotient:
    base: IndexSum
    by: int


@dataclass(frozen=True)
class Remainder:
    base: IndexSum
    by: int


Atom: TypeAlias = "Variable | Quotient | Remainder"


@dataclass(frozen=True)
class IndexSum:
    """``constant`` plus factors times atoms, whose intervals are known."""

    terms: tuple[tuple[Atom, int], ...]
    constant: int

    @property
    def low(self) -> int:
        return self.constant + sum(min(factor * bound for bound in _bounds(atom)) for atom, factor in self.terms)

    @property
    def high(self) -> int:
        return self.constant + sum(max(factor * bound for bound in _bounds(atom)) for atom, factor in self.terms)

    def __str__(self) -> str:
        parts: list[str] = []
        for atom, factor in self.terms:
            parts.append(("-" if factor < 0 else "+") + (f"{abs(factor)}*" if abs(factor) != 1 else "") + _text(atom))
        if self.constant or not parts:
            parts.append(f"{self.constant:+d}")
        text = "".join(parts)
        return text.removeprefix("+")


def number(value: int) -> IndexSum:
    return IndexSum((), value)


def variable(name: str, extent: int) -> IndexSum:
    """The index ``name`` in ``0:extent``; where that leaves one value, the value."""
    return number(0) if extent == 1 else IndexSum(((Variable(name, 0, extent - 1), 1),), 0)


def opaque(text: str, low: int, high: int) -> IndexSum:
    """An integer expression of any kind."""
    return IndexSum(((Variable(f"({text})", low, high), 1),), 0)


def add(left: IndexSum, right: IndexSum | int) -> IndexSum:
    """
    >>> print(add(variable("i", 4), 3), add(variable("i", 4), variable("i", 4)))
    i+3 2*i
    """
    if isinstance(right, int):
        return IndexSum(left.terms, left.constant + right)
    terms: dict[Atom, int] = dict(left.terms)
    for atom, factor in right.terms:
        terms[atom] = terms.get(atom, 0) + factor
    constant = left.constant + right.constant
    for atom, factor in list(terms.items()):
        # n (x / n) + x % n = x
        if isinstance(atom, Remainder) and factor and terms.get(other := Quotient(atom.base, atom.by), 0) == factor * atom.by:
            del terms[atom], terms[other]
            rest = scale(atom.base, factor)
            return add(IndexSum(_kept(terms), constant), rest)
    return IndexSum(_kept(terms), constant)


def scale(base: IndexSum, factor: int) -> IndexSum:
    return IndexSum(tuple((atom, f * factor) for atom, f in base.terms) if factor else (), base.constant * factor)


def divide(base: IndexSum, by: int) -> IndexSum:
    """The quotient rounded down.

    >>> h, d = variable("h", 3), variable("d", 4)
    >>> print(divide(add(scale(h, 4), d), 4), divide(add(h, d), 4))
    h ((h+d)/4)
    """
    if by == 1:
        return base
    whole, rest = _split(base, by)
    if 0 <= rest.low and rest.high < by:
        return whole
    if not rest.terms:
        return add(whole, rest.constant // by)
    step, coarse, _ = _steps(rest, by)
    if step > 1:
        return add(whole, divide(coarse, by // step))
    if len(rest.terms) == 1 and rest.terms[0][1] == 1 and isinstance(inner := rest.terms[0][0], Quotient):
        return add(whole, divide(add(inner.base, rest.constant * inner.by), inner.by * by))
    return add(whole, IndexSum(((Quotient(rest, by), 1),), 0))


def modulo(base: IndexSum, by: int) -> IndexSum:
    """The remainder that goes with ``divide``, never negative."""
    if by == 1:
        return number(0)
    _, rest = _split(base, by)
    if 0 <= rest.low and rest.high < by:
        return rest
    if not rest.terms:
        return number(rest.constant % by)
    step, coarse, fine = _steps(rest, by)
    if step > 1:
        return add(scale(modulo(coarse, by // step), step), fine)
    if len(rest.terms) == 1 and rest.terms[0][1] == 1 and isinstance(inner := rest.terms[0][0], Remainder) and not inner.by % by:
        return modulo(add(inner.base, rest.constant), by)
    return IndexSum(((Remainder(rest, by), 1),), 0)


def reshaped(subscripts: Sequence[IndexSum], shape: Sequence[int], source: Sequence[int]) -> list[IndexSum]:
    """Where in a tensor of shape ``source`` an element of its view of shape ``shape`` stands.

    >>> print(*reshaped([variable("i", 2), variable("j", 12)], (2, 12), (2, 3, 4)))
    i (j/4) (j%4)
    """
    flat = number(0)
    for subscript, extent in zip(subscripts, shape):
        flat = add(scale(flat, extent), subscript)
    found = []
    for place, extent in enumerate(source):
        outer = divide(flat, prod(source[place + 1 :]))
        found.append(outer if place == 0 and extent > 1 else modulo(outer, extent))
    return found


def inside(index: IndexSum, low: int, high: int) -> list[str] | None:
    """The conditions for ``low <= index < high`` that its interval leaves open; None where none of its values is inside."""
    if index.high < low or index.low >= high:
        return None
    return [*([f"{index} >= {low}"] if index.low < low else []), *([f"{index} < {high}"] if index.high >= high else [])]


def _split(base: IndexSum, by: int) -> tuple[IndexSum, IndexSum]:
    """``whole`` and ``rest`` with base = by whole + rest; the rest's constant is in ``0:by``, its factors are no multiples of ``by``."""
    whole = tuple((atom, factor // by) for atom, factor in base.terms if not factor % by)
    rest = tuple((atom, factor) for atom, factor in base.terms if factor % by)
    return IndexSum(whole, base.constant // by), IndexSum(rest, base.constant % by)


def _steps(base: IndexSum, by: int) -> tuple[int, IndexSum, IndexSum]:
    """The greatest divisor of ``by`` in whose steps the value moves but for something less than a step: base = step coarse + fine."""
    for step in sorted({gcd(by, factor) for _, factor in base.terms}, reverse=True):
        coarse, fine = _split(base, step)
        if step > 1 and 0 <= fine.low and fine.high < step:
            return step, coarse, fine
    return 1, base, number(0)


def _kept(terms: dict[Atom, int]) -> tuple[tuple[Atom, int], ...]:
    return tuple((atom, factor) for atom, factor in terms.items() if factor)


def _bounds(atom: Atom) -> tuple[int, int]:
    match atom:
        case Variable():
            return atom.low, atom.high
        case Quotient():
            return atom.base.low // atom.by, atom.base.high // atom.by
        case Remainder():
            return 0, atom.by - 1


def _text(atom: Atom) -> str:
    match atom:
        case Variable():
            return atom.name
        case Quotient():
            return f"({_group(atom.base)}/{atom.by})"
        case Remainder():
            return f"({_group(atom.base)}%{atom.by})"


def _group(base: IndexSum) -> str:
    text = str(base)
    return text if text.isidentifier() else f"({text})"
