"""Which arithmetic in data-dependent subscripts may leave 64 bits, so that a wrapped index could seem to be inside a tensor."""
from __future__ import annotations

from collections.abc import Iterator, Mapping

from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Expr, Index, Scalar, Select, Size, Unary
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import children

_LIMITS = -(1 << 63), (1 << 63) - 1
_ADDRESSES = 1 << 47  # beyond every extent, and so every index, of what lies in memory
Interval = tuple[int, int]


def wrapping(subscript: Expr, scalars: Mapping[str, str]) -> Iterator[Expr]:
    """The sums and products in a subscript, each the largest of its kind, whose value may not fit int64; ``scalars`` are the dtypes of the
    parameters without dimensions. A sum or product is right or off by a multiple of 2^64, whatever wrapped on the way. One that is
    evaluated under a condition only is an arm of a choice, whose other arm is 0."""
    if terms(subscript):
        least, greatest = _interval(subscript, scalars)
        if least < _LIMITS[0] or greatest > _LIMITS[1]:
            yield subscript
        below = _operands(subscript)
    elif isinstance(subscript, Select):
        yield from wrapping(subscript.condition, scalars)
        yield from (_chosen(subscript.condition, True, found) for found in wrapping(subscript.then, scalars))
        yield from (_chosen(subscript.condition, False, found) for found in wrapping(subscript.other, scalars))
        return
    elif isinstance(subscript, Binary) and subscript.op in ("&&", "||"):
        yield from wrapping(subscript.left, scalars)
        yield from (_chosen(subscript.left, subscript.op == "&&", found) for found in wrapping(subscript.right, scalars))
        return
    else:
        below = iter(children(subscript) if isinstance(subscript, (Unary, Binary, Call)) else ())
    for operand in below:
        yield from wrapping(operand, scalars)


def checked_parts(subscript: Expr) -> Iterator[Expr]:
    """The parts of a subscript whose sums and products ``wrapping`` asks for: what a cast converts, or a tensor holds, is none."""
    yield subscript
    for part in children(subscript) if isinstance(subscript, (Unary, Binary, Call, Select)) else ():
        yield from checked_parts(part)


def _chosen(condition: Expr, holds: bool, expr: Expr) -> Expr:
    zero = Const(0, dtype=expr.dtype)
    return Select(condition, *((expr, zero) if holds else (zero, expr)), dtype=expr.dtype)


def terms(expr: Expr) -> tuple[Expr, ...]:
    """The operands of a sum, difference, product or negation in int64; none of anything else."""
    own = isinstance(expr, (Binary, Unary)) and expr.op in ("+", "-", "*") and expr.dtype == "int64"
    return children(expr) if own else ()


def _operands(expr: Expr) -> Iterator[Expr]:
    """What sums and products are made of, however these nest."""
    for term in terms(expr):
        yield from _operands(term) if terms(term) else (term,)


def _interval(expr: Expr, scalars: Mapping[str, str]) -> Interval:
    """The least and greatest value that an expression of integer type may have, before it wraps."""
    match expr:
        case Const():
            return int(expr.value), int(expr.value)
        case Index() | Size():
            return 0, _ADDRESSES
        case Scalar():
            return _range(scalars.get(expr.name, expr.dtype))
        case Access():
            return _range(expr.dtype)
        case Cast(operand=operand):
            inner, own = _interval(operand, scalars), _range(expr.dtype)
            return inner if own[0] <= inner[0] and inner[1] <= own[1] and DTYPES[operand.dtype].kind != "float" else own
        case Unary(op="-", operand=operand):
            least, greatest = _interval(operand, scalars)
            return -greatest, -least
        case Binary(op=op, left=left, right=right) if op in ("+", "-", "*", "%"):
            return _combined(op, _interval(left, scalars), _interval(right, scalars))
        case Binary(op="/", left=left):
            most = max(map(abs, _interval(left, scalars)))
            return -most, most
        case Select(then=one, other=other) | Call(function="min" | "max", args=(one, other)):
            sides = _interval(one, scalars), _interval(other, scalars)
            return min(sides[0][0], sides[1][0]), max(sides[0][1], sides[1][1])
    return _range(expr.dtype)


def _combined(op: str, a: Interval, b: Interval) -> Interval:
    if op == "+":
        return a[0] + b[0], a[1] + b[1]
    if op == "-":
        return a[0] - b[1], a[1] - b[0]
    if op == "%":
        return (0 if b[0] > 0 else min(b[0], 0)), max(b[1], 0)
    products = [x * y for x in a for y in b]
    return min(products), max(products)


def _range(dtype: str) -> Interval:
    kind = DTYPES[dtype]
    return (int(kind.least), int(kind.greatest)) if kind.is_integer else (0, 1) if kind.kind == "bool" else _LIMITS
