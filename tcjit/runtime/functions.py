"""The built-ins on floats, in float64, and how far a target may stray from them.

``ulps`` bounds the error of a target's result, in units of the type it computes in; 0 means that the result is exact. ``backward``
functions may besides stray as if each argument were off by as many ulps: they have zeros or tails where only that is reasonable.
``tame`` functions change by no more than their arguments, or are monotone, whatever the size of the change.
"""
from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tcjit.dataclass import dataclass
from tcjit.runtime import special
from tcjit.runtime.numerics import Array, storage


@dataclass(frozen=True)
class ScalarFunction:
    compute: Callable[..., Array]
    ulps: float = 4.0
    backward: bool = False
    tame: bool = False


def _round(x: Array) -> Array:
    """Halves away from zero, as C does."""
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(1.0, x), np.copysign(whole, x))


def _logb(x: Array) -> Array:
    _, exponent = np.frexp(x)
    power = exponent.astype(np.float64) - 1.0
    return np.where(x == 0, -np.inf, np.where(np.isinf(x), np.inf, np.where(np.isnan(x), np.nan, power)))


def _fdim(x: Array, y: Array) -> Array:
    return np.where(np.isnan(x) | np.isnan(y), np.nan, np.where(x > y, x - y, 0.0))


def _norm(*parts: Array) -> Array:
    """The root of the sum of squares without overflow on the way; an infinite part makes it infinite, as in hypot."""
    result = np.abs(parts[0])
    for part in parts[1:]:
        result = np.hypot(result, part)
    return result


def _fma(x: Array, y: Array, z: Array) -> Array:
    result: Array = x * y + z
    return result


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0 / (1.0 + e), e / (1.0 + e))


def _choose(better: Callable[..., Array], lost: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """An extreme of two: the second where it is better or the first is ``lost``; of zeros of both signs the first, as in the kernels."""
    return lambda x, y: np.where(better(y, x) | lost(x, y), y, x)


_MIN, _MAX = (_choose(better, lambda x, y: np.isnan(y)) for better in (np.less, np.greater))  # keep a NaN
_FMIN, _FMAX = (_choose(better, lambda x, y: np.isnan(x)) for better in (np.less, np.greater))  # drop it


def _clamp(x: Array, low: Array, high: Array) -> Array:
    return _MIN(_MAX(x, low), high)


def _tame(compute: Callable[..., Array]) -> ScalarFunction:
    return ScalarFunction(compute, ulps=0.0, tame=True)


def _power(x: Array, exponent: Array) -> Array:
    """C's pow, of which numpy makes a square root where a single exponent is 0.5, also of -0 and of -infinity."""
    value = np.power(x, exponent)
    half = np.where(np.isneginf(x), value.dtype.type(np.inf), value + value.dtype.type(0))
    return np.where(np.equal(exponent, 0.5), half, value)


def _rare(compute: Callable[..., Array], ulps: float = 16.0) -> ScalarFunction:
    return ScalarFunction(compute, ulps, backward=True)


FUNCTIONS: dict[str, ScalarFunction] = {
    **{name: ScalarFunction(getattr(np, f"arc{name[1:]}")) for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "atan2")},
    **{
        name: ScalarFunction(getattr(np, name))
        for name in "cbrt cos cosh exp exp2 expm1 hypot log log10 log1p log2 sin sinh tan tanh".split()
    },
    **{name: _tame(getattr(np, name)) for name in "ceil copysign fabs floor trunc sign".split()},
    "sqrt": ScalarFunction(np.sqrt, 2.0),
    "abs": _tame(np.abs),
    "min": _tame(_MIN),
    "max": _tame(_MAX),
    "fmin": _tame(_FMIN),
    "fmax": _tame(_FMAX),
    "clamp": _tame(_clamp),
    "relu": _tame(lambda x: np.where(x < 0, 0.0, x)),
    "round": _tame(_round),
    "logb": _tame(_logb),
    "fmod": ScalarFunction(np.fmod, 0.0),
    "remainder": ScalarFunction(special.remainder, 0.0),
    "nextafter": _tame(np.nextafter),  # of its own type: see on_floats
    "fdim": ScalarFunction(_fdim, 1.0),
    "fdivide": ScalarFunction(np.divide, 2.0),
    "fma": ScalarFunction(_fma, 1.0),
    "sigmoid": ScalarFunction(_sigmoid, 8.0, tame=True),
    "exp10": _rare(lambda x: np.power(10.0, x)),
    "pow": ScalarFunction(_power, 16.0),
    "rsqrt": ScalarFunction(lambda x: 1.0 / np.sqrt(x)),
    "rcbrt": ScalarFunction(lambda x: 1.0 / np.cbrt(x)),
    "rhypot": ScalarFunction(lambda x, y: 1.0 / np.hypot(x, y), 8.0),
    "norm3d": ScalarFunction(_norm, 8.0),
    "norm4d": ScalarFunction(_norm, 8.0),
    "rnorm3d": ScalarFunction(lambda *parts: 1.0 / _norm(*parts), 8.0),
    "rnorm4d": ScalarFunction(lambda *parts: 1.0 / _norm(*parts), 8.0),
    "erf": ScalarFunction(special.erf, 8.0),
    "erfc": _rare(special.erfc),
    "erfcx": _rare(special.erfcx, 32.0),
    "erfinv": _rare(special.erfinv),
    "erfcinv": _rare(special.erfcinv),
    "normcdf": _rare(special.normcdf),
    "normcdfinv": _rare(special.normcdfinv),
    "sinpi": _rare(special.sinpi),
    "cospi": _rare(special.cospi),
    "tgamma": _rare(special.tgamma),
    "lgamma": _rare(special.lgamma),
    "digamma": _rare(special.digamma, 32.0),
    "polygamma": _rare(special.polygamma, 32.0),
    "cyl_bessel_i0": _rare(special.i0),
    "cyl_bessel_i1": _rare(special.i1),
    "j0": _rare(special.j0, 32.0),
    "j1": _rare(special.j1, 32.0),
    "y0": _rare(special.y0, 32.0),
    "y1": _rare(special.y1, 32.0),
}


def on_floats(name: str, args: tuple[Array, ...], dtype: str) -> Array:
    """Built-in ``name`` on float64 arrays that stand for values of ``dtype``, not rounded to it."""
    if name == "nextafter":
        return _nextafter(args[0], args[1], dtype)
    if name == "infinity":
        return np.asarray(math.inf)
    return FUNCTIONS[name].compute(*args)


def _nextafter(x: Array, y: Array, dtype: str) -> Array:
    """The neighbour of x in its own type; bfloat16 is the upper half of a float32."""
    if dtype != "bfloat16":
        own = np.dtype(dtype)
        neighbour: Array = np.nextafter(x.astype(own), y.astype(own)).astype(np.float64)
        return neighbour
    bits = x.astype(np.float32).view(np.int32)
    away = (y > x) == (x > 0)
    stepped = (bits + np.where(away, 1 << 16, -(1 << 16))).astype(np.int32).view(np.float32).astype(np.float64)
    stepped = np.where(x == 0, np.copysign(2.0**-133, y), stepped)
    return np.where(np.isnan(x) | np.isnan(y), np.nan, np.where(x == y, y, stepped))


def on_integers(name: str, args: tuple[Array, ...], dtype: str) -> Array:
    """Built-ins that keep integers: ``min max clamp abs sign relu``; the absolute value of the least integer wraps."""
    zero = np.zeros((), storage(dtype))
    result: Array
    if name in ("min", "max", "clamp"):
        result = FUNCTIONS[name].compute(*args)
    elif name == "relu":
        result = np.maximum(args[0], zero)
    elif name == "abs":
        result = np.where(args[0] < 0, zero - args[0], args[0])
    else:
        result = (args[0] > 0).astype(zero.dtype) - (args[0] < 0).astype(zero.dtype)
    return result.astype(zero.dtype)
