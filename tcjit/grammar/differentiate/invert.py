"""An access turned round: which elements ``i`` of a statement read the element ``x`` of a tensor.

The equations ``f(i) = x`` are solved by `eliminate`; what is left are reduction indices and guards. Then

- a subscript that reads a tensor is the guard ``Idx(b, l) == x``;
- index arithmetic that contains the subscript itself is written with ``x``, so that the test for padding of a convolution becomes one
  on ``x``, which its range implies;
- guards that the ranges imply go, and guards on indices stand before those that read: ``&&`` protects the read.

Where everything is affine, isl proves the result equal to the reversed access, each instance reached once; what it refutes, and what
has no solution, becomes equality guards over all the indices.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

from tcjit.dataclass import dataclass
from tcjit.grammar import polynomial
from tcjit.grammar.affine import is_quasi_affine
from tcjit.grammar.ast import Access, Binary, Cast, Const, Expr
from tcjit.grammar.bounds_check import Isl
from tcjit.grammar.differentiate.box import Bounds, IndexBox
from tcjit.grammar.differentiate.eliminate import NotSolved, eliminate, names_in
from tcjit.grammar.differentiate.prove import is_reversed
from tcjit.grammar.differentiate.simplify import compare, conjuncts, index, integer_of, is_number, reads
from tcjit.grammar.differentiate.size_hints import SizeHints
from tcjit.grammar.dtypes import promote
from tcjit.grammar.polynomial import Polynomial, Value, number
from tcjit.grammar.walk import rebuild, with_indices


@dataclass(frozen=True)
class Inverse:
    """``substitution`` gives forward indices as expressions over the dimensions ``x0'``, ``x1'``.. of the tensor and the indices ``kept``.

    ``guards`` hold where an instance exists and the conditions of the read hold, in the order in which they are evaluated. ``proved`` is
    None where isl could not be asked.
    """

    substitution: Mapping[str, Expr]
    kept: Bounds
    guards: tuple[Expr, ...]
    places: tuple[tuple[Polynomial, str], ...] = ()  # subscripts of several terms, and the dimensions that they are
    proved: bool | None = None

    def rewrite(self, expr: Expr) -> Expr:
        """An expression of the statement, in the indices of the inverse."""
        return with_indices(_fold(expr, self.places, self.substitution), self.substitution)


@dataclass(frozen=True)
class Read:
    """One access of a statement: its subscripts, the ranges of the statement's indices, the left ones, and when the access happens."""

    subscripts: tuple[Expr, ...]
    ranges: Bounds
    left: tuple[str, ...]
    conditions: tuple[Expr, ...]


def dimension_name(position: int) -> str:
    """What a dimension of the tensor that is read is called, which no index of a text can be."""
    return f"x{position}'"


def invert(
    read: Read, extents: Sequence[Expr], positive: Iterable[str], isl: Isl, size_hints: SizeHints | None = None
) -> Inverse:
    """Turn a read of a tensor with these extents round; ``positive`` are scalars known to be at least 1. Hints say which index to solve for
    where several would do."""
    affine = [value is not None and is_quasi_affine(value) for value in map(polynomial.integer, read.subscripts)]
    inverse: Inverse | None = None
    try:
        inverse = _completed(_solved(read, affine, size_hints), read, affine, extents, positive, isl)
    except NotSolved:
        pass
    if inverse is None or inverse.proved is False:
        inverse = _completed(_equalities(read, affine), read, affine, extents, positive, isl)
    return inverse


def _solved(read: Read, affine: Sequence[bool], size_hints: SizeHints | None) -> Inverse:
    values = [polynomial.integer(subscript) for subscript in read.subscripts]
    places = [(value, dimension_name(j)) for j, value in enumerate(values) if affine[j] and value is not None]
    exact = [
        condition.left
        for condition in read.conditions
        if isinstance(condition, Binary) and condition.op == "==" and is_number(condition.right, 0)
        if isinstance(condition.left, Binary) and condition.left.op == "%" and condition.left.dtype == "int64"
    ]
    equations = [(value, polynomial.atom(index(name))) for value, name in places]
    ranges = {name: (integer_of(lower), integer_of(upper)) for name, (lower, upper) in read.ranges.items()}
    solution = eliminate(equations, ranges, read.left, exact, size_hints)
    kept = {name: (polynomial.expression(lower), polynomial.expression(upper)) for name, (lower, upper) in solution.kept.items()}
    long = tuple((value, name) for value, name in places if isinstance(value, Polynomial) and len(value.terms) > 1)
    return Inverse({name: _expression(value) for name, value in solution.values.items()}, kept, solution.guards, long)


def _equalities(read: Read, affine: Sequence[bool]) -> Inverse:
    pairs = (compare("==", s, index(dimension_name(j))) for j, s in enumerate(read.subscripts) if affine[j])
    return Inverse({}, dict(read.ranges), tuple(pairs))


def _completed(
    inverse: Inverse, read: Read, affine: Sequence[bool], extents: Sequence[Expr], positive: Iterable[str], isl: Isl
) -> Inverse:
    """With the guards of gathers and conditions, without those that the ranges imply, and proved where that can be."""
    gathers = [_gather(inverse.rewrite(subscript), j) for j, subscript in enumerate(read.subscripts) if not affine[j]]
    conditions = [inverse.rewrite(condition) for condition in read.conditions]
    box = IndexBox({**{dimension_name(j): (number(0), extent) for j, extent in enumerate(extents)}, **inverse.kept}, positive, isl)
    guards: list[Expr] = []
    for guard in (*inverse.guards, *gathers, *conditions):
        for part in conjuncts(guard):
            if part not in guards and not box.implies(part):
                guards.append(part)
    ordered = sorted(guards, key=lambda guard: bool(reads(guard)))
    result = replace(inverse, guards=tuple(ordered))
    subscripts = {
        dimension_name(j): (subscript, extent)
        for j, (subscript, extent, known) in enumerate(zip(read.subscripts, extents, affine, strict=True))
        if known
    }
    proved = is_reversed(subscripts, read.ranges, read.conditions, result.substitution, result.kept, result.guards, isl)
    return replace(result, proved=proved)


def _gather(subscript: Expr, position: int) -> Binary:
    """The guard that a subscript which reads a tensor is the dimension, ``L(b) == x + t + 1`` for ``L(b) - 1 - t``: int64 wraps alike."""
    element: Value = polynomial.atom(index(dimension_name(position)))
    while isinstance(subscript, Binary) and subscript.op in "+-" and subscript.dtype == "int64":
        sign = 1 if subscript.op == "+" else -1
        left, right = polynomial.integer(subscript.left), polynomial.integer(subscript.right)
        if right is not None:
            subscript, element = subscript.left, element - right * sign
        elif left is not None:
            subscript, element = subscript.right, (element - left) * sign
        else:
            break
    return compare("==", _element(subscript), polynomial.expression(element))


def _element(subscript: Expr) -> Expr:
    """The read itself where a subscript is one, unless its type and that of an index have no common one."""
    if isinstance(subscript, Cast) and isinstance(subscript.operand, Access) and promote(subscript.operand.dtype, "int32"):
        return subscript.operand
    return subscript


def _expression(value: Value) -> Expr:
    """A value as an expression, ``R - (R / m) * m`` as ``R % m``, and likewise ``i / 2 - 2 * (i / 4)`` as ``i / 2 % 2``."""
    if isinstance(value, int):
        return polynomial.expression(value)
    for monomial, c in value.terms.items():
        divisions = [factor for factor in monomial if isinstance(factor, Binary)]
        if c >= 0 or len(divisions) != 1:
            continue
        division, whole = divisions[0], polynomial.from_terms({monomial: c})
        others = [polynomial.atom(factor) for factor in monomial if factor is not division]
        if integer_of(division.right) == prod(others, start=-c) and value - whole == integer_of(division.left):
            return Binary("%", division.left, division.right, dtype="int64")
        if not others and isinstance(division.right, Const):
            found = _remainder(value - whole, -c, integer_of(division.left), int(division.right.value))
            if found is not None:
                return found
    return polynomial.expression(value)


def _remainder(value: Value, factor: int, numerator: Value, divisor: int) -> Expr | None:
    """``value - factor * (numerator / divisor)`` with a remainder, where ``value`` has the quotient that it is one of."""
    for modulus in range(2, divisor + 1):
        if divisor % modulus or factor % modulus:
            continue
        quotient = polynomial.divide(numerator, divisor // modulus)
        if not isinstance(quotient, Polynomial) or len(quotient.terms) != 1:
            continue
        (monomial, c), = quotient.terms.items()
        rest = value - quotient * (factor // modulus)
        if c != 1 or (isinstance(rest, Polynomial) and monomial in rest.terms):
            continue
        term: Expr = Binary("%", polynomial.expression(quotient), number(modulus), dtype="int64")
        term = term if factor == modulus else Binary("*", number(factor // modulus), term, dtype="int64")
        return term if rest == 0 else Binary("+", _expression(rest), term, dtype="int64")
    return None


# ---------------------------------------------------------------- folding


def _fold(expr: Expr, places: Sequence[tuple[Polynomial, str]], solved: Mapping[str, Expr]) -> Expr:
    """Index arithmetic that contains one of the subscripts, in terms of the dimension."""
    if not places:
        return expr
    match expr:
        case Access(subscripts=subscripts):
            return replace(expr, subscripts=tuple(_fold_index(s, places, solved) for s in subscripts))
        case Binary(left=left, right=right) if expr.dtype == "bool" and left.dtype == "int64" and not reads(expr):
            one, other = polynomial.integer(left), polynomial.integer(right)
            if one is None or other is None:
                return expr
            apart = one - other
            folded = _folded(apart, places, solved)
            if folded is None:
                return expr
            indexed = {} if isinstance(folded, int) else {m: c for m, c in folded.terms.items() if any(polynomial.names(f) for f in m)}
            side = polynomial.from_terms(indexed)
            return replace(expr, left=polynomial.expression(side), right=polynomial.expression(side - folded))
    return rebuild(expr, lambda part: _fold(part, places, solved))


def _fold_index(expr: Expr, places: Sequence[tuple[Polynomial, str]], solved: Mapping[str, Expr]) -> Expr:
    value = polynomial.integer(expr)
    if value is None:
        if isinstance(expr, Access):
            return _fold(expr, places, solved)
        return rebuild(expr, lambda part: _fold_index(part, places, solved))
    folded = _folded(value, places, solved)
    return expr if folded is None else polynomial.expression(folded)


def _folded(value: Value, places: Sequence[tuple[Polynomial, str]], solved: Mapping[str, Expr]) -> Value | None:
    """The value with fewer indices that are solved for; None where no subscript helps."""
    before = sum(name in solved for name in names_in(value))
    for subscript, name in places if before else ():
        for factor in (1, -1):
            rest = value - subscript * factor
            if sum(n in solved for n in names_in(rest)) < before:
                return rest + polynomial.atom(index(name)) * factor
    return None
