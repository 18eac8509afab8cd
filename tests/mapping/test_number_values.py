"""What several assignments compute alike: which of it is stored, where, and that numbers stay the same.

Modules: mapping.passes.number_values
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.mapping import AVX512, program

import tcjit
from tcjit.errors import VerifyError
from tcjit.grammar.ast import Access
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.passes.number_values import number_values
from tcjit.mapping.verify_assignments import verify_assignments

Shapes = dict[str, tuple[int, ...]]
SOFTMAX = "def f(float(B,N) X) -> (Y) { M(i) max=! X(i,j)  Z(i) +=! exp(X(i,j) - M(i))  Y(b,c) = exp(X(b,c) - M(b)) / Z(b) }"
SIZES: Shapes = {"X": (64, 100)}


def numbered(text: str, shapes: Shapes = SIZES) -> list[str]:
    before = extract(program(text, shapes))
    after = number_values(before, AVX512)
    verify_assignments("number_values", before, after)
    return [a.show().partition(" where ")[0] for a in after.assignments]


def test_exponentials_of_a_softmax() -> None:
    assert numbered(SOFTMAX)[1:] == [
        "Z_value(i, j) = exp(X(i, j) - M(i))",
        "Z(i) += Z_value(i, j) from 0.0",
        "Y(b, c) = Z_value(b, c) / Z(b)",
    ]


def test_what_is_stored_already() -> None:
    text = "def f(float(B,N) X) -> (E, Y) { E(j,i) = exp(X(i,j))  Z(i) +=! exp(X(i,j))  Y(i,j) = exp(X(i,j)) / Z(i) }"
    assert numbered(text) == ["E(j, i) = exp(X(i, j))", "Z(i) += E(j, i) from 0.0", "Y(i, j) = E(j, i) / Z(i)"]


def test_what_is_stored_and_changes() -> None:
    text = "def f(float(B,N) X) -> (E, Y) { E(i,j) = exp(X(i,j))  E(i,j) = E(i,j) * 2.0  Y(i,j) = exp(X(i,j)) + 1.0 }"
    found = numbered(text)
    assert found[0] == "E_value(i, j) = exp(X(i, j))" and found[-1] == "Y(i, j) = E_value(i, j) + 1.0"


def test_the_largest_values() -> None:
    text = "def f(float(B,N) X) -> (Y, Z) { Y(i,j) = log(1.0 + exp(X(i,j))) * 2.0  Z(i,j) = log(1.0 + exp(X(i,j))) + tanh(exp(X(i,j))) }"
    found = numbered(text)
    assert found[:2] == ["Y_value1(i, j) = exp(X(i, j))", "Y_value(i, j) = log(1.0 + Y_value1(i, j))"]
    assert found[2:] == ["Y(i, j) = Y_value(i, j) * 2.0", "Z(i, j) = Y_value(i, j) + tanh(Y_value1(i, j))"]


def test_what_is_stored_has_a_part_that_is() -> None:
    value = "G(i,j) * sigmoid(X(i,j)) * (1.0 - sigmoid(X(i,j)))"
    text = f"def f(float(B,N) X, float(B,N) G) -> (T, Y, Z) {{ T(i,j) = X(i,j) + sigmoid(X(i,j))  Y(i,j) = {value}  Z(j) +=! {value} }}"
    found = numbered(text, {**SIZES, "G": (64, 100)})
    assert found[-1] == "Z(j) += Y(i, j) from 0.0"


@pytest.mark.parametrize(
    "text",
    [
        "def f(float(B,N) X) -> (Y, Z) { Y(i,j) = X(i,j) * 2.0 + 1.0  Z(i,j) = (X(i,j) * 2.0 + 1.0) * 3.0 }",  # cheap
        "def f(float(B,N) X) -> (Y, Z) { Y(i,j) = exp(X(i,j))  Z(i,j) = exp(X(i,j)) where j in 0:50 }",  # other ranges
        "def f(float(B,N) X) -> (Y, Z) { Y(i,j) = X(i,j)  Z(i,j) = exp(Y(i,j))  Y(i,j) = Y(i,j) + 1.0  Z(i,j) += exp(Y(i,j)) }",
        "def f(float(B,N) X) -> (Y, Z) { Y(i,j) = j < i ? exp(X(i,j)) : 0.0  Z(i,j) = j < i ? exp(X(i,j)) : 1.0 }",  # fewer than all
        "def f(float(B,N) X) -> (Y, Z) { Y(i,j) = j > 0 ? exp(X(i,j-1)) : 0.0 where j in 0:N  Z(i,j) = j > 0 ? exp(X(i,j-1)) : 1.0 "
        "where j in 0:N }",
        "def f(float(B,N) X, int32(B) I) -> (Y, Z) { Y(i,j) = I(i) > 0 ? exp(X(I(i),j)) : 0.0  Z(i,j) = I(i) > 0 ? exp(X(I(i),j)) : 1.0 }",
        "def f(float(B,N) X) -> (Y, Z) { Y(i,j) = exp(X(i,j)) * 2.0  Z(i,j) = exp(X(i,j) + 1.0) }",
    ],
)
def test_what_is_computed_where_it_is(text: str) -> None:
    before = extract(program(text, {**SIZES, "I": (64,)} if "I(i)" in text else SIZES))
    assert number_values(before, AVX512).assignments == before.assignments


@pytest.mark.parametrize(
    ("text", "sizes", "stored"),
    [
        (SOFTMAX, (16, 30_000), True),
        (SOFTMAX, (16, 40_000), False),  # a row is more than threads keep for themselves
        ("def f(float(B,N) X) -> (Y) { Z(j) +=! exp(X(i,j))  Y(i,j) = exp(X(i,j)) / Z(j) }", (4096, 1000), False),  # columns
        ("def f(float(B,N) X) -> (Y) { Z +=! exp(X(i,j))  Y(i,j) = exp(X(i,j)) / Z }", (4096, 1000), False),  # all of it
        ("def f(float(B,N) X) -> (Y) { Z +=! exp(X(i,j))  Y(i,j) = exp(X(i,j)) / Z }", (64, 500), True),
    ],
)
def test_values_that_leave_the_cache_are_computed_again(text: str, sizes: tuple[int, int], stored: bool) -> None:
    before = extract(program(text, {"X": sizes}))
    assert (number_values(before, AVX512).assignments != before.assignments) == stored


MANY = """def f(float(B,N) X, float(B,N) G) -> (A, C, D, E) {
    A(j) +=! G(i,j) * %s  C(i) +=! G(i,j) * %s  D +=! %s  E(j) max=! %s }"""


@pytest.mark.parametrize(
    ("value", "sizes", "stored"),
    [("pow(X(i,j), 1.5)", (600, 700), True), ("exp(X(i,j))", (100, 700), True), ("exp(X(i,j))", (4096, 4000), False)],
)
def test_what_many_compute_is_worth_its_way_through_a_cache(value: str, sizes: tuple[int, int], stored: bool) -> None:
    before = extract(program(MANY % (value, value, value, value), {"X": sizes, "G": sizes}))
    after = number_values(before, AVX512)
    verify_assignments("number_values", before, after)
    assert (len(after.assignments) > len(before.assignments)) == stored


def test_values_under_conditions() -> None:
    text = """def f(float(B,N) X) -> (A, C, D) {
        A(i) +=! j < i ? exp(X(i,j)) : 0.0  C(i,j) = X(i,j) > 0.5 ? exp(X(i,j)) : 0.0  D(i,j) = j >= i ? exp(X(i,j)) : 1.0 }"""
    before = extract(program(text, SIZES))
    after = number_values(before, AVX512)
    verify_assignments("number_values", before, after)
    assert [a.show().split(" where ")[0] for a in after.assignments] == [
        "A_value(i, j) = exp(X(i, j))",
        "A(i) += j < i ? A_value(i, j) : 0.0 from 0.0",
        "C(i, j) = X(i, j) > 0.5 ? A_value(i, j) : 0.0",
        "D(i, j) = j >= i ? A_value(i, j) : 1.0",
    ]
    x = torch.randn(64, 100)
    assert tcjit.define(text).f.compile(x).check(x)


def test_functions_of_positions() -> None:
    """No tensor says in which order they lie: sums over positions run inside the loops over their results."""
    text = """def f(float(H,N) A, float(H,L) G) -> (Y, Z) {
        Y(h,n) +=! exp(float(l) * A(h,n)) * G(h,l)  Z(h,n) +=! exp(float(l) * A(h,n)) * G(h,l) * l }"""
    found = numbered(text, {"A": (24, 16), "G": (24, 4000)})
    assert found[0] == "Y_value(h, n, l) = exp(float32(l) * A(h, n))" and "exp" not in "".join(found[1:])


def test_small_programs_stay() -> None:
    assert len(numbered(SOFTMAX, {"X": (8, 30)})) == 3


def test_choices_are_values() -> None:
    text = "def f(float(B,N) X) -> (Y, Z) { Y(i,j) = (j < i ? exp(X(i,j)) : 0.0) * 2.0  Z(i,j) = (j < i ? exp(X(i,j)) : 0.0) + 1.0 }"
    before = extract(program(text, SIZES))
    assert number_values(before, AVX512).assignments == before.assignments, "an element under a condition need not exist"


@pytest.mark.parametrize("fault", ["another value", "another tensor's value", "read before it is given", "too few elements", "it changes"])
def test_the_validation(fault: str) -> None:
    before = extract(program(SOFTMAX, SIZES))
    after = number_values(before, AVX512)
    top, value, total, result = after.assignments
    if fault == "another value":
        value = replace(value, value=value.value.args[0])  # type: ignore[attr-defined]
    elif fault == "another tensor's value":
        total = replace(total, value=Access("Y", total.value.subscripts, dtype="float32"))  # type: ignore[attr-defined]
    elif fault == "too few elements":
        value = replace(value, bounds=(value.bounds[0], ("j", 0, 99)))
    order = (top, total, value, result) if fault == "read before it is given" else (top, value, total, result)
    parts = ((top,), (value, total), (result,))
    if fault == "it changes":
        again = replace(top, value=top.value)
        parts, order = ((top,), (value, total), (result,)), (top, value, again, total, result)
        wrong = Assignments(after.program, order, after.declared, after.temporaries, ((top,), (value, again, total), (result,)))
    else:
        wrong = replace(after, assignments=order, replaced=((top,), order[1:3], (result,)) if order[1] is total else parts)
    with pytest.raises(VerifyError):
        verify_assignments("number_values", before, wrong)


def test_numbers_stay_the_same() -> None:
    x = torch.randn(70, 300)
    kernel = tcjit.define(SOFTMAX).f.compile(x)
    assert kernel.artifacts["number_values"].count("exp(") == 1
    torch.testing.assert_close(kernel(x), torch.softmax(x, 1))
    x[3, 7] = float("inf")
    assert kernel(x)[3].isnan().any() and torch.isfinite(kernel(x)[4]).all()
