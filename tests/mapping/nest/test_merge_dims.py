"""Merged and dropped dimensions: the same elements in the same places, and what must not be merged."""

from __future__ import annotations

from itertools import permutations

import pytest
from support.nests import flat, results_of, terms_of

from tcjit.mapping.nest.merge_dims import drop_unit_dims, merge, mergeable, shift_dims
from tcjit.mapping.nest.statement import FlatStatement

X = {"X": (2, 3, 4, 5)}


def pairs(s: FlatStatement) -> list[tuple[str, str]]:
    return [(outer, inner) for outer, inner in permutations(s.dims, 2) if mergeable(s, outer, inner)]


@pytest.mark.parametrize(
    ("text", "shapes", "expected"),
    [
        ("def f(float(N,C,H,W) X) -> (S) { S(n,c) +=! X(n,c,h,w) }", X, [("n", "c"), ("h", "w")]),
        ("def f(float(N,C,H,W) X) -> (S) { S(c) +=! X(n,c,h,w) }", X, [("h", "w")]),
        ("def f(float(N,C,H,W) X) -> (S) { S(c,n) +=! X(n,c,h,w) }", X, [("h", "w")]),
        ("def f(float(N,C,H,W) X) -> (S) { S(n,c,w) +=! X(n,c,h,w) }", X, [("n", "c")]),
        ("def f(float(N,C,H,W) X, float(C) b) -> (S) { S(n,c) +=! X(n,c,h,w) * b(c) }", {**X, "b": (3,)}, [("h", "w")]),
        ("def f(float(N,C,H,W) X, float(H) b) -> (S) { S(n,c) +=! X(n,c,h,w) * b(h) }", {**X, "b": (4,)}, [("n", "c")]),
        # bounded by a part of an axis, by one another, by another dimension, at another stride
        ("def f(float(N,C,H,W) X) -> (S) { S(n,c) +=! X(n,c,h,w) where w in 0:4 }", X, [("n", "c")]),
        ("def f(float(N,C,H,W) X) -> (S) { S(n,c) +=! X(n,c,h,w) where h in 0:2 }", X, [("n", "c"), ("h", "w")]),
        ("def f(float(N,C,H,W) X) -> (S) { S(n,c) +=! X(n,c,h,w+1) where w in 0:4 }", X, [("n", "c")]),
        ("def f(float(N,C,H,W) X) -> (S) { S(n,c) +=! (w <= h ? X(n,c,h,w) : 0.0) }", X, [("n", "c")]),
        ("def f(float(N,C,H,W) X) -> (S) { S(n,c) +=! (w <= c ? X(n,c,h,w) : 0.0) }", X, []),
        ("def f(float(N,C,H,W) X) -> (S) { S(n,c) +=! (h < 2 ? X(n,c,h,w) : 0.0) }", X, [("n", "c"), ("h", "w")]),
        ("def f(float(N,C,H,W) X) -> (S) { S(n,c) +=! X(n,c,2*h,w) where h in 0:2 }", X, [("n", "c")]),
    ],
)
def test_what_is_merged(text: str, shapes: dict[str, tuple[int, ...]], expected: list[tuple[str, str]]) -> None:
    s = shift_dims(flat(text, shapes))
    assert pairs(s) == expected
    for outer, inner in expected:
        after = merge(s, outer, inner)
        assert after.dims == tuple(dim for dim in s.dims if dim != outer)
        assert after.extent(inner) == s.extent(outer) * s.extent(inner)
        assert terms_of(after) == terms_of(s) and results_of(after) == results_of(s)
    while found := pairs(s):
        before, s = s, merge(s, *found[0])
        assert terms_of(s) == terms_of(before) and results_of(s) == results_of(before)


def test_three_dimensions_become_one() -> None:
    s = flat("def f(float(N,C,H) X) -> (S) { S +=! X(n,c,h) }", {"X": (2, 3, 4)})
    before = terms_of(s)
    while found := pairs(s):
        s = merge(s, *found[0])
    assert len(s.dims) == 1 and s.extent(s.dims[0]) == 24 and terms_of(s) == before and s.is_box


def test_dimensions_of_one_value_are_dropped() -> None:
    text = "def f(float(N,C,H,W) X) -> (S) { S(n,c) +=! X(n,c,h+2,w) where h in 1:2 }"
    s = flat(text, {"X": (1, 3, 4, 5)})
    after = drop_unit_dims(s)
    assert after.dims == ("c", "w") and after.terms == ("w",)
    assert terms_of(after) == terms_of(s) and results_of(after) == results_of(s)
    assert drop_unit_dims(after) is after


def test_a_dropped_term_may_be_the_last() -> None:
    s = flat("def f(float(N,K) X) -> (S) { S(n) +=! (k == 2 ? X(n,k) : 0.0) }", {"X": (3, 4)})
    after = drop_unit_dims(s)
    assert after.dims == ("n",) and not after.terms
    assert terms_of(after) == terms_of(s) and results_of(after) == results_of(s)


def test_a_term_that_depends_on_a_result_stays() -> None:
    s = flat("def f(float(N,K) X) -> (S) { S(n) +=! (k == n ? X(n,k) : 0.0) }", {"X": (3, 4)})
    after = drop_unit_dims(s)
    assert after.dims == ("n", "k") and terms_of(after) == terms_of(s)
