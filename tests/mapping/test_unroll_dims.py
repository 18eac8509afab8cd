"""Dimensions of a few points innermost in memory: what becomes statements of their points, the loops that these share, and the proof.

Modules: mapping.passes.unroll_dims
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from support.mapping import AVX512, program

import tcjit
from tcjit.codegen.c import emit_c
from tcjit.codegen.dialect import C
from tcjit.errors import VerifyError
from tcjit.grammar.ast import Access
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.options import Options
from tcjit.mapping.passes.unroll_dims import unroll_dims
from tcjit.mapping.pipeline import map_program
from tcjit.mapping.scop import OuterLoops
from tcjit.mapping.verify_assignments import verify_assignments

CROSS = """def f(float(N,3) A, float(N,3) B) -> (C) {
    C(n,d) = A(n,(d+1)%3) * B(n,(d+2)%3) - A(n,(d+2)%3) * B(n,(d+1)%3) where d in 0:3, n in 0:N
}"""
UNIT = """def f(double(N,K) A) -> (C) {
    S(n) +=! A(n,k) * A(n,k)
    C(n,k) = A(n,k) / sqrt(S(n))
}"""
COLOURS = """def f(uint8(H,W,3) I, float(3,3) M, float(3) o) -> (Y) {
    Y(y,x,c) +=! M(c,d) * (float(I(y,x,d)) / 255.0)
    Y(y,x,c) = Y(y,x,c) + o(c)
}"""
SOFTMAX = """def f(float(N,K) X) -> (O) {
    M(n) max=! X(n,k)
    E(n,k) = exp(X(n,k) - M(n))
    S(n) +=! E(n,k)
    O(n,k) = E(n,k) / S(n)
}"""
NORMALS = """def f(float(P,3) V, int64(T,3) I) -> (N) {
    A(f,d) = V(I(f,1),d) - V(I(f,0),d)
    B(f,d) = V(I(f,2),d) - V(I(f,0),d)
    N(f,d) = A(f,(d+1)%3) * B(f,(d+2)%3) - A(f,(d+2)%3) * B(f,(d+1)%3) where d in 0:3
}"""
JOINED = "def f(float(N,2) A, float(N) B) -> (C) { C(n,d) = d < 2 ? A(n,d) : B(n) where d in 0:3, n in 0:N }"
DISTANCES = "def f(float(N,3) A, float(M,3) B) -> (D) { D(i,j) +=! (A(i,d) - B(j,d)) * (A(i,d) - B(j,d)) }"

ROTATIONS = """def f(float(N) T) -> (R) {
    R(n,i,j) = i == j ? cos(T(n)) : (i < j ? 0.0 - sin(T(n)) : sin(T(n))) where i in 0:2, j in 0:2
}"""

PROGRAMS = {
    "cross": (CROSS, {"A": (300, 3), "B": (300, 3)}, 1),
    "unit": (UNIT, {"A": (300, 4)}, 1),
    "colours": (COLOURS, {"I": (20, 131, 3), "M": (3, 3), "o": (3,)}, 1),
    "softmax": (SOFTMAX, {"X": (300, 3)}, 1),
    "normals": (NORMALS, {"V": (50, 3), "I": (300, 3)}, 1),
    "rotations": (ROTATIONS, {"T": (300,)}, 1),
    "joined": (JOINED, {"A": (300, 2), "B": (300,)}, 1),
}


def before(text: str, shapes: dict[str, tuple[int, ...]]) -> Assignments:
    return extract(program(text, shapes))


def test_each_point_has_a_statement() -> None:
    start = before(CROSS, {"A": (300, 3), "B": (300, 3)})
    after = unroll_dims(start)
    assert [a.subscripts[1].value for a in after.assignments] == [0, 1, 2]  # type: ignore[attr-defined]
    assert all(a.dims == ("n",) for a in after.assignments)
    verify_assignments("unroll_dims", start, after)


def test_few_terms_are_one_value_in_their_order() -> None:
    start = before("def f(float(N,3) A) -> (S) { S(n) +=! A(n,d) }", {"A": (300, 3)})
    after = unroll_dims(start)
    assert [a.show() for a in after.assignments] == ["S(n) = 0.0 + A(n, 0) + A(n, 1) + A(n, 2) where n in 0:300"]
    verify_assignments("unroll_dims", start, after)


def test_two_dimensions_innermost_are_unrolled_together() -> None:
    """As matrices of few elements are; an assignment whose points are not all there is no proof."""
    start = before(ROTATIONS, {"T": (300,)})
    after = unroll_dims(start)
    assert [tuple(sub.value for sub in a.subscripts[1:]) for a in after.assignments] == [(0, 0), (0, 1), (1, 0), (1, 1)]  # type: ignore[attr-defined]
    verify_assignments("unroll_dims", start, after)
    (parts,) = after.replaced
    for new in (parts[:3], parts[::-1], (*parts, parts[0])):
        with pytest.raises(VerifyError, match="a point is lost, or has another value"):
            verify_assignments("unroll_dims", start, start.with_parts([new]))


def test_points_under_shared_loops() -> None:
    """The loop that others share stays, and so do dimensions that are one, and elements that data pick."""
    start = before("def f(float(N,M) A) -> (C) { C(n,m,d) = d == 0 ? A(n,m) : 1.0 - A(n,m) where d in 0:2 }", {"A": (50, 60)})
    for dims, count in ((("n",), 2), (("d",), 1)):
        shared = replace(start, assignments=tuple(replace(a, outer=OuterLoops(0, dims)) for a in start.assignments))
        after = unroll_dims(shared)
        assert [a.outer and a.outer.dims for a in after.assignments] == [dims] * count
        verify_assignments("unroll_dims", shared, after)
    points = [replace(a, outer=OuterLoops(0, ("d",))) for a in unroll_dims(start).assignments]
    with pytest.raises(VerifyError, match="no dimension of an elementwise assignment is unrolled"):
        verify_assignments("unroll_dims", shared, shared.with_parts([points]))
    picked = before("def f(uint8(N,M,2) A, float(256) U) -> (C) { C(n,m,d) = U(A(n,m,d)) }", {"A": (50, 60, 2), "U": (256,)})
    shared = replace(picked, assignments=tuple(replace(a, outer=OuterLoops(0, ("n",))) for a in picked.assignments))
    assert len(unroll_dims(shared).assignments) == 1


def test_few_terms_under_shared_loops() -> None:
    start = before("def f(float(N,M,3) A) -> (S) { S(n,m) +=! A(n,m,d) }", {"A": (50, 60, 3)})
    for outer, one in ((OuterLoops(0, ("n",)), True), (OuterLoops(0, ("n",), columns=True), False)):
        shared = replace(start, assignments=tuple(replace(a, outer=outer) for a in start.assignments))
        after = unroll_dims(shared)
        assert [a.reduction for a in after.assignments] == [() if one else ("d",)]
        verify_assignments("unroll_dims", shared, after)


@pytest.mark.parametrize("function", ["sin", "abs"])
def test_functions_have_vectors_of_far_elements(function: str) -> None:
    """A sine for each of them takes longer than a scattered store; other values are as fast one by one."""
    text = f"def f(float(N,6) X) -> (Y) {{ Y(n,l,c) = c == 0 ? {function}(X(n,l)) : 1.0 where c in 0:2 }}"
    start = before(text, {"X": (300, 6)})
    assert len(unroll_dims(start).assignments) == (2 if function == "sin" else 1)


def test_results_are_written_line_by_line_where_vectors_fill_up() -> None:
    """Lanes over rows would write a line for each element, and come back for the next one."""
    text = "def f(float(T) P, float(F) W) -> (Y) { Y(t,f,c) = c == 0 ? sin(P(t) * W(f)) : cos(P(t) * W(f)) where c in 0:2 }"
    made = emit_c(map_program(program(text, {"P": (100,), "W": (32,)}), Options(), AVX512), C, AVX512, checked=False).text
    assert "Y[64 * c0 + 2 * c1]" in made and made.count("#pragma omp simd") == 1, made


def test_threads_share_no_lines() -> None:
    """The few frequencies lie side by side: threads have tiles of positions, which stay in a cache until their lines are full."""
    value = "c == 0 ? sin(exp2(float(l)) * P(t)) : cos(exp2(float(l)) * P(t))"
    text = f"def f(float(T) P) -> (Y) {{ Y(t,l,c) = {value} where l in 0:10, c in 0:2 }}"
    made = emit_c(map_program(program(text, {"P": (30000,)}), Options(), AVX512), C, AVX512, checked=False).text
    outer, inner = re.findall(r"for \(int64_t c[01] = 0; c[01] <= (\d+);", made)[:2]
    size = 80 * -(-30000 // (int(outer) + 1))  # bytes of the results of a tile
    assert inner == "9" and 2 * size <= AVX512.near_bytes and made.index("omp parallel for") < made.index("c0 <=")


LIFE = """def f(uint8(H,W) X) -> (Y) {
    N(y,x) +=! X((y + H + i - 1) % H,(x + W + j - 1) % W) where y in 0:H, x in 0:W, i in 0:3, j in 0:3
    Y(y,x) = N(y,x) == 3 || (N(y,x) == 4 && X(y,x) == 1) ? 1 : 0
}"""
PACKED = """def f(uint8(H,W) X, uint8(4,8) T) -> (uint8(H,W/8) P) {
    P(y,b) +=! X(y,8*b + k) > T(y % 4,k) ? k : 0 where k in 0:8
}"""


@pytest.mark.parametrize(("text", "shapes"), [(LIFE, {"X": (40, 131)}), (PACKED, {"X": (20, 800), "T": (4, 8)})])
def test_windows_and_parts_of_rows_are_one_value_in_vectors(text: str, shapes: dict[str, tuple[int, ...]]) -> None:
    """Their loops are cut where rows end, so that none of them divides, and lanes that are 8 elements apart read all that lie between."""
    start = before(text, shapes)
    after = unroll_dims(start)
    assert not any(a.reduction for a in after.assignments)
    verify_assignments("unroll_dims", start, after)
    made = emit_c(map_program(program(text, shapes), Options(), AVX512), C, AVX512, checked=False).text
    assert "#pragma omp simd" in made and not re.search(r"tc_fdiv\([^()]*c1", made), made
    given = {name: torch.randint(0, 9, shape, dtype=torch.uint8) for name, shape in shapes.items()}
    expected = tcjit.define(text, target="reference").f(*given.values())
    assert torch.equal(tcjit.define(text, target="cpu").f(*given.values()), expected)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("def f(float(N,5) A) -> (S) { S(n) +=! A(n,d) }", {"A": (300, 5)}),  # whole rows
        ("def f(float(N,40) A) -> (S) { S(n) +=! A(n,2*d) where d in 0:20 }", {"A": (600, 40)}),  # too many terms
        ("def f(float(N,3) A) -> (S) { S(n) +=! A(n,d) }", {"A": (9, 3)}),  # too few results
        ("def f(float(N,3) A, float(3) b) -> (C) { C(n,d) = A(n,d) + b(d) }", {"A": (300, 3), "b": (3,)}),  # its rows merge
        ("def f(float(N,3) A) -> (C) { C(n,d) = A(n,d) > 0.0 ? A(n,d) : exp(A(n,d)) }", {"A": (300, 3)}),  # is one row
        ("def f(float(V,3) A, int32(N) I) -> (S) { S(n) +=! A(I(n),d) }", {"A": (9, 3), "I": (300,)}),  # rows that data pick
        ("def f(float(3,N) A) -> (C) { C(d,n) = A((d+1)%3,n) where d in 0:3, n in 0:N }", {"A": (3, 300)}),  # outermost
    ],
)
def test_what_stays_as_it_is(text: str, shapes: dict[str, tuple[int, ...]]) -> None:
    start = before(text, shapes)
    assert unroll_dims(start).assignments == start.assignments


def test_a_point_that_is_lost_or_changed_is_no_proof() -> None:
    start = before(CROSS, {"A": (300, 3), "B": (300, 3)})
    (parts,) = unroll_dims(start).replaced
    wrong = replace(parts[1], value=parts[0].value)
    for new in (parts[:2], (parts[0], wrong, parts[2]), parts[::-1], (*parts, parts[0])):
        with pytest.raises(VerifyError, match="a point is lost, or has another value"):
            verify_assignments("unroll_dims", start, start.with_parts([new]))
    start = before("def f(float(N,3) A) -> (S) { S(n) +=! A(n,d) }", {"A": (300, 3)})
    ((total,),) = unroll_dims(start).replaced
    assert isinstance(total.value.right, Access)  # type: ignore[attr-defined]
    with pytest.raises(VerifyError):
        verify_assignments("unroll_dims", start, start.with_parts([(replace(total, value=total.value.left),)]))  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_that_are_interleaved_are_written_in_one_loop(name: str) -> None:
    text, shapes, loops = PROGRAMS[name]
    made = emit_c(map_program(program(text, shapes), Options(), AVX512), C, AVX512, checked=True).text
    kernel = made[made.index("int64_t tc_f(") :]
    assert kernel.count("#pragma omp simd") == loops and "tc_fdiv" not in kernel, kernel


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("extra", [0, 1, 2049])
def test_numbers_are_those_of_the_reference(name: str, extra: int) -> None:
    text, shapes, _ = PROGRAMS[name]
    made = {key: tuple(size + extra if size >= 131 else size for size in shape) for key, shape in shapes.items()}
    types = {"I": torch.uint8 if name == "colours" else torch.int64}
    given = []
    for key, shape in made.items():
        value = torch.randint(0, 50, shape, dtype=types[key]) if key in types else torch.randn(shape)
        given.append(value.double() if name == "unit" else value)
    expected = tcjit.define(text, target="reference").f(*given)
    torch.testing.assert_close(tcjit.define(text, target="cpu").f(*given), expected, rtol=1e-5, atol=1e-5)


def test_sums_over_coordinates_run_along_the_other_points() -> None:
    a, b = torch.randn(70, 3), torch.randn(90, 3)
    f = tcjit.define(DISTANCES, target="cpu").f
    torch.testing.assert_close(f(a, b), (a[:, None] - b).square().sum(2))


PAIRS = """def f(float(M,R,2) X, float(R,2) G, float(R) C, float(R) D) -> (Y) {
    S(m) +=! X(m,r,k) * X(m,r,k)
    N(m,r,k) = X(m,r,k) * rsqrt(S(m) + 1e-6) * G(r,k)
    Y(m,r,k) = k == 0 ? N(m,r,0) * C(r) - N(m,r,1) * D(r) : N(m,r,0) * D(r) + N(m,r,1) * C(r) where k in 0:2
}"""


def test_pairs_of_a_row_share_its_loops() -> None:
    """One loop over all terms of a row's sum, one over both halves of what is scaled by it, and one over both results."""
    shapes = {"X": (300, 32, 2), "G": (32, 2), "C": (32,), "D": (32,)}
    made = emit_c(map_program(program(PAIRS, shapes), Options(), AVX512), C, AVX512, checked=False).text
    assert made.count("#pragma omp simd") == 3 and re.search(r"simd reduction.*\n.*c1 <= 63", made), made
    x, g, c, d = (torch.randn(*shape) for shape in shapes.values())
    n = x * torch.rsqrt(x.square().sum((1, 2), keepdim=True) + 1e-6) * g
    expected = torch.stack([n[..., 0] * c - n[..., 1] * d, n[..., 0] * d + n[..., 1] * c], -1)
    torch.testing.assert_close(tcjit.define(PAIRS).f(x, g, c, d), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("shape", "kept"), [((16, 3, 4096), True), ((4096, 3), False)])
def test_whole_rows_stay_loops_where_others_pass_over_them(shape: tuple[int, ...], kept: bool) -> None:
    """Blocks of columns go through all of a softmax at once; of a row that lies innermost the terms are one value."""
    axes = "a,b,c" if len(shape) == 3 else "a,b"
    row = axes.replace("b,", "").replace(",b", "")
    extents = ",".join("ABC"[: len(shape)])
    text = f"""def f(float({extents}) X) -> (O) {{
        M({row}) max=! X({axes})
        E({axes}) = exp(X({axes}) - M({row}))
        S({row}) +=! E({axes})
        O({axes}) = E({axes}) / S({row})
    }}"""
    start = before(text, {"X": shape})
    assert [bool(a.reduction) for a in unroll_dims(start).assignments][:1] == [kept]
    x = torch.randn(*shape)
    torch.testing.assert_close(tcjit.define(text).f(x), x.softmax(1))
