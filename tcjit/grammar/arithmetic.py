"""Arithmetic on indices and sizes in int64: what subscripts and bounds are made of."""

from __future__ import annotations

from collections.abc import Iterable

from tcjit.grammar.ast import Binary, Expr, Index
from tcjit.grammar.polynomial import number


def index(name: str) -> Index:
    return Index(name, dtype="int64")


def plus(left: Expr, right: Expr | int) -> Expr:
    """A sum, of which a number may be 0."""
    if right == 0:
        return left
    return Binary("+", left, number(right) if isinstance(right, int) else right, dtype="int64")


def times(factor: int, expr: Expr) -> Expr:
    """A product with a number, which may be 1."""
    return expr if factor == 1 else Binary("*", number(factor), expr, dtype="int64")


def total(terms: Iterable[tuple[int, Expr]], constant: int = 0) -> Expr:
    """``sum(factor * expression) + constant``.

    >>> from tcjit.grammar.printer import show
    >>> show(total([(2, index("i")), (0, index("j")), (1, index("k"))], -1)), show(total([], 3))
    ('2 * i + k + -1', '3')
    """
    result: Expr | None = None
    for factor, expr in terms:
        if factor:
            result = times(factor, expr) if result is None else plus(result, times(factor, expr))
    return number(constant) if result is None else plus(result, constant)


def divided(expr: Expr, by: int) -> Expr:
    return expr if by == 1 else Binary("/", expr, number(by), dtype="int64")


def modulo(expr: Expr, by: int) -> Expr:
    return Binary("%", expr, number(by), dtype="int64")
