"""The normal form of integer expressions, with and without limits of their variables."""

from __future__ import annotations

import itertools
import random

import pytest

from tcjit.grammar.linear import BoundedVariable, Linear, combine, limits, simplified

C0, C1 = Linear.of("c0"), Linear.of("c1")


def evaluate(value: Linear, point: dict[str, int]) -> int:
    result = value.substitute({name: Linear.of(number) for name, number in point.items()})
    assert result.is_constant
    return result.constant


def expression(draw: random.Random, depth: int) -> tuple[Linear, str]:
    """An expression, and the same in Python."""
    if depth == 0:
        number = draw.randint(-20, 20)
        return draw.choice([(C0, "c0"), (C1, "c1"), (Linear.of(number), f"({number})")])
    (a, ta), (b, tb) = expression(draw, depth - 1), expression(draw, depth - 1)
    divisor = draw.randint(1, 9)
    return draw.choice(
        [
            (a + b, f"({ta} + {tb})"),
            (a - b, f"({ta} - {tb})"),
            (a.times(divisor), f"({ta} * {divisor})"),
            (combine("floor", (a, Linear.of(divisor))), f"({ta} // {divisor})"),
            (combine("mod", (a, Linear.of(divisor))), f"({ta} % {divisor})"),
            (combine("min", (a, b)), f"min({ta}, {tb})"),
            (combine("max", (a, b)), f"max({ta}, {tb})"),
        ]
    )


def test_multiples_of_a_divisor_leave_the_division() -> None:
    assert combine("floor", (C0.times(14) + C1, Linear.of(14))).text == "c0 + tc_fdiv(c1, 14)"
    assert combine("mod", (C0.times(14) + C1 + 28, Linear.of(14))).text == "tc_mod(c1, 14)"
    assert combine("mod", (C0.times(14) + 3, Linear.of(14))) == Linear.of(3)


def test_coefficient_is_unknown_inside_a_division() -> None:
    assert (C0.times(3) + 7).coefficient("c0") == 3
    assert combine("floor", (C0, Linear.of(2))).coefficient("c0") is None
    assert combine("floor", (C0, Linear.of(2))).coefficient("c1") == 0


def test_min_and_max_fold_constants_and_doubles() -> None:
    assert combine("min", (C0, Linear.of(5), Linear.of(3), C0)).text == "tc_min_index(c0, 3)"
    assert combine("max", (Linear.of(5), Linear.of(3))) == Linear.of(5)


@pytest.mark.parametrize(
    "text, value", [("-c0", C0.times(-1)), ("2 * c0 - 1", C0.times(2) - 1), ("0", C0 - C0), ("c0 - c1 + 4", C0 - C1 + 4)]
)
def test_text(text: str, value: Linear) -> None:
    assert value.text == text


def test_notation() -> None:
    assert str(C0.times(-1) + 11) == "-c0+11" and str(C0.times(2) + C1 - 3) == "2*c0+c1-3"
    assert str(((C0 + 1) // 4).times(2)) == "2*((c0+1)/4)" and str(C0 % 3) == "(c0%3)"
    assert str(combine("min", (C0, C1 + 2))) == "min(c0, c1+2)"


def test_divisions_are_put_together() -> None:
    assert C0 // 2 // 3 == C0 // 6 and (C0 // 2 + 1) // 3 == (C0 + 2) // 6
    assert C0 % 6 % 3 == C0 % 3 and (C0 % 6 + 1) % 3 == (C0 + 1) % 3
    assert (C0 // 4).times(4) + C0 % 4 == C0 and C1 + C0 % 4 + (C0 // 4).times(4) == C1 + C0
    assert (C0.times(4) + 3) // 8 == C0 // 2 and (C0.times(4) + 3) % 8 == (C0 % 2).times(4) + 3


def test_limits_decide_divisions_and_extremes() -> None:
    i, j = Linear.of(BoundedVariable("i", 0, 3)), Linear.of(BoundedVariable("j", 2, 9))
    assert limits(i.times(2) - j) == (-9, 4) and limits(i + C0) is None and limits(i + C0, {"c0": (1, 2)}) == (1, 5)
    assert (j.times(4) + i) // 4 == j and (j.times(4) + i) % 4 == i and (i.times(2) + j % 2) // 2 == i
    assert (i + 8) // 4 == Linear.of(2) and (i + 9) % 8 == i + 1
    assert combine("min", (i, j + 1)) == i and combine("max", (i, j + 1)) == j + 1
    assert combine("min", (C0 + 2, C0)) == C0
    assert simplified(C0 // 4, {"c0": (4, 7)}) == Linear.of(1) and simplified(C0 // 4, {"c0": (4, 8)}) == C0 // 4


def test_random_expressions_mean_what_python_means() -> None:
    draw = random.Random(7)
    for _ in range(300):
        value, text = expression(draw, 3)
        point = {"c0": draw.randint(-50, 50), "c1": draw.randint(-50, 50)}
        assert evaluate(value, point) == eval(text, {"min": min, "max": max}, dict(point)), text


def test_ranges_make_expressions_simpler_and_keep_their_values() -> None:
    draw = random.Random(1)
    ranges = {"c0": (0, 7), "c1": (-3, 12)}
    bounded = {name: Linear.of(BoundedVariable(name, *ends)) for name, ends in ranges.items()}
    simpler = 0
    for _ in range(300):
        plain = expression(draw, 3)[0]
        simple, ends = simplified(plain, ranges), limits(plain, ranges)
        known = plain.substitute(bounded)
        assert ends is not None and limits(known) is not None
        simpler += len(simple.text) < len(plain.text)
        for c0, c1 in itertools.product((0, 1, 2, 5, 7), (-3, -1, 0, 4, 12)):
            value = evaluate(plain, {"c0": c0, "c1": c1})
            assert ends[0] <= value <= ends[1], plain.text
            assert value == evaluate(simple, {"c0": c0, "c1": c1}) == evaluate(known, {"c0": c0, "c1": c1}), plain.text
    assert simpler > 20
