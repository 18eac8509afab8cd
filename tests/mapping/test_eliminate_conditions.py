"""Conditions that the ranges of indices decide.

Modules: mapping.passes.eliminate_conditions
"""

from __future__ import annotations

import pytest
from support.mapping import program

from tcjit.mapping.extract import extract
from tcjit.mapping.passes.eliminate_conditions import eliminate_conditions
from tcjit.mapping.verify_assignments import verify_assignments


def shown(value: str, ranges: str = "i in 0:16, j in 0:4") -> str:
    text = f"def f(float(N) A) -> (O) {{ O(i, j) = {value} where {ranges} }}"
    before = extract(program(text, {"A": (64,)}), None)
    after = eliminate_conditions(before)
    verify_assignments("eliminate_conditions", before, after)
    return after.show().partition(" = ")[2].partition(" where ")[0]


ALWAYS = ["4 * i + j < N", "i - j > -4", "j >= 0 && i <= 15", "!(i == 16)", "i + j != 19", "i / 4 < 4", "A(i) > 0.0 || j < 4"]
NEVER = ["4 * i + j >= N", "i > 15 || j < 0", "A(i) > 0.0 && j == 4", "i == -1", "i / 4 > 3", "i + 1 - i != 1"]


@pytest.mark.parametrize("condition", ALWAYS)
def test_what_always_holds(condition: str) -> None:
    assert shown(f"({condition}) ? A(i) : A(j)") == "A(i)"


@pytest.mark.parametrize("condition", NEVER)
def test_what_never_holds(condition: str) -> None:
    assert shown(f"({condition}) ? A(i) : A(j)") == "A(j)"


@pytest.mark.parametrize("condition", ["4 * i + j < N - 1", "i > 0", "i % 4 == j", "A(i) > 0.0", "i * j < 40", "i - j == 3"])
def test_what_may_hold_stays(condition: str) -> None:
    assert "?" in shown(f"({condition}) ? A(i) : A(j)")


def test_indices_that_cancel_are_gone() -> None:
    assert shown("i - j < i - 2 ? A(i) : A(j)") == "2 - j < 0 ? A(i) : A(j)"
    assert shown("i - j < j - 2 ? A(i) : A(j)") == "i - j < j - 2 ? A(i) : A(j)"
    text = "def f(float(N) A) -> (O) { O(i, j) +=! (i < i - k) ? A(k) : 0.0 where i in 0:16, j in 0:4 }"
    before = extract(program(text, {"A": (64,)}), None)
    after = eliminate_conditions(before)
    assert "? A(k)" in after.show() and "i <" not in after.show(), "there is no term, which a nest is not for"


def test_the_rest_of_a_condition_stays() -> None:
    assert shown("(i == j || (i >= 0 ? false : A(i) > 0.0)) ? A(i) : A(j)") == shown("i == j ? A(i) : A(j)")
    assert shown("(i > 15 ? A(i) > 0.0 : true) ? A(i) : A(j)") == "A(i)"
    assert shown("(i < 16 && A(i) > 0.0) ? A(i) : A(j)") == shown("A(i) > 0.0 ? A(i) : A(j)")
    assert shown("(i > 20 || A(i) > 0.0) ? A(i) : A(j)") == shown("A(i) > 0.0 ? A(i) : A(j)")


VALUES = ["i >= 16 && A(i) > 0.0", "A(i) > 0.0 || i < 16", "!(i >= 16 && A(i) > 0.0)", "i < 0 ? A(i) > 0.0 : i < 16"]


@pytest.mark.parametrize("value", VALUES)
def test_a_condition_that_is_the_value(value: str) -> None:
    assert shown(value) in ("true", "false", "1", "0")


def test_what_is_never_computed() -> None:
    text = "def f(float(N) A, float(M) B) -> (O) { O(i) +=! j < 0 ? 1.0 : A(i) * B(j) }"
    before = extract(program(text, {"A": (4,), "B": (0,)}), None)
    verify_assignments("eliminate_conditions", before, eliminate_conditions(before))


def test_a_sum_without_terms_keeps_its_condition() -> None:
    """A nest without terms is none; one of zeros would be one."""
    text = "def f(float(M,K) A) -> (Y) { Y(m) +=! m >= 40 ? A(m, k) : 0.0 }"
    before = extract(program(text, {"A": (32, 8)}), None)
    assert eliminate_conditions(before).assignments == before.assignments


def test_what_cancels_leaves_a_remainder() -> None:
    assert shown("(i + 6 - 3 * j) % 3 == 0 ? A(i) : A(j)") == "i % 3 == 0 ? A(i) : A(j)"
    assert shown("(2 * i + 7 - 4 * j) % 4 != 1 ? A(i) : A(j)") == "2 * ((i + 1) % 2) != 0 ? A(i) : A(j)"
