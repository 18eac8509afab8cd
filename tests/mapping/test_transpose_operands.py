"""Copies of operands of elementwise assignments: transposed tile by tile, or expanded so that dimensions merge.

Modules: mapping.passes.transpose_operands mapping.passes.expand_operands
"""

from __future__ import annotations

import islpy as isl
import pytest
import torch
from support.mapping import AVX512, program

import tcjit
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.collapse import collapse
from tcjit.mapping.extract import extract
from tcjit.mapping.options import Options
from tcjit.mapping.passes.expand_operands import expand_operands
from tcjit.mapping.passes.transpose_operands import transpose_operands
from tcjit.mapping.pipeline import build_scop, map_program
from tcjit.mapping.verify_assignments import verify_assignments


def before(text: str, shapes: dict[str, tuple[int, ...]]) -> Assignments:
    return extract(program(text, shapes))


def transposed(text: str, shapes: dict[str, tuple[int, ...]]) -> list[str]:
    first = before(text, shapes)
    made = transpose_operands(first, AVX512)
    verify_assignments("transpose_operands", first, made)
    return [a.show() for a in made.assignments[:-1]]


def expanded(text: str, shapes: dict[str, tuple[int, ...]], in_tiles: bool = False) -> list[str]:
    first = before(text, shapes)
    made = expand_operands(first, AVX512, in_tiles)
    verify_assignments("expand_operands", first, made)
    return [a.show() for a in made.assignments[:-1]]


def test_an_operand_across_the_lanes_is_transposed_once() -> None:
    text = "def f(float(B,A) X, float(A,B) Y, float(B) Z) -> (O) { O(a,b) = X(b,a) * Y(a,b) + X(b,a) * Z(b) }"
    copies = transposed(text, {"X": (70, 90), "Y": (90, 70), "Z": (70,)})
    assert copies == ["X_transposed(a, b) = X(b, a) where a in 0:90, b in 0:70"]


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("def f(float(B,A) X) -> (O) { O(a,b) = X(b,a) }", {"X": (70, 90)}),  # a copy already
        ("def f(float(C,B,A) X) -> (O) { O(a,b,c) = X(c,b,a) }", {"X": (16, 20, 30)}),  # of whole lines
        ("def f(float(B,C,A) X) -> (O) { O(a,b,c) = X(b,c,a) }", {"X": (20, 3, 30)}),  # of rows of 60
        ("def f(float(C,A,B) X) -> (O) { O(a,b,c) = X(c,a,b) }", {"X": (3, 30, 20)}),  # whose rows are read side by side
        ("def f(float(A,B) X, float(A) Z) -> (O) { O(a,b) = X(a,b) * Z(a) }", {"X": (90, 70), "Z": (90,)}),  # along the lanes, or fixed
        ("def f(float(B,A) X) -> (O) { O(a,b) = X(b,a) + 1 }", {"X": (1, 90)}),  # nothing across
        ("def f(float(B,A) X) -> (O) { O(a,b) = b < a ? X(b,a) : 0.0 where a in 0:95, b in 0:70 }", {"X": (70, 95)}),  # may not be read
        ("def f(float(A,B) X) -> (O) { Y(b,a) = X(a,b) * 2  O(a,b) = Y(b,a) + X(a,b) }", {"X": (90, 70)}),  # a temporary, in a tile
        ("def f(float(B,V) X, int64(A) I) -> (O) { O(a,b) = X(b,I(a)) * 2.0 }", {"X": (70, 90), "I": (80,)}),  # a gather
    ],
)
def test_what_is_not_transposed(text: str, shapes: dict[str, tuple[int, ...]]) -> None:
    assert [line for line in transposed(text, shapes) if "_transposed" in line] == []


def test_copies_of_parts_of_lines_go_through_a_buffer() -> None:
    """Whose rows are written behind one another: the columns of several are one loop."""
    text = "def f(float(C,B,A) X) -> (O) { O(a,b,c) = X(c,b,a) }"
    shapes = {"X": (9, 64, 4001)}
    assert transposed(text, shapes) == ["X_transposed(a, b, c) = X(c, b, a) where a in 0:4001, b in 0:64, c in 0:9"]
    made = map_program(program(text, shapes), Options(), AVX512)
    assert [(buffer.tensor, buffer.elements) for buffer in made.privates] == [("X_transposed", 36 * 16 * 9)]
    source = tcjit.define(text, target="cpu").f.compile(torch.empty(9, 64, 4001)).source
    assert "<= 143" in source, "sixteen rows of nine"


@pytest.mark.parametrize("shape", [(9, 64, 401), (2, 7, 5), (3, 50, 33), (5, 1, 70), (7, 17, 16), (33, 20, 10), (100, 6, 41)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8, torch.float16])
def test_rows_of_a_transposition_that_are_merged(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (torch.randn(shape) * 50).to(dtype)
    names = {torch.float32: "float", torch.float64: "double", torch.int8: "int8", torch.float16: "half"}
    text = f"def f({names[dtype]}(C,B,A) X) -> (O, P) {{ O(a,b,c) = X(c,b,a)  P(a,b,c) = X(c,b,a) + X(c,b,a) }}"
    copied, doubled = tcjit.define(text, target="cpu").f(x)
    assert torch.equal(copied, x.permute(2, 1, 0)) and torch.equal(doubled, (x + x).permute(2, 1, 0))


def test_short_dimensions_count_as_what_they_merge_to() -> None:
    shapes = {"X": (20, 3, 30), "U": (30,)}
    assert len(transposed("def f(float(B,C,A) X, float(A) U) -> (O) { O(a,b,c) = X(b,c,a) + U(a) }", shapes)) == 1  # and none is short


def test_a_transposed_operand_lives_in_a_buffer_of_a_tile() -> None:
    text = "def f(float(B,A) X, float(A,B) Y) -> (O) { O(a,b) = X(b,a) * Y(a,b) }"
    made = map_program(program(text, {"X": (700, 900), "Y": (900, 700)}), Options(), AVX512)
    assert [(buffer.tensor, buffer.elements) for buffer in made.privates] == [("X_transposed", 68 * 272)]


def test_operands_that_are_transposed_live_in_one_tile() -> None:
    """The second one is no reader of the first: only what reads both joins them."""
    text = "def f(float(B,A) X, float(B,A) U) -> (O) { O(a,b) = tanh(X(b,a) + U(b,a)) }"
    made = map_program(program(text, {"X": (7000, 97), "U": (7000, 97)}), Options(), AVX512)
    assert [(buffer.tensor, buffer.elements) for buffer in made.privates] == [("X_transposed", 52 * 144), ("U_transposed", 52 * 144)]


def test_a_small_operand_is_transposed_once() -> None:
    text = "def f(float(B,A) X, float(A,C) U) -> (O) { O(b,c,a) = X(b,a) * U(a,c) }"
    shapes = {"X": (1765, 23), "U": (23, 179)}
    assert transposed(text, shapes) == ["U_transposed(c, a) = U(a, c) where c in 0:179, a in 0:23"]
    assert not map_program(program(text, shapes), Options(), AVX512).privates


def test_a_small_contraction_does_not_plan_the_loops_of_others() -> None:
    """The sum of partial results is one of a few terms; and transposed tiles do not share the loops of a reduction."""
    text = "def f(float(A,B,C) X) -> (O) { S(b) +=! exp(X(c,b,a)) where c in 0:60, a in 0:640  O(a,b,c) = X(c,b,a) / S(b) }"
    made = map_program(program(text, {"X": (60, 23, 640)}), Options(), AVX512)
    assert made.tree.to_str().count('"parallel') >= 1
    assert "X_transposed" in {buffer.tensor for buffer in made.privates}


@pytest.mark.parametrize(("row", "name"), [(23, "O_transposed"), (64, "X_transposed"), (150, "X_transposed")])
def test_short_rows_of_results_are_computed_along_the_operands(row: int, name: str) -> None:
    """Rows that fill vectors, or are long, are computed where they are stored."""
    text = "def f(half(D,C,B) X, half(B) U) -> (O) { O(b,c,d) = exp(X(d,c,b)) + U(b) }"
    given = program(text, {"X": (row, 20, 48), "U": (48,)})
    assert [buffer.tensor for buffer in map_program(given, Options(), AVX512).privates] == [name]
    single = program(text.replace("half", "float"), {"X": (row, 20, 48), "U": (48,)})
    assert [buffer.tensor for buffer in map_program(single, Options(), AVX512).privates] == ["X_transposed"]


def test_an_expanded_operand_has_dimensions_of_one_value() -> None:
    """Its elements are named by their indices, too."""
    text = "def f(float(B,H,Q,E) X, float(B,H,Q) U) -> (O) { O(b,h,q,e) = X(b,h,q,e) / U(b,h,q) }"
    found = expanded(text, {"X": (1, 2, 9, 8), "U": (1, 2, 9)}, in_tiles=True)
    assert found == ["U_expanded(b, h, q, e) = U(b, h, q) where b in 0:1, h in 0:2, q in 0:9, e in 0:8"]


def test_a_small_operand_is_expanded_for_longer_lanes() -> None:
    text = "def f(float(A,C,D) X, float(D) U) -> (O) { O(a,c,d) = X(a,c,d) * U(d) }"
    shapes = {"X": (500, 12, 9), "U": (9,)}
    assert expanded(text, shapes) == ["U_expanded(c, d) = U(d) where c in 0:12, d in 0:9"]
    merged, _ = collapse(build_scop(program(text, shapes), Options(), target=AVX512))
    assert [s.dims for s in merged.statements] == [("c", "d"), ("a", "c")]


@pytest.mark.parametrize(
    ("value", "copied"),
    [
        ("X(a,c,d) > U(d) ? X(a,c,d) : U(d)", True),  # read without the condition, too
        ("X(a,c,d) > 0 ? X(a,c,d) : U(d)", True),  # there whatever the condition is
        ("d > 0 ? U(d - 1) : X(a,c,d)", False),  # nothing is at -1
    ],
)
def test_operands_behind_conditions(value: str, copied: bool) -> None:
    text = f"def f(float(A,C,D) X, float(D) U) -> (O) {{ O(a,c,d) = {value} where d in 0:D }}"
    found = expanded(text, {"X": (500, 12, 9), "U": (9,)})
    assert found == (["U_expanded(c, d) = U(d) where c in 0:12, d in 0:9"] if copied else [])


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("def f(float(A,C,D) X, float(D) U) -> (O) { O(a,c,d) = X(a,c,d) * U(d) }", {"X": (500, 12, 16), "U": (16,)}),  # whole vectors
        ("def f(float(A,C,D) X, float(D) U) -> (O) { O(a,c,d) = X(a,c,d) * U(d) }", {"X": (500, 12, 90), "U": (90,)}),  # long enough
        ("def f(float(C,D) X, float(D) U) -> (O) { O(c,d) = X(c,d) * U(d) }", {"X": (500, 9), "U": (9,)}),  # as large as the result
        ("def f(float(A,C,D) X, float(D) U) -> (O) { O(a,c,d) = X(a,c,d) * d + U(d) }", {"X": (500, 12, 9), "U": (9,)}),  # counts them
        ("def f(float(A,C,D) X) -> (O) { O(a,c,d) = X(a,c,d) * 2 }", {"X": (500, 12, 9)}),  # nothing in the way
    ],
)
def test_what_is_not_expanded(text: str, shapes: dict[str, tuple[int, ...]]) -> None:
    assert expanded(text, shapes) == []


def test_an_operand_is_expanded_in_tiles_where_lanes_are_few() -> None:
    text, shapes = "def f(float(A,B) X, float(A) U) -> (O) { O(a,b) = X(a,b) * U(a) }", {"X": (5000, 7), "U": (5000,)}
    assert expanded(text, shapes) == []
    assert expanded(text, shapes, in_tiles=True) == ["U_expanded(a, b) = U(a) where a in 0:5000, b in 0:7"]
    assert expanded(text, {"X": (5000, 9), "U": (5000,)}, in_tiles=True) == []  # more than half of a vector
    across = "def f(float(A,B) X, float(B,A) U) -> (O) { O(a,b) = X(a,b) * U(b,a) }"
    assert expanded(across, {"X": (5000, 7), "U": (7, 5000)}, in_tiles=True) == []  # which has its own copy
    assert expanded("def f(float(A) U) -> (O) { O(a,b) = U(a) where b in 0:7 }", {"U": (5000,)}, in_tiles=True) == []
    made = map_program(program(text, shapes), Options(), AVX512)
    (buffer,) = made.privates
    assert (buffer.tensor, buffer.elements) == ("U_expanded", 7 * 48)
    loops = isl.AstBuild.from_context(isl.Set.read_from_str(made.scop.ctx, "{ : }")).node_from_schedule(made.tree).to_C_str()
    assert "c1 <= min(335, -336 * c0 + 34999)" in loops, "the points of a tile are one loop"


def test_values_of_a_row_do_not_take_the_rows_from_the_threads() -> None:
    text = "def f(float(B) X, float(A,B) U) -> (O) { O(a,b) = sigmoid(X(b)) * U(a,b) + sigmoid(X(b) + 1) }"
    made = map_program(program(text, {"X": (352,), "U": (6000, 352)}), Options(), AVX512)
    assert made.tree.to_str().count('"parallel') == 1


@pytest.mark.parametrize("dtype", ["float", "double", "half", "int64"])
@pytest.mark.parametrize("sizes", [(100, 7), (3, 50, 5), (97, 2), (48, 3), (2, 3)])
def test_results_of_operands_expanded_in_tiles(dtype: str, sizes: tuple[int, ...]) -> None:
    dims = "abc"[: len(sizes)]
    kinds = {"half": torch.float16, "double": torch.float64, "float": torch.float32, "int64": torch.int64}
    text = f"def f({dtype}({','.join(dims.upper())}) X, {dtype}({','.join(dims[:-1].upper())}) U) -> (O) {{"
    text += f" O({','.join(dims)}) = X({','.join(dims)}) * U({','.join(dims[:-1])}) - X({','.join(dims)}) }}"
    generator = torch.Generator().manual_seed(len(sizes))
    x, u = (torch.randint(-4, 5, shape, generator=generator).to(kinds[dtype]) for shape in (sizes, sizes[:-1]))
    assert torch.equal(tcjit.define(text)["f"](x, u), x * u[..., None] - x)


@pytest.mark.parametrize("dtype", ["float", "double", "half", "int64", "int32", "int8"])
@pytest.mark.parametrize("sizes", [(37, 53), (16, 64), (130, 9), (5, 4, 3, 21)])
def test_results_of_transposed_and_expanded_operands(dtype: str, sizes: tuple[int, ...]) -> None:
    dims = "abcd"[: len(sizes)]
    turned = dims[-1] + dims[1:-1] + dims[0]
    text = f"def f({dtype}({','.join(turned.upper())}) X, {dtype}({','.join(dims.upper())}) Y, {dtype}({dims[-1].upper()}) U) -> (O) {{"
    text += f" O({','.join(dims)}) = X({','.join(turned)}) * Y({','.join(dims)}) + U({dims[-1]}) }}"
    like = {"half": torch.float16, "double": torch.float64, "float": torch.float32}.get(dtype) or getattr(torch, dtype)
    generator = torch.Generator().manual_seed(len(sizes))
    y = torch.randint(-4, 5, sizes, generator=generator).to(like)
    x = torch.randint(-4, 5, (sizes[-1], *sizes[1:-1], sizes[0]), generator=generator).to(like)
    u = torch.randint(-4, 5, sizes[-1:], generator=generator).to(like)
    assert torch.equal(tcjit.define(text)["f"](x, y, u), x.transpose(0, -1) * y + u)
