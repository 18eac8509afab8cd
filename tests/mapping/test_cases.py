"""Statements cut where conditions on an index change.

Modules: mapping.passes.split_index_sets
"""

from __future__ import annotations

import pytest
from support.mapping import program

from tcjit.mapping.dependences import dependences
from tcjit.mapping.options import Options
from tcjit.mapping.passes.fuse import fused_groups
from tcjit.mapping.pipeline import build_scop

JOIN = "def f(float(N,C) A, float(N,D) B, float(N) Z) -> (Y) {{ Y(n,c) = {value} where n in 0:N, c in 0:C+D }}"
SHAPES = {"A": (3, 5), "B": (3, 4), "Z": (3,)}


def boxes(value: str) -> list[tuple[tuple[int, int], int]]:
    """The ranges of the second index, and how many tensors are read there."""
    scop = build_scop(program(JOIN.format(value=value), SHAPES), Options())
    return [(s.bounds[1][1:], len({a.tensor for a, _ in s.reads})) for s in scop.statements]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("c < C ? A(n,c) : B(n,c-C)", [((0, 5), 1), ((5, 9), 1)]),
        ("c >= C ? B(n,c-C) : A(n,c)", [((0, 5), 1), ((5, 9), 1)]),
        ("c < 1 ? Z(n) : (c < C ? A(n,c) : B(n,c-C))", [((0, 1), 1), ((1, 5), 1), ((5, 9), 1)]),
        # a condition inside of a part stays one
        ("c < C ? (c < 2 ? Z(n) : A(n,c)) : B(n,c-C)", [((0, 5), 2), ((5, 9), 1)]),
        # nothing is joined along one index
        ("Z(n) > 0.0 ? Z(n) : -Z(n)", [((0, 9), 1)]),
        ("c + n < C ? A(n,c+n) : Z(n)", [((0, 9), 2)]),
        ("1.0 + (c < C ? A(n,c) : B(n,c-C))", [((0, 9), 2)]),
    ],
)
def test_what_is_joined_is_cut(value, expected):
    assert boxes(value) == expected


@pytest.mark.parametrize(("parts", "statements"), [(32, 32), (33, 1)])
def test_very_many_parts_stay_one_statement(parts: int, statements: int) -> None:
    value = "Z(n)"
    for place in reversed(range(1, parts)):
        value = f"(c < {place} ? Z(n) * {place}.0 : {value})"
    text = f"def f(float(N) Z) -> (Y) {{ Y(n,c) = {value} where c in 0:{parts} }}"
    assert len(build_scop(program(text, {"Z": (3,)}), Options()).statements) == statements


def test_what_a_later_assignment_goes_on_with_stays_in_one_piece():
    text = """
    def f(float(N,C) A, float(N,D) B) -> (T, Y) {
        T(n,c) = c < C ? A(n,c) : B(n,c-C) where c in 0:C+D
        Y(n,c) = fmax(T(n,c), 0.0)
    }
    """
    scop = build_scop(program(text, {"A": (3, 5), "B": (3, 4)}), Options())
    assert [s.tensor for s in scop.statements] == ["T", "Y"]


def test_parts_share_the_loops_around_them():
    scop = build_scop(program(JOIN.format(value="c < C ? A(n,c) : B(n,c-C)"), {"A": (40, 5), "B": (40, 4), "Z": (40,)}), Options())
    deps = dependences(scop)
    found = fused_groups(scop, deps, Options())
    assert [(group.statements, group.columns) for group in found] == [(("S0", "S1"), ({"S0": "n", "S1": "n"},))]
