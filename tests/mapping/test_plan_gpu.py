"""What is decided for the groups of a GPU: which products run on tensor cores, and with which tile where shared memory is short.

Modules: mapping.gpu.candidates mapping.gpu.kernel_time mapping.gpu.plan_group mapping.gpu.statement_group mapping.plan_chunks
mapping.tile_time
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from support.cases import Case, Fill
from support.gpu import mapped as by_hand
from support.gpu import run, source
from support.mapping import HALVES, LAYER, MATMUL, SMALL, SOFTMAX, TRANSPOSED, program
from support.rings.cuda_host import COMPILER
from support.rings.cuda_target import TARGET
from support.run import assert_right

from tcjit.codegen.dialect import CUDA
from tcjit.codegen.gpu_kernel import emit_gpu
from tcjit.errors import MappingError
from tcjit.mapping import tree as trees
from tcjit.mapping.machine import SM_90, Device
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import Mapped, map_gpu

Shapes = dict[str, tuple[int, ...]]
TIGHT = replace(SMALL, name="tight", shared_bytes=8192, max_shared_bytes=8192)


def mapped(text: str, shapes: Shapes, device: Device = SMALL, **options: object) -> Mapped:
    return map_gpu(program(text, shapes), Options(**options), device, prove="last")  # type: ignore[arg-type]


def products(made: Mapped, device: Device = SMALL) -> int:
    """The instructions of tensor cores in the text; as many as the tree has marks for them."""
    text = emit_gpu(made, CUDA, device, checked=True).text
    found = text.count("tc_mma_half(&") + text.count("tc_mma_bfloat(&")
    assert bool(found) == ('mark: "mma"' in trees.show(made.tree))
    return found


def shared(made: Mapped) -> dict[str, int]:
    return {b.tensor: b.elements for b in made.privates if b.space == "shared"}


def launches(text: str, shapes: Shapes, **options: object) -> tuple[int, int]:
    """On an sm_90: how many launches, and bytes of workspace."""
    made = mapped(text, shapes, SM_90, **options)
    found = emit_gpu(made, CUDA, SM_90, checked=True)
    return len(found.launches), found.workspace


# ---------------------------------------------------------------- tensor cores

# A's dimensions and subscripts, and whether its pieces are matrices that an instruction can load
OPERANDS = {
    "rows": ("M,K", "m,k", True),
    "columns": ("K,M", "k,m", True),
    "batch_last": ("M,K,3", "m,k,2", True),
    "of_one_element": ("M,1,K,1", "m,0,k,0", True),
    "backwards": ("M,K", "m,K - 1 - k", True),
    "rows_backwards": ("K,M", "k,M - 1 - m", True),
    "every_second_row": ("128,K", "2*m,k", True),
    "every_second_term": ("128,K", "m,2*k", True),
    "shifted": ("100,80", "m + 10,k + 3", True),
    "the_same_for_all_terms": ("M", "m", False),  # the other operand is summed first
    "both_backwards": ("M,K", "M - 1 - m,K - 1 - k", False),
    "toeplitz": ("128", "m + k", False),
    "sheared": ("M,128", "m,m + k", False),
    "no_sum": ("M,K", "m,(k*k) % K", False),
}


@pytest.mark.parametrize(("dims", "at", "fits"), OPERANDS.values(), ids=OPERANDS)
def test_only_matrices_go_to_tensor_cores(dims: str, at: str, fits: bool) -> None:
    sizes = {"M": 64, "K": 64}
    text = f"def f(float16({dims}) A, float16(K,N) B) -> (Y) {{ Y(m,n) +=! A({at}) * B(k,n) where m in 0:64 }}"
    shape = tuple(sizes[d] if d in sizes else int(d) for d in dims.split(","))
    assert bool(products(mapped(text if "M" in dims else text.replace("M - 1", "63"), {"A": shape, "B": (64, 72)}))) == fits


@pytest.mark.parametrize("terms", [16, 48, 64, 128, 256, 24, 100, 4090])
def test_every_number_of_atoms(terms: int) -> None:
    """Of 128 terms the largest tile has no room for all at once; what is missing of the last atom are zeros."""
    assert products(mapped(HALVES, {"A": (4096, terms), "B": (terms, 4096)}, SM_90), SM_90)


@pytest.mark.parametrize(("terms", "computed"), [(16, 16), (48, 48), (96, 96), (100, 128)])
def test_steps_are_all_alike_where_whole_atoms_can_be(terms: int, computed: int) -> None:
    """Nothing is multiplied by zeros that fill up a last step unless no atoms fit the terms."""
    made = mapped(HALVES, {"A": (4096, terms), "B": (terms, 4096)}, SM_90)
    (sums,) = (s for s in made.scop.statements if s.reduction)
    assert made.scop.instances(sums).count_val().to_python() == computed * 4096**2


@pytest.mark.parametrize("terms", [4, 8])
def test_less_than_an_atom_is_computed_by_threads(terms: int) -> None:
    assert not products(mapped(HALVES, {"A": (128, terms), "B": (terms, 128)}))


@pytest.mark.parametrize("result, term", [("float32(N,M) C", "float32(A(i,k) * B(j,k))"), ("C", "A(i,k) * B(j,k)")])
def test_tiles_without_results_are_left_out_on_tensor_cores(result: str, term: str) -> None:
    text = f"def f(bfloat16(N,K) A, bfloat16(M,K) B) -> ({result}) {{ C(i,j) +=! (j <= i) ? {term} : 0.0 }}"
    made = mapped(text, {"A": (512, 64), "B": (512, 64)})
    assert products(made)
    (sums,) = (s for s in made.scop.statements if s.reduction)
    computed = made.scop.instances(sums).count_val().to_python() / 64
    assert 0.5 < computed / 512**2 < 0.75


def test_what_the_program_rounds_to_halves_goes_to_tensor_cores() -> None:
    """Once, before the product."""
    text = """def f(float(M,K) S, bfloat16(K,N) V) -> (float32(M,N) O) {
        P(m, k) = exp(S(m, k))
        O(m, n) +=! float32(bfloat16(P(m, k)) * V(k, n))
    }"""
    made = mapped(text, {"S": (128, 128), "V": (128, 128)})
    assert products(made)
    assert [s.value.dtype for s in made.scop.statements if s.tensor == "P_narrow"] == ["bfloat16"]


WINDOWS = "def conv(float16(N,C,H,W) X, float16(F,C,KH,KW) F1) -> (Y) { Y(n,f,h,w) +=! X(n,c,h + kh,w + kw) * F1(f,c,kh,kw) }"


@pytest.mark.parametrize(("channels", "filters", "side"), [(16, 32, 20), (24, 40, 30), (64, 64, 56)])
def test_convolutions_of_halves_go_to_tensor_cores(channels: int, filters: int, side: int) -> None:
    """A step has one place of the window, and as many channels as an atom has terms."""
    made = mapped(WINDOWS, {"X": (2, channels, side, side), "F1": (filters, channels, 3, 3)})
    assert products(made)
    inside = "h + kh >= 1 && h + kh <= H && w + kw >= 1 && w + kw <= W"
    padded = WINDOWS.replace("X(n,c,h + kh,w + kw)", f"(({inside}) ? X(n,c,h + kh - 1,w + kw - 1) : 0.0)")
    assert products(mapped(padded.replace(" }", " where h in 0:H, w in 0:W }"), {"X": (2, 16, 30, 30), "F1": (32, 16, 3, 3)}))


@pytest.mark.parametrize(
    "body", ["T(m,n) +=! A(m,k) * B(k,n)  Y(m,n) = T(m,n) + b(n)", "Y(m,n) +=! A(m,k) * B(k,n)  Y(m,n) = Y(m,n) + b(n)"]
)
def test_results_of_tensor_cores_stay_in_registers(body: str) -> None:
    """No other temporary takes the registers that they need; what is computed of them may then have the same."""
    text = f"def f(float16(M,K) A, float16(K,N) B, float16(N) b) -> (Y) {{ {body} }}"
    made = mapped(text, {"A": (4096, 64), "B": (64, 4096), "b": (4096,)}, SM_90)
    assert products(made, SM_90)
    assert [b.elements for b in made.privates if b.space == "thread"] == [128, 128]
    assert emit_gpu(made, CUDA, SM_90, checked=True).workspace == 0


def test_without_room_the_tile_of_tensor_cores_is_smaller() -> None:
    shapes: Shapes = {"A": (256, 64), "B": (64, 256)}
    assert shared(mapped(HALVES, shapes)) == {"A_shared": 128 * (64 + 8), "B_shared": 64 * (128 + 8)}
    made = mapped(HALVES, shapes, TIGHT)
    assert products(made, TIGHT)
    assert 2 * sum(shared(made).values()) <= 8192


def test_another_form_below_atoms_is_refused() -> None:
    text = "def mm(float(M,K) A, float(K,N) B) -> (C) { C(m,n) += A(m,k) * B(k,n) }"
    path = ["launch 0", "block 0", "mma", "threads 8x4", ["floor(m/2)", "n"], ["k"]]
    made = by_hand(text, {"A": (16, 16), "B": (16, 4)}, path, threads=[32])  # type: ignore[arg-type]
    with pytest.raises(MappingError, match="mapped to tensor cores and does not have their form"):
        source(made)


# ---------------------------------------------------------------- tiles that fit


def test_a_step_too_long_for_the_largest_tile_gets_a_smaller_one() -> None:
    shapes: Shapes = {"A": (4096, 4096), "B": (4096, 4096)}
    made = mapped(MATMUL, shapes, SM_90, reduction_tile=256)
    sizes = shared(made)
    assert 4 * sum(sizes.values()) <= SM_90.max_shared_bytes
    assert [b.elements for b in made.privates if b.space == "thread"] == [16]  # 64 by 64 results of 256 threads


def test_a_tile_that_is_asked_for_is_not_replaced() -> None:
    shapes: Shapes = {"A": (4096, 4096), "B": (4096, 4096)}
    pieces = "option reduction_tile = 256: the pieces of . need 1[0-9]{5} bytes .* sm_90 has 232448"
    with pytest.raises(MappingError, match=pieces) as raised:
        mapped(MATMUL, shapes, SM_90, reduction_tile=256, registers=(8, 8), threads=(16, 16))
    assert raised.value.hint == "a smaller reduction_tile, or fewer registers"


def test_where_no_tile_fits_the_least_is_named() -> None:
    with pytest.raises(MappingError, match=r"option reduction_tile = 256: the pieces of [AB] need") as raised:
        mapped(MATMUL, {"A": (512, 512), "B": (512, 512)}, TIGHT, reduction_tile=256)
    assert "tight has 8192" in str(raised.value)
    assert re.search(r"need (\d+) bytes", str(raised.value)).group(1) == str(8 * (512 + 4) * 4)  # type: ignore[union-attr]
    with pytest.raises(MappingError, match="option pipeline_stages = 8"):
        mapped(MATMUL, {"A": (512, 512), "B": (512, 512)}, replace(TIGHT, max_shared_bytes=512, shared_bytes=512), pipeline_stages=8)


@pytest.mark.parametrize(
    ("dtype", "ahead"), [("float", True), ("double", True), ("int32", True), ("int64", True), ("int16", False), ("int8", False)]
)
def test_elements_that_an_instruction_copies_alone_are_copied_ahead(dtype: str, ahead: bool) -> None:
    made = mapped(MATMUL.replace("float", dtype), {"A": (512, 512), "B": (512, 512)}, SM_90)
    assert ("cp.async" in emit_gpu(made, CUDA, SM_90, checked=True).text) == ahead


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_more_stages_than_fit_the_largest_tile(stages: int) -> None:
    made = mapped(HALVES, {"A": (512, 512), "B": (512, 512)}, TIGHT, pipeline_stages=stages)
    assert 2 * sum(shared(made).values()) <= 8192


# ---------------------------------------------------------------- few results

NORM = """def norm(float(N,C) I, float(C) G, float(C) B) -> (O) {
    mean(n) +=! I(n,c)
    mean(n) = mean(n) / C
    var(n) +=! (I(n,c) - mean(n)) * (I(n,c) - mean(n))
    O(n,c) = (I(n,c) - mean(n)) * rsqrt(var(n) / C + 0.00001) * G(c) + B(c)
}"""
SUMS = "def sums(float(N,C) X) -> (Y) { Y(n) +=! X(n,c) }"
ROWS = [(SOFTMAX, (16, 4096)), (SOFTMAX, (1, 97)), (SOFTMAX, (7, 97)), (SOFTMAX, (32, 128)), (NORM, (65, 97)), (NORM, (16, 32768))]


@pytest.mark.parametrize(("text", "shape"), ROWS)
def test_few_rows_that_a_block_can_keep_are_read_once(text: str, shape: tuple[int, int]) -> None:
    shapes: Shapes = {"I": shape, "G": shape[1:], "B": shape[1:]} if text is NORM else {"I": shape}
    assert launches(text, shapes) == (1, 0)
    made = mapped(text, shapes, SM_90)
    assert [s.name[0] for s in made.scop.statements for a, _ in s.reads if a.tensor == "I"] == ["L"]


def test_few_rows_longer_than_a_block_can_keep_are_split() -> None:
    made = mapped(SOFTMAX, {"I": (4, 1000000)}, SM_90)
    assert len(made.launches) == 3
    parts = {t.name: t.shape for t in made.scop.tensors if "_part" in t.name}
    assert parts["top_part"][0] * 4 >= 2 * SM_90.processors
    assert launches(SUMS, {"X": (4, 1000000)}) == (2, 1280)
    assert launches(SUMS, {"X": (4, 32768)}) == (1, 0)


@pytest.mark.parametrize("shape", [(4096, 4096), (100000, 16), (264, 100000)])
def test_no_reduction_with_many_results_is_cut(shape: tuple[int, int]) -> None:
    assert launches(SUMS, {"X": shape}, block=512) == (1, 0)


@pytest.mark.parametrize(("chunks", "parts"), [(4, 4), (16, 16), (30, 32), (4096, 64)])
@pytest.mark.parametrize("rows", [4, 264, 100000])
def test_chunks_that_are_asked_for_are_made(rows: int, chunks: int, parts: int) -> None:
    """Or somewhat more that divide the terms, and no more than there are terms."""
    assert launches(SUMS, {"X": (rows, 64)}, reduction_chunks=chunks) == (2, parts * rows * 4)
    assert launches(SUMS, {"X": (rows, 64)}, reduction_chunks=1) == (1, 0)


@pytest.mark.parametrize("fusion", ["maximal", "preserve_three_coincident", "minimal"])
def test_parts_of_a_reduction_are_a_launch_of_their_own(fusion: str) -> None:
    """Their results are all that lies in the workspace, however short the rows."""
    assert launches(SUMS, {"X": (16, 4096)}, reduction_chunks=8, fusion=fusion) == (2, 8 * 16 * 4)
    made = mapped(SOFTMAX, {"I": (16, 4096)}, SM_90, reduction_chunks=8, fusion=fusion)
    assert not any(t.name.endswith("_part_part") and t.name not in {b.tensor for b in made.privates} for t in made.scop.tensors)


def test_products_keep_their_tiles_whatever_the_chunks() -> None:
    shapes: Shapes = {"A": (1024, 1024), "B": (1024, 1024)}
    for chunks in (4, 32):
        assert set(shared(mapped(MATMUL, shapes, SM_90, reduction_chunks=chunks))) == set(shared(mapped(MATMUL, shapes, SM_90)))
        assert launches(MATMUL, shapes, reduction_chunks=chunks) == (2, chunks * 1024 * 1024 * 4)
    few: Shapes = {"A": (128, 4096), "B": (4096, 128)}
    assert set(shared(mapped(MATMUL, few, SM_90, reduction_chunks=4))) == {"A_shared", "B_shared"}
    assert launches(MATMUL, few, reduction_chunks=4) == (2, 4 * 128 * 128 * 4)


def test_sums_of_few_results_are_shared_by_threads() -> None:
    """Tiles of 16 by 16 results would leave most processors without work."""
    made = mapped(MATMUL, {"A": (16, 1024), "B": (1024, 16)}, SM_90, reduction_chunks=1)
    assert not {"A_shared", "B_shared"} & set(shared(made))
    assert any(s.name[0] == "R" for s in made.scop.statements)


# ---------------------------------------------------------------- neighbours


@pytest.mark.parametrize(("text", "wide"), [(MATMUL, 4), (HALVES, 8), (TRANSPOSED, 4)])
@pytest.mark.parametrize("vector", [0, 1, 2, 4])
def test_no_copy_takes_more_neighbours_than_asked(text: str, wide: int, vector: int) -> None:
    shapes: Shapes = {"A": (256, 256)} if text is TRANSPOSED else {"A": (256, 256), "B": (256, 256)}
    made = mapped(text, shapes, SM_90, vector=vector)
    last = {dims[-1][1][-1] for name, dims in made.digits.items() if name.startswith("C")}
    if vector == 1:
        assert last and not last & {(1, 2), (1, 4)}
    else:
        assert last == {(1, min(wide, vector or wide))}


# ---------------------------------------------------------------- conditions on terms

CONDITIONS = ("k <= i", "k >= i", "k <= i && k + 20 >= i", "k <= i || k >= i + 100", "k + i >= 200", "k < 200", "k >= i + 240")


@pytest.mark.sample(2)
@pytest.mark.parametrize("stages", [0, 3])
@pytest.mark.parametrize("rows", [48, 250])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_copies_run_ahead_of_steps_that_conditions_leave(condition: str, rows: int, stages: int) -> None:
    """A block may have a step alone, the last one, or some with others between them: the proofs say that it waits for all of its copies."""
    text = f"def f(float(N,K) A, float(K,M) B) -> (C) {{ C(i,j) +=! ({condition}) ? A(i,k) * B(k,j) : 0.0 }}"
    made = mapped(text, {"A": (rows, 256), "B": (256, 40)}, SM_90, pipeline_stages=stages)
    assert any(s.constraints and s.reduction for s in made.scop.statements)


@pytest.mark.parametrize("condition", ["k >= i + 300", "i > 60"])
def test_conditions_that_leave_no_term(condition: str) -> None:
    text = f"def f(float(N,K) A, float(K,M) B) -> (C) {{ C(i,j) +=! ({condition}) ? A(i,k) * B(k,j) : 0.0 }}"
    assert mapped(text, {"A": (48, 256), "B": (256, 40)}, SM_90).launches


# ---------------------------------------------------------------- windows and squares

POOL = "def pool(float(N,H,W) X) -> (Y) { Y(n,h,w) max=! X(n,2*h + i,2*w + j) where h in 0:100, w in 0:100, i in 0:3, j in 0:3 }"


@pytest.mark.parametrize("images", [100, 1])
def test_a_thread_has_a_whole_window(images: int) -> None:
    """Its loads are under way together."""
    made = mapped(POOL, {"X": (images, 202, 202)}, SM_90)
    assert "tc_shuffle" not in emit_gpu(made, CUDA, SM_90, checked=True).text


@pytest.mark.parametrize(("dtype", "elements"), [("float", 32 * 33), ("bfloat16", 64 * 72), ("int8", 64 * 80)])
def test_narrow_types_are_turned_in_larger_squares(dtype: str, elements: int) -> None:
    made = mapped(f"def turn({dtype}(M,N) A) -> (B) {{ B(j,i) = A(i,j) }}", {"A": (1024, 2048)}, SM_90)
    assert shared(made) == {"A_shared": elements}


@pytest.mark.parametrize(("first", "elements"), [(0, 64 * 72), (1, 32 * 33)])
def test_pairs_of_narrow_elements_begin_at_the_first(first: int, elements: int) -> None:
    """Results from another one on are written one by one: pairs of them would not be aligned."""
    text = f"""def turn(bfloat16(M,N) A) -> (B) {{
        B(j,i) = bfloat16(0.0) where i in 0:1025, j in 0:2048
        B(j,i) = A(i,j) where i in {first}:1024+{first}, j in 0:2048
    }}"""
    assert shared(mapped(text, {"A": (1025, 2048)}, SM_90)) == {"A_shared": elements}


# ---------------------------------------------------------------- elements of a thread


@pytest.mark.parametrize(
    ("text", "shape", "sides"),
    [
        ("def f(float(A,B,C,D) X) -> (Y) { Y(d,c,b,a) = X(a,b,c,d) }", (9, 113, 23, 183), (9, 4, 1, 32)),
        ("def f(float(A,B,C,D) X) -> (Y) { Y(c,b,d,a) = X(a,b,c,d) }", (64, 500, 12, 10), (32, 1, 4, 10)),
        ("def f(half(A,B,C,D) X) -> (Y) { Y(d,c,b,a) = 2.0 * X(a,b,c,d) }", (8, 114, 22, 184), (8, 4, 1, 32)),
        ("def f(float(A,B,C,D) X) -> (Y) { Y(a,d,c,b) = X(a,b,c,d) }", (90, 16, 2, 12), ()),  # one side has 24 places in rows
    ],
)
def test_a_side_of_a_square_has_several_dimensions(text: str, shape: tuple[int, ...], sides: tuple[int, ...]) -> None:
    made = mapped(text, {"X": shape}, SM_90)
    found = [[part for axis in b.axes for _, part, _ in axis.parts] for b in made.privates if b.space == "shared"]
    assert found == ([[extent for extent in sides if extent > 1]] if sides else [])


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize("dtype", ["float", "uint8"])
@pytest.mark.parametrize(("order", "shape"), [("d,c,b,a", (9, 13, 3, 43)), ("c,d,b,a", (9, 13, 33, 3)), ("d,b,c,a", (36, 3, 2, 5))])
def test_squares_of_several_dimensions_are_right(dtype: str, order: str, shape: tuple[int, ...]) -> None:
    text = f"def f({dtype}(A,B,C,D) X) -> (Y) {{ Y({order}) = X(a,b,c,d) }}"
    kind = {"float": "float32"}.get(dtype, dtype)
    assert_right(Case(text, {"X": shape}, {"X": Fill(kind, "small", 1, 0, 9)}, exact=True), TARGET)


def test_a_thread_has_several_elements_where_vectors_are_not_possible() -> None:
    """Its loads are under way together, as long as all processors have threads."""
    text = "def f(float(N) X) -> (Y) { Y(n) = X(n + 1) + 1.0 where n in 0:L }"

    def loops(size: int) -> str:
        made = mapped(text.replace("L", str(size - 1)), {"X": (size,)}, SM_90, vector=1)
        return emit_gpu(made, CUDA, SM_90, checked=True).text

    assert loops(1 << 24).count("Y[") == 2 and "c2 <= 2" in loops(1 << 24)  # three, and one that may be outside
    assert loops(100001).count("Y[") == 1 and "#pragma unroll" not in loops(100001)


@pytest.mark.parametrize(("text", "shape", "width"), [
    ("def f(half(A,B) X) -> (Y) { Y(a,b) = X(a,b) * sigmoid(X(a,b)) }", (615, 13483), "uint4"),
    ("def f(float(A,B) X) -> (Y) { Y(a,b) = X(a,b) + 1.0 }", (1023, 1025), "float4"),
    ("def f(float(A,B) X, float(A) U) -> (Y) { Y(a,b) = X(a,b) + U(a) }", (1023, 1025), ""),
])  # fmt: skip
def test_vectors_end_where_a_tensor_does(text: str, shape: tuple[int, int], width: str) -> None:
    """Where all others are aligned: rows of an odd length that are one dimension, not those that are not."""
    found = emit_gpu(mapped(text, {"X": shape, "U": shape[:1]}, SM_90), CUDA, SM_90, checked=True).text
    assert width in found and ("*(const" in found) == bool(width)


def test_a_thread_reads_a_short_row() -> None:
    """Its warp then reads whole sectors, from the second element on out of the L1 cache, and writes neighbours."""
    text = "def f(float(B,C,A) X, float(B,C) U) -> (O) { O(a,b,c) = X(b,c,a) + U(b,c) }"
    found = emit_gpu(mapped(text, {"X": (41, 609, 11), "U": (41, 609)}, SM_90), CUDA, SM_90, checked=True).text
    assert "c2 <= 10" in found and "X[2816 * c0 + 11 * c1 + c2]" in found


@pytest.mark.parametrize("step", [2, 3])
def test_threads_go_along_the_smallest_steps_of_results(step: int) -> None:
    """Where no access has neighbours next to each other: zeros between those of a transposed convolution."""
    text = f"""def f(float(N,H,W) X, float(K) V) -> (O) {{
        O(n,h,w) +=! (x >= 0 && x < {step}*W && x % {step} == 0) ? X(n,h,x/{step}) * V(k) : 0.0 where w in 0:{53 * step}, x = w - k }}"""
    found = emit_gpu(mapped(text, {"X": (231, 5, 53), "V": (1,)}, SM_90), CUDA, SM_90, checked=True).text
    (zeros,) = {line.strip() for line in found.splitlines() if f"{step} * c" in line and "+ 1] = 0.0f" in line}
    along = re.search(rf"\D{step} \* (c\d)", zeros)
    assert along and re.search(rf"{along[1]} = tc_thread( % \d+)?;", found)



@pytest.mark.parametrize(
    ("text", "shapes", "blocks", "threads"),
    [
        ("def f(float(N,M) X) -> (Y) { Y(m) +=! X(n,m) }", {"X": (8192, 4096)}, 128, 1024),
        ("def f(float(N,M) X) -> (Y) { Y(m) +=! X(n,m) }", {"X": (8192, 32768)}, 1024, 256),
        ("def f(float(E,D) T, int32(B,L) I) -> (O) { O(b,d) +=! T(I(b,l), d) }", {"T": (100000, 64), "I": (128, 50)}, 256, 128),
    ],
)
def test_few_sums_have_threads_enough_for_all_processors(text: str, shapes: Shapes, blocks: int, threads: int) -> None:
    """As many as share the sums where that takes less time than to wait for all loads of one."""
    made = emit_gpu(mapped(text, shapes, SM_90), CUDA, SM_90, checked=True)
    assert [(prod(launch.grid), launch.threads) for launch in made.launches] == [(blocks, threads)]


def test_short_sides_of_a_tile_have_neighbours_in_a_thread() -> None:
    """Sixteen filters are four threads with four each, and the threads that they leave go to the other side."""
    text = "def f(float(N,G,C,H,W) X, float(G,F,C,KH,KW) K) -> (Y) { Y(n,g,f,h,w) +=! X(n,g,c,h + i,w + j) * K(g,f,c,i,j) }"
    made = mapped(text, {"X": (16, 16, 16, 18, 18), "K": (16, 16, 16, 3, 3)}, SM_90)
    (launch,) = made.launches
    assert [b.elements for b in made.privates if b.tensor == "Y_held"] == [16] and launch.threads >= 128


CHANNELS = """def f(float(N,C,S) X, float(C) G) -> (Y) {
    top(n,s) max=! X(n,c,s)
    E(n,c,s) = exp(X(n,c,s) - top(n,s))
    total(n,s) +=! E(n,c,s)
    Y(n,c,s) = E(n,c,s) / total(n,s) * G(c)
}"""


@pytest.mark.parametrize(("channels", "read_once"), [(33, True), (40, True), (512, True), (1024, True), (1025, False)])
def test_threads_share_what_lies_apart_and_is_read_again(channels: int, read_once: bool) -> None:
    """Neighbours in memory belong to other results; the threads of a block keep up to 32 elements each of 32 sums."""
    made = mapped(CHANNELS, {"X": (8, channels, 16384), "G": (channels,)}, SM_90)
    assert len(made.launches) == 1
    assert read_once == ([s.name[0] for s in made.scop.statements for a, _ in s.reads if a.tensor == "X"] == ["L"])


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize("places", [608, 601])
def test_what_threads_share_is_right(places: int) -> None:
    device = replace(SM_90, processors=4)
    x = np.random.default_rng(3).normal(size=(2, 40, places)).astype(np.float32)
    x[1, 39, 7] = np.nan
    g, y = np.arange(40, dtype=np.float32), np.empty_like(x)
    made = mapped(CHANNELS, {"X": x.shape, "G": g.shape}, device)
    assert any(s.name[0] == "R" for s in made.scop.statements)
    assert run(emit_gpu(made, CUDA, device, checked=True), [y], [x, g]) == 0
    exact = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    exact = exact / exact.sum(1, keepdims=True) * g[:, None]
    assert np.allclose(y, exact, rtol=1e-5, atol=1e-6, equal_nan=True) and np.isnan(y[1, :, 7]).all()


# ---------------------------------------------------------------- windows that are padded

PADDED = "(h + i >= 1 && h + i <= H && w + j >= 1 && w + j <= W) ? X(n,c,h + i - 1,w + j - 1) : 0.0"
SLIDE = f"""def f(float(N,C,H,W) X, float(C,KH,KW) K, float(C) B) -> (Y) {{
    Y(n,c,h,w) = B(c) where n in 0:N, h in 0:H, w in 0:W
    Y(n,c,h,w) += ({PADDED}) * K(c,i,j) where h in 0:H, w in 0:W
}}"""
CONVOLVE = SLIDE.replace("float(C,KH,KW) K", "float(F,C,KH,KW) K").replace("float(C) B", "float(F) B").replace("Y(n,c,", "Y(n,f,").replace(
    "B(c)", "B(f)"
).replace("K(c,i,j)", "K(f,c,i,j)")  # fmt: skip


def test_a_window_is_copied_with_zeros_where_results_share_it() -> None:
    """A filter for each channel reads every element for its own results alone, where caches have them: no copy. Of a convolution the copy
    comes first, so that results start in the kernel that adds to them."""
    image = (4, 32, 28, 28)
    alone = mapped(SLIDE, {"X": image, "K": (32, 3, 3), "B": (32,)}, SM_90)
    assert len(alone.launches) == 1 and not any("_padded" in t.name for t in alone.scop.tensors)
    shared_ = mapped(CONVOLVE, {"X": image, "K": (32, 32, 3, 3), "B": (32,)}, SM_90)
    assert len(shared_.launches) == 2 and any("_padded" in t.name for t in shared_.scop.tensors)


# ---------------------------------------------------------------- operands that divide

HEADS = "def f({t}(H,T,D) Q, {t}(G,S,D) K) -> (A) {{ A(h,t,s) +=! Q(h,t,d) * K({h},s,d) }}"
WITHIN = "y + i >= 1 && y + i <= 2*H && x + j >= 1 && x + j <= 2*W"
UPSAMPLE = f"""def f({{t}}(N,C,H,W) X, {{t}}(O,C,3,3) K) -> (Y) {{{{
    Y(n,o,y,x) +=! ({WITHIN}) ? X(n,c,(y + i - 1)/2,(x + j - 1)/2) * K(o,c,i,j) : 0.0 where y in 0:2*H, x in 0:2*W
}}}}"""
GROUPS = """def f({t}(N,C,H,W) X, {t}(O,G,3,3) K) -> (Y) {{
    Y(n,o,h,w) +=! X(n,o/12*G + c,h + i,w + j) * K(o,c,i,j) where o in 0:O, c in 0:G
}}"""
DIVIDED: dict[str, tuple[str, Shapes]] = {
    "heads": (HEADS.format(t="float", h="h/4"), {"Q": (8, 70, 40), "K": (2, 90, 40)}),
    "heads_of_halves": (HEADS.format(t="bfloat16", h="h/4"), {"Q": (8, 70, 64), "K": (2, 90, 64)}),
    "a_last_group_that_is_short": (HEADS.format(t="float", h="(h + 1)/4"), {"Q": (6, 70, 40), "K": (2, 90, 40)}),
    "remainders": (HEADS.format(t="float", h="2*(h%3) + 1"), {"Q": (7, 70, 40), "K": (6, 90, 40)}),
    "one_query": (HEADS.format(t="float", h="h/16"), {"Q": (32, 1, 128), "K": (2, 4000, 128)}),
    "groups": (GROUPS.format(t="float"), {"X": (8, 16, 40, 66), "K": (24, 8, 3, 3)}),
    "upsampled": (UPSAMPLE.format(t="float"), {"X": (4, 16, 40, 33), "K": (24, 16, 3, 3)}),
}


@pytest.mark.parametrize(("text", "shapes"), DIVIDED.values(), ids=DIVIDED)
def test_products_that_divide_indices_have_tiles(text: str, shapes: Shapes) -> None:
    """Of what a subscript divides a block takes one value, or digits; what a window divides is copied."""
    made = mapped(text, shapes, SM_90)
    assert {tensor.partition("_")[0] for tensor in shared(made)} == {*shapes}
    assert bool(products(made, SM_90)) == ("bfloat16" in text)


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize(("text", "shapes"), DIVIDED.values(), ids=DIVIDED)
def test_products_that_divide_indices_are_right(text: str, shapes: Shapes) -> None:
    kind = "bfloat16" if "bfloat16" in text else "float32"
    fills = {name: Fill(kind, "small", number, -2, 2) for number, name in enumerate(shapes)}
    small = {name: tuple(extent if extent < 25 else 25 + extent % 8 for extent in shape) for name, shape in shapes.items()}
    assert_right(Case(text, small, fills, exact="bfloat16" not in text, options=Options(reduction_tile=16)), TARGET)


def test_data_in_a_subscript_make_no_tile() -> None:
    text = HEADS.format(t="float", h="G(h)").replace("Q,", "Q, int32(H) G,").replace("float(G,S,D)", "float(L,S,D)")
    assert not shared(mapped(text, {"Q": (8, 70, 40), "G": (8,), "K": (2, 90, 40)}, SM_90))


# ---------------------------------------------------------------- rows


@pytest.mark.parametrize(("columns", "threads"), [(3, 4), (5, 8), (8, 2), (9, 16), (16, 4), (17, 32)])
def test_short_rows_have_as_many_threads_as_pieces(columns: int, threads: int) -> None:
    """Filled up to a power of two, for which a warp exchanges values; a piece is of four neighbours where all of a row are.

    Each thread keeps its part of a row's sum in a register.
    """
    made = mapped(SOFTMAX, {"I": (1000, columns)}, SM_90)
    assert re.search(rf'"threads \d+x{threads}"', trees.show(made.tree))
    assert {b.tensor: b.space for b in made.privates if b.tensor.endswith("_part")} == {"top_part": "thread", "total_part": "thread"}


# ---------------------------------------------------------------- blocks for all processors

FEW_TILES: dict[str, tuple[str, Shapes]] = {
    "few_results": (MATMUL, {"A": (16, 100000), "B": (100000, 16)}),
    "odd": (MATMUL, {"A": (15, 99991), "B": (99991, 17)}),
    "layer": (LAYER, {"X": (128, 2000), "W": (128, 2000), "b": (128,)}),
    "halves": (HALVES, {"A": (64, 65536), "B": (65536, 64)}),
}


@pytest.mark.parametrize(("text", "shapes"), FEW_TILES.values(), ids=FEW_TILES)
def test_products_of_few_tiles_are_cut_into_chunks_for_all_processors(text: str, shapes: Shapes) -> None:
    first, *others = emit_gpu(mapped(text, shapes, SM_90), CUDA, SM_90, checked=True).launches
    assert prod(first.grid) >= 0.9 * SM_90.processors and others


BATCH = "def f(float(B,M,K) X, float(B,K,N) Y) -> (Z) { Z(b,m,n) +=! X(b,m,k) * Y(b,k,n) }"
MANY_TILES: dict[str, tuple[str, Shapes]] = {
    "square": (MATMUL, {"A": (4096, 4096), "B": (4096, 4096)}),
    "batch": (BATCH, {"X": (500, 64, 256), "Y": (500, 256, 64)}),
    "short": (MATMUL, {"A": (64, 64), "B": (64, 64)}),
}


@pytest.mark.parametrize(("text", "shapes"), MANY_TILES.values(), ids=MANY_TILES)
def test_products_of_many_tiles_or_few_terms_are_in_one_launch(text: str, shapes: Shapes) -> None:
    assert launches(text, shapes) == (1, 0)


def test_chunks_are_padded_as_a_whole_sum_is() -> None:
    """The terms behind a chunk's last are those of the next: zeros take their place."""
    made = mapped(MATMUL, {"A": (16, 100000), "B": (100000, 16)}, SM_90)
    (sums,) = (s for s in made.scop.statements if s.reduction and s.operator == "+=" and len(s.dims) == 4)
    assert sums.extent("k") > 100000 // sums.extent("chunk") and {s.name[0] for s in made.scop.statements} >= {"C", "Z"}
