"""The derivatives of the built-in functions, made of built-in functions.

Where a function is not differentiable the value is PyTorch's: ``max`` and ``min`` halve at a tie, ``relu`` and ``abs`` are 0 at 0,
``clamp`` passes at both ends, norms are 0 at 0, functions of steps are 0. ``fmax`` and ``fmin`` give all to the first at a tie and to the
other where one is NaN. ``sqrt`` stays infinite at 0.
"""
from __future__ import annotations

import math
from collections.abc import Callable

from tcjit.errors import CheckError
from tcjit.grammar.ast import Call, Const, Expr
from tcjit.grammar.differentiate.simplify import (
    add,
    both,
    call,
    compare,
    divide,
    either,
    literal,
    multiply,
    negate,
    select,
    square,
    subtract,
    unless,
    where,
)

# the arguments and the value of a call -> the derivative by each argument
_Rule = Callable[[tuple[Expr, ...], Expr], tuple[Expr, ...]]
_ROOT_PI = math.sqrt(math.pi)


def partials(function: str, args: tuple[Expr, ...], value: Expr) -> tuple[Expr, ...]:
    """The derivative of a call by each of its arguments; ``value`` is the call itself, or what stores it.

    """
    return RULES[function](args, value)


def refuse_order(expr: Call) -> None:
    """Raises CheckError: there is no derivative of ``polygamma`` by its order."""
    raise CheckError(
        "`polygamma` has no derivative by its order",
        where=expr.where or next((arg.where for arg in expr.args if arg.where), None),
        hint="an order that depends on nothing that is differentiated",
    )


def _number(value: float, like: Expr) -> Const:
    return literal(value, like.dtype)


def _unary(rule: Callable[[Expr, Expr], Expr]) -> _Rule:
    return lambda args, value: (rule(args[0], value),)


def _scaled(factor: float, function: Callable[[Expr, Expr], Expr]) -> _Rule:
    return lambda args, value: (multiply(_number(factor, value), function(args[0], value)),)


def _one_over(function: Callable[[Expr], Expr]) -> _Rule:
    return lambda args, value: (divide(_number(1, value), function(args[0])),)


def _of(function: str) -> Callable[[Expr, Expr], Expr]:
    return lambda x, y: call(function, x)


def _gaussian(factor: float) -> Callable[[Expr, Expr], Expr]:
    """``exp(factor * x * x)``."""
    return lambda x, y: call("exp", multiply(_number(factor, x), square(x)))


def _gaussian_of_value(factor: float) -> Callable[[Expr, Expr], Expr]:
    return lambda x, y: call("exp", multiply(_number(factor, y), square(y)))


def _power(exponent: int) -> Callable[[Expr, Expr], Expr]:
    """A power of the value."""

    def rule(x: Expr, y: Expr) -> Expr:
        result = y
        for _ in range(exponent - 1):
            result = multiply(result, y)
        return result

    return rule


def _at_zero(limit: float, rule: Callable[[Expr, Expr], Expr]) -> _Rule:
    """``limit`` where the argument is 0."""
    return lambda args, y: (select(compare("==", args[0], _number(0, y)), _number(limit, y), rule(args[0], y)),)


def _steps(args: tuple[Expr, ...], value: Expr) -> tuple[Expr, ...]:
    return tuple(_number(0, value) for _ in args)


def _indicator(condition: Expr, like: Expr, value: float = 1) -> Expr:
    return where(condition, _number(value, like))


def _norm(args: tuple[Expr, ...], value: Expr) -> tuple[Expr, ...]:
    return tuple(where(compare("!=", value, _number(0, value)), divide(x, value)) for x in args)


def _reciprocal_norm(args: tuple[Expr, ...], value: Expr) -> tuple[Expr, ...]:
    return tuple(negate(multiply(x, multiply(value, square(value)))) for x in args)


def _extreme(op: str) -> _Rule:
    def share(one: Expr, other: Expr) -> Expr:
        return where(compare(op, one, other), select(compare("==", one, other), _number(0.5, one), _number(1, one)))

    return lambda args, value: (share(*args), share(args[1], args[0]))


def _extreme_of_numbers(op: str) -> _Rule:
    """Of ``fmax`` and ``fmin``, which leave NaN out."""

    def rule(args: tuple[Expr, ...], value: Expr) -> tuple[Expr, ...]:
        first = either(compare(op, *args), compare("!=", args[1], args[1]))
        return _indicator(first, value), _indicator(unless(first), value)

    return rule


def _clamp(args: tuple[Expr, ...], value: Expr) -> tuple[Expr, ...]:
    x, low, high = args
    return (
        _indicator(both(compare(">=", x, low), compare("<=", x, high)), value),
        _indicator(both(compare("<", x, low), compare("<", low, high)), value),
        _indicator(either(compare(">", x, high), compare(">", low, high)), value),
    )


def _pow(args: tuple[Expr, ...], value: Expr) -> tuple[Expr, ...]:
    base, exponent = args
    zero = _number(0, value)
    vanishes = both(compare("==", base, zero), compare(">=", exponent, zero))
    if isinstance(exponent, Const):
        return multiply(exponent, power(base, float(exponent.value) - 1)), zero
    by_base = multiply(exponent, call("pow", base, subtract(exponent, _number(1, value))))
    return where(compare("!=", exponent, zero), by_base), where(unless(vanishes), multiply(value, call("log", base)))


def power(base: Expr, exponent: float) -> Expr:
    """``pow`` with a number as the exponent."""
    if exponent == 0:
        return _number(1, base)
    if exponent in (1, 2):
        return base if exponent == 1 else square(base)
    return call("pow", base, _number(exponent, base))


def _atan2(args: tuple[Expr, ...], value: Expr) -> tuple[Expr, ...]:
    y, x = args
    norm = add(square(y), square(x))
    return divide(x, norm), negate(divide(y, norm))


def _copysign(args: tuple[Expr, ...], value: Expr) -> tuple[Expr, ...]:
    signs = multiply(call("sign", args[0]), call("sign", value))
    return where(compare("!=", args[0], _number(0, value)), signs), _number(0, value)


def _fdim(args: tuple[Expr, ...], value: Expr) -> tuple[Expr, ...]:
    greater = compare(">", *args)
    return _indicator(greater, value), _indicator(greater, value, -1)


def _quotient(args: tuple[Expr, ...], value: Expr) -> tuple[Expr, ...]:
    return divide(_number(1, value), args[1]), negate(divide(value, args[1]))


def _modulus(rounding: str) -> _Rule:
    return lambda args, value: (_number(1, value), negate(call(rounding, divide(*args))))


def _plus_one(expr: Expr) -> Expr:
    return add(expr, _number(1, expr))


def _one_minus(expr: Expr) -> Expr:
    return subtract(_number(1, expr), expr)


RULES: dict[str, _Rule] = {
    "exp": _unary(lambda x, y: y),
    "exp2": _scaled(math.log(2), lambda x, y: y),
    "exp10": _scaled(math.log(10), lambda x, y: y),
    "expm1": _unary(lambda x, y: _plus_one(y)),
    "log": _one_over(lambda x: x),
    "log2": _scaled(1 / math.log(2), lambda x, y: divide(_number(1, x), x)),
    "log10": _scaled(1 / math.log(10), lambda x, y: divide(_number(1, x), x)),
    "log1p": _one_over(_plus_one),
    "sqrt": _unary(lambda x, y: divide(_number(0.5, x), y)),
    "rsqrt": _scaled(-0.5, _power(3)),
    "cbrt": _unary(lambda x, y: divide(_number(1 / 3, x), square(y))),
    "rcbrt": _scaled(-1 / 3, _power(4)),
    "sin": _unary(_of("cos")),
    "cos": _scaled(-1, _of("sin")),
    "tan": _unary(lambda x, y: _plus_one(square(y))),
    "sinpi": _scaled(math.pi, _of("cospi")),
    "cospi": _scaled(-math.pi, _of("sinpi")),
    "asin": _unary(lambda x, y: call("rsqrt", _one_minus(square(x)))),
    "acos": _unary(lambda x, y: negate(call("rsqrt", _one_minus(square(x))))),
    "atan": _one_over(lambda x: _plus_one(square(x))),
    "sinh": _unary(_of("cosh")),
    "cosh": _unary(_of("sinh")),
    "tanh": _unary(lambda x, y: _one_minus(square(y))),
    "asinh": _unary(lambda x, y: call("rsqrt", _plus_one(square(x)))),
    "acosh": _unary(lambda x, y: call("rsqrt", subtract(square(x), _number(1, x)))),
    "atanh": _one_over(lambda x: _one_minus(square(x))),
    "erf": _scaled(2 / _ROOT_PI, _gaussian(-1)),
    "erfc": _scaled(-2 / _ROOT_PI, _gaussian(-1)),
    "erfcx": _unary(lambda x, y: subtract(multiply(_number(2, x), multiply(x, y)), _number(2 / _ROOT_PI, x))),
    "erfinv": _scaled(_ROOT_PI / 2, _gaussian_of_value(1)),
    "erfcinv": _scaled(-_ROOT_PI / 2, _gaussian_of_value(1)),
    "normcdf": _scaled(1 / math.sqrt(2 * math.pi), _gaussian(-0.5)),
    "normcdfinv": _scaled(math.sqrt(2 * math.pi), _gaussian_of_value(0.5)),
    "sigmoid": _unary(lambda x, y: multiply(y, _one_minus(y))),
    "lgamma": _unary(_of("digamma")),
    "tgamma": _unary(lambda x, y: multiply(y, call("digamma", x))),
    "digamma": _unary(lambda x, y: call("polygamma", _number(1, x), x)),
    "polygamma": lambda args, y: (_number(0, y), call("polygamma", add(args[0], _number(1, y)), args[1])),
    "j0": _scaled(-1, _of("j1")),
    "y0": _scaled(-1, _of("y1")),
    "j1": _at_zero(0.5, lambda x, y: subtract(call("j0", x), divide(y, x))),
    "y1": _unary(lambda x, y: subtract(call("y0", x), divide(y, x))),
    "cyl_bessel_i0": _unary(_of("cyl_bessel_i1")),
    "cyl_bessel_i1": _at_zero(0.5, lambda x, y: subtract(call("cyl_bessel_i0", x), divide(y, x))),
    "abs": _unary(_of("sign")),
    "fabs": _unary(_of("sign")),
    "relu": _unary(lambda x, y: _indicator(compare(">", x, _number(0, x)), x)),
    **dict.fromkeys("ceil floor round trunc sign logb nextafter infinity".split(), _steps),
    "atan2": _atan2,
    "copysign": _copysign,
    "fdim": _fdim,
    "fdivide": _quotient,
    "fmod": _modulus("trunc"),
    "remainder": _modulus("round"),
    **dict.fromkeys(("hypot", "norm3d", "norm4d"), _norm),
    **dict.fromkeys(("rhypot", "rnorm3d", "rnorm4d"), _reciprocal_norm),
    "fma": lambda args, value: (args[1], args[0], _number(1, value)),
    "pow": _pow,
    "max": _extreme(">="),
    "min": _extreme("<="),
    "fmax": _extreme_of_numbers(">="),
    "fmin": _extreme_of_numbers("<="),
    "clamp": _clamp,
}


def may_reuse(expr: Expr) -> bool:
    """Whether the derivative of a call is simpler in terms of its value."""
    return isinstance(expr, Call) and expr.function in ("exp", "exp2", "tanh", "sigmoid", "sqrt", "rsqrt", "tan", "cbrt")
