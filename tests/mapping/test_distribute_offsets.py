"""Zero points of narrow integers outside of their products.

Modules: mapping.passes.distribute_offsets mapping.verify_offsets
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.mapping import program

from tcjit.errors import VerifyError
from tcjit.grammar.ast import Binary, Const
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.passes.distribute_offsets import distribute_offsets
from tcjit.mapping.verify_assignments import verify_assignments

PARAMS = "uint8(N,K) X, int8(O,K) W, int8(O) Z, int32 z"
SHAPES = {"X": (40, 64), "W": (48, 64), "Z": (48,)}


def of(value: str, shapes: dict[str, tuple[int, ...]] = SHAPES) -> tuple[Assignments, Assignments]:
    before = extract(program(f"def f({PARAMS}) -> (Y) {{ Y(n,o) +=! {value} }}", shapes), None)
    return before, distribute_offsets(before)


@pytest.mark.parametrize(
    ("value", "made"),
    [
        ("(int32(X(n,k)) - z) * int32(W(o,k))", [
            "Y_sums(o) += int32(W(o, k)) from 0",
            "Y_products(n, o) += int32(X(n, k)) * int32(W(o, k)) from 0",
            "Y(n, o) = Y_products(n, o) + -z * Y_sums(o)",
        ]),
        ("(z + int32(X(n,k))) * (int32(W(o,k)) - int32(Z(o)))", [
            "Y_sums(o) += int32(W(o, k)) + -int32(Z(o)) from 0",
            "Y_sums1(n) += int32(X(n, k)) from 0",
            "Y_products(n, o) += int32(X(n, k)) * int32(W(o, k)) from 0",
            "Y(n, o) = Y_products(n, o) + z * Y_sums(o) + -int32(Z(o)) * Y_sums1(n)",
        ]),
        ("k < 50 ? (int32(X(n,k)) - z) * int32(W(o,k)) : 0", [
            "Y_sums(o) += k < 50 ? int32(W(o, k)) : 0 from 0",
            "Y_products(n, o) += k < 50 ? int32(X(n, k)) * int32(W(o, k)) : 0 from 0",
            "Y(n, o) = Y_products(n, o) + -z * Y_sums(o)",
        ]),
    ],
)  # fmt: skip
def test_what_takes_the_place_of_a_sum(value: str, made: list[str]) -> None:
    before, after = of(value)
    verify_assignments("distribute_offsets", before, after)
    assert [a.show().partition(" where ")[0] for a in after.assignments] == made


@pytest.mark.parametrize(
    "value",
    [
        "(int32(X(n,k)) - 113) * int32(W(o,k))",  # a constant, which sums of bytes allow
        "(int32(X(n,k)) - int32(W(o,k))) * int32(W(o,k))",  # of each term
        "(z - int32(X(n,k))) * int32(W(o,k))",  # the sign is part of no byte
        "n + o > k ? (int32(X(n,k)) - z) * int32(W(o,k)) : 0",  # sums for each result
        "(int32(X(n,k)) - z) * int32(Z(o))",  # a factor without terms
    ],
)
def test_what_stays(value: str) -> None:
    before, after = of(value)
    assert after.assignments == before.assignments


def test_few_results_stay() -> None:
    before, after = of("(int32(X(n,k)) - z) * int32(W(o,k))", {**SHAPES, "X": (4, 64)})
    assert after.assignments == before.assignments


def _twice(a: Assignment) -> Assignment:
    return replace(a, value=Binary("+", a.value, a.value, dtype="int32"))


@pytest.mark.parametrize(
    ("position", "change", "message"),
    [
        (0, _twice, "add up to something else"),
        (1, lambda a: replace(a, start=Const(1, dtype="int32")), "no temporary for sums over the same terms"),
        (1, lambda a: replace(a, bounds=(*a.bounds[:-1], ("k", 0, 63))), "no temporary for sums over the same terms"),
        (2, _twice, "no sum times what all of its terms share"),
        (2, lambda a: replace(a, operator="+="), "the results are others"),
    ],
)
def test_the_validation(position: int, change: Callable[[Assignment], Assignment], message: str) -> None:
    before, after = of("(int32(X(n,k)) - z) * int32(W(o,k))")
    parts = list(after.assignments)
    parts[position] = change(parts[position])
    wrong = replace(after, assignments=tuple(parts), replaced=(tuple(parts),))
    with pytest.raises(VerifyError, match=message):
        verify_assignments("distribute_offsets", before, wrong)
