"""Values with the distance by which a correct target may miss them.

A ``Bounded`` is what the reference computes (floats in float64) and, per element, an absolute ``error``: 0 where every correct target
computes the very same number, infinity where no bound is known (a comparison, a rounding to an integer or a pole within the error
of its operand: such elements are *undecided*, and not compared). None stands for 0 everywhere. Errors are propagated forwards:

- ``+ - * /`` pass on the errors of their operands to first order and second, and add eps * |result| (eps that of the type in which
  targets compute: float32 for the half types) plus the least denormal; nothing is added to a result that is exact in that type;
- a reduction of n terms adds (n + 8) * eps * sum|terms|, the rule of the language, to the sum of the terms' errors; a product is
  bounded by the product of the terms made larger by their errors; min and max by the extremes of the terms' intervals;
- a built-in adds its bound in ulps to the change seen when its arguments move by their errors, twice that where it is not monotone;
- rounding to a type moves the ends of the interval.

So contraction to fma and any order of a reduction are inside the error. A result above the greatest number of the type that it is
computed in is undecided, as are the sign of a zero that min or max chose between two and that of a NaN.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tcjit.grammar.dtypes import FORMATS, Format
from tcjit.runtime.functions import FUNCTIONS, on_floats, on_integers
from tcjit.runtime.numerics import Array, computed_in, convert, is_float, rounded

RELIABLE = 0.25  # arguments that move by more than this say nothing about how a function that is not monotone moves


class Bounded(NamedTuple):
    value: Array
    error: Array | None = None


def plain(value: Array, error: Array | None) -> Bounded:
    """A value whose error is dropped where it is nothing."""
    return Bounded(value, error if error is not None and np.any(error) else None)


def either(*errors: Array | None) -> Array | None:
    """Infinity where any error is infinite, for results that are right or unknown."""
    known = [e for e in errors if e is not None]
    if not known:
        return None
    undecided = known[0] == np.inf
    for error in known[1:]:
        undecided = undecided | (error == np.inf)
    return np.where(undecided, np.inf, 0.0)


def undecided_where(condition: Array) -> Array:
    return np.where(condition, np.inf, 0.0)


def _error(value: Bounded) -> Array:
    return np.zeros(()) if value.error is None else value.error


def _times(factor: Array, error: Array) -> Array:
    """factor * error, where no error times infinity is no error."""
    return np.where(error == 0, 0.0, np.abs(factor) * error)


def _finish(value: Array, error: Array, sure: Array, form: Format) -> Bounded:
    """Undecided where the bound is lost or the type may overflow; an infinity or NaN is exact where it is ``sure``."""
    size = np.abs(value)
    lost = np.isnan(error) | (np.isfinite(value) & (size + error > form.greatest))
    error = np.where(np.isfinite(value), np.where(lost, np.inf, error), np.where(sure, 0.0, np.inf))
    return plain(value, error)


# ---------------------------------------------------------------- arithmetic on floats


def arithmetic(op: str, left: Bounded, right: Bounded, dtype: str) -> Bounded:
    """``+ - * /`` on floats of ``dtype``."""
    form = FORMATS[computed_in(dtype)]
    a, b, ea, eb = left.value, right.value, _error(left), _error(right)
    if op == "-":
        op, b = "+", -b
    untouched = (ea == 0) & (eb == 0)
    if op == "+":
        value = a + b
        passed = ea + eb
        exact = _exact_sum(a, b, value)
        sure = (~np.isfinite(a) | ~np.isfinite(b) | untouched) & np.isfinite(passed)
    elif op == "*":
        value = a * b
        passed = _times(a, eb) + _times(b, ea) + ea * eb
        exact = _short(a) & _short(b)
        sure = untouched | (np.isfinite(ea) & np.isfinite(eb) & (np.isnan(a) | np.isnan(b)))
    else:
        value = a / b
        room = np.abs(b) - eb
        passed = np.where(untouched, 0.0, np.where(room > 0, (ea + _times(value, eb)) / room, np.inf))
        exact = _short(b) & _short(value) & (value * b == a)
        sure = untouched | (np.isfinite(ea) & np.isfinite(eb) & (np.isnan(a) | np.isnan(b)))
    # an fma does not overflow where its product alone would
    sure = sure & ~(np.isinf(value) & np.isfinite(a) & np.isfinite(b) & ((op != "/") | (b != 0)))
    if form.digits == 24:  # what float32 holds after rounding to float64 is what it gives itself
        exact = _short(value)
    added = np.where(exact & untouched, 0.0, form.eps * (np.abs(value) + passed) + form.tiny)
    return _finish(value, passed + added, sure, form)


def _short(x: Array) -> Array:
    """At most 24 significant bits: products of two are exact in float64."""
    short: Array = x == rounded(x, "float32")
    return short


def _exact_sum(a: Array, b: Array, total: Array) -> Array:
    """Knuth's test: whether the sum was rounded."""
    virtual = total - a
    exact: Array = (a - (total - virtual)) + (b - virtual) == 0
    return exact


def modulo(left: Bounded, right: Bounded, dtype: str) -> Bounded:
    """The floored remainder of floats, exact where it does not lie within the error of a jump."""
    value = np.remainder(left.value, right.value)
    if left.error is None and right.error is None:
        form = FORMATS[computed_in(dtype)]
        exact = _short(value) & _short(left.value) & _short(right.value)
        return plain(value, np.where(exact | ~np.isfinite(value), 0.0, 2 * form.eps * np.abs(right.value)))
    return plain(value, np.full(value.shape, np.inf))


def negate(operand: Bounded) -> Bounded:
    return Bounded(-operand.value, operand.error)


def compare(op: str, left: Bounded, right: Bounded) -> Bounded:
    """A comparison; undecided where the operands' errors could turn it."""
    a, b = left.value, right.value
    compute: dict[str, Callable[[Array, Array], Array]] = {
        "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal,
    }  # fmt: skip
    value = compute[op](a, b)
    if left.error is None and right.error is None:
        return Bounded(value)
    room = _error(left) + _error(right)
    near = np.zeros(value.shape, dtype=bool)
    if a.dtype == np.float64:
        near = (room > 0) & (np.abs(a - b) <= room)
    return plain(value, undecided_where(near | (room == np.inf)))


def cast(operand: Bounded, source: str, target: str, store: bool = False) -> Bounded:
    """``convert`` with errors. A wider float type does not round; ``store`` rounds to the same type too."""
    x, error = operand
    if is_float(source) and is_float(target):
        narrows = store or target in ("float16", "bfloat16") or (source, target) == ("float64", "float32")
        if not narrows:
            return operand
        value = rounded(x, target)
        return value_of_monotone(value, [(x, error)], lambda moved: rounded(moved, target))
    value = convert(x, source, target)
    if is_float(source):
        if error is None:
            return Bounded(value)
        same = convert(x - error, source, target) == convert(x + error, source, target)
        if target == "bool":
            same = (np.abs(x) > error) | (error == 0) | np.isnan(x)
        return plain(value, undecided_where(~same | (error == np.inf)))
    error = either(error)
    if is_float(target):  # a target may round large integers twice, by way of float32
        twice = (value != x) & (np.abs(value) > 2.0**24) & np.isfinite(value)
        if np.any(twice):
            error = np.where(twice, FORMATS[target].eps * np.abs(value), 0.0) + _error(Bounded(x, error))
    return Bounded(value, error)


def value_of_monotone(value: Array, args: Sequence[tuple[Array, Array | None]], f: Callable[..., Array]) -> Bounded:
    """``value = f(*args)`` with the change seen when each argument moves by its error."""
    return plain(value, _spread(value, args, f))


def _spread(value: Array, args: Sequence[tuple[Array, Array | None]], f: Callable[..., Array]) -> Array | None:
    total: Array | None = None
    values = [x for x, _ in args]
    for position, (x, error) in enumerate(args):
        if error is None:
            continue
        change = np.zeros(value.shape)
        for moved in (x - error, x + error):
            other = f(*values[:position], moved, *values[position + 1 :])
            same = (other == value) | (np.isnan(other) & np.isnan(value))
            change = np.maximum(change, np.where(same, 0.0, np.abs(other - value)))
        change = np.where(error == 0, 0.0, np.where(np.isnan(change) | (error == np.inf), np.inf, change))
        total = change if total is None else total + change
    return total


# ---------------------------------------------------------------- built-ins


def call(name: str, args: Sequence[Bounded], dtype: str) -> Bounded:
    """A built-in on arguments of ``dtype``."""
    values = tuple(a.value for a in args)
    if not is_float(dtype):
        return Bounded(on_integers(name, values, dtype), either(*(a.error for a in args)))
    function, form = FUNCTIONS[name], FORMATS[computed_in(dtype)]

    def compute(*moved: Array) -> Array:
        return on_floats(name, moved, dtype)

    value = compute(*values)
    spread = _spread(value, args, compute)
    if function.tame and function.ulps == 0:
        if name in ("min", "max", "fmin", "fmax", "clamp", "relu") and np.any(value == 0):
            chosen = (value == 0) & _signs_differ(values)
            spread = np.where(chosen, form.tiny, 0.0) + (0.0 if spread is None else spread)
        if name == "copysign" and np.any(np.isnan(values[1])):
            spread = np.where(np.isnan(values[1]), np.inf, 0.0 if spread is None else spread)
        return plain(value, spread)
    error = np.zeros(value.shape) if spread is None else spread * (1.0 if function.tame else 2.0)
    if not function.tame:
        for a in args:
            if a.error is not None:
                error = np.where(a.error > RELIABLE, np.inf, error)
    sure = error == 0
    if function.ulps:
        error = error + function.ulps * form.eps * (np.abs(value) + np.where(np.isfinite(error), error, 0.0)) + form.tiny
    if function.backward:
        nudged = [(x, function.ulps * form.eps * np.abs(x)) for x in values]
        change = _spread(value, nudged, compute)
        error = error + np.where(np.isfinite(value) & np.isfinite(change), change, 0.0) if change is not None else error
    if name == "fma":
        error = error + form.eps * np.abs(values[0] * values[1])
    return _finish(value, error, sure, form)


def _signs_differ(values: Sequence[Array]) -> Array:
    """Whether zeros of both signs are among the arguments; ``relu`` compares with a positive one."""
    negative = np.zeros((), dtype=bool)
    positive = np.asarray(len(values) == 1)
    for x in values:
        negative = negative | ((x == 0) & np.signbit(x))
        positive = positive | ((x == 0) & ~np.signbit(x))
    both: Array = negative & positive
    return both


# ---------------------------------------------------------------- choices


def conjunction(op: str, left: Bounded, right: Bounded) -> Bounded:
    """``&&`` or ``||`` of operands that are both known; the right one may be anything where the left one settles the result."""
    absorbing = op == "||"
    value = (left.value | right.value) if absorbing else (left.value & right.value)
    if left.error is None and right.error is None:
        return Bounded(value)
    ul, ur = _error(left) == np.inf, _error(right) == np.inf
    open_right = ul & (ur | (right.value != absorbing))
    open_left = ur & (ul | (left.value != absorbing))
    return plain(value, undecided_where(open_right | open_left))


def select(condition: Bounded, then: Bounded, other: Bounded) -> Bounded:
    value = np.where(condition.value, then.value, other.value)
    if condition.error is None and then.error is None and other.error is None:
        return Bounded(value)
    error = np.where(condition.value, _error(then), _error(other))
    return plain(value, np.where(_error(condition) == np.inf, np.inf, error))
