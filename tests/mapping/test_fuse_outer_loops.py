"""Which assignments share their outer loops, and which loops; what stands between them; and the proof that they may.

Modules: mapping.passes.fuse_outer_loops mapping.partial_results mapping.scop mapping.operations
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.mapping import AVX512, program

import tcjit
from tcjit.errors import VerifyError
from tcjit.grammar.ast import Binary, Const, Index
from tcjit.mapping.assignment import Assignments, to_scop
from tcjit.mapping.dependences import dependences
from tcjit.mapping.extract import extract
from tcjit.mapping.marks import Tile
from tcjit.mapping.operations import operations
from tcjit.mapping.options import Options
from tcjit.mapping.passes.contract_slices import contract_slices, verify_outer_loops
from tcjit.mapping.passes.fuse_outer_loops import fuse_outer_loops, settle_outer_loops
from tcjit.mapping.passes.tile_reductions import tile_reductions
from tcjit.mapping.pipeline import map_program
from tcjit.mapping.scop import OuterLoops, Scop
from tcjit.mapping.verify_assignments import verify_assignments

Shapes = dict[str, tuple[int, ...]]
ATTENTION = """def f(float(B,Q,D) q, float(B,K,D) k, float(B,K,D) v) -> (O) {
    S(b,i,j) +=! q(b,i,d) * k(b,j,d)
    E(b,i,j) = exp(S(b,i,j))
    Z(b,i) +=! E(b,i,j)
    O(c,i,d) +=! E(c,i,j) * v(c,j,d)
    O(b,i,d) = O(b,i,d) / Z(b,i)
}"""
LINEAR = "def f(float(B,T,I) X, float(H,I) W, float(O,H) V) -> (Y) { A(b,t,h) +=! X(b,t,i) * W(h,i)  Y(b,t,o) +=! A(b,t,h) * V(o,h) }"


def shapes_of_attention(b: int, n: int) -> Shapes:
    return dict.fromkeys("qkv", (b, n, 64))


def fused(text: str, shapes: Shapes, threads: int = 2) -> Assignments:
    return fuse_outer_loops(extract(program(text, shapes)), Options(), replace(AVX512, threads=threads))


def loops(text: str, shapes: Shapes, threads: int = 2) -> list[tuple[int, tuple[str, ...]] | None]:
    return [a.outer and (a.outer.number, a.outer.dims) for a in fused(text, shapes, threads).assignments]


def test_names_are_those_of_each_assignment() -> None:
    b, c = (0, ("b",)), (0, ("c",))
    assert loops(ATTENTION, shapes_of_attention(16, 224)) == [b, b, b, c, b]


def test_results_of_which_each_iteration_has_an_element_of_a_line() -> None:
    """No cache keeps their lines until the next one: the iterations go over what lies further apart, or there are none."""
    text = "def f(half(B,D,A) X, half(C,D) U) -> (O) { O(ORDER) +=! X(b,d,a) * U(c,d) }"
    shapes = {"X": (128, 128, 872), "U": (93, 128)}
    shared = {}
    for order in ("c,a,b", "b,c,a"):
        mapped = map_program(program(text.replace("ORDER", order), shapes), Options(), AVX512)
        shared[order] = {s.outer.dims for s in mapped.scop.statements if s.outer}
    assert shared == {"c,a,b": set(), "b,c,a": {("b",)}}


def test_results_of_which_each_iteration_has_a_small_part_of_a_line() -> None:
    """Three neighbours of 32 in each line are no more than one; those of a small tensor do not matter where they would be in no lanes."""
    text = "def f(bfloat16(F,B,E,A) X, bfloat16(C,E,A,D,F) U) -> (O) { O(d,a,c,b) +=! X(f,b,e,a) * U(c,e,a,d,f) }"
    mapped = map_program(program(text, {"X": (3, 8, 5, 17), "U": (68, 5, 17, 64, 3)}), Options(), AVX512)
    assert not {dim for s in mapped.scop.statements if s.outer for dim in s.outer.dims if dim.startswith("d")}
    text = """def f(float(B,H,Q,D) X, float(B,H,K,D) Y, float(B,H,K,D) Z, int32(B) L) -> (O) {
        S(b,h,q,k) +=! X(b,h,q,d) * Y(b,h,k,d)
        E(b,h,q,k) = k < L(b) ? exp(S(b,h,q,k)) : 0.0
        O(b,h,q,d) +=! E(b,h,q,k) * Z(b,h,k,d)
    }"""
    mapped = map_program(program(text, {"X": (8, 2, 128, 64), "Y": (8, 2, 512, 64), "Z": (8, 2, 512, 64), "L": (8,)}), Options(), AVX512)
    assert {s.outer.dims[0] for s in mapped.scop.statements if s.outer} == {"b"}


def test_a_padded_copy_is_made_for_one_image_of_a_batch() -> None:
    text = """def f(float(N,C,H,W) X, float(F,C,3,3) G) -> (O) {
        O(n,f,h,w) +=! (h + i >= 1 && h + i <= H && w + j >= 1 && w + j <= W ? X(n,c,h+i-1,w+j-1) : 0.0) * G(f,c,i,j)
            where h in 0:H, w in 0:W
    }"""
    mapped = map_program(program(text, {"X": (16, 8, 64, 64), "G": (8, 8, 3, 3)}), Options(), AVX512)
    copy = next(s for s in mapped.scop.statements if s.tensor == "X_padded")
    assert copy.outer is not None and len({s.outer.number for s in mapped.scop.statements if s.outer}) == 1
    assert [(one.tensor, one.elements) for one in mapped.slices] == [("X_padded", 8 * 66 * 66)]


WINDOW = """def f(float(N,C,H,W) X, float(C,3,3) G) -> (O) {
    O(n,c,h,w) +=! (h + i >= 1 && h + i <= H && w + j >= 1 && w + j <= W ? X(n,c,h+i-1,w+j-1) : 0.0) * G(c,i,j)
        where h in 0:H, w in 0:W, i in 0:3, j in 0:3
}"""


@pytest.mark.parametrize(("layout", "elements"), [("contiguous", 130 * 130), ("dense 0,2,3,1", 24 * 130 * 130)])
def test_windows_of_single_channels(layout: str, elements: int) -> None:
    """A copy is made for one channel where each has its own lines, and for all of them where they lie side by side."""
    shapes = {"X": (16, 24, 128, 128), "G": (24, 3, 3)}
    mapped = map_program(program(WINDOW, shapes), Options(), AVX512, {"X": layout})
    assert [(one.tensor, one.elements) for one in mapped.slices] == [("X_padded", elements)]


MAX_POOL_BACKWARD = """def f(float(N,C,H,W) X, float(N,C,P,Q) Y, float(N,C,P,Q) d_Y) -> (d_X) {
    count(n,c,p,q) +=! X(n,c,2*p+i,2*q+j) == Y(n,c,p,q) ? 1.0 : 0.0 where i in 0:3, j in 0:3
    share(n,c,p,q) = d_Y(n,c,p,q) / count(n,c,p,q)
    d_X(n,c,h,w) +=! (h - i) % 2 == 0 && (w - j) % 2 == 0 && h >= i && h - i < 2 * P && w >= j && w - j < 2 * Q
        && X(n,c,h,w) == Y(n,c,(h-i)/2,(w-j)/2) ? share(n,c,(h-i)/2,(w-j)/2) : 0.0 where i in 0:3, j in 0:3
}"""


def test_residue_classes_under_loops_that_no_residue_is_of() -> None:
    """All of a channel's classes, and what they read, while it is in the nearest cache; copies of inputs are made in the same iteration."""
    shapes = {"X": (4, 64, 56, 56), "Y": (4, 64, 27, 27), "d_Y": (4, 64, 27, 27)}
    mapped = map_program(program(MAX_POOL_BACKWARD, shapes), Options(), AVX512)
    assert {s.outer and s.outer.dims for s in mapped.scop.statements} == {("n", "c"), ("y0", "y1")}
    last = mapped.scop.statements[-1]
    assert last.tensor == "d_X" and len(last.tiled) == 4 and last.outer is not None and last.outer.dims == ("n", "c")
    assert {one.tensor for one in mapped.slices} >= {"share", "share_padded", "Y_padded"}


TRANSPOSED = """def f(float(N,C,H,W) X, float(C,F,3,4) K) -> (O) {
    O(n,f,h,w) +=! (y >= 0 && y < 2*H && y % 2 == 0 && x >= 0 && x < 3*W && x % 3 == 0) ? X(n,c,y/2,x/3) * K(c,f,kh,kw) : 0.0
        where h in 0:351, w in 0:37, y = h + 1 - kh, x = w + 3 - 2*kw }"""


def test_residue_classes_of_what_the_cache_holds_of_one_image() -> None:
    """The input is read from memory once for all six, by tiles of all filters and a few rows."""
    mapped = map_program(program(TRANSPOSED, {"X": (20, 96, 176, 13), "K": (96, 5, 3, 4)}), Options(), AVX512)
    copied, s = mapped.scop.statements  # filters of a tile side by side
    assert copied.tensor == "K_staged" and s.outer and s.outer.dims == ("n",) and len(s.tiled) == 6
    assert {tuple(dim for dim, _ in one.nest.leaf.rows) for one in s.tiled} == {("f", "h")}


@pytest.mark.parametrize(("n", "c", "why"), [(3, 96, "few images"), (20, 400, "an image is larger"), (20, 2, "a cache holds all images")])
def test_residue_classes_by_themselves(n: int, c: int, why: str) -> None:
    mapped = map_program(program(TRANSPOSED, {"X": (n, c, 176, 13), "K": (c, 5, 3, 4)}), Options(), AVX512)
    assert {s.outer for s in mapped.scop.statements} == {None}, why


def test_residue_classes_share_no_loop_along_rows() -> None:
    """Of which each iteration would take an element of every line of the input."""
    text = """def f(float(N,C,H,W) X, float(C,F,3) K) -> (O) {
        O(n,f,h,w) +=! (y >= 0 && y < 2*H && y % 2 == 0) ? X(n,c,y/2,w) * K(c,f,kh) : 0.0 where h in 0:63, w in 0:192, y = h + 1 - kh }"""
    mapped = map_program(program(text, {"X": (4, 128, 32, 192), "K": (128, 64, 3)}), Options(), AVX512)
    assert {s.outer for s in mapped.scop.statements} == {None}


@pytest.mark.parametrize(
    ("b", "n", "threads", "expected"),
    [
        (16, 256, 2, True),
        (16, 64, 2, True),  # temporaries fit in the cache of a core, those of an iteration in a nearer one
        (16, 12, 2, False),  # which holds them all
        (3, 509, 2, True),  # blocks of rows, of which the last is shorter
        (9, 37, 4, False),  # few iterations, which threads do not share evenly
        (9, 512, 4, True),  # blocks of rows, which they do
        (8, 512, 4, True),
        (16, 1500, 2, True),  # one iteration's do not fit either, but are less
    ],
)
def test_what_pays(b: int, n: int, threads: int, expected: bool) -> None:
    assert any(loops(ATTENTION, shapes_of_attention(b, n), threads)) == expected


@pytest.mark.parametrize(
    ("heads", "n", "dims"),
    [
        (4, 128, ("b",)),  # 512 KiB of temporaries in an iteration
        (8, 128, ("b", "h")),  # twice that, of which the cache keeps half
        (4, 256, ("b", "h")),
    ],
)
def test_no_more_loops_than_keep_their_temporaries_in_the_cache(heads: int, n: int, dims: tuple[str, ...]) -> None:
    text = """def f(float(B,H,Q,D) q, float(B,H,K,D) k, float(B,H,K,D) v) -> (O) {
        S(b,h,i,j) +=! q(b,h,i,d) * k(b,h,j,d)
        E(b,h,i,j) = exp(S(b,h,i,j))
        O(b,h,i,d) +=! E(b,h,i,j) * v(b,h,j,d)
    }"""
    assert loops(text, dict.fromkeys("qkv", (16, heads, n, 64))) == [(0, dims)] * 3


@pytest.mark.parametrize(
    ("n", "block"),
    [
        (512, 64),  # in the cache of a core
        (1024, 32),
        (4096, 32),  # in the last cache: fewer rows use operands too seldom
        (2039, 32),  # which has no divisors: the last block is shorter
    ],
)
def test_blocks_of_rows_of_one_matrix_of_a_batch(n: int, block: int) -> None:
    """Memory for temporaries is linear in the length of sequences where it has divisors."""
    made = fused(ATTENTION, shapes_of_attention(16, n)).assignments
    assert all(a.outer is not None and len(a.outer.dims) == (2 if block > 1 else 1) for a in made)
    mapped = map_program(program(ATTENTION, shapes_of_attention(16, n)), Options(), AVX512)
    assert n * (block if block > 1 else n) <= max(one.elements for one in mapped.slices) < 1.01 * n * (block if block > 1 else n)


def test_blocks_of_rows() -> None:
    """Register tiles use an operand for many rows: where there is no batch, they are shared in blocks that divide their number."""
    matrix = {"q": (1, 4096, 64), "k": (1, 1024, 64), "v": (1, 1024, 64)}
    assert loops(ATTENTION, matrix) == [(0, ("i_block",))] * 5
    first = fused(ATTENTION, matrix).assignments[0]
    blocks = {name: upper for name, _, upper in first.bounds}
    assert blocks["i_block"] * blocks["i"] == 4096 and 32 <= blocks["i"] and 4 * blocks["i"] * 2 * 1024 <= AVX512.cache_bytes // 2
    whole = Binary("*", Const(blocks["i"], dtype="int64"), Index("i_block", dtype="int64"), dtype="int64")
    assert first.subscripts[1] == Binary("+", whole, Index("i", dtype="int64"), dtype="int64")
    prime = fused(ATTENTION, {**matrix, "q": (1, 4099, 64)}).assignments[0]
    assert prime.outer is not None and prime.outer.rest is not None and prime.outer.rest[1] < blocks["i"]


def test_weights_that_are_read_again() -> None:
    """Each iteration reads them: they must be smaller than what stays in the cache."""
    small, large = {"W": (256, 64), "V": (64, 256)}, {"W": (2048, 512), "V": (512, 2048)}
    assert loops(LINEAR, {"X": (32, 128, 64), **small}) == [(0, ("b",))] * 2
    assert not any(loops(LINEAR, {"X": (32, 64, 512), **large}))


def test_temporaries_that_the_last_cache_passes_on() -> None:
    """They save little where an operand as large is read again for each block of rows; from memory they take longer than that."""
    text = "def f(float(B,I) X, float(B,J) Y, float(O,I,J) W) -> (Z) { P(b,i,j) = X(b,i) * Y(b,j)  Z(b,o) +=! P(b,i,j) * W(o,i,j) }"
    near, far = ({"X": (rows, 64), "Y": (rows, 64), "W": (128, 64, 64)} for rows in (128, 512))
    assert not any(loops(text, near)) and loops(text, far) == [(0, ("b_block",))] * 2


@pytest.mark.parametrize(
    "last",
    [
        "Y(b,t,o) +=! A(B-1-b,t,h) * V(o,h)",
        "Y(t,b,o) +=! (b > 0 ? A(b-1,t,h) : 0.0) * V(o,h) where b in 0:B",
        "Y(t,o) +=! A(b,t,h) * V(o,h)",  # sums over it
        "Y(b,t,o) +=! A(b,t,h) * A(0,t,h) * V(o,h)",
    ],
)
def test_values_that_pass_between_iterations(last: str) -> None:
    found = loops(f"{LINEAR.partition('Y(b,t,o)')[0]}{last} }}", {"X": (32, 128, 64), "W": (256, 64), "V": (64, 256)})
    assert all(one is None or "b" not in one[1] for one in found)


def test_parts_of_other_dimensions_are_no_hindrance() -> None:
    last = "Y(b,t,o) +=! A(b,t,h) * V(o,h) where t in 0:T-1"
    found = loops(f"{LINEAR.partition('Y(b,t,o)')[0]}{last} }}", {"X": (32, 128, 64), "W": (256, 64), "V": (64, 256)})
    assert found == [(0, ("b",))] * 2


def test_what_is_written_first_and_read_before() -> None:
    """An assignment that overwrites what others of the run have read shares a loop with them only along the same axis."""
    text = """def f(float(B,T,I) X, float(H,I) W) -> (P, Y) {
        P(b,t) = X(b,t,0)  A(b,t,h) +=! X(b,t,i) * W(h,i)  Y(b,t,h) = A(b,t,h) * P(b,t)  P(b,t) = Y(t,b,0) where t in 0:32, b in 0:32 }"""
    found = loops(text, {"X": (32, 32, 64), "W": (512, 64)})
    assert found[-1] is None


def test_copies_stand_before_what_shares_loops() -> None:
    before = tile_reductions(fused(ATTENTION, shapes_of_attention(16, 224)), Options(), AVX512, True)
    *copies, first, second, last_sum, product, division = before.assignments
    rest = [last_sum, product, division]
    assert [a.tensor for a in copies] == ["k_staged"] and copies[0].outer == first.outer and division.fused
    before = replace(before, assignments=(first, second, *rest))
    copy = replace(first, tensor="Z2", tiled=(), reduction=(), operator="=", outer=None)
    settled = settle_outer_loops(replace(before, assignments=(first, copy, second, *rest))).assignments
    assert settled[0] == copy and [a.outer is not None for a in settled[1:]] == [True] * 5
    reads_scores = replace(second, tensor="Z2", outer=None)
    settled = settle_outer_loops(replace(before, assignments=(first, reads_scores, second, *rest))).assignments
    assert [a.tensor for a in settled] == ["S", "Z2", "E", "Z", "O", "O"] and not any(a.outer for a in settled)
    untiled = tuple(replace(a, tiled=(), fused=False) for a in (first, second, *rest))
    assert not any(a.outer for a in settle_outer_loops(replace(before, assignments=untiled)).assignments), "loops alone are fused later"
    overwrites = replace(copy, tensor="S")
    settled = settle_outer_loops(replace(before, assignments=(first, second, overwrites, *rest))).assignments
    assert not any(a.outer for a in settled)


def test_the_proof() -> None:
    text = "def f(float(B,T) X) -> (Y) { A(b,t) = X(b,t) + 1.0  Y(b,t) = A(b,t) * 2.0  C(t,b) = A(b,t) where b in 0:8, t in 0:8 }"
    text = text.replace("-> (Y)", "-> (Y, C)")
    made = extract(program(text, {"X": (8, 8)}))
    a, y, c = made.assignments
    b = OuterLoops(0, ("b",))

    def proved(*assignments: object) -> None:
        found = to_scop(replace(made, assignments=assignments))  # type: ignore[arg-type]
        verify_outer_loops(found, dependences(found))

    proved(replace(a, outer=b), replace(y, outer=b), replace(c, outer=b))
    with pytest.raises(VerifyError, match="a value passes from one iteration to another"):
        proved(replace(a, outer=b), replace(y, outer=OuterLoops(0, ("t",))))
    with pytest.raises(VerifyError, match="share different loops"):
        proved(replace(a, outer=b), y)
    with pytest.raises(VerifyError, match="share different loops"):
        proved(replace(a, outer=b), replace(y, outer=OuterLoops(0, ("b", "t"))))


def test_nests_move_along_shared_loops_as_their_statements_do() -> None:
    """One over a residue class moves further: its iterations are not those of the others."""
    made = tile_reductions(fused(LINEAR, {"X": (32, 128, 64), "W": (256, 64), "V": (64, 256)}), Options(), AVX512, True)
    scop = to_scop(replace(made, assignments=tuple(a for a in made.assignments if a.outer)))
    verify_outer_loops(scop, dependences(scop))
    *others, last = scop.statements
    (nest,) = last.tiled
    write = nest.statement.write
    further = replace(write, form={**write.form, "b": 2 * write.stride("b")})
    moved = replace(last, tiled=(replace(nest, statement=replace(nest.statement, write=further)),))
    with pytest.raises(VerifyError, match="over other points than the shared one"):
        verify_outer_loops(replace(scop, statements=(*others, moved)), dependences(scop))


UPDATES = """def f(float(B,Q,D) q, float(B,K,D) k, float(B,Q,D) u, float(B,K,D) v) -> (G, H) {
    S(b,i,j) +=! q(b,i,d) * k(b,j,d)
    Z(b,i) +=! u(b,i,d) * q(b,i,d)
    P(b,i,j) +=! u(b,i,d) * v(b,j,d)
    E(b,i,j) = S(b,i,j) * (P(b,i,j) - Z(b,i))
    G(b,i,d) +=! E(b,i,j) * k(b,j,d)
    H(b,j,d) +=! E(b,i,j) * q(b,i,d)
}"""


def shapes_of_updates(b: int, q: int) -> Shapes:
    return {"q": (b, q, 64), "k": (b, 1024, 64), "v": (b, 1024, 64), "u": (b, q, 64)}


@pytest.mark.parametrize(("b", "q", "shared"), [(2, 2048, True), (4, 1021, True), (3, 1021, False), (1, 1021, False)])
def test_updates_of_sums_over_blocks_of_terms(b: int, q: int, shared: bool) -> None:
    """Where threads share the other loops evenly; products that are joined by a later one share them too, as what stands between does."""
    before = extract(program(UPDATES, shapes_of_updates(b, q)))
    after = fuse_outer_loops(before, Options(), AVX512)
    verify_assignments("fuse_outer_loops", before, after)
    *others, start, part, update = after.assignments
    assert (update.tensor == "H" and part.tensor == "H_part") == shared
    assert len({a.outer.number for a in others if a.outer}) == 1, "without the last product the others share their loops anyhow"
    if shared:
        assert all(a.outer and a.outer.sequential and a.outer.shared == ("b",) for a in (*others, part, update))
        assert start.outer is None and update.outer and update.outer.dims[-1:] == update.reduction
        mapped = map_program(program(UPDATES, shapes_of_updates(b, q)), Options(), AVX512)
        assert {one.tensor for one in mapped.slices} >= {"S", "E", "Z"} and mapped.slots == 2
        assert [s.fused for s in mapped.scop.statements if s.tensor == "H"] == [False, True], "an epilogue updates the results"


@pytest.mark.parametrize(("b", "q"), [(3, 2048), (1, 1000)])
def test_updates_of_the_sums_of_chunks(b: int, q: int) -> None:
    """Where threads do not share the other loops evenly, they share chunks of the terms, each with sums of its own that blocks update."""
    before = extract(program(UPDATES, shapes_of_updates(b, q)))
    after = fuse_outer_loops(before, Options(), AVX512)
    verify_assignments("fuse_outer_loops", before, after)
    *_, chunks_start, part, update, start, combine = after.assignments
    assert [a.tensor for a in (chunks_start, part, update, start, combine)] == ["H_part", "H_part_part", "H_part", "H", "H"]
    assert update.outer and update.outer.shared == ("b", "chunk")[b == 1 :] and update.outer.dims[-1:] == update.reduction
    assert combine.reduction == ("chunk",) and not combine.outer and after.storages["H_part"].shape[0] == 2
    mapped = map_program(program(UPDATES, shapes_of_updates(b, q)), Options(), AVX512)
    assert {one.tensor for one in mapped.slices} >= {"S", "E", "Z"} and mapped.slots == 2
    gen = torch.Generator().manual_seed(b)
    x, k, v, u = (torch.randn(shape, generator=gen, dtype=torch.float64) for shape in shapes_of_updates(b, q).values())
    e = x @ k.mT * (u @ v.mT - (u * x).sum(-1, keepdim=True))
    for found, expected in zip(tcjit.define(UPDATES).f(x.float(), k.float(), u.float(), v.float()), (e @ k, e.mT @ x), strict=True):
        assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize(
    ("b", "at", "change", "wrong"),
    [
        (2, -1, {"outer": None}, "is not the last one that is shared"),
        (2, -2, {"outer": OuterLoops(0, ("chunk", "b"), sequential=True)}, "is not the last one that is shared"),
        (2, -1, {"operator": "max="}, "do not start at the identity"),
        (2, -1, {"reduction": ()}, "partial results are not combined into their element"),
        (2, -3, {"value": Const(1.0, dtype="float32")}, "the start is not assigned to the results"),
        (1, -5, {"value": Const(1.0, dtype="float32")}, "the start is not assigned to the results"),
        (1, -4, {"outer": None}, "is not the last one that is shared"),
        (1, -3, {"outer": None}, "there are no chunks of the terms"),
        (1, -3, {"outer": OuterLoops(0, ("b", "chunk1"), sequential=True)}, "is not the last one that is shared"),
        (1, -2, {"value": Const(1.0, dtype="float32")}, "the start is not assigned to the results"),
        (1, -1, {"reduction": ()}, "partial results are not combined into their element"),
    ],
)
def test_updates_are_validated(b: int, at: int, change: dict[str, object], wrong: str) -> None:
    """Those of a batch of two, over blocks of terms, and those of one, over blocks of chunks."""
    before = extract(program(UPDATES, shapes_of_updates(b, 2048)))
    after = fuse_outer_loops(before, Options(), AVX512)
    last = list(after.replaced[-1])
    last[at] = replace(last[at], **change)  # type: ignore[arg-type]
    made = after.with_parts([*after.replaced[:-1], last])
    with pytest.raises(VerifyError, match=wrong):
        verify_assignments("fuse_outer_loops", before, replace(made, temporaries=after.temporaries))


@pytest.mark.parametrize("heads", [1, 2])
def test_memory_of_an_adjoint(heads: int) -> None:
    """That of attention is linear in the sequence: no thread has all scores of a head."""
    used = []
    for length in (2048, 4096):
        given = dict.fromkeys(("q", "k", "v"), torch.empty(heads, length, 64, device="meta"))
        text = tcjit.define(ATTENTION).f.backward_source(**given)
        shapes = dict.fromkeys(("q", "k", "v", "O", "d_O"), (heads, length, 64))
        mapped = map_program(program(text, shapes), Options(), AVX512)
        slices = {one.tensor: mapped.slots * one.elements for one in mapped.slices}
        used.append(sum(slices.values()))
        assert slices.keys() >= {"E", "d_E", "d_S"} and "S" not in slices, "an epilogue takes the scores from registers"
    assert used[1] <= 2.2 * used[0] < 2048 * 2048


def test_updates_that_threads_would_share() -> None:
    """What passes from one iteration to another has to be an update, along the last loop alone."""
    after = fuse_outer_loops(extract(program(UPDATES, shapes_of_updates(2, 2048))), Options(), AVX512)
    shared = replace(after, assignments=tuple(a for a in after.assignments if a.outer))
    scop = to_scop(shared)
    verify_outer_loops(scop, dependences(scop))

    def changed(**changes: object) -> Scop:
        outer = [replace(a.outer, **changes) for a in shared.assignments if a.outer]  # type: ignore[arg-type]
        return to_scop(replace(shared, assignments=tuple(replace(a, outer=one) for a, one in zip(shared.assignments, outer, strict=True))))

    with pytest.raises(VerifyError, match="a value passes from one iteration to another"):
        verify_outer_loops(found := changed(sequential=False), dependences(found))
    swapped = tuple(replace(a, outer=replace(a.outer, dims=a.outer.dims[::-1])) for a in shared.assignments if a.outer)
    with pytest.raises(VerifyError, match="a value passes from one iteration to another"):
        verify_outer_loops(found := to_scop(replace(shared, assignments=swapped)), dependences(found))


def test_slices() -> None:
    """Of what statements outside use there is none, nor of what an iteration uses all over."""
    text = """def f(float(B,T,I) X, float(H,I) W) -> (Y, Z) {
        A(b,t,h) +=! X(b,t,i) * W(h,i)  C(t,b,h) = A(b,t,h)  D(b,t,h) = C(t,b,h) * 2.0  Y(b,t,h) = D(b,t,h)  Z(h) = D(0,0,h) }"""
    made = extract(program(text, {"X": (32, 32, 16), "W": (64, 16)}))
    assignments = tuple(replace(a, outer=OuterLoops(0, ("b",)), start=None) for a in made.assignments[:-1])
    scop = to_scop(replace(made, assignments=(*assignments, made.assignments[-1])))
    (one,) = contract_slices(scop, scop.statements[:-1], Tile(3))
    assert (one.tensor, one.mark, one.steps, one.least, one.elements) == ("A", Tile(3), (32 * 64,), 0, 32 * 64)


def test_operations() -> None:
    text = "def f(float(N) X, int32(N) I) -> (Y) { Y(i) = exp(X(i)) / (X(i) + float(I(i))) }"
    (a,) = extract(program(text, {"X": (8,), "I": (8,)})).assignments
    assert operations(a.value) == 20 + 8 + 1 + 1


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, ""),
        ({"outer": None}, "it shares loops that it does not have"),
        ({"outer": OuterLoops(0, ("z",))}, "it shares loops that it does not have"),
        ({"operator": "max="}, "more than digits of dimensions changed"),
        ({"bounds": "shorter"}, "blocks do not have the points of the dimension"),
        ({"value": "other"}, "more than digits of dimensions changed"),
        ({"subscripts": "other"}, "more than digits of dimensions changed"),
    ],
)
def test_blocks_are_validated(change: dict[str, object], wrong: str) -> None:
    before = extract(program(ATTENTION, {"q": (1, 4096, 64), "k": (1, 1024, 64), "v": (1, 1024, 64)}))
    after = fuse_outer_loops(before, Options(), AVX512)
    first = after.assignments[0]
    index = Index("i", dtype="int64")
    changed = {
        "bounds": tuple((name, lower, upper - (name == "i")) for name, lower, upper in first.bounds),
        "value": Binary("*", first.value, first.value, dtype="float32"),
        "subscripts": (first.subscripts[0], index, first.subscripts[2]),
    }
    broken = replace(first, **{name: changed.get(name, value) for name, value in change.items()})  # type: ignore[arg-type]
    program_after = (broken, *after.assignments[1:])
    made = replace(after, assignments=program_after, replaced=tuple((a,) for a in program_after))
    if not wrong:
        verify_assignments("fuse_outer_loops", before, made)
        return
    with pytest.raises(VerifyError, match=wrong):
        verify_assignments("fuse_outer_loops", before, made)


SEPARABLE = "def f(float(N,H,W) X, float(7) k) -> (Y) { A(n,h,w) +=! X(n,h,w+j) * k(j)  Y(n,h,w) +=! A(n,h+i,w) * k(i) }"
MATRICES = """def f(float(B,K,K) X, float(B,K,K) Y, float(B,K,K) Z) -> (C) {
    T(b,i,j) +=! X(b,i,k) * Y(b,k,j)
    C(b,i,j) +=! T(b,i,k) * Z(b,k,j)
}"""
DISTANCES = """def f(float(I,D) A, float(J,D) B, float(D,D) M) -> (S) {
    T(i,j,d) +=! (A(i,e) - B(j,e)) * M(e,d)
    S(i,j) +=! T(i,j,d) * (A(i,d) - B(j,d))
}"""
PICKED = "def f(float(P,G,D) X, int64(S) I, float(G,R,D) Q) -> (Y) { K(g,s,d) = X(I(s),g,d)  Y(g,r,s) +=! Q(g,r,d) * K(g,s,d) }"


@pytest.mark.parametrize(
    ("text", "shapes", "dims"),
    [
        (SEPARABLE, {"X": (64, 60, 60)}, ("n",)),  # an image of some KB each
        (SEPARABLE, {"X": (4000, 10, 10)}, ()),  # of which stores are still under way when they are read
        (SEPARABLE, {"X": (4, 40, 40)}, ()),  # all of them stay in the first cache
        (MATRICES, dict.fromkeys("XYZ", (60, 32, 32)), ("b",)),
        (MATRICES, dict.fromkeys("XYZ", (4000, 3, 3)), ()),
        (DISTANCES, {"A": (96, 24), "B": (96, 24), "M": (24, 24)}, ()),  # whose nest, for one row, uses no operand again
        (PICKED, {"X": (300, 8, 64), "I": (300,), "Q": (8, 32, 64)}, ()),  # of all places that data pick, an eighth
        (PICKED.replace("I(s),g", "g,I(s)").replace("P,G", "G,P"), {"X": (8, 300, 64), "I": (300,), "Q": (8, 32, 64)}, ("g",)),
    ],
)
def test_temporaries_that_a_smaller_cache_holds_in_shared_loops(text: str, shapes: Shapes, dims: tuple[str, ...]) -> None:
    """All of them fit into the cache of a core; those of one iteration are nearer, or leave room for what else is used."""
    shapes = {**shapes, **({"k": (7,)} if text is SEPARABLE else {})}
    assert loops(text, shapes) == [(0, dims) if dims else None] * 2


def test_blocks_of_whole_lines() -> None:
    """Of a dimension that is innermost in a large tensor: what begins within a line is loaded and stored in two parts."""
    text = "def f(float(D,K) A, float(K,N) X, float(E,D) B) -> (Y) { T(d,n) +=! A(d,k) * X(k,n)  Y(e,n) +=! B(e,d) * T(d,n) }"
    for n, outer in ((29 * 928, OuterLoops(0, ("n_block",))), (29 * 917, None)):
        first, _ = fused(text, {"A": (64, 40), "X": (40, n), "B": (40, 64)}).assignments
        assert first.outer == outer and ("n", 0, 928 if outer else n) in first.bounds


def test_rows_that_do_not_divide() -> None:
    """Threads have as many of them, and the last block fewer, but for those that lie side by side in large tensors."""
    text = "def f(float(M,K) A, float(N,K) X, float(E,N) B) -> (Y) { T(m,n) +=! A(m,k) * X(n,k)  Y(m,e) +=! B(e,n) * T(m,n) }"
    first, _ = fused(text, {"A": (809, 10), "X": (448, 10), "B": (40, 448)}).assignments
    assert first.outer is not None and first.outer.dims == ("m_block",) and first.outer.rest is not None
    rows = {name: upper for name, _, upper in first.bounds}
    assert rows["m_block"] * rows["m"] >= 809 and -(-rows["m_block"] // 2) * 2 * rows["m"] <= 1.1 * 809
