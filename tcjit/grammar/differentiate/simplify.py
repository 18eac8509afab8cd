"""Constructors of typed expressions that simplify as they build: sums, products, choices and conditions of derivatives.

They keep what derivatives need and IEEE does not promise: a product with the literal 0 is 0, and a value that stands under a condition is
multiplied inside the arm, ``c ? a * b : 0.0``, so that an arm that is not taken never meets an infinity. Operands of two float types
give the wider one, as the text does. Index arithmetic is int64 throughout; the text reads back in the types of its place.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tcjit.grammar import polynomial
from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Expr, Index, Select, Unary
from tcjit.grammar.dtypes import DTYPES, converted, promote
from tcjit.grammar.polynomial import Value
from tcjit.grammar.walk import rebuild, walk

TRUE, FALSE = Const(True, dtype="bool"), Const(False, dtype="bool")
_NEGATED = {"<": ">=", ">": "<=", "<=": ">", ">=": "<", "==": "!=", "!=": "=="}


def is_float(dtype: str) -> bool:
    return DTYPES[dtype].kind == "float"


def wide_type(dtype: str) -> str:
    """The type for derivatives by temporaries: float32 for the half types."""
    return "float32" if DTYPES[dtype].bits == 16 else dtype


def literal(value: float, dtype: str) -> Const:
    """A number as ``dtype`` holds it."""
    return Const(converted(float(value) if is_float(dtype) else value, dtype), dtype=dtype)


def index(name: str) -> Index:
    return Index(name, dtype="int64")


def integer_of(expr: Expr) -> Value:
    """The value of a bound, an extent or other index arithmetic, which has one."""
    value = polynomial.integer(expr)
    assert value is not None  # built from indices, sizes, scalars and numbers
    return value


def is_number(expr: Expr, value: float) -> bool:
    return isinstance(expr, Const) and not isinstance(expr.value, bool) and expr.value == value


def common(left: Expr, right: Expr) -> str:
    """The type of an operation on two floats."""
    return promote(left.dtype, right.dtype) or left.dtype


# ---------------------------------------------------------------- sums


def negate(expr: Expr) -> Expr:
    match expr:
        case Const(value=value):
            return replace(expr, value=-value) if value else expr
        case Unary(op="-", operand=operand):
            return operand
        case Binary(op="-", left=left, right=right):
            return replace(expr, left=right, right=left)
        case Binary(op="*" | "/", left=Const() | Unary(op="-")):
            return replace(expr, left=negate(expr.left))
        case Select(condition=condition, then=then, other=other):
            return select(condition, negate(then), negate(other))
    return Unary("-", expr, dtype=expr.dtype)


def _is_negative(expr: Expr) -> bool:
    match expr:
        case Unary(op="-"):
            return True
        case Binary(op="*" | "/", left=left):
            return _is_negative(left)
        case Const(value=value):
            return value < 0
    return False


def add(left: Expr, right: Expr) -> Expr:
    """The sum: equal terms are added up, and terms under one condition stand under it together."""
    if is_number(left, 0):
        return right
    if is_number(right, 0):
        return left
    dtype = common(left, right)
    if isinstance(left, Const) and isinstance(right, Const):
        return literal(left.value + right.value, dtype)
    if isinstance(left, Select) and isinstance(right, Select) and left.condition == right.condition:
        return select(left.condition, add(left.then, right.then), add(left.other, right.other))
    (one, term), (other, same) = _coefficient(left), _coefficient(right)
    if term == same:
        return multiply(literal(one + other, dtype), term)
    if _is_negative(right):
        return Binary("-", left, negate(right), dtype=dtype)
    if _is_negative(left):
        return Binary("-", right, negate(left), dtype=dtype)
    return Binary("+", left, right, dtype=dtype)


def _coefficient(expr: Expr) -> tuple[float, Expr]:
    """A number and what it multiplies."""
    match expr:
        case Unary(op="-", operand=operand):
            number, rest = _coefficient(operand)
            return -number, rest
        case Binary(op="*", left=Const(value=value), right=right):
            return float(value), right
    return 1.0, expr


def subtract(left: Expr, right: Expr) -> Expr:
    return add(left, negate(right))


# ---------------------------------------------------------------- products


def multiply(left: Expr, right: Expr) -> Expr:
    """The product: numbers in front, reciprocals as divisions at the end, conditions outside."""
    dtype = common(left, right)
    if is_number(left, 0) or is_number(right, 0):
        return literal(0, dtype)
    for one, other in ((left, right), (right, left)):
        if is_number(one, 1):
            return other
        if is_number(one, -1):
            return negate(other)
    for guarded, turned in ((right, False), (left, True)):
        if isinstance(guarded, Select) and (is_number(guarded.other, 0) or is_number(guarded.then, 0)):
            arms = (multiply(arm, right) if turned else multiply(left, arm) for arm in (guarded.then, guarded.other))
            return select(guarded.condition, *arms)
    number, factors, divisors = 1.0, [], []
    for factor in (*_factors(left), *_factors(right)):
        match factor:
            case Const(value=value):
                number *= value
            case Unary(op="-", operand=operand):
                number = -number
                factors.append(operand)
            case Binary(op="/", left=Const(value=value), right=divisor):
                number *= value
                divisors.append(divisor)
            case _:
                factors.append(factor)
    result: Expr | None = literal(abs(number), dtype) if abs(number) != 1 or not factors else None
    for factor in factors:
        result = factor if result is None else Binary("*", result, factor, dtype=dtype)
    assert result is not None  # without a factor there is the number
    for divisor in divisors:
        result = Binary("/", result, divisor, dtype=dtype)
    return negate(result) if number < 0 else result


def _factors(expr: Expr) -> Iterable[Expr]:
    match expr:
        case Unary(op="-", operand=Binary(op="*") as product):
            yield literal(-1, expr.dtype)
            yield from _factors(product)
        case Binary(op="*", left=left, right=right):
            yield from _factors(left)
            yield from _factors(right)
        case _:
            yield expr


def divide(left: Expr, right: Expr) -> Expr:
    if is_number(left, 0) or is_number(right, 1):
        return left
    if isinstance(left, Select) and is_number(left.other, 0):
        return select(left.condition, divide(left.then, right), left.other)
    if isinstance(left, Unary) and left.op == "-":
        return negate(divide(left.operand, right))
    return Binary("/", left, right, dtype=common(left, right))


def square(expr: Expr) -> Expr:
    return multiply(expr, expr)


# ---------------------------------------------------------------- choices and conditions


def select(condition: Expr, then: Expr, other: Expr) -> Expr:
    """``condition ? then : other``, the literal 0 in the second arm where the condition can be turned."""
    if condition == TRUE or then == other:
        return then
    if condition == FALSE:
        return other
    if isinstance(condition, Unary) and condition.op == "!":
        return select(condition.operand, other, then)
    if is_number(then, 0) and not is_number(other, 0) and (opposite := _negated(condition)) is not None:
        return select(opposite, other, then)
    if isinstance(then, Select) and then.other == other:
        return select(conjunction(condition, then.condition), then.then, other)
    return Select(condition, then, other, dtype=common(then, other) if is_float(then.dtype) else then.dtype)


def where(condition: Expr, value: Expr) -> Expr:
    """``condition ? value : 0``."""
    return select(condition, value, literal(0, value.dtype))


def _negated(condition: Expr) -> Expr | None:
    """The opposite of comparisons of integers; with a NaN every comparison of floats but one is false."""
    match condition:
        case Binary(op=op, left=left) if op in _NEGATED and not is_float(left.dtype):
            return replace(condition, op=_NEGATED[op])
        case Binary(op="||" | "&&" as op, left=left, right=right):
            one, other = _negated(left), _negated(right)
            if one is not None and other is not None:
                return both(one, other) if op == "||" else either(one, other)
    return None


def compare(op: str, left: Expr, right: Expr) -> Binary:
    return Binary(op, left, right, dtype="bool")


def both(left: Expr, right: Expr) -> Expr:
    """``left && right``, evaluated in this order."""
    return Binary("&&", left, right, dtype="bool")


def either(left: Expr, right: Expr) -> Expr:
    return Binary("||", left, right, dtype="bool")


def unless(condition: Expr) -> Expr:
    """``!condition``."""
    return Unary("!", condition, dtype="bool")


def opposite(condition: Expr) -> Expr:
    """``!condition``, as a comparison where it is one of integers."""
    turned = _negated(condition)
    return unless(condition) if turned is None else turned


def conjuncts(condition: Expr) -> list[Expr]:
    """What stands between ``&&``, in order."""
    if isinstance(condition, Binary) and condition.op == "&&":
        return conjuncts(condition.left) + conjuncts(condition.right)
    return [] if condition == TRUE else [condition]


def conjunction(*conditions: Expr) -> Expr:
    """All of them, each once, in order."""
    found: list[Expr] = []
    for condition in conditions:
        found += [part for part in conjuncts(condition) if part not in found]
    result: Expr = TRUE
    for part in found:
        result = part if result == TRUE else both(result, part)
    return result


def assume(expr: Expr, known: list[Expr]) -> Expr:
    """``expr`` where the conditions ``known`` hold: choices that they decide are made."""
    if isinstance(expr, Select):
        parts = conjuncts(expr.condition)
        if all(part in known for part in parts):
            return assume(expr.then, known)
        if any(unless(part) in known for part in parts):
            return assume(expr.other, known)
    return rebuild(expr, lambda part: assume(part, known))


# ---------------------------------------------------------------- calls, conversions, names


def call(function: str, *args: Expr) -> Expr:
    return Call(function, args, dtype=args[0].dtype)


def convert(expr: Expr, dtype: str) -> Expr:
    """``expr`` as ``dtype``; a conversion goes inside a condition."""
    if expr.dtype == dtype:
        return expr
    if isinstance(expr, Const):
        return Const(converted(expr.value, dtype), dtype=dtype)
    if isinstance(expr, Select) and is_number(expr.other, 0):
        return select(expr.condition, convert(expr.then, dtype), literal(0, dtype))
    return Cast(expr, dtype=dtype)


def widened(expr: Expr, dtype: str) -> Expr:
    """``expr`` as ``dtype``: computed in that where it is a float of fewer bits, without rounding to its own."""
    if not is_float(expr.dtype):
        return expr  # a condition
    if DTYPES[expr.dtype].bits < DTYPES[dtype].bits and isinstance(expr, (Binary, Unary, Call, Select)):
        return replace(rebuild(expr, lambda part: widened(part, dtype)), dtype=dtype)
    return convert(expr, dtype)


def with_tensors(expr: Expr, names: Mapping[str, str]) -> Expr:
    """``expr`` with other names for tensors."""
    expr = rebuild(expr, lambda part: with_tensors(part, names))
    return replace(expr, tensor=names[expr.tensor]) if isinstance(expr, Access) and expr.tensor in names else expr


def read(tensor: str, indices: Iterable[str], dtype: str) -> Access:
    """A read at plain indices."""
    return Access(tensor, tuple(map(index, indices)), dtype=dtype)


def reads(expr: Expr) -> dict[str, None]:
    """The tensors that an expression reads, in order of appearance."""
    return {node.tensor: None for node in walk(expr) if isinstance(node, Access)}
