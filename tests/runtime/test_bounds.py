"""The errors that the reference propagates: nothing where a result is exact, enough where it is not, no bound at a jump.

Modules: runtime.numerics runtime.reductions
"""
from __future__ import annotations

import numpy as np
import pytest
from support.compare import assert_agree

from tcjit.grammar.dtypes import FORMATS
from tcjit.runtime import bounds
from tcjit.runtime.bounds import Bounded, arithmetic, call, cast, compare, select
from tcjit.runtime.numerics import rounded
from tcjit.runtime.reductions import UFUNCS, Accumulator, start
from tcjit.runtime.reference import Result

rng = np.random.default_rng(1)
EPS = FORMATS["float32"].eps


def single(low: float = -2.0, high: float = 2.0, size: int = 4000) -> np.ndarray:
    return rounded(rng.uniform(low, high, size), "float32")


def within(value: Bounded, actual: np.ndarray) -> bool:
    error = np.zeros(()) if value.error is None else value.error
    return bool(np.all((np.abs(actual - value.value) <= error) | (actual == value.value)))


@pytest.mark.parametrize("op", ["+", "-", "*", "/"])
def test_arithmetic_bounds_what_float32_does(op: str) -> None:
    a, b, c = single(), single(), single()
    f = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}[op]
    product, total = arithmetic("*", Bounded(a), Bounded(b), "float32"), arithmetic("+", Bounded(c), Bounded(b), "float32")
    chain = arithmetic(op, product, total, "float32")
    s, t, u = (x.astype(np.float32) for x in (a, b, c))
    assert within(chain, f(s * t, u + t).astype(np.float64))
    assert chain.error is not None and np.median(chain.error / np.abs(chain.value)) < 20 * EPS


def test_what_float32_holds_is_exact() -> None:
    a, b = rng.integers(-50, 50, 1000).astype(float), rng.integers(1, 50, 1000).astype(float)
    for op in "+-*":
        assert arithmetic(op, Bounded(a), Bounded(b), "float32").error is None
    quotient = arithmetic("/", Bounded(a), Bounded(b), "float32")
    assert quotient.error is not None and np.array_equal(quotient.error == 0, quotient.value == rounded(quotient.value, "float32"))


def test_the_sign_of_nan_is_undecided() -> None:
    """Conversions and arithmetic do not keep it."""
    result = bounds.call("copysign", [Bounded(np.array([1.0, 1.0])), Bounded(np.array([np.nan, -2.0]))], "float32")
    assert result.value[1] == -1.0 and result.error is not None and result.error.tolist() == [np.inf, 0.0]


def test_overflow_of_float64_is_undecided() -> None:
    """In one rounding, fma(-9, 1e308, inf) is infinite; in two, NaN."""
    large, infinite = Bounded(np.array([1e308, 1e308])), Bounded(np.array([9.0, np.inf]))
    with np.errstate(over="ignore"):
        for op, right in (("*", infinite), ("+", Bounded(np.array([1e308, np.inf]))), ("/", Bounded(np.array([0.1, 0.0])))):
            with np.errstate(divide="ignore"):
                result = arithmetic(op, large, right, "float64")
            assert result.value.tolist() == [np.inf, np.inf] and result.error is not None and result.error.tolist() == [np.inf, 0.0], op


@pytest.mark.parametrize("op", ["*", "/"])
def test_what_is_not_finite_is_sure_where_no_value_within_the_errors_gives_another(op: str) -> None:
    """NaN stays NaN beside what has a bound; the sign of an infinity may turn, and beside what is undecided all may be."""
    left, right = Bounded(np.array([np.nan, np.inf, np.nan])), Bounded(np.array([1.0, 1e-3, 1.0]), np.array([0.5, 1e-2, np.inf]))
    with np.errstate(invalid="ignore"):
        error = arithmetic(op, left, right, "float32").error
    assert error is not None and error.tolist() == [0.0, np.inf, np.inf]


def test_overflow_of_the_narrow_type_is_undecided() -> None:
    big = Bounded(np.array([1e30, 1.0]))
    with np.errstate(all="ignore"):
        product = arithmetic("*", big, big, "float32")
        infinite = arithmetic("*", Bounded(np.array([np.inf])), Bounded(np.array([2.0])), "float32")
    assert product.error is not None and product.error.tolist() == [np.inf, 0.0]
    assert infinite.error is None


def test_comparisons_and_roundings_inside_the_error_are_undecided() -> None:
    x = Bounded(np.array([1.0, 2.0, np.nan]), np.array([1e-6, 1e-6, 0.0]))
    one = Bounded(np.array([1.0000001, 1.0000001, 1.0]))
    assert compare("<", x, one).error.tolist() == [np.inf, 0.0, 0.0]
    assert cast(Bounded(np.array([2.0, 2.5]), np.array([1e-6, 1e-6])), "float32", "int32").error.tolist() == [np.inf, 0.0]
    floors = call("floor", [Bounded(np.array([2.0, 2.5]), np.array([1e-6, 1e-6]))], "float32")
    assert floors.error.tolist() == [1.0, 0.0]
    chosen = select(compare("<", x, one), Bounded(np.ones(3)), Bounded(np.zeros(3)))
    assert chosen.error.tolist() == [np.inf, 0.0, 0.0]


@pytest.mark.parametrize("name", ["exp", "sin", "sqrt", "tanh", "log1p", "cbrt", "sigmoid", "rsqrt"])
def test_functions_bound_what_float32_does(name: str) -> None:
    x = arithmetic("*", Bounded(single(0.5, 3.0)), Bounded(single(0.5, 3.0)), "float32")
    value = call(name, [x], "float32")
    rough = rounded(x.value, "float32")
    by_numpy = {"sigmoid": lambda v: 1 / (1 + np.exp(-v)), "rsqrt": lambda v: 1 / np.sqrt(v)}.get(name) or getattr(np, name)
    assert within(value, by_numpy(rough.astype(np.float32)).astype(np.float64))
    assert np.max(value.error) < 60 * EPS * max(1.0, np.max(np.abs(value.value)))


@pytest.mark.parametrize("operator", ["+", "*", "min", "max"])
def test_reductions_bound_float32_in_any_order(operator: str) -> None:
    terms = arithmetic("*", Bounded(single(0.8, 1.2, 600).reshape(6, 100)), Bounded(single(0.8, 1.2, 600).reshape(6, 100)), "float32")
    whole = Accumulator(operator, "float32", start(operator, "float32", (6,)), 101, True)
    for first in (0, 40):  # in two pieces
        part = slice(first, 40 if first == 0 else None)
        whole.add((slice(0, 6),), Bounded(terms.value[:, part], terms.error[:, part]), (1,))
    result = whole.result()
    rough = terms.value.astype(np.float32)
    for order in (np.arange(100), np.arange(100)[::-1], rng.permutation(100)):
        total = rough[:, order[0]]
        for position in order[1:]:
            total = UFUNCS[operator](total, rough[:, position])
        assert within(result, total.astype(np.float64))


def test_reductions_of_small_integers_are_exact_until_they_leave_the_type() -> None:
    ones = Bounded(np.ones((2, 10)))
    small = Accumulator("+", "float32", start("+", "float32", (2,)), 11, True)
    small.add((slice(0, 2),), ones, (1,))
    assert small.result().error is None
    large = Accumulator("+", "float32", Bounded(np.array([0.0, 2.0**24])), 11, True)
    large.add((slice(0, 2),), ones, (1,))
    error = large.result().error
    assert error is not None and error[0] == 0 and error[1] > 1


def test_infinite_and_undecided_terms() -> None:
    terms = Bounded(np.array([[1.0, np.inf], [1.0, 2.0]]), np.array([[0.0, 0.0], [np.inf, 0.0]]))
    total = Accumulator("+", "float32", start("+", "float32", (2,)), 3, True)
    total.add((slice(0, 2),), terms, (1,))
    result = total.result()
    assert result.value[0] == np.inf and result.error is not None and result.error.tolist() == [0.0, np.inf]


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize(("started", "term"), [(True, False), (False, True)])
def test_what_is_undecided_stays_so_in_a_reduction(dtype: str, started: bool, term: bool) -> None:
    """Whether it is what the reduction starts from or one of the terms, and in its element alone."""
    unsure = np.array([np.inf, 0.0])
    begin = Bounded(np.ones(2), unsure if started else None)
    total = Accumulator("+", dtype, begin, 2, True)
    total.add((slice(0, 2),), Bounded(np.ones(2), unsure if term else None), ())
    error = total.result().error
    assert error is not None and error.tolist() == [np.inf, 0.0]


@pytest.mark.parametrize("operator", ["min", "max"])
def test_an_extremum_is_off_by_no_more_than_the_terms_that_may_be_it(operator: str) -> None:
    """Both ways: the term that is it may be off, and one beside it may pass it."""
    sign = 1.0 if operator == "max" else -1.0
    terms = Bounded(sign * np.array([[3.0, 1.0], [3.0, 2.5]]), np.array([[0.25, 0.25], [0.25, 4.0]]))
    extremum = Accumulator(operator, "float32", start(operator, "float32", (2,)), 3, True)
    extremum.add((slice(0, 2),), terms, (1,))
    result = extremum.result()
    assert result.value.tolist() == [sign * 3.0, sign * 3.0] and result.error is not None
    assert result.error == pytest.approx([0.25, 3.5])


def test_terms_at_positions_that_repeat_all_count() -> None:
    total = Accumulator("+", "float32", start("+", "float32", (3,)), 4, True)
    total.add((np.array([0, 2, 0]),), Bounded(np.array([1.0, 2.0, 4.0])), ())
    result = total.result()
    assert result.value.tolist() == [5.0, 0.0, 2.0] and result.error is None


@pytest.mark.parametrize(
    ("name", "values", "sure"),
    [
        ("min", (-0.0, 2.0), True),
        ("max", (-0.0, -2.0), True),
        ("min", (-0.0, 0.0), False),
        ("max", (0.0, -0.0), False),
        ("fmin", (0.0, 2.0), True),
        ("relu", (-0.0,), False),
        ("relu", (0.0,), True),
    ],
)
def test_the_sign_of_zero_is_undecided_between_zeros_of_both(name: str, values: tuple[float, ...], sure: bool) -> None:
    result = call(name, [Bounded(np.array([x])) for x in values], "float32")
    assert result.value.tolist() == [0.0] and (result.error is None) == sure


def test_rounding_moves_the_ends_of_the_interval() -> None:
    x = Bounded(np.array([1.0, 1.0]), np.array([0.0, 1e-3]))
    stored = cast(x, "float32", "float16", store=True)
    assert stored.error is not None and stored.error[0] == 0 and stored.error[1] == 2.0**-10
    with np.errstate(over="ignore"):
        assert bounds.cast(Bounded(np.array([70000.0])), "float32", "float16").value.tolist() == [np.inf]


# ---------------------------------------------------------------- the comparison used by the tests


def result(value: object, error: object) -> Result:
    return Result({"Y": np.asarray(value)}, {"Y": np.asarray(error, dtype=float)})


def test_agree_accepts_what_is_allowed() -> None:
    nan, inf = np.nan, np.inf
    assert_agree(np.array([1.0, nan, inf, 5.0]), result([1.1, nan, inf, 7.0], [0.2, 0.0, 0.0, inf]), "Y")
    assert_agree(np.array([True, False]), result([True, False], [0, 0]), "Y")


@pytest.mark.parametrize(
    ("actual", "value", "error"),
    [
        ([1.0, 2.0], [1.0, 2.5], [0.0, 0.1]),
        ([np.nan, 2.0], [1.0, 2.0], [0.5, 0.0]),
        ([1.0, 2.0], [np.nan, 2.0], [0.5, 0.0]),
        ([np.inf, 2.0], [-np.inf, 2.0], [0.5, 0.0]),
        ([1.0 + 2.0**-52, 2.0], [1.0, 2.0], [0.0, 0.0]),
    ],
)
def test_agree_names_the_worst_element(actual: list[float], value: list[float], error: list[float]) -> None:
    place = 0 if actual[1] == value[1] else 1
    with pytest.raises(AssertionError, match=rf"Y\[{place}\]\]? is"):
        assert_agree(np.array(actual), result(value, error), "Y")


def test_agree_compares_large_integers_exactly() -> None:
    with pytest.raises(AssertionError):
        assert_agree(np.array([2**60 + 1]), result(np.array([2**60]), [0]), "Y")


def test_agree_wants_the_shape_and_the_type() -> None:
    with pytest.raises(AssertionError, match="shape"):
        assert_agree(np.zeros(2), result(np.zeros(3), np.zeros(3)), "Y")
    with pytest.raises(AssertionError, match="dtype"):
        assert_agree(np.zeros(2), result(np.zeros(2, np.int32), np.zeros(2)), "Y")
