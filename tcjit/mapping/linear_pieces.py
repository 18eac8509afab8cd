"""Linear pieces: the parts of an index's range between which an integer expression with minima and maxima is linear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tcjit.grammar.ast import Binary, Call, Expr, Index
from tcjit.grammar.polynomial import ZeroDivisor, integer

Piece = tuple[int, int, int, int]  # the first and last value of an index, and factor and constant of an expression between them


def are_inside(pieces: Sequence[Piece], extent: int) -> bool:
    """Whether all values are those of subscripts of an axis."""
    ends = [factor * at + constant for first, last, factor, constant in pieces for at in (first, last)]
    return 0 <= min(ends) and max(ends) < extent


def linear_pieces(expr: Expr, first: int, last: int, values: Mapping[str, int]) -> list[Piece] | None:
    """The parts of an index's range in which an expression is linear; None where that is not known."""
    match expr:
        case Index():
            return [(first, last, 1, 0)]
        case Binary(op="+" | "-" | "*" as op, left=left, right=right, dtype="int64"):
            sides = linear_pieces(left, first, last, values), linear_pieces(right, first, last, values)
        case Call(function="min" | "max" as op, args=(left, right), dtype="int64"):
            sides = linear_pieces(left, first, last, values), linear_pieces(right, first, last, values)
        case _:
            known = _number(expr, values)
            return None if known is None else [(first, last, 0, known)]
    made: list[Piece] = []
    for one in sides[0] or ():
        for other in sides[1] or ():
            begin, end = max(one[0], other[0]), min(one[1], other[1])
            if begin <= end and (found := _combined(op, begin, end, one[2:], other[2:])) is None:
                return None
            made += found if begin <= end and found else []
    joined: list[Piece] = []
    for piece in made:
        if joined and joined[-1][2:] == piece[2:]:
            joined[-1] = (joined[-1][0], piece[1], *piece[2:])
        else:
            joined.append(piece)
    return joined or None


def _combined(op: str, first: int, last: int, one: tuple[int, int], other: tuple[int, int]) -> list[Piece] | None:
    """Two linear forms of an index combined between two of its values."""
    (a, b), (c, d) = one, other
    if op in ("+", "-"):
        sign = 1 if op == "+" else -1
        return [(first, last, a + sign * c, b + sign * d)]
    if op == "*":
        return None if a and c else [(first, last, a * d + c * b, b * d)]
    least = [(at, one if (a * at + b <= c * at + d) == (op == "min") else other) for at in (first, last)]
    if a == c or least[0][1] == least[1][1]:
        return [(first, last, *least[0][1])]
    cut = (d - b) // (a - c)  # the forms are equal there, or just behind it
    return [(first, cut, *least[0][1]), (cut + 1, last, *least[1][1])] if first <= cut < last else [(first, last, *least[cut < first][1])]


def _number(expr: Expr, values: Mapping[str, int]) -> int | None:
    try:
        known = integer(expr, values)
    except ZeroDivisor:
        return None
    return known if isinstance(known, int) else None
