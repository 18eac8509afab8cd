"""Bounds that comparisons with data give an index: what they are, where they hold, and what is refused.

Modules: mapping.data_bounds
"""

from __future__ import annotations

import pytest
from support.mapping import program

from tcjit.grammar.printer import show
from tcjit.mapping.data_bounds import bounds_of_terms, without
from tcjit.mapping.extract import extract


def bounds(condition: str, kind: str = "int64", neutral: str = "0.0", operator: str = "+=!") -> list[str]:
    value = f"({condition}) ? X(v,w) : {neutral} where n in 0:N"
    text = f"def f({kind}(N,2) I, float(V,W) X, float(N) F, {kind}(V) J) -> (O) {{ O(n) {operator} {value} }}"
    assignments = extract(program(text, {"I": (5, 2), "X": (9, 4), "F": (5,), "J": (9,)}))
    (a,) = assignments.assignments
    found = bounds_of_terms(a, assignments.values)
    return [("at most " if bound.is_upper else "at least ") + show(bound.value) for bound in found] + (
        [show(without(a.value, a.operator, found))] if found else []
    )


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("v >= I(n,0)", ["at least clamp(I(n, 0), -1, 9)", "X(v, w)"]),
        ("I(n,0) > v", ["at most clamp(I(n, 0), -1, 9) - 1", "X(v, w)"]),
        ("3 - v <= I(n,0)", ["at least 0 - (clamp(I(n, 0), -6, 4) - 3)", "X(v, w)"]),
        (
            "v >= I(n,0) && w < I(n,1) && F(n) > 0.0",
            ["at least clamp(I(n, 0), -1, 9)", "at most clamp(I(n, 1), -1, 4) - 1", "F(n) > 0.0 ? X(v, w) : 0.0"],
        ),
    ],
)
def test_what_bounds_are(condition: str, expected: list[str]) -> None:
    assert bounds(condition) == expected


def test_data_of_few_bits_need_no_clamp() -> None:
    assert bounds("v >= I(n,0)", "int32") == ["at least int64(I(n, 0))", "X(v, w)"]
    assert bounds("int32(v) >= int32(I(n,0))", "uint8") == ["at least int64(int32(I(n, 0)))", "X(v, w)"]


@pytest.mark.parametrize(
    ("condition", "kind", "neutral", "operator"),
    [
        ("v >= I(n,0)", "int64", "1.0", "+=!"),  # others are terms, too
        ("v >= I(n,0)", "int64", "0.0", "max=!"),
        ("uint64(v) >= I(n,0)", "uint64", "0.0", "+=!"),
        ("v >= I(n,0) || w > 2", "int64", "0.0", "+=!"),
        ("v >= J(v)", "int64", "0.0", "+=!"),  # data of the index, and of another one of the terms
        ("w >= J(v)", "int64", "0.0", "+=!"),
        ("2 * v >= I(n,0)", "int64", "0.0", "+=!"),
        ("v != I(n,0)", "int64", "0.0", "+=!"),
        ("float(v) >= F(n)", "int64", "0.0", "+=!"),
        ("J(I(n,0)) > 0 && v >= I(n,0)", "int64", "0.0", "+=!"),  # which says of an index that it is outside
        ("7 / I(n,1) > 0 && v >= I(n,0)", "int64", "0.0", "+=!"),
    ],
)
def test_what_has_none(condition: str, kind: str, neutral: str, operator: str) -> None:
    assert bounds(condition, kind, neutral, operator) == []
