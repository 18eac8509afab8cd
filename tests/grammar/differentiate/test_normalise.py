"""The normal form: every row of its table, names that are taken, and copies that must stay.

``tests/end_to_end/test_random_derivatives.py`` holds it against the def on random programs.

Modules: grammar.differentiate.normalise grammar.differentiate.write grammar.differentiate.names
"""
from __future__ import annotations

import pytest

from tcjit.grammar.differentiate.normalise import normalise
from tcjit.grammar.differentiate.write import normal_text
from tcjit.grammar.front import read


def normal(body: str, head: str = "float(N) X, float(N,M) A, half(N) h", returns: str = "Y") -> list[str]:
    """The statements of the normal form, which must be a def itself."""
    definition, = read(f"def f({head}) -> ({returns}) {{ {body} }}")
    text = normal_text(normalise(definition))
    again, = read(text)
    assert [again.tensor(name).dtype for name in again.returns] == [definition.tensor(name).dtype for name in definition.returns]
    return [line.strip() for line in text.splitlines()[1:-1]]


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("Y(i) = X(i) Y(i) *= 2.0", ["Y_1(i) = X(i)", "Y(i) = Y_1(i) * 2.0"]),
        ("Y(i) +=! X(i)", ["Y(i) = X(i)"]),
        ("Y(i) = X(i) Y(i) = 1.0 where i in 0:2", ["Y_1(i) = X(i)", "Y(i) = i < 2 ? 1.0 : Y_1(i)"]),
        ("Y(i) = X(i) Y(i) += A(i, j)", ["Y(i) = X(i)", "Y(i) += A(i, j)"]),
        ("Y(i) = X(i) Y(i) *= A(i, j)", ["Y_1(i) = X(i)", "Y_2(i) *=! A(i, j)", "Y(i) = Y_1(i) * Y_2(i)"]),
        (
            "Y(i) = X(i) Y(i) +=! A(i, j) where i in 1:N",
            ["Y_1(i) = X(i)", "Y_2(i) +=! i >= 1 ? A(i, j) : 0.0", "Y(i) = i >= 1 ? Y_2(i) : Y_1(i)"],
        ),
        ("Y max=! X(i) * X(i)", ["e_Y_1(i) = X(i) * X(i)", "Y() max=! e_Y_1(i)"]),
        ("Y max=! (i > 0) ? X(i) : 0.0", ["Y() max=! i > 0 ? X(i) : 0.0"]),
        ("Y max=! X(i) * X(i) where i in 1:N", ["e_Y_1(i) = X(i + 1) * X(i + 1) where i in 0:N - 1", "Y() max=! e_Y_1(i - 1)"]),
        ("Y +=! 1.0 where exists A(i, j)", ["Y() +=! 1.0 where exists A(i, j)"]),
    ],
)
def test_rows_of_the_table(body: str, lines: list[str]) -> None:
    assert normal(body) == lines


def test_a_result_that_comes_in_is_version_0() -> None:
    definition, = read("def f(float(N) X) -> (Y) { Y(i) += X(i) }")
    form = normalise(definition)
    assert form.initial == {"Y": "Y_0"}
    assert "float32(N) Y_0" in normal_text(form)


def test_a_copy_stays_where_its_own_adjoint_looks_at_the_value() -> None:
    """The sum must not be added into the maximum that is compared with, nor into what ``exp`` stored."""
    assert normal("Y max=! X(i) Y += X(i)") == ["Y_1() max=! X(i)", "Y() = Y_1", "Y() += X(i)"]
    assert normal("Y(i) = exp(X(i)) Y(i) += A(i, j)") == ["Y_1(i) = exp(X(i))", "Y(i) = Y_1(i)", "Y(i) += A(i, j)"]


def test_names_that_are_taken() -> None:
    """A version avoids tensors, sizes and indices; an index is none of a tensor."""
    assert normal("Y(i) = X(i) Y(i) = Y(i) + 1.0", head="float(Y_1) X") == ["Y_1_(i) = X(i)", "Y(i) = Y_1_(i) + 1.0"]
    assert normal("Y(Y_1) = X(Y_1) Y(i) = Y(i) + 1.0", head="float(N) X") == ["Y_1_(Y_1) = X(Y_1)", "Y(i) = Y_1_(i) + 1.0"]


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("Y(i) = 3 where i in 0:N", "Y(i) = 3 where i in 0:N"),
        ("Y(i) = int8(3) where i in 0:N", "Y(i) = int8(3) where i in 0:N"),
        ("Y(i) = double(0.1) where i in 0:N", "Y(i) = float64(0.1) where i in 0:N"),
        ("Y(i) = (i < 2) ? half(1) : half(0) where i in 0:N", "Y(i) = float16(i < 2 ? 1.0 : 0.0) where i in 0:N"),
        ("Y(i) = h(i) * half(uint8(200) + uint8(100))", "Y(i) = h(i) * float16(uint8(200) + uint8(100))"),
        ("Y(i) = true where i in 0:N", "Y(i) = true where i in 0:N"),
    ],
)
def test_literals_keep_their_types(body: str, line: str) -> None:
    assert normal(body) == [line]
