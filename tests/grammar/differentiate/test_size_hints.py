"""Which of several indices an access is solved for, by sizes that are given as hints, and the guards of that choice."""
from __future__ import annotations

from collections.abc import Mapping

import pytest

from tcjit.grammar import polynomial
from tcjit.grammar.ast import Size
from tcjit.grammar.differentiate import AdjointDef, SizeHints, differentiate
from tcjit.grammar.differentiate.size_hints import order
from tcjit.grammar.front import read

PADDED = """def f(float(N,C,H) X, float(F,C,A) K) -> (Y) {
    Y(n,f,h) +=! (h + i >= 1 && h + i <= H ? X(n,c,h+i-1) : 0.0) * K(f,c,i) where h in 0:28 }"""
VALID = "def f(float(N,C,H) X, float(F,C,A) K) -> (Y) { Y(n,f,h) +=! X(n,c,h+i) * K(f,c,i) }"
STRIDED = "def f(float(N,C,H) X, float(F,C,A) K) -> (Y) { Y(n,f,h) +=! X(n,c,2*h+i) * K(f,c,i) }"


def adjoint(text: str, **sizes: int) -> tuple[AdjointDef, SizeHints]:
    hints = SizeHints(sizes)
    return differentiate(read(text)[-1], ["X"], size_hints=hints), hints


def summed(made: AdjointDef) -> set[str]:
    """The indices that the gradient is summed over, but for the filters."""
    return {index for statement in made.definition.statements for index in statement.reduction} - {"f"}


@pytest.mark.parametrize(
    ("text", "few", "many"),
    [
        (PADDED, {"N": 4, "C": 8, "H": 28, "F": 8, "A": 3}, {"N": 4, "C": 8, "H": 28, "F": 8, "A": 29}),
        (VALID, {"N": 4, "C": 8, "H": 28, "F": 8, "A": 3}, {"N": 4, "C": 8, "H": 28, "F": 8, "A": 27}),
        (STRIDED, {"N": 4, "C": 8, "H": 28, "F": 8, "A": 3}, {"N": 4, "C": 8, "H": 28, "F": 8, "A": 24}),
    ],
)
def test_a_gradient_is_summed_over_the_fewest(text: str, few: Mapping[str, int], many: Mapping[str, int]) -> None:
    """Over a small kernel; over the results where these are fewer."""
    small, of_small = adjoint(text, **few)
    large, of_large = adjoint(text, **many)
    assert (summed(small), summed(large)) == ({"i"}, {"h"})
    for hints, sizes, others in ((of_small, few, many), (of_large, many, few)):
        assert hints.guards
        assert all(guard.holds(sizes) for guard in hints.guards) and not all(guard.holds(others) for guard in hints.guards)
        assert all(guard.holds({**sizes, "N": 1000, "C": 1, "F": 1000}) for guard in hints.guards)  # which nothing was chosen by


def test_the_text_is_for_every_size() -> None:
    """Hints are no numbers: no size is written out, and a choice between other numbers gives the same text."""
    one, _ = adjoint(VALID, H=28, A=3)
    other, _ = adjoint(VALID, H=100, A=5)
    assert one.text == other.text and "28" not in one.text and "float32(N, C, H)" in one.text


def test_sizes_without_a_hint_count_as_long() -> None:
    without, hints = adjoint(PADDED)
    assert summed(without) == {"h"} and without.text == differentiate(read(PADDED)[-1], ["X"]).text
    assert all(guard.holds({}) for guard in hints.guards) and not all(guard.holds({"A": 3}) for guard in hints.guards)


def test_no_choice_has_no_guard() -> None:
    _, hints = adjoint("def f(float(M,K) X, float(K,N) W) -> (Y) { Y(m,n) +=! X(m,k) * W(k,n) }", M=3, K=4, N=5)
    assert hints.guards == ()


def test_extents_are_ordered() -> None:
    n, m = (polynomial.atom(Size(name, dtype="int64")) for name in "NM")
    assert order(n, 8, {"N": 9}) == 1 and order(n, 8, {"N": 8}) == 0 and order(n + m, 8, {"N": 3, "M": 4}) == -1
    assert order(n, 8, {}) == order(None, n, {"N": 9}) == order(polynomial.divide(n, m), 8, {"N": 9, "M": 0}) == 1
    assert order(n, m, {}) == order(n + m, None, {"N": 9}) == 0
