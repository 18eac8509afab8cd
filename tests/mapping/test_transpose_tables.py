"""Tables whose lanes are apart: which are copied, which results change their order, and what the proof refuses.

Modules: mapping.passes.transpose_tables mapping.verify_orders
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.mapping import AVX512, program

import tcjit
from tcjit.errors import VerifyError
from tcjit.grammar.ast import Access
from tcjit.grammar.walk import with_accesses
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.passes.transpose_tables import transpose_tables
from tcjit.mapping.verify_assignments import verify_assignments

Shapes = dict[str, tuple[int, ...]]
SCAN = "def f(int64(B,L) S, float(M,V,K) W) -> (T) { Y(b,m,i) +=! W(m, S(b,i+k), k)  T(b,m) max=! Y(b,m,i) }"
SCANNED = {"S": (40, 200), "W": (30, 4, 12)}
GRID = "def f(float(C,H,W) X, int64(P,2) G) -> (Y) { Y(c,p) = X(c,G(p,0),G(p,1)) + X(c,G(p,1),G(p,0)) }"
BOXES = "def f(float(C,H) X, int64(R,2) B) -> (S) { S(r,c) +=! (y >= B(r,0) && y < B(r,1)) ? X(c,y) : 0.0 }"


def transposed(text: str, shapes: Shapes) -> tuple[Assignments, Assignments]:
    before = extract(program(text, shapes))
    return before, transpose_tables(before, AVX512)


def shown(text: str, shapes: Shapes) -> list[str]:
    before, after = transposed(text, shapes)
    verify_assignments("transpose_tables", before, after)
    return [a.show() for a in after.assignments]


def test_a_table_and_a_temporary_in_another_order() -> None:
    assert shown(SCAN, SCANNED) == [
        "W_transposed(axis1, axis2, axis0) = W(axis0, axis1, axis2) where axis1 in 0:4, axis2 in 0:12, axis0 in 0:30",
        "Y_transposed(b, i, m) += W_transposed(S(b, i + k), k, m) from 0.0 where b in 0:40, i in 0:189, m in 0:30, k in 0:12",
        "T(b, m) max= Y_transposed(b, i, m) from -infinity() where b in 0:40, m in 0:30, i in 0:189",
    ]


def test_results_are_transposed_behind() -> None:
    assert shown(GRID, {"X": (16, 20, 20), "G": (900, 2)})[1:] == [
        "Y_transposed(p, c) = X_transposed(G(p, 0), G(p, 1), c) + X_transposed(G(p, 1), G(p, 0), c) where p in 0:900, c in 0:16",
        "Y(c, p) = Y_transposed(p, c) where c in 0:16, p in 0:900",
    ]


def test_bounds_in_data() -> None:
    (copy, total) = shown(BOXES, {"X": (16, 50), "B": (40, 2)})
    assert copy.startswith("X_transposed(axis1, axis0) = X(axis0, axis1)") and "X_transposed(y, c)" in total


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("def f(float(E,D) T, int64(B,L) I) -> (O) { O(b,d) +=! T(I(b,l), d) }", {"T": (50, 16), "I": (90, 5)}),  # neighbours already
        ("def f(float(D,E) T, int64(B) I) -> (O) { O(b,d) = T(d, I(b)) }", {"T": (16, 50), "I": (9,)}),  # a large table, read once
        (GRID, {"X": (3, 20, 20), "G": (900, 2)}),  # few lanes
        ("def f(half(D,E) T, int64(B,L) I) -> (O) { O(b,d) +=! T(d, I(b,l)) }", {"T": (16, 50), "I": (90, 50)}),  # no type of vectors
        ("def f(float(D,E) T, int64(B,L) I) -> (O) { O(b,d) +=! T(d, I(b,l) + d) }", {"T": (16, 50), "I": (90, 50)}),  # decided by lanes
        ("def f(float(D,D) T, int64(B,L) I) -> (O) { O(b,d) +=! T(d, I(b,l)) * T(I(b,l), d) }", {"T": (16, 16), "I": (90, 50)}),  # two axes
        ("def f(float(D,E) T, float(B,E) X) -> (O) { O(b,d) +=! T(d, e) * X(b, e) }", {"T": (16, 50), "X": (90, 50)}),  # nothing decides
        (  # along the neighbours of the result rows are common already, and others are no gathers
            "def f(float(B,T,D) X, float(E,D) C, int64(T) P) -> (Y) { Y(b,t,d) = d < 8 ? X(b,t,d) * C(P(t),d) : X(b,t,d) }",
            {"X": (16, 50, 40), "C": (60, 40), "P": (50,)},
        ),
        ("def f(float(N,3) X) -> (Y) { Y(n,c) = X(n,(c+1)%3) * X(n,(c+2)%3) where c in 0:3 }", {"X": (900, 3)}),  # no data
    ],
)
def test_what_stays(text: str, shapes: Shapes) -> None:
    before, after = transposed(text, shapes)
    assert after.assignments == before.assignments


def swapped(a: Assignment) -> Assignment:
    """A copy whose axes are not where its readers think."""
    assert isinstance(a.value, Access)
    return replace(a, value=replace(a.value, subscripts=(*a.value.subscripts[:-2], a.value.subscripts[-1], a.value.subscripts[-2])))


@pytest.mark.parametrize(
    ("place", "change"),
    [
        (0, swapped),
        (0, lambda a: replace(a, bounds=((a.bounds[0][0], 1, 4), *a.bounds[1:]))),
        (0, lambda a: replace(a, tensor="S")),
        (1, lambda a: replace(a, subscripts=(a.subscripts[1], a.subscripts[0], a.subscripts[2]))),
        (1, lambda a: replace(a, start=None)),
        (1, lambda a: replace(a, operator="max=")),
        (2, lambda a: replace(a, value=replace(a.value, subscripts=(*a.value.subscripts[:1], *a.value.subscripts[:0:-1])))),
    ],
)
def test_faults_are_found(place: int, change: object) -> None:
    before, after = transposed(SCAN, SCANNED)
    verify_assignments("transpose_tables", before, after)
    wrong = list(after.assignments)
    assert callable(change)
    wrong[place] = change(wrong[place])
    parts = tuple(wrong[:2]), tuple(wrong[2:])
    with pytest.raises(VerifyError):
        verify_assignments("transpose_tables", before, replace(after, assignments=tuple(wrong), replaced=parts))


def test_results() -> None:
    generator = torch.Generator().manual_seed(0)
    table, at = torch.randn(30, 4, 12, generator=generator), torch.randint(4, (40, 200), generator=generator)
    y = sum(table[:, :, k][:, at[:, k : k + 189]] for k in range(12))
    assert isinstance(y, torch.Tensor)
    torch.testing.assert_close(tcjit.define(SCAN).f(at, table), y.amax(2).T)
    x, g = torch.randn(16, 20, 20, generator=generator), torch.randint(20, (900, 2), generator=generator)
    torch.testing.assert_close(tcjit.define(GRID).f(x, g), x[:, g[:, 0], g[:, 1]] + x[:, g[:, 1], g[:, 0]])


SOFTMAX = """def f(float(A,B,C) X) -> (O) {
    M(a,b) max=! X(a,b,c)
    S(a,b) +=! exp(X(a,b,c) - M(a,b))
    O(a,b,c) = exp(X(a,b,c) - M(a,b)) / S(a,b) }"""
CENTRED = "def f(float(A,B,C) X) -> (O) { M(a,b) +=! X(a,b,c)  O(a,b,c) = X(a,b,c) - M(a,b) / C }"
BESIDE = CENTRED.replace("(O)", "(O, T)").replace("/ C }", "/ C  T(a,c) +=! exp(X(a,b,c)) }")


@pytest.mark.parametrize(
    ("text", "shape", "copied"),
    [
        (SOFTMAX, (50, 7, 39), True),
        (SOFTMAX, (50, 40, 39), True),
        (SOFTMAX, (50, 7, 9), False),  # rows shorter than a vector
        (CENTRED, (50, 7, 39), True),  # of half a vector
        (CENTRED, (50, 40, 39), False),  # whose neighbours are vectors
        (BESIDE, (50, 7, 39), False),  # which others reduce along its neighbours
        (CENTRED.replace("O(a,b,c)", "O(a,c,b)"), (50, 7, 39), False),  # written as it lies
    ],
)
def test_rows_that_lie_apart(text: str, shape: tuple[int, int, int], copied: bool) -> None:
    a, b, c = shape
    before = extract(program(text, {"X": shape}), {"X": "dense 0,2,1"})
    after = transpose_tables(before, AVX512)
    verify_assignments("transpose_tables", before, after)
    assert [one.tensor for one in after.assignments if one.tensor.startswith("X_")] == ["X_transposed"] * copied
    if copied:
        assert not any("X" in one.tensors_read for one in after.assignments[1:])

        def turned(read: Access) -> Access:
            return replace(read, subscripts=read.subscripts[::-1]) if read.tensor == "X_transposed" else read

        last = after.assignments[-1]
        parts = (*after.replaced[:-1], (replace(last, value=with_accesses(last.value, turned)),))
        with pytest.raises(VerifyError):
            verify_assignments("transpose_tables", before, replace(after, assignments=tuple(x for p in parts for x in p), replaced=parts))
    x = torch.randn(a, c, b, dtype=torch.float64).transpose(1, 2)
    function = tcjit.define(text.replace("float(", "double(")).f
    found = function(x)[0] if text == BESIDE else function(x)
    expected = torch.softmax(x, 2) if text == SOFTMAX else x - x.mean(2, keepdim=True)
    torch.testing.assert_close(found.transpose(1, 2) if "O(a,c,b)" in text else found, expected)


@pytest.mark.parametrize(
    "text",
    [
        "def f(float(N,K,C) X, int64(B) S) -> (W) { M(n,c) max=! X(n,k,c)  W(n,c,k) = exp(X(n,k,c) - M(n,c))  Y(b,k,c) = X(S(b),k,c) }",
        "def f(float(N,K,C) X, int64(B) S) -> (W) { M(n,c) max=! X(n,k,c)  W(n,c,k) = exp(X(n,k,c) - M(n,c))  Y(b,c) +=! X(S(b),k,c) }",
        "def f(float(N,K,C) X, int64(B) S) -> (W) { M(axis0,axis2) max=! X(axis0,axis1,axis2)"
        " W(axis0,axis2,axis1) = exp(X(axis0,axis1,axis2) - M(axis0,axis2))  Y(b) = S(b) }",
    ],
)
def test_rows_beside_gathers_and_indices_of_any_name(text: str) -> None:
    x, s = torch.randn(16, 64, 32), torch.randint(16, (64,))
    (w, *_) = tcjit.define(text.replace("(W)", "(W, Y)")).f(x, s)
    torch.testing.assert_close(w, (x - x.amax(1, keepdim=True)).exp().transpose(1, 2))


def test_expanded_rows_are_not_copied() -> None:
    before = extract(program(SOFTMAX, {"X": (50, 40, 39)}), {"X": "01n"})
    assert transpose_tables(before, AVX512).assignments == before.assignments
