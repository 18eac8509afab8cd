"""Which temporaries are worth saving for an adjoint, and the def that returns them.

Modules: grammar.differentiate.save
"""
from __future__ import annotations

import pytest

from tcjit.grammar.differentiate import SizeHints, contractions, differentiate, returning, statistics
from tcjit.grammar.front import read

SOFTMAX = "def f(float(M,N) X) -> (Y) { T(m) max=! X(m,n)  E(m,n) = exp(X(m,n) - T(m))  S(m) +=! E(m,n)  Y(m,n) = E(m,n) / S(m) }"
ATTENTION = """def f(float(Q,D) q, float(K,D) k, float(K,D) v) -> (O) {
    S(i,j) +=! q(i,d) * k(j,d)
    T(i) max=! S(i,j)
    E(i,j) = exp(S(i,j) - T(i))
    Z(i) +=! E(i,j)
    P(i,d) +=! E(i,j) * v(j,d)
    O(i,d) = P(i,d) / Z(i) }"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SOFTMAX, ["T", "S"]),
        (ATTENTION, ["T", "Z"]),
        ("def f(float(M,N) X) -> (Y) { m(i) +=! X(i,j)  m(i) = m(i) / N  Y(i,j) = X(i,j) * m(i) }", ["m"]),
        ("def f(float(N) X) -> (Y) { s +=! X(i) * X(i)  Y(i) = X(i) * s }", []),  # without dimensions: a parameter to read back
        ("def f(float(N) X, float(K) W) -> (Y) { S(i) +=! X(i + k) * W(k)  Y(i) = tanh(S(i)) }", []),
        ("def f(float(M,N) X) -> (Y) { k(i) +=! X(i,j) > 0.0 ? 1 : 0  Y(i,j) = X(i,j) * float(k(i)) }", ["k"]),
    ],
    ids=["softmax", "attention", "written again", "one number", "a window", "integers"],
)
def test_statistics(text: str, expected: list[str]) -> None:
    (definition,) = read(text)
    assert statistics(definition) == expected


LAYER = "def f(float(N,K) X, float(O,K) W) -> (Y) { Z(n,o) +=! X(n,k) * W(o,k)  Y(n,o) = tanh(Z(n,o)) }"


QUANTISED = """def f(int8(N,K) X, int8(O,K) W, float(O) S) -> (Y) {
    Z(n,o) +=! int32(X(n,k)) * int32(W(o,k))  Y(n,o) = S(o) * float(Z(n,o)) }"""
DISTANCES = "def f(float(N,K) X, float(O,K) W) -> (Y) { Z(n,o) +=! (X(n,k) - W(o,k)) * (X(n,k) - W(o,k))  Y(n,o) = sqrt(Z(n,o)) }"


@pytest.mark.parametrize(
    ("text", "sizes", "expected", "guards"),
    [
        (LAYER, {"N": 30, "K": 256, "O": 20}, ["Z"], 2),
        (LAYER, {"N": 30, "K": 199, "O": 20}, [], 1),
        (LAYER, {}, [], 0),  # no sizes are known
        (LAYER.replace("float", "double"), {"N": 30, "K": 199, "O": 20}, ["Z"], 2),
        (LAYER.replace("W(o,k)", "W(o,k) * 0.5"), {"N": 30, "K": 199, "O": 20}, [], 1),
        (QUANTISED, {"N": 30, "K": 60, "O": 20}, ["Z"], 2),
        (DISTANCES, {"N": 30, "K": 120, "O": 20}, ["Z"], 2),  # a subtraction and a multiply-add for each term
        (DISTANCES, {"N": 30, "K": 99, "O": 20}, [], 1),
        (ATTENTION, {"Q": 900, "K": 900, "D": 256}, ["S", "P"], 4),
        (ATTENTION, {"Q": 9000, "K": 9000, "D": 256}, ["P"], 4),  # scores are larger than all that is given
        ("def f(float(N,K) X) -> (Y) { Z(n) +=! X(n,k)  Y(n) = tanh(Z(n)) }", {"N": 30, "K": 256}, [], 0),
    ],
    ids=[
        "long", "short", "unknown", "doubles", "short and scaled", "integers", "distances", "short distances", "scores", "more scores",
        "no products",
    ],
)
def test_contractions(text: str, sizes: dict[str, int], expected: list[str], guards: int) -> None:
    (definition,) = read(text)
    hints = SizeHints(sizes)
    assert contractions(definition, hints) == expected
    assert len(hints.guards) == guards


def test_a_def_that_returns_them() -> None:
    (definition,) = read(SOFTMAX)
    (made,) = read(returning(definition, ["T", "S"]))
    assert (made.name, made.returns) == ("f", ("Y", "T", "S"))
    assert [s.value for s in made.statements] == [s.value for s in definition.statements]


def test_what_the_adjoint_then_computes() -> None:
    (definition,) = read(ATTENTION)
    plain, saving = differentiate(definition), differentiate(definition, saved=["T", "Z"])
    assert {"T", "Z"} <= {*saving.reads} and not {"T", "Z"} & {*plain.reads}
    assert "T(i) max=!" in plain.text and "T(i) max=!" not in saving.text
