"""Programs with dynamic sizes: their expressions, the numbers that bound them, and the sizes for which they are legal."""
from __future__ import annotations

import pytest

from tcjit.errors import ShapeError
from tcjit.grammar.ast import Dynamic, Index, Program
from tcjit.grammar.dynamic import generalise
from tcjit.grammar.front import read
from tcjit.grammar.printer import extent


def made(text: str, sizes: dict[str, int], dynamic: dict[str, tuple[int, int]], scalars: dict[str, int] | None = None) -> Program:
    return generalise(read(text)[-1], sizes, scalars or {}, dynamic)


def test_extents_and_ranges_are_bounded_and_kept_as_expressions() -> None:
    text = "def shorter(float(B,N) X, float(K) W) -> (Y) { Y(b, i) +=! X(b, 2*i + k) * W(k) }"
    program = made(text, {"B": 5, "N": 9, "K": 3}, {"N": (8, 20)})
    assert program.dynamic == (Dynamic("N", "tc_size_N", 8, 20),) and program.sizes == (("B", 5), ("K", 3))
    assert dict(program.shapes) == {"X": (5, 20), "W": (3,), "Y": (5, 9)}
    assert program.domains == (((0, 5), (0, 9), (0, 3)),)
    assert [e and extent(e) for e in dict(program.extents)["Y"]] == [None, "(tc_size_N + 1) / 2 - 1"]
    assert [pair and extent(pair[1]) for pair in program.ranges[0]] == [None, "(tc_size_N + 1) / 2 - 1", None]
    assert program.total and program.context == ("8 <= tc_size_N <= 20",)


@pytest.mark.parametrize(
    "text, least, greatest",
    [
        ("def f(float(B) X) -> (Y) { Y(i) = X(i) where i in 0:5 }", 5, 32),
        ("def f(float(B) X, float(7) Z) -> (Y) { Y(i) = Z(i) + X(i) where i in 0:B }", 1, 7),
        ("def f(float(B) X) -> (Y) { Y(i) = i >= 3 ? X(i - 3) : X(i + 2) where i in 0:B }", 5, 32),
        ("def f(float(B) X, float(3) W) -> (Y) { Y(i) +=! X(i + k) * W(k) }", 2, 32),
    ],
)
def test_sizes_for_which_the_def_is_illegal_are_left_out(text: str, least: int, greatest: int) -> None:
    program = made(text, {"B": 5}, {"B": (1, 32)})
    assert not program.total
    assert program.context == (f"({f'{least} <=' if least > 1 else '0 <'} tc_size_B <= {greatest})",)  # isl's own words
    assert dict(program.shapes)["X"] == (greatest,)  # what bounds the rest is as tight


def test_a_name_that_is_taken_is_not_used() -> None:
    program = made("def f(float(B) X) -> (Y) { Y(tc_size_B) = X(tc_size_B) }", {"B": 5}, {"B": (1, 32)})
    assert program.dynamic[0].name == "tc_size_B_"
    assert program.definition.statements[0].subscripts == (Index("tc_size_B", dtype="int64"),)


@pytest.mark.parametrize(
    "text, why",
    [
        ("def f(float(B,N) X) -> (Y) { Y(i) = float(i) where i in 0:B*N }", "factor, divisor or modulus"),
        ("def f(float(B) X) -> (Y) { Y(i) = X(i % B) where i in 0:4 }", "factor, divisor or modulus"),
        ("def f(float(B) X, float(N) Z) -> (Y) { Y(i) = X(i + 40) + float(N) where i in 0:4 }", "legal for none"),
    ],
)
def test_what_cannot_be_dynamic(text: str, why: str) -> None:
    sizes = {"B": 3, "N": 4}
    with pytest.raises(ShapeError, match=f"of f.. cannot be dynamic: .*{why}"):
        made(text, sizes, {"B": (1, 32)})
