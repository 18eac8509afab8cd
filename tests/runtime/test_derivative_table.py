"""The derivative of every built-in: by differences at ordinary points, and at the points where it is a convention.

Modules: grammar.differentiate.table grammar.differentiate.partials
"""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from support.fuzz.expressions import DOMAINS

from tcjit.errors import CheckError
from tcjit.grammar.ast import Def
from tcjit.grammar.builtins import BUILTINS
from tcjit.grammar.differentiate import differentiate
from tcjit.grammar.differentiate.table import RULES
from tcjit.grammar.front import read
from tcjit.grammar.infer import specialise
from tcjit.runtime import reference, special

STEPS = "ceil floor round trunc sign logb nextafter".split()
ANYWHERE = ((-3.0, 3.0),)
ORDINARY = {
    **{name: DOMAINS.get(name, ANYWHERE * BUILTINS[name].arity) for name in RULES if BUILTINS[name].arity and name != "polygamma"},
    "fmod": ((-3.0, 3.0), (0.6, 3.0)),
    "remainder": ((-3.0, 3.0), (0.6, 3.0)),
}
SPECIAL = [
    ("relu", (0.0,), (0.0,)), ("abs", (0.0,), (0.0,)), ("fabs", (0.0,), (0.0,)), ("sqrt", (0.0,), (math.inf,)),
    ("j1", (0.0,), (0.5,)), ("cyl_bessel_i1", (0.0,), (0.5,)), ("sigmoid", (0.0,), (0.25,)), ("exp", (-math.inf,), (0.0,)),
    ("max", (1.0, 1.0), (0.5, 0.5)), ("min", (1.0, 1.0), (0.5, 0.5)), ("max", (math.nan, 1.0), (0.0, 0.0)),
    ("fmax", (1.0, 1.0), (1.0, 0.0)), ("fmin", (1.0, 1.0), (1.0, 0.0)), ("fmax", (math.nan, 1.0), (0.0, 1.0)),
    ("fmax", (1.0, math.nan), (1.0, 0.0)), ("clamp", (1.0, 1.0, 2.0), (1.0, 0.0, 0.0)), ("clamp", (2.0, 1.0, 2.0), (1.0, 0.0, 0.0)),
    ("clamp", (0.0, 1.0, 2.0), (0.0, 1.0, 0.0)), ("clamp", (3.0, 1.0, 2.0), (0.0, 0.0, 1.0)), ("clamp", (0.0, 3.0, 2.0), (0.0, 0.0, 1.0)),
    ("hypot", (0.0, 0.0), (0.0, 0.0)), ("norm3d", (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)), ("norm4d", (0.0,) * 4, (0.0,) * 4),
    ("copysign", (0.0, 1.0), (0.0, 0.0)), ("copysign", (-2.0, 1.0), (-1.0, 0.0)), ("fdim", (1.0, 1.0), (0.0, 0.0)),
    ("pow", (0.0, 2.0), (0.0, 0.0)), ("pow", (0.0, 0.0), (0.0, 0.0)), ("pow", (2.0, 0.0), (0.0, math.log(2))),
    ("pow", (-2.0, 3.0), (12.0, math.nan)),
]  # fmt: skip


def run(definition: Def, values: Sequence[Sequence[float]], cotangent: float | None = None) -> list[float]:
    """The results for values of ``a b c d``, one element of each."""
    inputs = {name: np.array(value, dtype=np.float64) for name, value in zip("abcd", values)}
    count = len(values[0])
    given = {**inputs, "Y": np.zeros(count)}
    if cotangent is not None:
        given["d_Y"] = np.full(count, cotangent)
    taken = {p.name: given[p.name] for p in definition.params}
    program = specialise(definition, {name: array.shape for name, array in taken.items()}, {})
    return [np.asarray(reference.run(program, taken, {}, track=False).values[name]) for name in definition.returns]  # type: ignore[misc]


def define(name: str) -> Def:
    arity = BUILTINS[name].arity
    params = ", ".join(f"double(N) {letter}" for letter in "abcd"[:arity])
    args = ", ".join(f"{letter}(i)" for letter in "abcd"[:arity])
    return read(f"def f({params}) -> (Y) {{ Y(i) = {name}({args}) }}")[0]


def derivatives(name: str, points: Sequence[Sequence[float]]) -> list[np.ndarray]:  # type: ignore[type-arg]
    """By each argument, by the adjoint with the forward's own result passed in."""
    definition = define(name)
    adjoint = differentiate(definition)
    value = run(definition, points)[0]
    inputs = {letter: np.array(column, dtype=np.float64) for letter, column in zip("abcd", points)}
    given = {**inputs, "Y": np.asarray(value), "d_Y": np.ones(len(points[0]))}
    taken = {p.name: given[p.name] for p in adjoint.definition.params}
    program = specialise(adjoint.definition, {n: array.shape for n, array in taken.items()}, {})
    results = reference.run(program, taken, {}, track=False).values
    return [np.asarray(results[adjoint.gradients[letter]]) for letter in inputs]


def test_every_built_in_is_in_the_table() -> None:
    assert set(RULES) == set(BUILTINS)


@pytest.mark.parametrize("name", sorted(ORDINARY))
def test_ordinary_points(name: str) -> None:
    rng = np.random.default_rng(len(name))
    columns = [rng.uniform(low, high, 40) for low, high in ORDINARY[name]]
    if name == "clamp":
        columns[1:] = [np.full(40, -1.0), np.full(40, 1.5)]
    definition, step = define(name), 1e-6
    got = derivatives(name, columns)
    for position in range(len(columns)):
        above, below = ([*columns[:position], columns[position] + sign * step, *columns[position + 1 :]] for sign in (1, -1))
        slope = (np.asarray(run(definition, above)[0]) - np.asarray(run(definition, below)[0])) / (2 * step)
        smooth = np.abs(slope) < 1e4  # two points on two sides of a step
        wanted = np.zeros(40) if name in STEPS else slope
        assert np.allclose(got[position][smooth], wanted[smooth], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "point", "wanted"), SPECIAL, ids=lambda value: str(value))
def test_special_points(name: str, point: tuple[float, ...], wanted: tuple[float, ...]) -> None:
    got = [float(array[0]) for array in derivatives(name, [[x] for x in point])]
    assert got == pytest.approx(wanted, nan_ok=True)


@pytest.mark.parametrize(("exponent", "wanted"), [("0.0", 0.0), ("1.0", 1.0), ("2.0", -6.0), ("3.0", 27.0), ("-1.0", -1 / 9)])
def test_a_power_with_a_literal_exponent(exponent: str, wanted: float) -> None:
    definition, = read(f"def f(double(N) a) -> (Y) {{ Y(i) = pow(a(i), {exponent}) }}")
    adjoint = differentiate(definition)
    assert "log" not in adjoint.text
    given = {"a": np.array([-3.0]), "d_Y": np.ones(1), "Y": np.zeros(1)}
    taken = {p.name: given[p.name] for p in adjoint.definition.params}
    program = specialise(adjoint.definition, {n: array.shape for n, array in taken.items()}, {})
    assert float(np.asarray(reference.run(program, taken, {}).values["d_a"])[0]) == pytest.approx(wanted)


def test_the_order_of_polygamma_has_no_derivative() -> None:
    with pytest.raises(CheckError, match="line 1, column [0-9]+: `polygamma` has no derivative by its order") as caught:
        differentiate(define("polygamma"))
    assert "depends on nothing that is differentiated" in (caught.value.hint or "")


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_polygamma_by_its_argument(order: int) -> None:
    definition, = read(f"def f(double(N) a, double k) -> (Y) {{ Y(i) = polygamma(k, a(i)) * polygamma({order}, a(i)) }}")
    adjoint = differentiate(definition, ["a"])
    points = np.array([0.3, 1.5, 4.0, -0.7, -3.2])
    program = specialise(adjoint.definition, {"a": (5,), "d_Y": (5,)}, {})
    got = reference.run(program, {"a": points, "d_Y": np.ones(5)}, {"k": 1.0}, track=False).values["d_a"]
    factors = [[float(special.polygamma(np.array(float(n)), np.array(x))) for x in points] for n in (1, 2, order, order + 1)]
    one, one_, own, own_ = map(np.array, factors)
    assert np.allclose(got, one_ * own + one * own_)


def test_operators() -> None:
    """``+ - * / %`` and conversions, several reads of one element collected."""
    definition, = read("def f(double(N) a, double(N) b) -> (Y) { Y(i) = a(i) * a(i) - a(i) % b(i) + double(float(b(i))) / a(i) }")
    adjoint = differentiate(definition)
    a, b = np.array([2.5, -1.25]), np.array([0.75, 2.0])
    given = {"a": a, "b": b, "d_Y": np.ones(2)}
    taken = {p.name: given[p.name] for p in adjoint.definition.params}
    program = specialise(adjoint.definition, {n: array.shape for n, array in taken.items()}, {})
    got = reference.run(program, taken, {}).values
    assert np.allclose(np.asarray(got["d_a"]), 2 * a - 1 - b / a**2)
    assert np.allclose(np.asarray(got["d_b"]), np.floor(a / b) + 1 / a)
