"""The normal form of loop expressions."""

from __future__ import annotations

import random

import pytest

from tcjit.codegen.linear import Linear, combine

C0, C1 = Linear.of("c0"), Linear.of("c1")


def evaluate(value: Linear, point: dict[str, int]) -> int:
    result = value.substitute({name: Linear.of(number) for name, number in point.items()})
    assert result.is_constant
    return result.constant


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


def test_random_expressions_mean_what_python_means() -> None:
    draw = random.Random(7)

    def make(depth: int) -> tuple[Linear, str]:
        if depth == 0:
            number = draw.randint(-20, 20)
            return draw.choice([(C0, "c0"), (C1, "c1"), (Linear.of(number), f"({number})")])
        (a, ta), (b, tb) = make(depth - 1), make(depth - 1)
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

    for _ in range(300):
        value, text = make(3)
        point = {"c0": draw.randint(-50, 50), "c1": draw.randint(-50, 50)}
        assert evaluate(value, point) == eval(text, {"min": min, "max": max}, dict(point)), text
