"""What the ranges of indices imply: guards that need not be written.

By isl where everything is affine, otherwise by interval arithmetic with symbolic coefficients. A size is at least 0, and at least 1
where it is the extent of an index that has a value; a scalar that is a factor of an index or a divisor is taken to be at least 1.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tcjit.grammar import polynomial
from tcjit.grammar.affine import linear_form
from tcjit.grammar.ast import Access, Binary, Cast, Def, Expr, Scalar, Size
from tcjit.grammar.bounds_check import Isl, OutOfBudget
from tcjit.grammar.differentiate.simplify import TRUE, integer_of
from tcjit.grammar.differentiate.spelling import IslSpelling
from tcjit.grammar.polynomial import Polynomial, Value, names, number
from tcjit.grammar.walk import rebuild, walk

Bounds = Mapping[str, tuple[Expr, Expr]]
_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


class IndexBox:
    """The values that indices take together: each those of its range."""

    def __init__(self, ranges: Bounds, positive: Iterable[str], isl: Isl) -> None:
        self.ranges = {name: (integer_of(lower), integer_of(upper)) for name, (lower, upper) in ranges.items()}
        self.bounds = ranges
        self.isl = isl
        extents = (polynomial.expression(upper) for lower, upper in self.ranges.values() if lower == 0)
        self.positive = {*positive, *(extent.name for extent in extents if isinstance(extent, Size))}

    def implies(self, guard: Expr) -> bool:
        """Whether a condition holds throughout; only one on index arithmetic is decided."""
        if guard == TRUE:
            return True
        if any(isinstance(node, (Access, Cast)) for node in walk(guard)):
            return False
        return self._by_intervals(guard) or self._by_isl(guard)

    # ------------------------------------------------------------ interval arithmetic

    def _by_intervals(self, guard: Expr) -> bool:
        if not isinstance(guard, Binary) or guard.op not in _COMPARISONS or guard.left.dtype != "int64":
            return False
        left, right = polynomial.integer(guard.left), polynomial.integer(guard.right)
        if left is None or right is None:
            return False
        match guard.op:
            case "<" | "<=":
                return self._is_positive(right - left - (guard.op == "<"))
            case ">" | ">=":
                return self._is_positive(left - right - (guard.op == ">"))
            case "==":
                return left == right
        return False

    def _is_positive(self, value: Value) -> bool:
        """Whether ``value >= 0``."""
        form = linear_form(value)
        if form is None:
            return False
        coefficients, total = form
        for name, coefficient in coefficients.items():
            if name not in self.ranges:
                return False
            lower, upper = self.ranges[name]
            if self._never_negative(coefficient):
                total = total + coefficient * lower
            elif self._never_negative(-coefficient):
                total = total + coefficient * (upper - 1)
            else:
                return False
        return self._never_negative(total)

    def _never_negative(self, value: Value) -> bool:
        """Whether a value without indices is at least 0: in terms of what each name exceeds its least value by, no term is negative."""
        if isinstance(value, int):
            return value >= 0
        if any(not isinstance(factor, (Size, Scalar)) for monomial in value.terms for factor in monomial):
            return False
        moved = polynomial.integer(self._moved(polynomial.expression(value)))
        if isinstance(moved, Polynomial):
            known = (isinstance(factor, Size) or factor.name in self.positive for factor in _names(moved))
            return all(known) and all(c >= 0 for c in moved.terms.values())
        return moved is not None and moved >= 0

    def _moved(self, expr: Expr) -> Expr:
        if isinstance(expr, (Size, Scalar)) and expr.name in self.positive:
            return Binary("+", expr, number(1), dtype="int64")
        return rebuild(expr, self._moved)

    # ------------------------------------------------------------ isl

    def _by_isl(self, guard: Expr) -> bool:
        spelling, indices = IslSpelling(), {name: f"i{j}" for j, name in enumerate(self.ranges)}
        if any(name not in indices for name in names(guard)) or (wanted := spelling.text(indices, guard)) is None:
            return False
        known = [text for name, ends in self.bounds.items() if (text := spelling.within(indices, name, *ends)) is not None]
        space = f"[{', '.join(spelling.parameters.values())}] -> {{ [{', '.join(indices.values())}] : "
        try:
            return self.isl.is_empty(space + " and ".join([*known, *spelling.sizes(), f"not {wanted}"]) + " }")
        except OutOfBudget:
            return False


def positive_scalars(definition: Def) -> frozenset[str]:
    """The integer scalars of a def that are taken to be at least 1: factors of an index, and divisors, in index arithmetic."""
    found: set[str] = set()
    for statement in definition.statements:
        bounds = (end for r in statement.domain for end in (r.lower, r.upper))
        extents = filter(None, statement.extents)
        for root in (*statement.subscripts, *bounds, statement.value, *statement.exists, *extents):
            for node in walk(root):
                if isinstance(node, Binary) and node.dtype == "int64":
                    found.update(_steps(node))
    return frozenset(found)


def _steps(node: Binary) -> Iterator[str]:
    if node.op in "/%":
        yield from names(node.right, Scalar)
    elif node.op == "*":
        for one, other in ((node.left, node.right), (node.right, node.left)):
            if names(one) and not names(other):
                yield from names(other, Scalar)


def _names(value: Polynomial) -> Iterator[Any]:
    return (factor for monomial in value.terms for factor in monomial)
