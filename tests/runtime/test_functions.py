"""Every built-in of the reference against mpmath or ``math``, and at its edges."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tcjit.grammar.builtins import BUILTINS
from tcjit.runtime.functions import FUNCTIONS, on_floats, on_integers

mpmath = pytest.importorskip("mpmath")
rng = np.random.default_rng(2)
mp = mpmath.mp.clone()
mp.dps = 40


def _erfcinv(p: Any) -> Any:
    return mp.erfinv(1 - p)


EXACT: dict[str, tuple[Callable[..., Any], tuple[tuple[float, float], ...]]] = {
    **{n: (getattr(mp, n), ((-1, 1),)) for n in "acos asin atanh erfinv".split()},
    **{n: (getattr(mp, n), ((-9, 9),)) for n in "asinh atan cos cosh cospi erf exp expm1 sin sinh sinpi tan tanh".split()},
    "cbrt": (lambda x: mp.sign(x) * mp.cbrt(abs(x)), ((-30, 30),)),
    "rcbrt": (lambda x: mp.sign(x) / mp.cbrt(abs(x)), ((-30, 30),)),
    "acosh": (mp.acosh, ((1, 50),)),
    "cyl_bessel_i0": (lambda x: mp.besseli(0, x), ((-100, 100),)),
    "cyl_bessel_i1": (lambda x: mp.besseli(1, x), ((-100, 100),)),
    "j0": (lambda x: mp.besselj(0, x), ((-60, 60),)),
    "j1": (lambda x: mp.besselj(1, x), ((-60, 60),)),
    "y0": (lambda x: mp.bessely(0, x), ((0.01, 60),)),
    "y1": (lambda x: mp.bessely(1, x), ((0.01, 60),)),
    "erfc": (mp.erfc, ((-5, 25),)),
    "erfcx": (lambda x: mp.exp(x * x) * mp.erfc(x), ((-5, 60),)),
    "erfcinv": (_erfcinv, ((0.0, 2.0),)),
    "exp2": (lambda x: mp.power(2, x), ((-50, 50),)),
    "exp10": (lambda x: mp.power(10, x), ((-50, 50),)),
    "log": (mp.log, ((0, 50),)),
    "log10": (mp.log10, ((0, 50),)),
    "log2": (lambda x: mp.log(x, 2), ((0, 50),)),
    "log1p": (mp.log1p, ((-1, 50),)),
    "lgamma": (lambda x: mp.log(abs(mp.gamma(x))), ((-8, 60),)),
    "tgamma": (mp.gamma, ((-8, 60),)),
    "digamma": (lambda x: mp.psi(0, x), ((-8, 60),)),
    "polygamma": (mp.psi, ((2, 2), (-8, 60))),
    "normcdf": (mp.ncdf, ((-35, 9),)),
    "normcdfinv": (lambda p: -mp.sqrt(2) * _erfcinv(2 * p), ((0, 1),)),
    "sqrt": (mp.sqrt, ((0, 50),)),
    "rsqrt": (lambda x: 1 / mp.sqrt(x), ((0, 50),)),
    "sigmoid": (lambda x: 1 / (1 + mp.exp(-x)), ((-50, 50),)),
    "atan2": (mp.atan2, ((-3, 3), (-3, 3))),
    "hypot": (mp.hypot, ((-3, 3), (-3, 3))),
    "rhypot": (lambda x, y: 1 / mp.hypot(x, y), ((-3, 3), (-3, 3))),
    "pow": (mp.power, ((0, 9), (-9, 9))),
    "norm3d": (lambda *v: mp.sqrt(sum(x * x for x in v)), ((-3, 3),) * 3),
    "rnorm3d": (lambda *v: 1 / mp.sqrt(sum(x * x for x in v)), ((-3, 3),) * 3),
    "norm4d": (lambda *v: mp.sqrt(sum(x * x for x in v)), ((-3, 3),) * 4),
    "rnorm4d": (lambda *v: 1 / mp.sqrt(sum(x * x for x in v)), ((-3, 3),) * 4),
    "fma": (lambda x, y, z: x * y + z, ((-3, 3), (-3, 3), (0, 3))),
    "fdim": (lambda x, y: max(x - y, mp.mpf(0)), ((-3, 3), (-3, 3))),
    "fdivide": (lambda x, y: x / y, ((-3, 3), (-3, 3))),
}
ELSEWHERE = {  # exact by nature, below
    "ceil", "floor", "trunc", "round", "logb", "fabs", "copysign", "fmax", "fmin", "fmod", "remainder", "nextafter",
    "abs", "relu", "sign", "clamp", "min", "max", "infinity",
}  # fmt: skip


def test_every_builtin_is_tested_here() -> None:
    assert {*EXACT} | ELSEWHERE == {*BUILTINS}
    assert {*FUNCTIONS} | {"infinity"} == {*BUILTINS}


@pytest.mark.parametrize("name", sorted(EXACT))
def test_against_many_digits(name: str) -> None:
    exact, domains = EXACT[name]
    args = [rng.uniform(low, high, 60) for low, high in domains]
    with np.errstate(all="ignore"):
        got = on_floats(name, tuple(args), "float64")
    wanted = np.array([float(mp.re(exact(*map(mp.mpf, point)))) for point in zip(*args)])
    scale = np.maximum(np.abs(wanted), 1.0) if name in ("j0", "j1", "y0", "y1", "lgamma", "tan", "digamma", "polygamma") else np.abs(wanted)
    assert np.max(np.abs(got - wanted) / np.where(scale == 0, 1.0, scale)) < 3e-14


EDGES = [
    ("ceil", (1.2,), 2.0), ("floor", (-1.2,), -2.0), ("trunc", (-1.8,), -1.0), ("round", (2.5,), 3.0), ("round", (-2.5,), -3.0),
    ("round", (0.49999999999999994,), 0.0), ("logb", (10.0,), 3.0), ("logb", (0.0,), -math.inf), ("logb", (5e-324,), -1074.0),
    ("fabs", (-2.0,), 2.0), ("copysign", (2.0, -0.0), -2.0), ("fmax", (math.nan, 1.0), 1.0), ("fmin", (1.0, math.nan), 1.0),
    ("fmod", (-7.0, 3.0), -1.0), ("remainder", (8.0, 3.0), -1.0), ("remainder", (1.0, 0.0), math.nan), ("abs", (-3.0,), 3.0),
    ("relu", (math.nan,), math.nan), ("relu", (-1.0,), 0.0), ("sign", (-0.5,), -1.0), ("clamp", (5.0, 0.0, 2.0), 2.0),
    ("min", (math.nan, 1.0), math.nan), ("max", (1.0, math.nan), math.nan), ("infinity", (), math.inf), ("tgamma", (0.0,), math.inf),
    ("tgamma", (-1.0,), math.nan), ("tgamma", (200.0,), math.inf), ("lgamma", (-3.0,), math.inf), ("lgamma", (math.inf,), math.inf),
    ("digamma", (0.0,), -math.inf), ("digamma", (-0.0,), math.inf), ("digamma", (-3.0,), math.nan), ("digamma", (math.inf,), math.inf),
    ("digamma", (-math.inf,), math.nan), ("digamma", (1e300,), math.log(1e300)), ("digamma", (-1e-300,), 1e300),
    ("polygamma", (1.0, 0.0), math.inf), ("polygamma", (2.0, -1.0), -math.inf), ("polygamma", (3.0, math.inf), 0.0),
    ("polygamma", (0.0, 1.0), -0.5772156649015329), ("polygamma", (-1.0, 1.0), math.nan), ("polygamma", (1.5, 1.0), math.nan),
    ("polygamma", (1.0, -1e-100), 1e200),
    *((name, (math.nan,), math.nan) for name in ("erf", "erfc", "tgamma", "lgamma")), ("remainder", (math.nan, 0.0), math.nan),
    ("remainder", (math.inf, 2.0), math.nan), ("remainder", (1.0, math.nan), math.nan),
    ("y0", (0.0,), -math.inf), ("y1", (-1.0,), math.nan), ("j0", (math.inf,), 0.0), ("j1", (1e-300,), 5e-301),
    ("erfinv", (1.0,), math.inf), ("erfcinv", (2.0,), -math.inf), ("erfcinv", (1e-300,), 26.209469960516124),
    ("normcdfinv", (0.0,), -math.inf), ("normcdf", (-math.inf,), 0.0), ("erfcx", (-30.0,), math.inf),
    ("erfcx", (1e300,), 5.641895835477563e-301),
    ("sigmoid", (-1000.0,), 0.0), ("sinpi", (1.0,), 0.0), ("cospi", (0.5,), 0.0), ("hypot", (math.inf, math.nan), math.inf),
    ("norm3d", (1e300, 1e300, 1e300), math.sqrt(3.0) * 1e300), ("fdim", (math.nan, 1.0), math.nan), ("cyl_bessel_i0", (712.0,), 1.5e307),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "wanted"), EDGES)
def test_edges(name: str, args: tuple[float, ...], wanted: float) -> None:
    with np.errstate(all="ignore"):
        got = float(on_floats(name, tuple(map(np.asarray, args)), "float64"))
    if name == "cyl_bessel_i0":
        assert 1e307 < got < math.inf  # close to overflow, where exp(x) alone is beyond it
    else:
        assert got == pytest.approx(wanted, rel=1e-14, abs=0, nan_ok=True)


@pytest.mark.parametrize("name", sorted(set(EXACT) - {"fdim"}))
def test_nan_gives_nan(name: str) -> None:
    args = tuple(np.array([math.nan]) for _ in EXACT[name][1])
    assert np.isnan(on_floats(name, args, "float32")).all()


@pytest.mark.parametrize(
    ("dtype", "step"), [("float64", 2.0**-52), ("float32", 2.0**-23), ("float16", 2.0**-10), ("bfloat16", 2.0**-7)]
)
def test_nextafter_steps_in_its_own_type(dtype: str, step: float) -> None:
    one, up, down = np.array(1.0), np.array(9.0), np.array(-9.0)
    assert float(on_floats("nextafter", (one, up), dtype)) == 1.0 + step
    assert float(on_floats("nextafter", (one, down), dtype)) == 1.0 - step / 2
    assert float(on_floats("nextafter", (-one, up), dtype)) == -1.0 + step / 2
    assert float(on_floats("nextafter", (one, one), dtype)) == 1.0
    assert 0 < float(on_floats("nextafter", (np.array(0.0), up), dtype)) < 1e-6


def test_integers_stay_integers() -> None:
    x = np.array([-128, -1, 0, 5], np.int8)
    assert on_integers("abs", (x,), "int8").tolist() == [-128, 1, 0, 5]
    assert on_integers("sign", (x,), "int8").tolist() == [-1, -1, 0, 1]
    assert on_integers("relu", (x,), "int8").tolist() == [0, 0, 0, 5]
    assert on_integers("clamp", (x, np.int8(-1), np.int8(2)), "int8").tolist() == [-1, -1, 0, 2]
    assert on_integers("max", (np.array([2**64 - 1], np.uint64), np.array([3], np.uint64)), "uint64").tolist() == [2**64 - 1]


@pytest.mark.parametrize("name", ["j0", "j1", "y0", "y1"])
def test_bessel_functions_of_an_array_raise_nothing_of_other_elements(name: str) -> None:
    """Each of the formulas is evaluated where it holds alone, whatever else there is in the array."""
    x = np.array([0.0, 1e-300, 1e-3, 1.0, 30.0, 1e10, math.inf, math.nan, -1.0])
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        got = on_floats(name, (x,), "float64")
    with np.errstate(all="ignore"):
        assert np.array_equal(got, [float(on_floats(name, (np.asarray(each),), "float64")) for each in x], equal_nan=True)
