"""Texts of tangents: what each kind of statement becomes.

Modules: grammar.differentiate.tangent
"""
from __future__ import annotations

import pytest

from tcjit.errors import ArgumentError
from tcjit.grammar.differentiate import tangent
from tcjit.grammar.front import read


def lines(text: str, wrt: list[str] | None = None) -> list[str]:
    return [line.strip() for line in tangent(read(text)[-1], wrt).text.splitlines()[1:-1]]


def test_a_contraction() -> None:
    made = tangent(read("def mm(float(M,K) A, float(K,N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }")[-1])
    assert made.text == """def mm_tangent(float32(M, K) t_A, float32(K, N) t_B, float32(M, K) A, float32(K, N) B) -> (float32(M, N) t_C) {
    t_C(m, n) +=! B(k, n) * t_A(m, k) + A(m, k) * t_B(k, n)
}
"""
    assert (made.tangents, made.results, made.reads) == ({"A": "t_A", "B": "t_B"}, {"C": "t_C"}, ("A", "B"))


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("Y(i) = exp(X(i) * a)", ["Y(i) = exp(X(i) * a)", "t_Y(i) = Y(i) * a * t_X(i) + Y(i) * X(i) * t_a"]),
        ("Y(i) = 1.0 where i in 0:N", ["t_Y(i0) = 0.0 where i0 in 0:N"]),
        ("Y(i) = 1.0 where i in 0:N Y(i) += A(i, j)", ["t_Y(i) = 0.0 where i in 0:N", "t_Y(i) += t_A(i, j)"]),
        ("Y(i) *=! A(i, j)", ["others_Y(i, j_) *=! j != j_ ? A(i, j) : 1.0 where j_ in 0:M", "t_Y(i) +=! others_Y(i, j) * t_A(i, j)"]),
        ("Y(i) max=! A(i, j)", ["Y(i) max=! A(i, j)", "n_Y(i) +=! A(i, j) == Y(i) ? 1.0 : 0.0",
                                "t_Y(i) +=! A(i, j) == Y(i) ? t_A(i, j) / n_Y(i) : 0.0"]),
    ],
)  # fmt: skip
def test_statements(body: str, wanted: list[str]) -> None:
    assert lines(f"def f(float(N) X, float(N,M) A, float a) -> (Y) {{ {body} }}") == wanted


def test_only_some_parameters() -> None:
    assert lines("def f(float(N) X, float(N) Z) -> (Y) { Y(i) = X(i) * Z(i) }", ["Z"]) == ["t_Y(i) = X(i) * t_Z(i)"]


def test_a_def_without_a_result_of_floats() -> None:
    with pytest.raises(ArgumentError, match="`f` has no result of floats"):
        lines("def f(float(N) X) -> (Y) { Y(i) = int32(X(i)) }")
