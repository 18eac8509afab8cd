"""The text of register tiles: what is loaded once, masked, tested, blended and stored, read off whole kernels.

Modules: codegen.tile_results codegen.tile_text
"""

from __future__ import annotations

import re

import pytest
import torch
from support.mapping import AVX512, program
from support.nests import Shapes, tiled

import tcjit
from tcjit.codegen.c import emit_c
from tcjit.codegen.dialect import C
from tcjit.codegen.tile_printer import TilePrinter
from tcjit.codegen.tile_text import Names
from tcjit.grammar.ast import Const
from tcjit.mapping.machine import Machine
from tcjit.mapping.nest.cost import TileCosts
from tcjit.mapping.nest.nest import Prefetch
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import map_program

PLAIN = "float(M,K) A, float(K,N) B"
MATMUL = f"def f({PLAIN}) -> (C) {{ C(m,n) +=! A(m,k) * B(k,n) }}"
WHOLE: Shapes = {"A": (24, 10), "B": (10, 64)}
ODD: Shapes = {"A": (17, 9), "B": (9, 33)}


def printer(text: str, shapes: Shapes, number: int = 0, options: Options | None = None, machine: Machine = AVX512) -> TilePrinter:
    """Of one of the nests of a program."""
    found = tiled(text, shapes, options, machine)
    nests = [(nest, a.value.dtype) for a in found.assignments for nest in a.tiled]
    nest, dtype = nests[number]
    names = Names({storage.name: storage.name for storage in found.tensors}, lambda tensor, axis: f"{tensor}_stride{axis}")

    def constant(value: Const) -> str:
        return f"<{value.value}>"

    return TilePrinter(nest, dtype, names, constant, lambda store, target, reads: f"{target} = {', '.join(reads.values())};")


def text_of(of: TilePrinter, kind: str) -> str:
    digits = [f"d{number}" for number in range(len(of.nest.loops))]
    return "\n".join(of.lines(kind, digits))  # type: ignore[arg-type]


def test_lanes_of_functions_are_loops_of_one_vector_each() -> None:
    """Whose operands stay in registers; rows that the processor does not foresee are fetched ahead."""
    p = printer("def f(float(A,B) X) -> (S) { S(b) +=! exp(X(a,b)) }", {"X": (16384, 300)}, options=Options(register_tile=(1, 2)))
    full = text_of(p, "full")
    assert p.nest.prefetch and "__builtin_prefetch(" in full
    assert full.count("#pragma omp simd") == full.count("tc_l < 16;") == len(p.places) == 2


def test_a_full_tile_has_no_masks() -> None:
    p = printer(MATMUL, WHOLE)
    full = text_of(p, "full")
    leaf = p.nest.leaf
    ((row, rows),) = leaf.rows
    assert "mask" not in full and "if" not in full and "?" not in full
    assert full.count("tc_load_f32x16(") == leaf.vectors and full.count("tc_splat_f32x16(") == rows, "each load once for all rows"
    assert len(re.findall(r"tc_a\d+_\d+ = \(tc_a\d+_\d+ \+ \(tc_x\d+ \* tc_x\d+\)\);", full)) == rows * leaf.vectors
    (accumulators,) = p.accumulators()
    assert accumulators.count("tc_a") == rows * leaf.vectors and accumulators.startswith("tc_float16 ")
    assert row != leaf.lane


def test_the_origin_of_a_tile() -> None:
    p = printer(MATMUL, WHOLE)
    full = text_of(p, "full")
    for dim in ("m", "n", "k"):
        (line,) = (line for line in full.splitlines() if f"tc_o_{dim} =" in line)
        blocks = {loop.block for loop in p.nest.loops if loop.dim == dim}
        assert all(block == 1 or f"{block} * (" in line for block in blocks)


def test_start_and_store() -> None:
    p = printer(MATMUL, WHOLE)
    count = p.accumulators()[0].count("tc_a")
    assert text_of(p, "start").count("tc_splat_f32x16(<0.0>)") == count
    stores = text_of(p, "store")
    assert stores.count("tc_store_f32x16(") == count and "mask" not in stores


@pytest.mark.parametrize("update", ["+=!", "+="])
def test_sums_of_blocks_wait_beside_the_tile(update: str) -> None:
    """One block's are stored, the next one's added, and only those of the last go to their places."""
    p = printer(MATMUL.replace("+=!", update), {"A": (96, 1100), "B": (1100, 96)})
    assert p.nest.block_loop(p.s) is not None and not p.tiled.has_results_in_blocks
    accumulators, array = p.accumulators()
    count = accumulators.count("tc_a")
    assert array == f"float tc_s[{16 * count}] __attribute__((aligned(64)));"
    kept, last = text_of(p, "store").split("else", 1)
    assert kept.count("tc_load_f32x16(tc_s") == kept.count("tc_store_f32x16(tc_s") == count and "tc_o +" not in kept
    assert last.count("tc_store_f32x16(tc_o") == count and last.count("tc_load_f32x16(tc_o") == (count if update == "+=" else 0)


def test_what_is_no_result_is_read_under_masks_but_not_blended() -> None:
    """Lanes beyond the results: only the last vector has some, and none of them is stored."""
    p = printer(MATMUL, ODD)
    partial, store = text_of(p, "partial"), text_of(p, "store")
    vectors = p.nest.leaf.vectors
    assert p.nest.leaf.lane == "n" and vectors == 3 and "tc_blend_f32x16(" not in partial
    assert partial.count("tc_load_masked_f32x16(") == 1 and partial.count("tc_load_f32x16(") == vectors - 1
    assert partial.count("tc_until_f32x16(") == 1, "each mask once"
    assert store.count("tc_store_masked_f32x16(") == len(p.rows) and store.count("tc_store_f32x16(") == len(p.rows) * (vectors - 1)


def test_loads_have_the_conditions_of_what_they_move_with() -> None:
    """Of a triangle's rows, of which the last tile has fewer, each operand is loaded once, the lanes whatever the row is."""
    text = "def f(float(I,D) X) -> (Y) { Y(i,j) +=! (j < i ? X(i,d) * X(j,d) : 0.0) where i in 0:I, j in 0:I }"
    p = printer(text, {"X": (29, 247)})
    partial, vectors, rows = text_of(p, "partial"), p.nest.leaf.vectors, len(p.rows)
    assert 29 % rows and partial.count("load_masked_f32x16(") + partial.count("tc_load_f32x16(") == vectors
    assert partial.count("tc_splat_f32x16(") == rows and "tc_any_f32x16(" not in partial


def test_whole_tiles_are_stored_without_masks() -> None:
    """One comparison for each end of the results, or for each dimension along which the last tile overlaps."""
    p = printer(MATMUL, {"A": (100, 64), "B": (64, 333)})
    store, rows, vectors = text_of(p, "store"), len(p.rows), p.nest.leaf.vectors
    whole, checked = store.split("else")
    assert whole.count("tc_store_f32x16(") == rows * vectors and "masked" not in whole and whole.count("if (") == 1
    assert checked.count("tc_store_masked_f32x16(") + checked.count("tc_store_f32x16(") == rows * vectors and "masked" in checked


def test_prefetch() -> None:
    """The lines that the next tile along the lanes reads at a step, once for all rows."""
    p = printer(MATMUL, {"A": (8, 600), "B": (600, 3000)})
    lanes = p.nest.leaf.vectors * 16
    assert p.nest.prefetch == (Prefetch(1, "n"),) and p.nest.leaf.vectors > 1
    expected = [f"__builtin_prefetch(tc_p1 + {lanes + line});" for line in range(0, lanes, 16)]
    assert [line.strip() for line in text_of(p, "full").splitlines() if "prefetch" in line] == expected
    assert p.tiled.show().endswith(", B prefetched")


def test_the_last_rows_overlap() -> None:
    """The last tile begins where all of its rows are results, and stores those that the tile before does not."""
    p = printer(MATMUL, ODD)
    ((row, rows),) = p.nest.leaf.rows
    assert row == "m" and 17 % rows
    for kind in ("full", "partial", "store"):
        assert f"tc_o_m = (tc_f_m < {17 - rows} ? tc_f_m : {17 - rows});" in text_of(p, kind)
    assert [f"tc_o_m + {r} >= tc_f_m" in text_of(p, "store") for r in range(rows)] == [True] * rows
    assert ">= tc_f_m" not in text_of(p, "partial")


def test_conditions_on_lanes_blend() -> None:
    p = printer("def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! (n <= k ? A(m,k) * B(k,n) : 0.0) }", {"A": (24, 64), "B": (64, 64)})
    assert p.nest.leaf.lane == "n"
    partial = text_of(p, "partial")
    assert partial.count("tc_blend_f32x16(") == p.accumulators()[0].count("tc_a")
    masks = re.findall(r"const tc_mask_f32x16 (tc_m\d+) = (.*);", partial)
    assert len(masks) == len({mask for _, mask in masks}) == p.nest.leaf.vectors, "each mask once"


def test_a_triangle() -> None:
    """Conditions that name the lanes are masks, others branches around a row, but for those that hold wherever a partial tile is; a bound
    from below is ``from``."""
    lower = printer(f"def f({PLAIN}) -> (C) {{ C(m,n) +=! (k <= m ? A(m,k) * B(k,n) : 0.0) }}", {"A": (32, 32), "B": (32, 64)})
    partial = text_of(lower, "partial")
    assert lower.nest.leaf.lane == "n" and "tc_mask" not in partial
    assert partial.count("if (1 * (tc_o_m + ") == len(lower.rows) - 1 and partial.count("tc_load_f32x16(") == lower.nest.leaf.vectors
    upper = printer("def f(float(M,M) A, float(M) x) -> (y) { y(m) +=! (k <= m ? A(k,m) * x(k) : 0.0) }", {"A": (64, 64), "x": (64,)})
    assert upper.nest.leaf.lane == "m" and "tc_from_f32x16(" in text_of(upper, "partial")


def test_lanes_that_are_apart() -> None:
    pool = printer("def f(float(N,W) X) -> (O) { O(n,w) max=! X(n,2*w+j) where w in 0:40, j in 0:3 }", {"X": (8, 90)})
    assert "tc_every2_" in text_of(pool, "full") + text_of(pool, "partial")
    text = text_of(pool, "full") + text_of(pool, "partial")
    assert "tc_max_f32x16(tc_a0_0" in text and "tc_splat_f32x16(<-inf>)" in text_of(pool, "start")
    back = printer(f"def f({PLAIN}) -> (C) {{ C(m,n) +=! A(m,k) * B(k,N-1-n) }}", WHOLE)
    if back.nest.leaf.lane == "n":
        assert "tc_strided_f32x16(" in text_of(back, "full")


def test_results_that_are_apart() -> None:
    p = printer(f"def f({PLAIN}, float(M,N) Z) -> (C) {{ C(n,m) = Z(m,n)  C(n,m) += A(m,k) * B(k,n) }}", {**WHOLE, "Z": (24, 64)})
    store, start = text_of(p, "store"), text_of(p, "start")
    step = p.s.write.stride(p.nest.leaf.lane)
    assert p.s.write.stride(p.nest.leaf.rows[0][0]) == 1 and len(p.rows) % 4 == 0, "rows that are neighbours in memory"
    together = f", {step}, (tc_float16[]){{tc_a0_0, tc_a1_0, tc_a2_0, tc_a3_0}}, TC_ALL_f32x16);"
    assert (together in store) == (step != 1) and "else" not in store
    assert ("tc_strided_" if step != 1 else "tc_load_") in start, "what the results hold"


def test_lanes_of_terms() -> None:
    p = printer("def f(float(M,K) A, float(K) x) -> (y) { y(m) +=! A(m,k) * x(k) }", {"A": (32, 256), "x": (256,)})
    assert p.over_terms
    rows = p.nest.leaf.rows[0][1]
    assert text_of(p, "store").count("tc_across_add_f32x16(") == rows
    text = "def f(float(M,K) A, float(K) x, float(M) z) -> (y) { y(m) = z(m)  y(m) += A(m,k) * x(k) }"
    onward = printer(text, {"A": (32, 256), "x": (256,), "z": (32,)})
    assert onward.over_terms and "] += tc_across_add_f32x16(" in text_of(onward, "store")
    assert "tc_splat_f32x16(<0.0>)" in text_of(onward, "start")


def test_rows_along_two_dimensions() -> None:
    """Accumulators for each pair of points, and an epilogue that tells the pair from their number."""
    text = "def f(float(M,K) A, float(N,K) B, float(N) c) -> (Y) { C(m,n) +=! A(m,k) * B(n,k)  Y(m,n) = C(m,n) + c(n) }"
    p = printer(text, {"A": (30, 2000), "B": (40, 2000), "c": (40,)})
    (first, many), (second, more) = p.nest.leaf.rows
    assert p.over_terms and {first, second} == {"m", "n"} and len(p.rows) == many * more > 4
    store = text_of(p, "store")
    assert store.count("tc_across_add_f32x16(") == many * more
    assert p.epilogue.places_of_row() == [f"(tc_r / {more} % {many})", f"(tc_r / 1 % {more})"] and p.epilogue.places_of_row()[0] in store


def test_windows_are_written_out() -> None:
    text = "def f(float(C,H,W) X, float(C,I,J) G) -> (O) { O(c,h,w) +=! X(c,h+i,w+j) * G(c,i,j) }"
    p = printer(text, {"X": (4, 34, 66), "G": (4, 3, 3)})
    full = text_of(p, "full") if not p.tiled.tiles.full.is_empty() else text_of(p, "partial")
    assert p.nest.leaf.window == ("i", "j") and len(p.window) == 9
    assert full.count("tc_a0_0 = ") == 9
    assert ('__asm__ volatile("" ::: "memory")' in full) == p.nest.leaf.reload


def test_only_the_taps_that_leave_an_image_have_masks() -> None:
    """A row of the image is a whole vector: the last lane of the tap in the middle is the last element."""
    text = """def f(float(N,C,H,W) I, float(M,C,KH,KW) F) -> (O) {
        O(n,m,h,w) +=! (h + kh >= 1 && h + kh <= H && w + kw >= 1 && w + kw <= W) ? I(n,c,h + kh - 1,w + kw - 1) * F(m,c,kh,kw) : 0.0
          where h in 0:H, w in 0:W
    }"""
    p = printer(text, {"I": (4, 16, 16, 16), "F": (3, 16, 3, 3)})
    body = "".join(text_of(p, kind) for kind in ("full", "partial"))
    assert set(re.findall(r"tc_until_f32x16\(([^)]*\))", body)) == {"14 - (tc_o_w + 0)"}
    wide = printer(text, {"I": (4, 16, 16, 32), "F": (9, 16, 3, 3)})
    body = "".join(text_of(wide, kind) for kind in ("full", "partial"))
    assert wide.nest.leaf.vectors == 2, "a row in one tile"
    assert set(re.findall(r"tc_(?:from|until)_f32x16\(([^)]*\))", body)) <= {"-1 + (tc_o_w + 0)", "30 - (tc_o_w + 16)"}


TRANSPOSED = """def f(float(N,C,H) X, float(C,KH,F) K) -> (O) {
    O(n,f,h) +=! (y >= 0 && y < 2*H && y % 2 == 0) ? X(n,c,y/2) * K(c,kh,f) : 0.0 where h in 0:2*H, y = h + 1 - 3*kh
}"""


def test_conditions_on_rows_are_branches_beside_masks_of_lanes() -> None:
    partial = text_of(printer(TRANSPOSED, {"X": (2, 8, 7), "K": (8, 4, 29)}, options=Options(pack=False)), "partial")
    branches = re.findall(r"^ *if \((.*)\) \{$", partial, re.M)
    assert branches and all("tc_o_h" in branch for branch in branches)
    masks = re.findall(r"const tc_mask_f32x16 tc_m\d+ = (.*);", partial)
    assert masks and not any("tc_o_h" in mask for mask in masks), "one for all rows"


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize(("length", "filters"), [(7, 3), (7, 29), (7, 31), (40, 13), (40, 16), (60, 31), (60, 33)])
def test_transposed_convolutions_of_odd_filters(length: int, filters: int, pack: bool) -> None:
    x, k = torch.randn(2, 8, length), torch.randn(8, 4, filters)
    whole = torch.nn.functional.conv_transpose1d(x.double(), k.permute(0, 2, 1).double(), stride=2, padding=1, dilation=3, output_padding=0)
    kernel = tcjit.define(TRANSPOSED, target="cpu").f.compile(x, k, options=tcjit.Options(pack=pack))
    torch.testing.assert_close(kernel(x, k).double(), whole[:, :, : 2 * length], rtol=1e-4, atol=1e-4)


def test_epilogues() -> None:
    """Arithmetic on the accumulators, under the masks of what is stored; rows that are neighbours in memory are stored together."""
    text = f"def f({PLAIN}, float(N) b) -> (Y, T) {{ C(m,n) +=! A(m,k) * B(k,n)  Y(m,n) = C(m,n) + b(n)  T(n,m) = Y(m,n) * C(m,n) }}"
    for shapes in (WHOLE, ODD):
        p = printer(text, {**shapes, "b": (shapes["B"][1],)})
        store = text_of(p, "store")
        vectors, rows = p.nest.leaf.vectors, len(p.rows)
        assert p.epilogue.is_in_vectors and "tc_t" not in store and "omp simd" not in store and "tc_o = C" not in store
        assert store.count("const tc_float16 tc_e") == 2 * vectors * rows and store.count("= b + ") == 1
        assert "tc_o = Y + " in store and "tc_o = T + " in store
        assert ("tc_load_masked" in store) == bool(shapes["B"][1] % (16 * vectors))


def test_functions_of_scattered_results() -> None:
    """Evaluated in arrays, from which rows that are neighbours in memory are stored together."""
    text = f"def f({PLAIN}) -> (T) {{ C(m,n) +=! A(m,k) * B(k,n)  T(n,m) = tanh(C(m,n)) }}"
    for shapes in ({"A": (24, 10), "B": (10, 64)}, {"A": (18, 9), "B": (9, 33)}):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TileCosts, "scattered", lambda self, shape: 0.0)  # else lanes lie along what is stored
            p = printer(text, shapes)
        store, lanes, rows = text_of(p, "store"), p.nest.leaf.vectors * 16, len(p.rows)
        assert p.nest.leaf.lane == "n" and rows >= 4 and not p.epilogue.is_in_vectors
        assert f"float tc_t[{lanes * rows}]" in store and f"float tc_s0[{lanes * rows}]" in store
        assert "T[" not in store and "tc_scatter_rows_f32x16(tc_o" in store and store.count("#pragma omp simd") == 1


def test_scattered_results_that_others_read_are_stored_before_these_are_computed() -> None:
    text = f"def f({PLAIN}) -> (T, U) {{ C(m,n) +=! A(m,k) * B(k,n)  T(n,m) = tanh(C(m,n))  U(n,m) = T(n,m) * T(n,m) + exp(C(m,n)) }}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TileCosts, "scattered", lambda self, shape: 0.0)  # else lanes lie along what is stored
        p = printer(text, WHOLE)
    store = text_of(p, "store")
    assert [e.write.tensor for e in p.epilogue.interleaved] == ["U"] and "tc_s1" not in store
    assert store.index("T[") < store.index("tc_s0[64")


def test_vectors_that_several_sums_take_are_loaded_once() -> None:
    """A compiler may else load one for each: it is a register to it, and what a single sum takes is not."""
    text = text_of(printer(MATMUL, WHOLE), "full")
    several = set(re.findall(r"(tc_x\d+) = tc_in_register_f32x16\(tc_load_f32x16\(tc_p1", text))
    assert several == set(re.findall(r"(tc_x\d+) = \w+\(?\w*\(tc_p1", text)) and several
    single = text_of(printer("def f(float(K,N) X, float(K) w) -> (y) { y(n) +=! X(k,n) * w(k) }", {"X": (50, 64), "w": (50,)}), "full")
    assert "tc_load_f32x16(tc_p" in single and "in_register" not in single


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("fmax(C(m,n), 0.5)", "tc_select_f32x16(tc_a0_0 > tc_splat_f32x16(<0.5>), tc_a0_0, tc_splat_f32x16(<0.5>))"),
        ("fmin(0.5, C(m,n))", "tc_select_f32x16(tc_a0_0 < tc_splat_f32x16(<0.5>), tc_a0_0, tc_splat_f32x16(<0.5>))"),
        (
            "fmax(C(m,n), b(n))",
            "tc_select_f32x16(tc_a0_0 != tc_a0_0, tc_x0, tc_select_f32x16(tc_x0 > tc_a0_0, tc_x0, tc_a0_0))",
        ),
    ],
)
def test_extrema_that_drop_a_nan(value: str, expected: str) -> None:
    """One comparison beside a number."""
    text = f"def f({PLAIN}, float(N) b) -> (Y) {{ C(m,n) +=! A(m,k) * B(k,n)  Y(m,n) = {value} }}"
    used = {**WHOLE, "b": (64,)}
    assert f"tc_e0_0 = {expected};" in text_of(printer(text, used), "store")


def test_functions_behind_a_product_are_evaluated_in_whole_vectors() -> None:
    """Of the last lanes too, from copies of what lies along them; only those that there are are read and stored."""
    text = f"def f({PLAIN}, float(M,N) R, float(M) b) -> (Y) {{ C(m,n) +=! A(m,k) * B(k,n)  Y(m,n) = tanh(C(m,n)) * R(m,n) + b(m) }}"
    shapes = {**ODD, "R": (17, ODD["B"][1]), "b": (17,)}
    p = printer(text, shapes)
    store, lanes = text_of(p, "store"), p.nest.leaf.vectors * 16
    [(count, body)] = re.findall(r"for \(int64_t tc_l = 0; tc_l < (\w+); \+\+tc_l\) \{\n *([^\n]*)", store)
    assert count == str(lanes) and "R[" not in body and "b[" in body and "tc_u0[tc_l]" in body
    vectors = p.nest.leaf.vectors
    assert store.count("tc_load_masked_f32x16(&R[") == store.count("tc_store_masked_f32x16(&Y[") == vectors
    strided = printer(text.replace("R(m,n)", "R(n,m)").replace("float(M,N) R", "float(N,M) R"), {**shapes, "R": (ODD["B"][1], 17)})
    assert "R[" in re.findall(r"tc_l < tc_n; \+\+tc_l\) \{\n *tc_u0\[tc_l\] = ([^\n]*)", text_of(strided, "store"))[0]
    assert "tc_v" not in text_of(printer(text.replace("tanh(C(m,n))", "C(m,n)"), shapes), "store"), "no function"


@pytest.mark.parametrize(
    ("dtype", "width", "vector"), [("float", 4, "tc_float4"), ("double", 8, "tc_double8"), ("double", 2, "tc_double2")]
)
def test_other_vectors(dtype: str, width: int, vector: str) -> None:
    p = printer(MATMUL.replace("float", dtype), WHOLE, options=Options(vector_width=width))
    assert p.vector == vector and p.accumulators()[0].startswith(f"{vector} tc_a0_0")
    assert f"_{'f32' if dtype == 'float' else 'f64'}x{width}(" in text_of(p, "full")


def test_bodies() -> None:
    value = "(A(m,k) < B(k,n) && B(k,n) > 0.5 ? relu(A(m,k)) : -min(abs(B(k,n)), 1.0))"
    p = printer(f"def f({PLAIN}) -> (C) {{ C(m,n) *=! {value} }}", WHOLE)
    full = text_of(p, "full")
    assert all(word in full for word in ("tc_select_f32x16(", "tc_min_f32x16(tc_fabs_f32x16(", " & ", "tc_splat_f32x16(<0.5>)", "(-tc_min"))
    assert "tc_a0_0 = (tc_a0_0 * " in full and "tc_splat_f32x16(<1.0>)" in text_of(p, "start")


def test_neighbours_in_rows_are_stored_together() -> None:
    """Four rows of floats, two of doubles; what is left, and what an edge leaves out, one by one."""
    text = "def f({0}(N,H,W,C) X) -> (O) {{ O(n,c,h,w) max=! X(n,h,w+j,c) where j in 0:3, w in 0:{1} }}"
    for dtype, together in (("float", 4), ("double", 2)):
        p = printer(text.format(dtype, 8), {"X": (2, 5, 10, 64)})
        store = text_of(p, "store")
        assert p.nest.leaf.lane == "c" and p.nest.leaf.rows[0][0] == "w"
        assert store.count("tc_scatter_rows_") == len(p.rows) // together * p.nest.leaf.vectors
        assert store.count("tc_scatter_f") == len(p.rows) % together * p.nest.leaf.vectors
    edges = text_of(printer(text.format("float", 13), {"X": (2, 5, 15, 40)}), "store")
    assert "tc_until_f32x16(" in edges and edges.count("else") == edges.count("tc_scatter_rows_")


def test_an_epilogue_of_several_results_keeps_the_sums_apart() -> None:
    """Those whose rows are neighbours wait in arrays of their own for their store; what follows reads the sums."""
    text = "def f(float(M,K) A, float(K,N) B) -> (P, Q) { C(m,n) +=! A(m,k) * B(k,n)  P(n,m) = tanh(C(m,n))  Q(n,m) = exp(C(m,n)) }"
    a, b = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) for shape in ((48, 20), (20, 64)))
    p, q = tcjit.define(text).f(a, b)
    torch.testing.assert_close(p, torch.tanh(a @ b).t(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(q, torch.exp(a @ b).t(), atol=1e-5, rtol=1e-4)


def test_functions_behind_sums_over_lanes_are_evaluated_in_vectors() -> None:
    """Those of all rows of a tile at once, and of as many more as fill the last vector, which are not stored."""
    text = """def f(float(M,K) A, float(N,K) B, float(N) b) -> (C) {
        C(m,n) +=! A(m,k) * B(n,k)
        C(m,n) = tanh(C(m,n) + b(n)) * b(n)
    }"""
    shapes = {"A": (9, 680), "B": (101, 680), "b": (101,)}
    made = emit_c(map_program(program(text, shapes), Options(), AVX512), C, AVX512, checked=False).text
    whole = re.search(r"omp simd\n\s*for \(int64_t tc_r = 0; tc_r < (\d+); \+\+tc_r\) \{\n\s*tc_v\[tc_r\] = \S*tanh", made)
    assert whole is not None and int(whole[1]) % 16 == 0, made
    a, b, c = (torch.randn(*shape) for shape in shapes.values())
    kernel = tcjit.define(text, target="cpu").f.compile(a, b, c)
    expected = torch.tanh(a.double() @ b.double().T + c.double()) * c.double()
    torch.testing.assert_close(kernel(a, b, c).double(), expected, rtol=1e-4, atol=1e-4)
