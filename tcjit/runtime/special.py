"""Special functions in float64, with NumPy and ``math`` alone, good to about 1e-14 (absolute near the zeros of Bessel functions).

Formula numbers are those of the NIST Digital Library of Mathematical Functions.
"""
from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tcjit.runtime.numerics import Array


def _pointwise(function: Callable[..., float], count: int = 1) -> Callable[..., Array]:
    """A scalar function over arrays; NaN in gives NaN out."""

    def guarded(*args: float) -> float:
        return math.nan if any(a != a for a in args) else function(*args)

    ufunc = np.frompyfunc(guarded, count, 1)

    def over(*args: Array) -> Array:
        result: Array = np.asarray(ufunc(*args)).astype(np.float64)
        return result

    return over


def _gamma(x: float) -> float:
    if x == 0:
        return math.copysign(math.inf, x)
    if x == -math.inf or (x < 0 and x == math.floor(x)):
        return math.nan
    try:
        return math.gamma(x)
    except OverflowError:
        return math.inf


def _lgamma(x: float) -> float:
    if math.isinf(x) or (x <= 0 and x == math.floor(x)):
        return math.inf
    try:
        return math.lgamma(x)
    except OverflowError:
        return math.inf


def _digamma(x: float) -> float:
    """5.11.2 from 15 on, below by 5.5.2, left of 0 by 5.5.4."""
    if x == 0:
        return math.copysign(math.inf, -x)
    if x < 0:
        if math.isinf(x) or x == math.floor(x):
            return math.nan
        return _digamma(1 - x) - math.pi / math.tan(math.pi * (x - round(x)))
    if x > 1e18:
        return math.log(x)
    terms = []
    while x < 15:
        terms.append(-1 / x)
        x += 1
    terms += [math.log(x), -0.5 / x, *(-b / (2 * k) / x ** (2 * k) for k, b in enumerate(_BERNOULLI, 1))]
    return math.fsum(terms)


def _zeta(s: float, a: float) -> float:
    """The sum of (a + k)^-s over k from 0 on: 25.11.28 behind the first terms."""
    terms = []
    while a < 20:
        terms.append(a**-s)
        a += 1
    terms += [a ** (1 - s) / (s - 1), a**-s / 2]
    rising = s
    for k, b in enumerate(_BERNOULLI, 1):
        terms.append(b * rising * a ** (1 - s - 2 * k) / math.factorial(2 * k))
        rising *= (s + 2 * k - 1) * (s + 2 * k)
    return math.fsum(terms)


def _polygamma(n: float, x: float) -> float:
    if not 0 <= n <= 170 or n != math.floor(n) or x == -math.inf:
        return math.nan
    if n == 0:
        return _digamma(x)
    sign = 1.0 if n % 2 else -1.0
    try:
        if x > 0:
            total = _zeta(n + 1, x)
        elif x == math.floor(x):
            total = math.inf
        else:  # the terms on both sides, without those beyond 0
            near = x - round(x)
            above, under = (near, 1 - near) if near > 0 else (1 + near, -near)
            total = _zeta(n + 1, above) + sign * (_zeta(n + 1, under) - _zeta(n + 1, 1 - x))
        return sign * math.gamma(n + 1) * total
    except OverflowError:
        return sign * math.inf


_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798)


def _remainder(x: float, y: float) -> float:
    return math.nan if math.isinf(x) or y == 0 else math.remainder(x, y)


erf = _pointwise(math.erf)
erfc = _pointwise(math.erfc)
tgamma = _pointwise(_gamma)
lgamma = _pointwise(_lgamma)
digamma = _pointwise(_digamma)
polygamma = _pointwise(_polygamma, 2)
remainder = _pointwise(_remainder, 2)


def exp_square(x: Array) -> Array:
    """exp(x * x) without the rounding error of the square, which the exponential would magnify."""
    head = x.astype(np.float32).astype(np.float64)
    result: Array = np.exp(head * head) * np.exp((x - head) * (x + head))
    return np.where(np.abs(x) > 27.0, np.inf, result)


def erfcx(x: Array) -> Array:
    """exp(x^2) erfc(x); the asymptotic series 7.12.1 from 10 on."""
    z = np.abs(x)
    near = exp_square(np.minimum(z, 10.0)) * erfc(np.minimum(z, 10.0))
    far, term = np.ones_like(z), np.ones_like(z)
    square = 2.0 * np.maximum(z, 10.0) ** 2
    for k in range(1, 20):
        term = -term * (2 * k - 1) / square
        far = far + term
    value = np.where(z < 10.0, near, far / (np.maximum(z, 10.0) * math.sqrt(math.pi)))
    return np.where(np.isnan(x), np.nan, np.where(x < 0, 2.0 * exp_square(z) - value, value))


def erfinv(y: Array) -> Array:
    """Inverse of erf: Halley steps from its tangent in the middle, ``erfcinv`` in the tails."""
    middle = np.where(np.abs(y) <= 0.5, y, 0.0)
    x = middle * (math.sqrt(math.pi) / 2)
    for _ in range(5):
        miss = erf(x) - middle
        x = x - miss / (2.0 / math.sqrt(math.pi) * np.exp(-x * x) + x * miss)
    tail = np.copysign(_erfcinv_tail(1.0 - np.abs(y)), y)
    return np.where(np.abs(y) <= 0.5, x, tail)


def erfcinv(p: Array) -> Array:
    """Inverse of erfc on [0, 2]; NaN outside."""
    middle = (p > 0.5) & (p < 1.5)
    tail = np.where(p < 1, _erfcinv_tail(p), -_erfcinv_tail(2.0 - p))
    return np.where(middle, erfinv(np.where(middle, 1.0 - p, 0.0)), tail)


def _erfcinv_tail(p: Array) -> Array:
    """Inverse of erfc for p in [0, 1/2], by Halley steps from the rational approximation 26.2.22 of Abramowitz and Stegun."""
    inside = np.where((p > 0) & (p <= 0.5), p, 0.25)
    t = np.sqrt(2.0 * (math.log(2.0) - np.log(inside)))  # half of the least denormal would be 0
    x = (t - (2.30753 + 0.27061 * t) / (1.0 + t * (0.99229 + 0.04481 * t))) / math.sqrt(2.0)
    for _ in range(4):
        miss = erfc(x) - inside
        x = x + miss / (2.0 / math.sqrt(math.pi) * np.exp(-x * x) - x * miss)
    return np.where(p == 0, np.inf, np.where((p > 0) & (p <= 0.5), x, np.nan))


def normcdf(x: Array) -> Array:
    """The normal distribution function, corrected to first order for the rounding of x / sqrt 2, which the tail magnifies."""
    half_root = math.sqrt(0.5)
    z = -x * half_root
    head = x.astype(np.float32).astype(np.float64)
    root_head = float(np.float32(half_root))
    root_tail = (half_root - root_head) + (-4.833646656726457e-17)  # half_root itself is off by the last term
    lost = ((-head * root_head - z) - head * root_tail) - (x - head) * half_root
    slope = 2.0 / math.sqrt(math.pi) * np.exp(-np.minimum(z * z, 800.0))
    correction = np.where(np.isfinite(lost) & (np.abs(z) < 27.0), slope * lost, 0.0)
    result: Array = 0.5 * (erfc(z) - correction)
    return result


def normcdfinv(p: Array) -> Array:
    result: Array = -math.sqrt(2.0) * erfcinv(2.0 * p)
    return result


def sinpi(x: Array) -> Array:
    """sin(pi x), the argument reduced exactly to [-1/2, 1/2] first."""
    turn = np.fmod(x, 2.0)
    turn = np.where(turn > 1.0, turn - 2.0, np.where(turn < -1.0, turn + 2.0, turn))
    fold = np.where(turn > 0.5, 1.0 - turn, np.where(turn < -0.5, -1.0 - turn, turn))
    return np.sin(math.pi * fold)


def cospi(x: Array) -> Array:
    """cos(pi x), the argument reduced exactly to a quarter turn first."""
    turn = np.fmod(np.abs(x), 2.0)
    turn = np.where(turn > 1.0, 2.0 - turn, turn)
    near_axis = np.abs(turn - 0.5) < 0.25
    return np.where(near_axis, np.sin(math.pi * (0.5 - turn)), np.cos(math.pi * turn))


# ---------------------------------------------------------------- Bessel functions

_SPLIT = 25.0  # below: integrals by the trapezoidal rule, which converges geometrically; above: Hankel's expansion 10.17
_NODES = 192
_EULER = 0.5772156649015328606


def _mean(cosine: Callable[[float], float], sine: Callable[[float], float], x: Array) -> Array:
    """The mean over a turn of cosine(t) cos(x sin t) + sine(t) sin(x sin t)."""
    total = np.zeros_like(x)
    for node in range(_NODES):
        t = 2.0 * math.pi * node / _NODES
        phase = x * math.sin(t)
        total = total + cosine(t) * np.cos(phase) + sine(t) * np.sin(phase)
    result: Array = total / _NODES
    return result


def _hankel(order: int, x: Array) -> tuple[Array, Array]:
    """J and Y of ``order`` for large x."""
    even, odd = np.ones_like(x), np.zeros_like(x)
    term = np.ones_like(x)
    for k in range(1, 26):
        term = term * ((4.0 * order * order - (2 * k - 1) ** 2) / (8.0 * k)) / x
        sign = -1.0 if (k // 2) % 2 else 1.0
        if k % 2:
            odd = odd + sign * term
        else:
            even = even + sign * term
    c, s = np.cos(x), np.sin(x)
    root_half = math.sqrt(0.5)
    if order == 0:  # the phase is x - pi/4
        cosine, sine = (c + s) * root_half, (s - c) * root_half
    else:  # x - 3 pi/4
        cosine, sine = (s - c) * root_half, -(s + c) * root_half
    scale = np.sqrt(2.0 / (math.pi * x))
    return scale * (even * cosine - odd * sine), scale * (even * sine + odd * cosine)


def _bessel_j(order: int, x: Array) -> Array:
    z = np.abs(x)
    near = np.where(z < _SPLIT, z, 0.0)
    far = np.where(z < _SPLIT, _SPLIT, np.where(np.isinf(z), _SPLIT, z))
    if order == 0:
        low = _mean(lambda t: 1.0, lambda t: 0.0, near)
    else:
        low = _mean(math.cos, math.sin, near)
        series = near / 2 * (1 - near**2 / 8 * (1 - near**2 / 24))  # 10.2.2, where the mean would lose relative accuracy
        low = np.where(near < 1e-3, series, low)
    value = np.where(np.isinf(z), 0.0, np.where(z < _SPLIT, low, _hankel(order, far)[0]))
    value = np.where(np.isnan(x), np.nan, value)
    return np.where(x < 0, -value, value) if order == 1 else value


def j0(x: Array) -> Array:
    return _bessel_j(0, x)


def j1(x: Array) -> Array:
    return _bessel_j(1, x)


def _bessel_y(order: int, x: Array) -> Array:
    """Neumann's expansion (10.8.3 summed over orders under the integral) below the split, Hankel's above."""
    inside = (x > 0) & (x < _SPLIT)
    near = np.where(inside, x, 1.0)
    far = np.where((x >= _SPLIT) & np.isfinite(x), x, _SPLIT)
    orders = range(1, 45)
    log = np.log(near / 2)
    if order == 0:
        weights = {2 * k: 2 * (-1.0) ** k / k for k in orders}
        low = (2 / math.pi) * (log + _EULER) * j0(near)
    else:
        weights = {2 * k + 1: (-1.0) ** k * (2 * k + 1) / (k * (k + 1)) for k in orders}
        low = (2 / math.pi) * ((log + _EULER - 1) * j1(near) - j0(near) / near)
    tail = _mean(
        lambda t: sum(w * math.cos(n * t) for n, w in weights.items()),
        lambda t: sum(w * math.sin(n * t) for n, w in weights.items()),
        near,
    )
    low = low - (2 / math.pi) * tail
    value = np.where(inside, low, np.where(np.isposinf(x), 0.0, _hankel(order, far)[1]))
    return np.where(x > 0, value, np.where(x == 0, -np.inf, np.nan))


def y0(x: Array) -> Array:
    return _bessel_y(0, x)


def y1(x: Array) -> Array:
    return _bessel_y(1, x)


def _bessel_i(order: int, x: Array) -> Array:
    """The power series 10.25.2 below 20, the expansion 10.40.1 above."""
    z = np.abs(x)
    near = np.where(z < 20.0, z, 0.0)
    term = np.ones_like(z) if order == 0 else near / 2
    low = term
    for k in range(1, 70):
        term = term * (near * near / 4) / (k * (k + order))
        low = low + term
    far = np.where((z >= 20.0) & np.isfinite(z), z, 20.0)
    term = np.ones_like(z)
    high = term
    for k in range(1, 30):
        term = -term * ((4.0 * order * order - (2 * k - 1) ** 2) / (8.0 * k)) / far
        high = high + term
    root = np.exp(far / 2)  # squared by parts: the exponential overflows before the function does
    high = high / np.sqrt(2 * math.pi * far) * root * root
    value = np.where(z < 20.0, low, np.where(np.isinf(z), np.inf, high))
    value = np.where(np.isnan(x), np.nan, value)
    return np.where(x < 0, -value, value) if order == 1 else value


def i0(x: Array) -> Array:
    return _bessel_i(0, x)


def i1(x: Array) -> Array:
    return _bessel_i(1, x)
