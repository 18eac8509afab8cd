"""Merging dimensions that every statement walks together: when it happens, when it must not, and what its proof refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.mapping import AVX512, program

from tcjit.errors import VerifyError
from tcjit.grammar.ast import Const
from tcjit.mapping.collapse import collapse, order_axes, verify_collapse
from tcjit.mapping.machine import OPENCL
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import build_scop, map_program
from tcjit.mapping.scop import Scop

SHAPES = {"X": (2, 3, 4, 5), "Y": (2, 3, 4, 5), "b": (3,)}


def scop(text: str, shapes: Mapping[str, tuple[int, ...]] = SHAPES, layouts: Mapping[str, str] | None = None) -> Scop:
    names = [p.split(") ")[1] for p in text.split("->")[0].split("(", 1)[1].rsplit(")", 1)[0].split(", float")]
    return build_scop(program(text, {name: shapes[name] for name in names}), Options(), layouts, OPENCL)


def extents(found: Scop) -> list[list[int]]:
    return [[upper - lower for _, lower, upper in s.bounds] for s in found.statements]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(float(N,C,H,W) X, float(N,C,H,W) Y) -> (Z) { Z(n,c,h,w) = X(n,c,h,w) + Y(n,c,h,w) }", [[120]]),
        ("def f(float(N,C,H,W) X, float(C) b) -> (Z) { Z(n,c,h,w) = X(n,c,h,w) + b(c) }", [[2, 3, 20]]),
        ("def f(float(N,C,H,W) X) -> (S) { S(n,c) +=! X(n,c,h,w) }", [[6], [6, 20]]),
        ("def f(float(N,C,H,W) X) -> (S) { S(c) +=! X(n,c,h,w) }", [[3], [3, 2, 20]]),
        ("def f(float(N,C,H,W) X) -> (Z) { T(n,c,h,w) = X(n,c,h,w) * 2  Z(n,c,h,w) = T(n,c,h,w) + 1 }", [[120], [120]]),
        # not: turned round, at an offset, over a part, as a value, read elsewhere with one of them fixed
        ("def f(float(N,C,H,W) X) -> (Z) { Z(n,c,w,h) = X(n,c,h,w) }", [[6, 5, 4]]),
        ("def f(float(N,C,H,W) X) -> (Z) { Z(n,c,h,w) = X(n,c,h,w+1) where w in 0:W-1 }", [[24, 4]]),
        ("def f(float(N,C,H,W) X) -> (Z) { Z(n,c,h,w) = X(n,c,h,w) where w in 0:2 }", [[24, 2]]),
        ("def f(float(N,C,H,W) X) -> (Z) { Z(n,c,h,w) = X(n,c,h,w) * float(w) }", [[24, 5]]),
        ("def f(float(N,C,H,W) X) -> (Z) { Z(n,c,h,w) = X(n,c,h,w) - X(n,c,h,0) }", [[24, 5]]),
    ],
)
def test_what_is_merged(text: str, expected: list[list[int]]) -> None:
    before = scop(text)
    after, merges = collapse(before)
    assert sorted(extents(after)) == sorted(expected)
    assert bool(merges) == (extents(after) != extents(before))
    verify_collapse(before, after, merges)


def test_dimensions_beside_a_nest_are_merged() -> None:
    text = "def f(float(N,C,H,W) X) -> (Z) { S +=! X(n,c,h,w) * X(n,c,h,w)  Z(n,c,h,w) = X(n,c,h,w) / S }"
    mapped = map_program(program(text, {"X": SHAPES["X"]}), Options(), AVX512)
    first, last = mapped.scop.statements
    assert first.tiled and not last.tiled and extents(mapped.scop)[-1] == [120]


def test_strided_arguments_keep_their_axes() -> None:
    text = "def f(float(N,C,H,W) X, float(N,C,H,W) Y) -> (Z) { Z(n,c,h,w) = X(n,c,h,w) + Y(n,c,h,w) }"
    before = scop(text, layouts={"X": "sss1"})
    after, merges = collapse(before)
    assert not merges and after is before


@pytest.mark.parametrize(
    ("text", "layouts", "expected"),
    [
        ("def f(float(N,C,H,W) X) -> (Z) { Z(n,h,w,c) = X(n,c,h,w) }", {"X": "dense 0,2,3,1"}, [[120]]),
        ("def f(float(N,C,H,W) X) -> (Z) { Z(n,c,h,w) = X(n,c,h,w) }", {"X": "dense 0,2,3,1"}, [[2, 3, 20]]),
        ("def f(float(N,C,H,W) X, int32(N) I) -> (Z) { Z(n,h,w,c) = X(I(n),c,h,w) }", {"X": "dense 0,2,3,1"}, [[2, 4, 5, 3]]),
    ],
)
def test_axes_are_those_of_memory(text: str, layouts: dict[str, str], expected: list[list[int]]) -> None:
    """But not of what data pick, whose checks name an axis."""
    before = build_scop(program(text, {"X": SHAPES["X"], **({"I": (2,)} if "I" in text else {})}), Options(), layouts, OPENCL)
    ordered = order_axes(before)
    verify_collapse(before, ordered, ())
    after, merges = collapse(ordered)
    assert extents(after) == expected
    assert (after.tensor("X").layout == "contiguous") == ("I(n)" not in text)
    verify_collapse(before, after, merges)
    (s,) = after.statements
    if merges:
        with pytest.raises(VerifyError, match="writes other elements"):
            verify_collapse(before, replace(after, statements=(replace(s, subscripts=(Const(0, dtype="int64"),)),)), merges)


def test_nothing_wrong_is_accepted() -> None:
    before = scop("def f(float(N,C,H,W) X, float(C) b) -> (Z) { Z(n,c,h,w) = X(n,c,h,w) + b(c) }")
    after, merges = collapse(before)
    (s,) = after.statements
    longer = replace(s, bounds=tuple((name, lower, upper + (upper == 20)) for name, lower, upper in s.bounds))
    shorter = replace(s, bounds=tuple((name, lower, upper - (upper == 20)) for name, lower, upper in s.bounds))
    for wrong in (longer, shorter):
        with pytest.raises(VerifyError, match="coverage"):
            verify_collapse(before, replace(after, statements=(wrong,)), merges)
    turned = replace(s, subscripts=(s.subscripts[1], s.subscripts[0], s.subscripts[2]))
    with pytest.raises(VerifyError, match="writes other elements"):
        verify_collapse(before, replace(after, statements=(turned,)), merges)
    (merge,) = merges
    with pytest.raises(VerifyError, match="coverage|value flow"):
        verify_collapse(before, after, (replace(merge, extent=4),))


def test_dimensions_beside_a_nest_merge_and_the_nest_keeps_its_own() -> None:
    """A nest walks memory: what it writes may have fewer axes for those who read it."""
    text = """def f(float(N,C,H,W) X, float(F,C,3,3) G, float(F) b) -> (O) {
        T(n,f,h,w) +=! X(n,c,h+i,w+j) * G(f,c,i,j)
        S(n,f) +=! exp(T(n,f,h,w))
        O(n,f,h,w) = tanh(T(n,f,h,w) + b(f)) / S(n,f)
    }"""
    mapped = map_program(program(text, {"X": (2, 5, 17, 17), "G": (24, 5, 3, 3), "b": (24,)}), Options(parallel=False), AVX512)
    nests = [s for s in mapped.scop.statements if s.tiled]
    assert len(nests) == 1 and len(nests[0].dims) > 4
    assert mapped.scop.tensor("T").shape == mapped.scop.tensor("O").shape == (2, 24, 225)
    assert all(s.extent(s.dims[2]) == 225 for s in mapped.scop.statements if s.tensor == "O")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # chunks of rows: a row of many threads in the place of several short ones
        ("def f(float(A,B) X) -> (S) { S +=! X(a,b) * X(a,b) }", [[4], [4, 60], [], [4]]),
        # not: a term is no element of its own row, or chunks have no whole rows
        ("def f(float(A,B) X) -> (S) { S +=! X(a,b) * float(a) }", [[4], [4, 12, 5], [], [4]]),
        ("def f(float(A,B) X) -> (S) { S +=! X(a,b) where b in 0:4 }", [[4], [4, 12, 4], [], [4]]),
    ],
)
def test_chunks_of_rows_are_merged(text: str, expected: list[list[int]]) -> None:
    before = build_scop(program(text, {"X": (48, 5)}), Options(reduction_chunks=4), None, OPENCL)
    after, merges = collapse(before, on_gpu=True)
    assert extents(after) == expected and bool(merges) == (len(expected[1]) == 2)
    verify_collapse(before, after, merges)
    if merges:
        wrong = replace(after.statements[1], value=before.statements[1].value)
        with pytest.raises(VerifyError):
            verify_collapse(before, replace(after, statements=(after.statements[0], wrong, *after.statements[2:])), merges)
