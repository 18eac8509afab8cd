"""Integers known only symbolically: sums of products of indices, sizes, scalars and floor divisions, kept simplified.

``Value`` is a plain int wherever the number is known, so one piece of code computes ranges both for a def (symbolically) and for
given sizes (fast, in ints). Where all coefficients and divisors are numbers, as in generated loops, `linear` is enough.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import gcd

from tcjit.errors import CheckError, Where
from tcjit.grammar.ast import Binary, Call, Cast, Const, Expr, Index, Scalar, Size, Unary
from tcjit.grammar.dtypes import DTYPES, holds
from tcjit.grammar.walk import walk

INTEGERS = frozenset(name for name, dtype in DTYPES.items() if dtype.kind in ("signed", "unsigned"))
NOTHING: Mapping[str, int] = {}
MAX_TERMS = 1_000  # of a product written out: powers of sums grow without bound

Monomial = tuple[Expr, ...]  # atoms: Index, Size, Scalar, a floor division, min or max; all of dtype int64


class ZeroDivisor(Exception):
    """A division or modulus by zero inside an index; ``where`` points at it."""

    def __init__(self, where: Where | None) -> None:
        super().__init__("division by zero")
        self.where = where


class Polynomial:
    """A polynomial with integer coefficients over atoms; immutable, never a constant (that is an int)."""

    __slots__ = ("terms",)

    def __init__(self, terms: dict[Monomial, int]) -> None:
        self.terms = terms  # no zero coefficients; the constant under ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __repr__(self) -> str:
        return f"Polynomial({self.terms})"

    def __add__(self, other: Value) -> Value:
        return _sum(self.terms, 1, other)

    __radd__ = __add__

    def __neg__(self) -> Polynomial:
        return Polynomial({monomial: -c for monomial, c in self.terms.items()})

    def __sub__(self, other: Value) -> Value:
        return _sum(self.terms, 1, -other)

    def __rsub__(self, other: int) -> Value:
        return _sum(self.terms, -1, other)

    def __mul__(self, other: Value) -> Value:
        if isinstance(other, int):
            return Polynomial({monomial: c * other for monomial, c in self.terms.items()}) if other else 0
        terms: dict[Monomial, int] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                monomial = tuple(sorted(left + right, key=repr)) if left and right else left + right
                terms[monomial] = terms.get(monomial, 0) + a * b
        return from_terms(terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Value) -> Value:
        return divide(self, other)

    def __rfloordiv__(self, other: int) -> Value:
        return divide(other, self)


Value = int | Polynomial


def from_terms(terms: dict[Monomial, int]) -> Value:
    terms = {monomial: c for monomial, c in terms.items() if c}
    if not terms:
        return 0
    return terms[()] if len(terms) == 1 and () in terms else Polynomial(terms)


def _sum(terms: dict[Monomial, int], sign: int, other: Value) -> Value:
    result = {monomial: sign * c for monomial, c in terms.items()}
    for monomial, c in other.terms.items() if isinstance(other, Polynomial) else (((), other),):
        result[monomial] = result.get(monomial, 0) + c
    return from_terms(result)


def atom(expr: Expr) -> Polynomial:
    return Polynomial({(expr,): 1})


def divide(a: Value, b: Value, where: Where | None = None) -> Value:
    """``floor(a / b)``; what divides exactly is taken out of the division, so ``(2*N + 3) / 2`` is ``N + 1``."""
    if isinstance(b, int):
        if b == 0:
            raise ZeroDivisor(where)
        if isinstance(a, int):
            return a // b
        return _divide_by_number(a, b) if b > 0 else _divide_by_number(-a, -b)
    if a == 0:
        return 0
    if isinstance(a, int) or len(b.terms) > 1:
        return 1 if a == b else atom(Binary("/", expression(a), expression(b), dtype="int64"))
    (divisor, factor), = b.terms.items()
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, c in a.terms.items():
        quotient = _without(monomial, divisor) if c % factor == 0 else None
        if quotient is None:
            rest[monomial] = c
        else:
            whole[quotient] = c // factor
    if not rest:
        return from_terms(whole)
    return from_terms(whole) + atom(Binary("/", expression(from_terms(rest)), expression(b), dtype="int64"))


def _divide_by_number(a: Polynomial, b: int) -> Value:
    whole = {monomial: c // b for monomial, c in a.terms.items() if c % b == 0 or not monomial}
    rest = {monomial: c % b if not monomial else c for monomial, c in a.terms.items() if c % b}
    common = gcd(b, *(c for monomial, c in rest.items() if monomial))
    # floor((g*x + r) / (g*m)) = floor((x + floor(r/g)) / m)
    remaining = from_terms({monomial: c // common for monomial, c in rest.items()})
    b //= common
    if isinstance(remaining, int) or b == 1:
        return from_terms(whole) + remaining // b
    (inner, *factors), *others = (monomial for monomial in remaining.terms if monomial)
    if not others and not factors and remaining.terms[(inner,)] == 1 and isinstance(inner, Binary) and isinstance(inner.right, Const):
        # floor((floor(x/a) + r) / b) = floor((x + r*a) / (a*b))
        numerator, divisor = integer(inner.left), int(inner.right.value)
        assert numerator is not None  # atoms are integers
        return from_terms(whole) + divide(numerator + remaining.terms.get((), 0) * divisor, divisor * b)
    return from_terms(whole) + atom(Binary("/", expression(remaining), number(b), dtype="int64"))


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    left = list(monomial)
    for factor in divisor:
        if factor not in left:
            return None
        left.remove(factor)
    return tuple(left)


def least(a: Value, b: Value) -> Value:
    return _extreme("min", a, b)


def greatest(a: Value, b: Value) -> Value:
    return _extreme("max", a, b)


def _extreme(function: str, a: Value, b: Value) -> Value:
    kept: list[Value] = []
    for candidate in (*_operands(function, a), *_operands(function, b)):
        if any(_beats(function, other, candidate) for other in kept):
            continue
        kept = [*(other for other in kept if not _beats(function, candidate, other)), candidate]
    if len(kept) == 1:
        return kept[0]
    result, *others = sorted(map(expression, kept), key=_order)  # one order, so that equal values compare equal
    for other in others:
        result = Call(function, (result, other), dtype="int64")
    return atom(result)


def _order(expr: Expr) -> tuple[bool, str]:
    return isinstance(expr, Const), repr(expr)


def _beats(function: str, a: Value, b: Value) -> bool:
    """Whether ``b`` adds nothing beside ``a``, whatever the sizes."""
    low, high = _limits(a - b)
    return high is not None and high <= 0 if function == "min" else low is not None and low >= 0


def _limits(value: Value) -> tuple[int | None, int | None]:
    """Bounds of a value for all sizes, where they are easy: of a number, and of ``x/d - y/d + c`` where x and y differ by a number."""
    if isinstance(value, int):
        return value, value
    constant = value.terms.get((), 0)
    quotients = {c: monomial[0] for monomial, c in value.terms.items() if len(monomial) == 1}
    plus, minus = quotients.get(1), quotients.get(-1)
    if len(value.terms) - (() in value.terms) == 2 and isinstance(plus, Binary) and isinstance(minus, Binary) and plus.right == minus.right:
        left, right = integer(plus.left), integer(minus.left)
        apart = left - right if left is not None and right is not None else None
        if isinstance(apart, int) and isinstance(plus.right, Const):
            divisor = int(plus.right.value)
            return apart // divisor + constant, -(-apart // divisor) + constant
    return None, None


def _operands(function: str, value: Value) -> Iterator[Value]:
    if isinstance(value, Polynomial) and len(value.terms) == 1:
        (monomial, c), = value.terms.items()
        if c == 1 and len(monomial) == 1 and isinstance(monomial[0], Call) and monomial[0].function == function:
            for argument in monomial[0].args:
                inner = integer(argument)
                assert inner is not None  # built by _extreme from Values
                yield from _operands(function, inner)
            return
    yield value


# ---------------------------------------------------------------- between expressions and values


def number(value: int) -> Const:
    return Const(value, dtype="int64")


def expression(value: Value) -> Expr:
    """The value as an expression of dtype int64: positive terms first, the constant last, ``N - K + 1``."""
    if isinstance(value, int):
        return number(value)
    constant = value.terms.get((), 0)
    terms = [(monomial, c) for monomial, c in value.terms.items() if monomial]
    result: Expr | None = None
    if constant > 0 and all(c < 0 for _, c in terms):
        result, constant = number(constant), 0
    for monomial, c in (*(t for t in terms if t[1] > 0), *(t for t in terms if t[1] < 0)):
        result = _append(result, monomial, c)
    assert result is not None  # a Polynomial has a term besides the constant
    if constant:
        result = Binary("+" if constant > 0 else "-", result, number(abs(constant)), dtype="int64")
    return result


def with_remainders(value: Value) -> Expr:
    """The same with ``x % d`` in the place of ``x - x / d * d``."""
    for monomial, c in () if isinstance(value, int) else value.terms.items():
        match monomial:
            case (Binary(op="/", left=left, right=Const(value=int(divisor))),) if c % divisor == 0:
                x, times = integer(left), -(c // divisor)
                rest = value - c * atom(monomial[0]) - times * x if isinstance(x, Polynomial) else value
                if isinstance(x, Polynomial) and not (isinstance(rest, Polynomial) and any(part in rest.terms for part in x.terms if part)):
                    return expression(rest + times * atom(Binary("%", left, number(divisor), dtype="int64")))
    return expression(value)


def _append(result: Expr | None, monomial: Monomial, c: int) -> Expr:
    product: Expr | None = number(abs(c)) if abs(c) != 1 or (result is None and c < 0) else None
    if result is None and c < 0:
        product = number(c)
    for factor in monomial:
        product = factor if product is None else Binary("*", product, factor, dtype="int64")
    assert product is not None
    return product if result is None else Binary("+" if c > 0 else "-", result, product, dtype="int64")


def integer(expr: Expr, values: Mapping[str, int] = NOTHING) -> Value | None:
    """The integer that an expression of integer type stands for, computed without wrapping; names in ``values`` are replaced.

    None where it reads a tensor or is not built from indices, sizes, integer scalars, ``+ - * / %`` and, free of indices, min
    and max. A conversion of a name or number that keeps its value is transparent; any other may come after arithmetic that
    wrapped, or wrap itself, so it is None. Raises ZeroDivisor, and CheckError for
    a product of too many terms.
    """
    if expr.dtype not in INTEGERS:
        return None
    if isinstance(expr, Const):
        return int(expr.value)
    if isinstance(expr, (Size, Scalar)):
        known = values.get(expr.name)
        return atom(type(expr)(expr.name, dtype="int64")) if known is None else known
    if isinstance(expr, Index):
        return atom(Index(expr.name, dtype="int64"))
    if isinstance(expr, Cast):
        return integer(expr.operand, values) if _is_transparent(expr) else None
    if isinstance(expr, Unary):
        inner = integer(expr.operand, values) if expr.op == "-" else None
        return None if inner is None else -inner
    if isinstance(expr, Binary):
        return _binary(expr, values)
    if isinstance(expr, Call) and expr.function in ("min", "max") and len(expr.args) == 2:
        left, right = (integer(argument, values) for argument in expr.args)
        if left is None or right is None or names(left) or names(right):
            return None
        return _extreme(expr.function, left, right)
    return None


def _binary(expr: Binary, values: Mapping[str, int]) -> Value | None:
    left, right = integer(expr.left, values), integer(expr.right, values)
    if left is None or right is None:
        return None
    if expr.op == "+":
        return left + right
    if expr.op == "-":
        return left - right
    if expr.op == "*":
        if isinstance(left, Polynomial) and isinstance(right, Polynomial) and len(left.terms) * len(right.terms) > MAX_TERMS:
            raise CheckError("this product in an index has too many terms", where=expr.where, hint="a scalar parameter for a factor")
        return left * right
    if expr.op == "/":
        return divide(left, right, expr.where)
    return left - divide(left, right, expr.where) * right if expr.op == "%" else None


def _is_transparent(cast: Cast) -> bool:
    operand = cast.operand
    if isinstance(operand, Cast):
        return holds(cast.dtype, operand.dtype) and _is_transparent(operand)
    return isinstance(operand, (Const, Index, Size, Scalar)) and operand.dtype in INTEGERS and holds(cast.dtype, operand.dtype)


def at(value: Value, values: Mapping[str, int]) -> Value:
    """The value with names replaced by numbers. Raises ZeroDivisor."""
    if isinstance(value, int):
        return value
    result: Value = 0
    for monomial, c in value.terms.items():
        product: Value = c
        for factor in monomial:
            inner = integer(factor, values)
            assert inner is not None  # atoms are integers
            product = product * inner
        result = result + product
    return result


def names(node: Value | Expr, kind: type[Index] | type[Size] | type[Scalar] = Index) -> dict[str, None]:
    """The indices (or sizes, or scalars) in a value or an expression, in order of appearance; subscripts are looked into."""
    roots = (factor for monomial in node.terms for factor in monomial) if isinstance(node, Polynomial) else (node,)
    return {e.name: None for root in roots if isinstance(root, Expr) for e in walk(root) if isinstance(e, kind)}
