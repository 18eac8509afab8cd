"""Loops between bounds in data: their text, and their sums at the edges of ranges and of types.

Modules: codegen.bounded_loops
"""

from __future__ import annotations

import pytest
import torch
from support.cases import Case, Fill
from support.run import assert_right

import tcjit

ROI = """def f(VALUE(C,H,W) X, INT(R,4) B) -> (S) {
    S(r,c) OPERATOR (y >= B(r,1) && y < B(r,3) && B(r,0) < x && x <= B(r,2)) ? X(c,y,x) : NEUTRAL }"""
SEGMENTS = "def f(VALUE(N) X, INT(P) O) -> (S) { S(r) OPERATOR (i >= O(r) && i < O(r+1)) ? X(i) : NEUTRAL where r in 0:P-1 }"
ROWS = "def f(VALUE(N,D) X, INT(P) O) -> (S) { S(r,d) OPERATOR (i >= O(r) && i < O(r+1)) ? X(i,d) : NEUTRAL where r in 0:P-1 }"
WINDOWS = "def f(VALUE(R,N) X, INT(R) O) -> (S) { S(r,n) OPERATOR (i - n <= O(r) && n - i <= O(r)) ? X(r,i) : NEUTRAL where n in 0:N }"
GUARDED = "def f(VALUE(R,N) X, INT(P) O) -> (S) { S(r) OPERATOR (r > 0 && i <= O(r-1)) ? X(r,i) : NEUTRAL where r in 0:R }"
PROGRAMS = {
    ROI: {"X": (20, 9, 11), "B": (30, 4)},
    SEGMENTS: {"X": (700,), "O": (20,)},
    ROWS: {"X": (50, 24), "O": (20,)},
    WINDOWS: {"X": (6, 40), "O": (6,)},
    GUARDED: {"X": (7, 300), "O": (6,)},
}
REDUCTIONS = [("+=!", "0.0"), ("*=!", "1.0"), ("max=!", "-infinity()"), ("min=!", "infinity()")]


@pytest.mark.parametrize("text", PROGRAMS, ids=["roi", "segments", "rows", "windows", "guarded"])
@pytest.mark.parametrize("kind", ["int64", "int32", "uint8"])
@pytest.mark.parametrize(("operator", "neutral"), REDUCTIONS, ids=[operator for operator, _ in REDUCTIONS])
def test_results(text: str, kind: str, operator: str, neutral: str) -> None:
    shapes = PROGRAMS[text]
    least, most = (0 if kind == "uint8" else -3), max(shapes["X"]) * 3 // 2
    fills = {name: Fill("float32", "small", 1, -3, 4) if name == "X" else Fill(kind, "small", 2, least, min(most, 255)) for name in shapes}
    written = text.replace("VALUE", "float").replace("INT", kind).replace("OPERATOR", operator).replace("NEUTRAL", neutral)
    assert_right(Case(written, shapes, fills), "cpu")


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_data_at_the_ends_of_their_type(dtype: torch.dtype) -> None:
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    kind = str(dtype).removeprefix("torch.")
    text = f"def f(float(N,D) X, {kind}(R,2) B) -> (S) {{ S(r,d) +=! (i + 2 > B(r,0) && 3 - i > B(r,1)) ? X(i,d) : 0.0 }}"
    ends = torch.tensor([[a, b] for a in (least, least + 1, -1, 4, most - 1, most) for b in (least, -5, 2, most)], dtype=dtype)
    x = torch.arange(40.0).view(10, 4)
    i = torch.arange(10)
    expected = torch.stack([x[[a < n + 2 and b < 3 - n for n in i.tolist()]].sum(0) for a, b in ends.tolist()])
    assert torch.equal(tcjit.define(text).f(x, ends), expected)


def test_what_is_between_bounds_is_all_that_is_read() -> None:
    text = ROWS.replace("VALUE", "float").replace("INT", "int64").replace("OPERATOR", "+=!").replace("NEUTRAL", "0.0")
    x = torch.full((3000, 32), float("nan"))
    x[100:200] = 1.0
    kernel = tcjit.define(text).f.compile(x, torch.tensor([100, 130, 200]))
    assert "tc_least_" in kernel.source and "? X" not in kernel.source
    assert torch.equal(kernel(x, torch.tensor([100, 130, 200])), torch.tensor([30.0, 70.0])[:, None].expand(2, 32))


@pytest.mark.parametrize("columns", [40, 4000])
def test_parts_of_rows_that_are_few_vectors_are_not_taken_apart(columns: int) -> None:
    text = "def f(float(N) X, int64(R,2) B) -> (S) { S(r) +=! (i >= B(r,0) && i < B(r,1)) ? X(i) : 0.0 }"
    x, b = torch.ones(columns), torch.tensor([[3, 17], [-1, 1 << 40]])
    kernel = tcjit.define(text).f.compile(x, b)
    assert ("tc_least_" in kernel.source) == (columns > 1000)
    assert kernel(x, b).tolist() == [14.0, float(columns)]
