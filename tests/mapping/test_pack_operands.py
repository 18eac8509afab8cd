"""Contractions on a GPU whose dimensions do not form a matrix product: which copies the model makes, and that they are proved.

Modules: mapping.index_classes mapping.passes.pack_operands
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from support.gpu import source
from support.mapping import program
from support.rings.cuda_host import COMPILER
from support.rings.cuda_target import TARGET

import tcjit
from tcjit.errors import VerifyError
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.index_classes import index_classes
from tcjit.mapping.machine import SM_90
from tcjit.mapping.options import Options
from tcjit.mapping.passes.pack_operands import pack_operands
from tcjit.mapping.passes.widen import widen
from tcjit.mapping.pipeline import map_gpu
from tcjit.mapping.verify_assignments import verify_assignments

Shapes = dict[str, tuple[int, ...]]
LARGE: Shapes = {"X": (72, 24, 72, 24), "Y": (72, 24, 72, 24)}
FOUR = "def f(float(A,E,B,F) X, float(D,F,C,E) Y) -> (O) { O(a,b,c,d) +=! X(a,e,b,f) * Y(d,f,c,e) }"
HALF: Shapes = {"X": (29, 12, 16, 43), "Y": (43, 33, 32, 12)}
HALVES = "def f(bfloat16(A,F,B,E) X, bfloat16(E,D,C,F) Y) -> (O) { O(a,b,c,d) +=! X(a,f,b,e) * Y(e,d,c,f) }"
TURNED = "def f(float(D,A) X, float(D,B,C) Y) -> (O) { O(a,c,b) +=! X(d,a) * Y(d,b,c) }"
TURNED_SHAPES: Shapes = {"X": (2000, 256), "Y": (2000, 15, 89)}


def before(text: str, shapes: Shapes, layouts: dict[str, str] | None = None) -> Assignments:
    return widen(extract(program(text, shapes), layouts))


def packed(text: str, shapes: Shapes, layouts: dict[str, str] | None = None) -> Assignments:
    first = before(text, shapes, layouts)
    made = pack_operands(first, Options(), SM_90)
    verify_assignments("pack_operands", first, made)
    return made


def copies(made: Assignments) -> list[str]:
    """The temporaries of copies with the dimensions of their axes, and what they are copied from or to."""
    names = {storage.name for _, storage in made.temporaries}
    found = [re.sub(r" where.*", "", a.show()) for a in made.assignments if a.operator == "=" and "packed" in a.show()]
    assert all(any(name in text for name in names) for text in found)
    return found


def test_both_operands_in_the_order_of_a_matrix_product() -> None:
    made = packed(FOUR, LARGE)
    assert copies(made) == ["X_packed(a, b, e, f) = X(a, e, b, f)", "Y_packed(e, f, c, d) = Y(d, f, c, e)"]
    (product,) = (a for a in made.assignments if a.reduction)
    form = index_classes(product, made.storages)
    assert form is not None and form.is_matrix_product


def test_halves_with_two_reduction_dimensions_reach_tensor_cores() -> None:
    """Whose loops are those of one: the dimensions have merged."""
    assert copies(packed(HALVES, HALF)) == ["X_packed(e, f, a, b) = X(a, f, b, e)", "Y_packed(e, f, c, d) = Y(e, d, c, f)"]
    made = map_gpu(program(HALVES, HALF), Options(), SM_90, prove="last")
    (sums,) = (s for s in made.scop.statements if s.reduction and s.operator == "+=")
    assert len(sums.dims) == 3 and "tc_mma_bfloat(&" in source(made).text
    assert "tc_mma_bfloat(&" not in source(map_gpu(program(HALVES, HALF), Options(pack=False), SM_90)).text or len(made.launches) == 3


def test_results_that_lie_otherwise_are_summed_in_the_order_of_the_operands() -> None:
    made = packed(TURNED, TURNED_SHAPES)
    assert copies(made) == ["O(a, c, b) = O_packed(a, b, c)"]


def test_a_large_operand_stays_where_it_lies() -> None:
    """Copying it would take longer than the product."""
    text = "def f(float(A,B,E,F) X, float(A,E,F,C,D) U) -> (O) { O(c,b,d,a) +=! X(a,b,e,f) * U(a,e,f,c,d) }"
    shapes = {"X": (48, 17, 48, 51), "U": (48, 48, 51, 61, 81)}
    made = packed(text, shapes, {"U": "dense 2,4,0,1,3"})
    assert not any(text.startswith("U_packed") for text in copies(made))


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }", {"A": (512, 300), "B": (300, 200)}),
        ("def f(float(K,M) A, float(N,K) B) -> (C) { C(m,n) +=! A(k,m) * B(n,k) }", {"A": (300, 512), "B": (200, 300)}),
        ("def f(float(B,M,K) A, float(B,K,N) B1) -> (C) { C(b,m,n) +=! A(b,m,k) * B1(b,k,n) }", {"A": (9, 64, 64), "B1": (9, 64, 64)}),
        ("def f(float(M,E,F) A, float(E,F,N) B) -> (C) { C(m,n) +=! A(m,e,f) * B(e,f,n) }", {"A": (512, 30, 10), "B": (30, 10, 200)}),
        (FOUR, {"X": (2, 3, 4, 5), "Y": (3, 5, 2, 3)}),  # launches would take longer than all of it
        ("def f(float(M,K) A, float(K) B) -> (C) { C(m) +=! A(m,k) * B(k) }", {"A": (512, 300), "B": (300,)}),  # no columns
        ("def f(float(A,B,E) X, float(E,B) Y) -> (O) { O(a,b) min=! X(a,b,e) * Y(e,b) }", {"X": (64, 64, 64), "Y": (64, 64)}),
        ("def f(float(M,K) A) -> (C) { C(m,n) +=! A(m,k) * A(n,k) }", {"A": (512, 300)}),  # one tensor
        ("def f(float(H,C) A, float(K,C,F) B) -> (O) { O(h,f) +=! A(h + k,c) * B(k,c,f) }", {"A": (512, 30), "B": (3, 30, 50)}),  # windows
    ],
)
def test_what_is_not_packed(text: str, shapes: Shapes) -> None:
    first = before(text, shapes)
    assert pack_operands(first, Options(), SM_90).assignments == first.assignments


def test_results_that_are_added_to_stay_in_their_place() -> None:
    """What they held before is part of the sum."""
    first = before(TURNED, TURNED_SHAPES)
    adding = first.with_parts([(replace(a, start=None),) for a in first.assignments])
    after = pack_operands(adding, Options(), SM_90)
    verify_assignments("pack_operands", adding, after)
    assert not any("O_packed" in a.show() for a in after.assignments)


def test_wrong_copies_are_refused() -> None:
    first, made = before(TURNED, TURNED_SHAPES), packed(TURNED, TURNED_SHAPES)
    sums, moved = made.assignments

    def refused(*parts: Assignment) -> None:
        wrong = replace(made, assignments=parts, replaced=(parts,))
        with pytest.raises(VerifyError, match="pack_operands"):
            verify_assignments("pack_operands", first, wrong)

    refused(sums, replace(moved, bounds=(("a", 0, 255), *moved.bounds[1:])))  # not all of them
    refused(sums, replace(moved, subscripts=(moved.subscripts[0], moved.subscripts[2], moved.subscripts[1])))  # another place
    refused(replace(sums, start=None), moved)  # not started
    refused(replace(sums, bounds=(*sums.bounds[:-1], ("d", 0, 1999))), moved)  # a term is missing
    refused(sums, replace(moved, operator="+="))
    refused(sums)


def test_wrong_copies_of_operands_are_refused() -> None:
    first, made = before(FOUR, LARGE), packed(FOUR, LARGE)
    left, right, product = made.assignments
    short = replace(left, bounds=(("a", 0, 71), *left.bounds[1:]))
    turned = replace(right, value=replace(right.value, subscripts=right.value.subscripts[::-1]))  # type: ignore[attr-defined]
    for parts in ((short, right, product), (left, turned, product), (right, product), (left, product, right)):
        with pytest.raises(VerifyError, match="pack_operands"):
            verify_assignments("pack_operands", first, replace(made, assignments=parts, replaced=(parts,)))


# ---------------------------------------------------------------- what is computed

SMALL: dict[str, tuple[str, str, Shapes]] = {
    "four": (FOUR, "aebf,dfce->abcd", {"X": (7, 4, 9, 6), "Y": (8, 6, 5, 4)}),
    "turned": (TURNED, "da,dbc->acb", {"X": (30, 17), "Y": (30, 5, 9)}),
    "halves": (HALVES, "afbe,edcf->abcd", {"X": (7, 3, 9, 11), "Y": (11, 8, 5, 3)}),
    "batched": (
        "def f(float(A,B,E,F) X, float(E,A,F,C,D) Y) -> (O) { O(c,b,d,a) +=! X(a,b,e,f) * Y(e,a,f,c,d) }",
        "abef,eafcd->cbda", {"X": (3, 7, 4, 5), "Y": (4, 3, 5, 6, 9)},
    ),
    "of_one_value": (
        "def f(float(A,U,E,B,F) X, float(D,F,U,C,E) Y) -> (O) { O(a,b,u,c,d) +=! X(a,u,e,b,f) * Y(d,f,u,c,e) }",
        "auebf,dfuce->abucd", {"X": (7, 1, 4, 9, 6), "Y": (8, 6, 1, 5, 4)},
    ),
}  # fmt: skip


@pytest.fixture
def eager_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model takes any copies that make a matrix product, so that small sizes have them."""
    monkeypatch.setattr("tcjit.mapping.passes.pack_operands.ROUGH", 1e6)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("target", ["opencl", pytest.param(TARGET, marks=pytest.mark.skipif(COMPILER is None, reason="needs g++"))])
@pytest.mark.usefixtures("eager_packing")
def test_small_contractions(name: str, target: str) -> None:
    text, form, shapes = SMALL[name]
    dtype = torch.bfloat16 if "bfloat16" in text else torch.float32
    torch.manual_seed(0)
    X, Y = (torch.randn(shape).to(dtype) for shape in shapes.values())
    function = tcjit.define(text, target=target).f
    assert "packed" in function.compile(X, Y).artifacts["pack_operands"]
    wanted = torch.einsum(form, X.double(), Y.double()).to(dtype)
    torch.testing.assert_close(function(X, Y), wanted, rtol=1e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-4)
