"""Linear pieces: the parts of an index's range in which an integer expression with minima, quotients and choices is linear."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from tcjit.grammar.arithmetic import index, total
from tcjit.grammar.ast import Access, Binary, Call, Expr, Index, Select, Unary
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import INTEGERS, ZeroDivisor, integer, names, number

MOST = 16  # pieces between which an expression is looked at
_HOLDS: Mapping[str, Callable[[int], bool]] = {
    "<": lambda d: d < 0, "<=": lambda d: d <= 0, ">": lambda d: d > 0, ">=": lambda d: d >= 0,
}  # fmt: skip

Form = tuple[int, int]  # factor and constant
Ranges = Mapping[str, tuple[int, int]]
Piece = tuple[int, int, int, int]  # the first and last value of an index, and factor and constant of an expression between them


def are_inside(pieces: Sequence[Piece], extent: int) -> bool:
    """Whether all values are those of subscripts of an axis."""
    ends = [factor * at + constant for first, last, factor, constant in pieces for at in (first, last)]
    return 0 <= min(ends) and max(ends) < extent


def linear_pieces(expr: Expr, first: int, last: int, values: Mapping[str, int], *, choices: bool = True) -> list[Piece] | None:
    """The parts of an index's range in which an expression is linear; None where that is not known, or they are many. It may be one of
    several ``choices``, but not have them among its operands."""
    if (known := _number(expr, values)) is not None:
        return [(first, last, 0, known)]
    children: Sequence[Expr] = ()
    match expr:
        case Index():
            return [(first, last, 1, 0)]
        case Unary(op="-", operand=one) | Call(function="abs", args=(one,)):
            children = one, one
        case Binary(op="+" | "-" | "*" | "/" | "%", left=left, right=right) | Call(function="min" | "max", args=(left, right)):
            children = left, right
        case Select(condition=Binary(op="<" | "<=" | ">" | ">=", left=left, right=right), then=then, other=other) if choices:
            children = left, right, then, other
    sides = [linear_pieces(child, first, last, values, choices=number > 1) for number, child in enumerate(children)]
    if not sides or any(side is None for side in sides):
        return None
    made: list[Piece] = []
    for begin, end, forms in _common(first, [side for side in sides if side is not None]):
        if (found := _combined(expr, begin, end, forms)) is None or len(made) > MOST:
            return None
        for piece in found:
            if made and made[-1][2:] == piece[2:]:
                made[-1] = (made[-1][0], piece[1], *piece[2:])
            else:
                made.append(piece)
    return made if _are_values_of(expr.dtype, made) else None


def _are_values_of(dtype: str, pieces: Sequence[Piece]) -> bool:
    """Whether all values are integers of a type, in which they would wrap otherwise."""
    ends = [factor * at + constant for first, last, factor, constant in pieces for at in (first, last)]
    return dtype in INTEGERS and DTYPES[dtype].least <= min(ends) and max(ends) <= DTYPES[dtype].greatest


def split_access(
    access: Access, dims: Collection[str], axes: Mapping[int, int], ranges: Ranges, most: int, values: Mapping[str, int]
) -> Expr:
    """An element, or a choice of elements where subscripts along some ``axes``, of these extents, have several linear pieces, ``most`` at
    most, in the range of one of some indices, and lie inside the tensor."""
    for axis, extent in axes.items():
        sub = access.subscripts[axis]
        own = [*names(sub)]
        if len(own) != 1 or own[0] not in dims:
            continue
        lower, upper = ranges[own[0]]
        pieces = linear_pieces(sub, lower, upper - 1, values)
        if pieces is None or len(pieces) > most or not are_inside(pieces, extent):
            continue
        others, parts = {one: size for one, size in axes.items() if one != axis}, list[Expr]()
        for _, _, factor, constant in pieces:
            place = total([(factor, index(own[0]))], constant)
            part = replace(access, subscripts=(*access.subscripts[:axis], place, *access.subscripts[axis + 1 :]))
            parts.append(split_access(part, dims, others, ranges, most, values))
        value: Expr = parts.pop()
        for (_, end, _, _), element in zip(reversed(pieces[:-1]), reversed(parts), strict=True):
            value = Select(Binary("<=", index(own[0]), number(end), dtype="bool"), element, value, dtype=access.dtype)
        return value
    return access


def _common(first: int, sides: Sequence[Sequence[Piece]]) -> Iterator[tuple[int, int, list[Form]]]:
    """The ranges in which all sides are linear, with their forms."""
    for end in sorted({last for side in sides for _, last, _, _ in side}):
        yield first, end, [next((factor, constant) for _, last, factor, constant in side if last >= first) for side in sides]
        first = end + 1


def _combined(expr: Expr, first: int, last: int, forms: Sequence[Form]) -> list[Piece] | None:
    """An expression of linear forms of an index between two of its values."""
    (a, b), (c, d) = forms[:2]
    match expr:
        case Unary():
            return [(first, last, -a, -b)]
        case Binary(op="+" | "-" as op):
            sign = 1 if op == "+" else -1
            return [(first, last, a + sign * c, b + sign * d)]
        case Binary(op="*"):
            return None if a and c else [(first, last, a * d + c * b, b * d)]
        case Binary():
            return None if c or d < 1 else _divided(expr.op, first, last, (a, b), d)
        case Select(condition=Binary(op=op)):
            return _chosen(op, first, last, (a - c, b - d), *forms[2:])
        case Call(function=function):
            one, other = ((a, b), (-a, -b)) if function == "abs" else ((a, b), (c, d))
            difference, op = (one[0] - other[0], one[1] - other[1]), "<" if function == "min" else ">"
            op += "=" if _HOLDS[f"{op}="](difference[0] * first + difference[1]) else ""  # where they are equal, the piece goes on
            return _chosen(op, first, last, difference, one, other)
    return None


def _chosen(op: str, first: int, last: int, difference: Form, then: Form, other: Form) -> list[Piece]:
    """One form where a difference holds in a comparison with 0, another one elsewhere."""
    holds = [_HOLDS[op](difference[0] * at + difference[1]) for at in (first, last)]
    if holds[0] == holds[1]:
        return [(first, last, *(then if holds[0] else other))]
    cut = bisect_left(range(first, last), True, key=lambda at: _HOLDS[op](difference[0] * at + difference[1]) == holds[1])
    one, two = (then, other) if holds[0] else (other, then)
    return [(first, first + cut - 1, *one), (first + cut, last, *two)]


def _divided(op: str, first: int, last: int, form: Form, divisor: int) -> list[Piece] | None:
    """The quotient of a form, or its remainder."""
    a, b = form
    pieces: list[Piece] = []
    while first <= last:
        quotient = (a * first + b) // divisor
        end = (divisor * (quotient + 1) - b - 1) // a if a > 0 else (b - divisor * quotient) // -a if a < 0 else last
        pieces.append((first, min(end, last), *((0, quotient) if op == "/" else (a, b - divisor * quotient))))
        if len(pieces) > MOST:
            return None
        first = end + 1
    return pieces


def _number(expr: Expr, values: Mapping[str, int]) -> int | None:
    try:
        known = integer(expr, values)
    except ZeroDivisor:
        return None
    return known if isinstance(known, int) else None
