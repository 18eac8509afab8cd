"""Split subscripts: elements at clamped indices are elements at linear ones, under conditions that loops and sums are split by.

``X(i, min(j + 2, N - 1))`` is ``X(i, j + 2)`` for ``j < N - 2`` and ``X(i, N - 1)`` elsewhere, which no loop asks, and which nothing checks
when it runs. Borders of windows, as ``max(h + r - 1, 0)``, and elements of products are left to copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from tcjit.grammar.affine import affine
from tcjit.grammar.arithmetic import index, total
from tcjit.grammar.ast import Access, Binary, Call, Expr, Index, Select
from tcjit.grammar.polynomial import ZeroDivisor, integer, names, number
from tcjit.grammar.walk import with_accesses
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.reduction import is_reused

MOST = 3  # linear parts of a subscript

Piece = tuple[int, int, int, int]  # the first and last value of an index, and factor and constant of a subscript between them


def split_subscripts(before: Assignments) -> Assignments:
    """The program with elements at linear subscripts in the place of those at minima and maxima of one index and numbers."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if a.empty or a.dynamic or a.constraints or a.reduction and is_reused(a.results, a.reads):
            return [a]
        shapes = {name: storage.shape for name, storage in temporaries.tensors.items()}
        change = partial(_split, ranges=a.ranges, shapes=shapes, values=before.values)
        return [replace(a, value=with_accesses(a.value, change))]

    return before if before.program.dynamic else rewrite(before, visit)


def _split(access: Access, ranges: Mapping[str, tuple[int, int]], shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, int]) -> Expr:
    """An element, or a choice of elements where a subscript is not linear, but in parts of one index's range that lie inside the tensor."""
    for axis, sub in enumerate(access.subscripts):
        dims = list(names(sub))
        if affine(sub, values) is not None or len(dims) != 1 or dims[0] not in ranges:
            continue
        lower, upper = ranges[dims[0]]
        pieces = _pieces(sub, lower, upper - 1, values)
        ends = [factor * at + constant for first, last, factor, constant in pieces or () for at in (first, last)]
        if pieces is None or len(pieces) > MOST or min(ends) < 0 or max(ends) >= shapes[access.tensor][axis]:
            continue
        own, parts = index(dims[0]), list[Expr]()
        for _, _, factor, constant in pieces:
            place = total([(factor, own)], constant)
            part = replace(access, subscripts=(*access.subscripts[:axis], place, *access.subscripts[axis + 1 :]))
            parts.append(_split(part, ranges, shapes, values))
        value: Expr = parts.pop()
        for (_, last, _, _), element in zip(reversed(pieces[:-1]), reversed(parts), strict=True):
            value = Select(Binary("<=", own, number(last), dtype="bool"), element, value, dtype=access.dtype)
        return value
    return access


def _pieces(expr: Expr, first: int, last: int, values: Mapping[str, int]) -> list[Piece] | None:
    """The parts of an index's range in which an expression is linear; None where that is not known."""
    match expr:
        case Index():
            return [(first, last, 1, 0)]
        case Binary(op="+" | "-" | "*" as op, left=left, right=right, dtype="int64"):
            sides = _pieces(left, first, last, values), _pieces(right, first, last, values)
        case Call(function="min" | "max" as op, args=(left, right), dtype="int64"):
            sides = _pieces(left, first, last, values), _pieces(right, first, last, values)
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
