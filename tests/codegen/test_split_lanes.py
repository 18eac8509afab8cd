"""Lane loops are split where conditions on indices change.

Modules: codegen.split_lanes
"""
from __future__ import annotations

import pytest
import torch
from support.mapping import AVX512, program

import tcjit
from tcjit.codegen.loops import For, Run
from tcjit.codegen.split_lanes import LaneConditions
from tcjit.grammar.linear import Linear
from tcjit.grammar.printer import show
from tcjit.mapping.extract import extract

WIDTH = AVX512.lanes(4)
ROW, LANE = Linear.of("c0"), Linear.of("c1")


def conditions(value: str, extent: int = 200, j: Linear = LANE) -> tuple[LaneConditions, object]:
    text = f"def f(float(N,M) A, float(N,M) B) -> (O) {{ O(i,j) = {value} where i in 0:N, j in 0:M }}"
    made = extract(program(text, {"A": (90, extent), "B": (90, extent)}), None).assignments[0]
    loop = For("c1", Linear.of(0), Linear.of(extent - 1), 1, (run := Run("S0", (("i", ROW), ("j", j))),))
    return LaneConditions(loop, run, {"N": 90, "M": extent}, WIDTH), made.value


def parts(value: str, extent: int = 200, j: Linear = LANE) -> list[tuple[int, int, str]]:
    found, expr = conditions(value, extent, j)
    return [(loop.lower.constant, loop.upper.constant, show(part)) for loop, part in found.parts(expr)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("j >= 1 ? A(i,j - 1) : 0.0", [(0, 15), (16, 199)]),
        ("j + 1 < M ? A(i,j + 1) : 0.0", [(0, 191), (192, 199)]),
        ("(j >= 1 ? A(i,j - 1) : 0.0) + (j + 2 < M ? A(i,j + 2) : 0.0)", [(0, 15), (16, 191), (192, 199)]),
        ("j == 3 ? A(i,j) : B(i,j)", [(0, 15), (16, 199)]),
        ("!(j < 40) || j == 5 ? A(i,j) : B(i,j)", [(0, 5), (6, 15), (16, 39), (40, 47), (48, 199)]),
    ],
)
def test_loops_are_cut_at_whole_vectors(value: str, expected: list[tuple[int, int]]) -> None:
    found = parts(value)
    assert found[0][0] == 0 and found[-1][1] == 199
    assert all(upper + 1 == lower for (_, upper, _), (lower, _, _) in zip(found, found[1:]))
    longest = max(found, key=lambda part: part[1] - part[0])
    assert "?" not in longest[2] and longest[0] % WIDTH == 0
    if len(expected) < 4:
        assert [part[:2] for part in found] == expected


@pytest.mark.parametrize(
    "value",
    [
        "A(i,j) > 0.0 ? A(i,j) : B(i,j)",  # data
        "j <= i ? A(i,j) : B(i,j)",  # changes at another place in each row
        "j % 2 == 0 ? A(i,j) : B(i,j)",
        "j >= 70 && j < 140 ? A(i,j) : B(i,j)",  # no part has half of the iterations
        "j >= 0 - 5 ? A(i,j) : B(i,j)",  # holds everywhere
    ],
)
def test_loops_that_are_not_cut(value: str) -> None:
    assert len(parts(value)) == 1


def test_what_always_holds_is_not_asked() -> None:
    assert "?" not in parts("j >= 0 - 5 ? A(i,j) : B(i,j)")[0][2]


def test_a_branch_outside_asks_what_does_not_move_with_the_loop() -> None:
    found, value = conditions("i >= 1 && j >= 1 ? A(i - 1,j - 1) : 0.0")
    branch = found.branch(value)
    assert branch is not None and "i" not in show(branch.then).partition("?")[0] and branch.other is not value
    assert "?" not in show(branch.other)
    found, value = conditions("i >= 1 && i + 1 < N ? A(i - 1,j) + A(i + 1,j) : 0.0")
    branch = found.branch(value)
    assert branch is not None and "?" not in show(branch.then) and branch.other == value
    found, value = conditions("j >= 1 ? A(i,j - 1) : 0.0")
    assert found.branch(value) is None


def test_values_of_an_outer_loop_have_loops_of_their_own() -> None:
    """A branch that asks whether all conditions hold would leave most iterations with all of them."""
    found, value = conditions("i == 5 && j == 5 ? 1.0 : i > 5 && j == 5 ? B(i,j) : i > 5 && j > 5 ? A(i,j) * B(j % 9,j) : A(i,j)")
    segments = found.segments(value, {"c0": (0, 89)})
    assert segments is not None and segments[0] == "c0" and [last for last, _ in segments[1]] == [4, 5, 89]
    first, *others = (show(part) for _, part in segments[1])
    assert first == "A(i, j)" and not any("i ==" in one or "i >" in one for one in others)


@pytest.mark.parametrize(
    "value",
    [
        "i >= 1 && i + 1 < N ? A(i - 1,j) : 0.0",  # one branch decides nearly all iterations
        "i == 3 || i == 7 || i == 11 || i == 15 ? A(i,j) : B(i,j)",  # too many segments
        "j >= 1 ? A(i,j - 1) : 0.0",
        "i == j ? A(i,j) : B(i,j)",
    ],
)
def test_segments_that_do_not_pay(value: str) -> None:
    found, expr = conditions(value)
    assert found.segments(expr, {"c0": (0, 89)}) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("A(i,(j + 1) % M) + A(i,(j + M - 1) % M)", [(0, 0), (1, 198), (199, 199)]),
        ("A(i,(2 * M - 1 - j) % M)", [(0, 199)]),
        ("A(i,(2 * M + 5 - j) % M)", [(0, 5), (6, 199)]),
        ("A(i,(3 * j + 7) % M)", [(0, 64), (65, 130), (131, 197), (198, 199)]),
        ("A(i,j / 4)", [(0, 199)]),  # in too many places
        ("A(i,(i + j) % M)", [(0, 199)]),  # in another place in each row
    ],
)
def test_loops_are_cut_where_quotients_change(value: str, expected: list[tuple[int, int]]) -> None:
    found, expr = conditions(value)
    assert [(loop.lower.constant, loop.upper.constant) for loop in found.periods(expr)] == expected


@pytest.mark.parametrize("extent", [33, 200, 257])
@pytest.mark.parametrize("rows", [1, 2, 37])
@pytest.mark.parametrize(
    "value",
    [
        "(i >= 1 && i + 1 < N && j >= 1 && j + 1 < M) ? 0.2 * (X(i,j - 1) + X(i,j + 1) + X(i - 1,j) + X(i + 1,j)) : X(i,j)",
        "(j >= 1 ? X(i,j - 1) : 0.0) + (j + 1 < M ? X(i,j + 1) : 0.0) + (i >= 1 ? X(i - 1,j) : 0.0) + (i + 1 < N ? X(i + 1,j) : 0.0)",
        "j == i ? 2.0 : j < 20 || i == 3 ? X(i,j) : 0.0 - X(i,M - 1 - j)",
        "!(j >= 5) && (i > 2 || j > 1) ? X(i,j) : j != 17 ? 1.0 : 3.0",
        "(i == 1 && j == 5) ? 1.0 : (i > 1 && j == 5) ? X(i,1) : (i > 1 && j > 5) ? X(i,j) - X(i,5) * X(1,j) : X(i,j)",
        "X((i + 1) % N,(j + 1) % M) + 2.0 * X(i,(j + M - 1) % M) - X(i,(2 * M + 3 - j) % M)",
        "j > 2 ? X(i,(3 * j + 7) % M) : X(i,(j + i) % M)",
    ],
)
def test_results_are_those_of_the_reference(value: str, rows: int, extent: int) -> None:
    text = f"def f(float(N,M) X) -> (O) {{ O(i,j) = {value} where i in 0:N, j in 0:M }}"
    x = torch.randn(rows, extent)
    torch.testing.assert_close(tcjit.define(text).f(x), tcjit.define(text, target="reference").f(x))
