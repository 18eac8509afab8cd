"""GPU kernels from trees written by hand: which lines they have, and what they compute when CUDA text runs on the host.

Modules: codegen.emitter codegen.gpu_body codegen.gpu_emitter codegen.memory codegen.vector
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from support.gpu import lines, mapped, run, source
from support.mapping import SMALL, SOFTMAX, program
from support.rings.cuda_host import COMPILER

from tcjit.codegen.dialect import CUDA, OPENCL
from tcjit.codegen.gpu_kernel import emit_gpu
from tcjit.errors import CompileError, MappingError
from tcjit.mapping.machine import OPENCL as PLAIN
from tcjit.mapping.machine import SM_90
from tcjit.mapping.marks import GridBlock
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import Mapped, map_gpu
from tcjit.mapping.storage import Axis, Buffer
from tcjit.runtime import nvrtc

host = pytest.mark.skipif(COMPILER is None, reason="needs g++")
ADD = "def add(float(N) A, float(N) B) -> (C) { C(i) = A(i) + B(i) }"
SCALED = "def scaled(float(L,M,N) A) -> (B) { B(l,m,n) = 2.0 * A(l,m,n) }"
PRODUCT = "def mm(float(M,K) A, float(K,N) B) -> (C) { T(m,n) +=! A(m,k) * B(k,n)  C(m,n) = T(m,n) }"
TILED = """def mm(float(32,16) A, float(16,32) B) -> (C) {
    SA(b,s,i,k) = A(16*b + i, 8*s + k) where b in 0:2, s in 0:2, i in 0:16, k in 0:8
    SB(c,s,k,j) = B(8*s + k, 16*c + j) where c in 0:2, s in 0:2, k in 0:8, j in 0:16
    T(m,n) +=! SA(m/16, k/8, m - 16*(m/16), k - 8*(k/8)) * SB(n/16, k/8, k - 8*(k/8), n - 16*(n/16)) where m in 0:32, n in 0:32, k in 0:16
    C(m,n) = T(m,n)
}"""


def vector(count: int) -> list[object]:
    """A path for ADD: every thread takes some neighbours."""
    return [
        "launch 0", "grid", [f"floor(i/{64 * count})"], "block 0",
        "threads 64", [f"floor((i mod {64 * count})/{count})"], "unroll", "vector", [f"i mod {count}"],
    ]  # fmt: skip


def added(path: list[object], size: int, threads: int = 64, layouts: dict[str, str] | None = None) -> Mapped:
    return mapped(ADD, {"A": (size,), "B": (size,)}, path, threads=[threads], layouts=layouts)  # type: ignore[arg-type]


def check_added(path: list[object], size: int, threads: int = 64) -> list[str]:
    """The lines of ADD on a tree, after running them."""
    made = source(added(path, size, threads))
    if COMPILER:
        a, b, c = np.arange(size, dtype=np.float32), np.arange(size, dtype=np.float32)[::-1].copy() * 3, np.empty(size, np.float32)
        assert run(made, [c], [a, b]) == 0
        assert (c == a + b).all()
    return lines(made)


# ---------------------------------------------------------------- blocks and threads


def test_a_partial_block_is_guarded() -> None:
    found = check_added(["launch 0", "grid", ["floor(i/64)"], "block 0", "threads 64", ["i mod 64"]], 1000)
    inputs = ", ".join(f"const float *__restrict__ {name}" for name in "AB")
    assert found[0] == f"tc_add(float *__restrict__ C, {inputs}, char *__restrict__ workspace, int *tc_flag) {{"
    assert found[1:] == [
        "const int tc_thread = (int)threadIdx.x;",
        "const int c0 = (int)blockIdx.x;",
        "{",
        "const int c1 = tc_thread;",
        "if (c1 + 64 * c0 <= 999) {",
        "C[64 * c0 + c1] = A[64 * c0 + c1] + B[64 * c0 + c1];",
        "}",
        "}",
    ]


def test_a_full_block_is_not() -> None:
    found = check_added(["launch 0", "grid", ["floor(i/64)"], "block 0", "threads 64", ["i mod 64"]], 1024)
    assert not any(line.startswith("if") for line in found)


def test_threads_beyond_a_region_idle() -> None:
    found = check_added(["launch 0", "block 0", "threads 5x8", ["floor(i/8)", "i mod 8"]], 40, threads=64)
    assert "if (tc_thread < 40) {" in found and {"const int c0 = tc_thread / 8;", "const int c1 = tc_thread % 8;"} <= set(found)


def test_digits_that_only_some_threads_have() -> None:
    found = check_added(["launch 0", "block 0", "threads 64", ["2*i + 3"]], 20)
    assert "if (c0 >= 3 && c0 <= 41 && ((c0 + 1) % 2) == 0) {" in found


@pytest.mark.parametrize("member, condition", [("7", "c0 == 7"), ("0", "c0 == 0")])
def test_a_single_thread(member: str, condition: str) -> None:
    found = check_added(["launch 0", "block 0", "threads 64", [member], ["i"]], 20)
    assert f"if ({condition}) {{" in found and "for (int c1 = 0; c1 <= 19; ++c1) {" in found


def test_loops_that_run_once_still_have_their_digit() -> None:
    found = check_added(["launch 0", "grid", ["0", "floor(i/8)", "0"], "block 0", "threads 2x1x8", ["0", "0", "i mod 8"]], 16, threads=16)
    assert "if (c3 == 0) {" in found and "const int c3 = tc_thread / 8;" in found and "const int c1 = (int)blockIdx.y;" in found


def test_a_digit_that_follows_another() -> None:
    found = check_added(["launch 0", "block 0", "threads 8x8", ["floor(i/2)", "floor(i/2)"], ["i mod 2"]], 16)
    assert "if (c1 == c0) {" in found


def scaled_grid(path: list[object], **device: object) -> tuple[Mapped, list[str], tuple[int, int, int]]:
    a = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    b = np.empty_like(a)
    made = mapped(SCALED, {"A": a.shape}, path, threads=[1])  # type: ignore[arg-type]
    text = source(made, **device)
    if COMPILER:
        assert run(text, [b], [a]) == 0
        assert (b == 2 * a).all()
    return made, lines(text), text.launches[0].grid


def test_the_last_block_loop_runs_along_x() -> None:
    _, found, grid = scaled_grid(["launch 0", "grid", ["l", "m", "n"], "block 0", "threads 1", ["0"]])
    assert grid == (5, 4, 3)
    assert {"const int c0 = (int)blockIdx.z;", "const int c1 = (int)blockIdx.y;", "const int c2 = (int)blockIdx.x;"} <= set(found)


def test_many_block_loops_share_z() -> None:
    path = ["launch 0", "grid", ["floor(l/2)", "l mod 2", "m", "n"], "block 0", "threads 1", ["0"]]
    _, found, grid = scaled_grid(path)
    assert grid == (5, 4, 4)
    assert {"const int c0 = (int)blockIdx.z / 2;", "const int c1 = (int)blockIdx.z % 2;"} <= set(found)


def test_a_grid_that_is_too_wide_lies_along_x() -> None:
    _, found, grid = scaled_grid(["launch 0", "grid", ["l", "m", "n"], "block 0", "threads 1", ["0"]], max_grid=(1000, 3, 3))
    assert grid == (60, 1, 1)
    assert {
        "const int c0 = (int)blockIdx.x / 20;",
        "const int c1 = (int)blockIdx.x / 5 % 4;",
        "const int c2 = (int)blockIdx.x % 5;",
    } <= set(found)


def test_blocks_in_turns_where_a_device_has_too_few() -> None:
    _, found, grid = scaled_grid(["launch 0", "grid", ["l", "m", "n"], "block 0", "threads 1", ["0"]], max_grid=(7, 1, 1))
    assert grid == (7, 1, 1)
    assert "for (int tc_block = (int)blockIdx.x; tc_block < 60; tc_block += 7) {" in found
    assert "__syncthreads();" not in found  # blocks share nothing, and these threads neither


def test_a_turn_of_blocks_waits_for_the_one_before_where_threads_share_memory() -> None:
    device = replace(SMALL, max_grid=(7, 1, 1))
    made = map_gpu(program(SOFTMAX, {"I": (100, 2048)}), Options(), device, prove="last")
    found = lines(emit_gpu(made, CUDA, device, checked=True))
    assert "for (int tc_block = (int)blockIdx.x; tc_block < 100; tc_block += 7) {" in found
    assert found[-2:] == ["__syncthreads();", "}"]


def test_the_first_reduction_of_a_block_finds_its_scratch_array_free() -> None:
    """The second one waits until all have read the result of the first; so does one in a loop."""
    made = map_gpu(program(SOFTMAX, {"I": (100, 2048)}), Options(), SMALL, prove="last")
    found = lines(emit_gpu(made, CUDA, SMALL, checked=True))
    writes = [at for at, line in enumerate(found) if line.startswith("tc_scratch_float[tc_thread / 32] =")]
    waits = [found[at - 2] == "__syncthreads();" for at in writes]
    assert waits == [False, True]


def test_launches_share_their_parameters_and_the_workspace() -> None:
    text = "def f(float(N) A) -> (B) { T(i) = A(i) + 1.0  B(i) = T(i) * T(N - 1 - i) }"
    one = ["grid", ["floor(i/32)"], "block 0", "threads 32", ["i mod 32"]]
    path = [{"S0": ["launch 0", *one], "S1": ["launch 1", *one]}]
    made = source(mapped(text, {"A": (100,)}, path, threads=[32, 32]))  # type: ignore[arg-type]
    assert [launch.symbol for launch in made.launches] == ["tc_f", "tc_f_1"] and made.symbol == "tc_f" and made.workspace == 448
    assert "float *__restrict__ T = (float *)(workspace + 0);" in lines(made)
    assert "const float *__restrict__ T = (const float *)(workspace + 0);" in lines(made, 1)
    assert lines(made)[0].removeprefix("tc_f") == lines(made, 1)[0].removeprefix("tc_f_1")
    if COMPILER:
        a, b = np.arange(100, dtype=np.float32), np.empty(100, np.float32)
        assert run(made, [b], [a]) == 0
        assert (b == (a + 1) * (a + 1)[::-1]).all()


# ---------------------------------------------------------------- loops of one thread


FOURS: list[object] = ["launch 0", "grid", ["floor(i/256)"], "block 0", "threads 64", ["i mod 64"], "unroll", ["floor((i mod 256)/64)"]]


def test_a_bound_that_is_no_constant_becomes_a_condition_inside() -> None:
    found = check_added(FOURS, 850)
    start = found.index("#pragma unroll")
    assert found[start + 1 : start + 3] == ["for (int c2 = 0; c2 <= 3; ++c2) {", "if (64 * c2 + 256 * c0 + c1 <= 849) {"]


def test_iterations_that_no_thread_leaves_out_have_no_condition() -> None:
    found = check_added(FOURS, 1000)
    start = found.index("#pragma unroll")
    add = "C[256 * c0 + c1 + 64 * c2] = A[256 * c0 + c1 + 64 * c2] + B[256 * c0 + c1 + 64 * c2];"
    assert found[start + 1 : start + 5] == ["for (int c2 = 0; c2 <= 2; ++c2) {", add, "}", "if (256 * c0 + c1 <= 807) {"]


def test_long_loops_are_written_out_in_parts() -> None:
    """Unless the thread's own arrays are indexed: ptxas would load all elements at once, or keep them from one loop to the next."""
    path = ["launch 0", "block 0", "threads 32", ["i mod 32"], "unroll", ["floor(i/32)"]]
    assert "#pragma unroll 32" in check_added(path, 64 * 32, threads=32)
    assert "#pragma unroll" in check_added(path, 32 * 32, threads=32)


def test_unrolled_loops_start_at_constants() -> None:
    found = check_added(["launch 0", "block 0", "threads 16", ["floor(i/4)"], "unroll", ["i"]], 61, threads=16)
    assert "for (int c1 = 0; c1 <= 3; ++c1) {" in found and "C[4 * c0 + c1] = A[4 * c0 + c1] + B[4 * c0 + c1];" in found


def test_opencl_is_told_nothing_of_unrolling() -> None:
    made = added(["launch 0", "block 0", "threads 16", ["floor(i/4)"], "unroll", ["i"]], 61, 16)
    assert "#pragma unroll" not in source(made, OPENCL, PLAIN).text


@pytest.mark.parametrize("count, word", [(4, "float4"), (2, "float2")])
def test_neighbours_move_at_once(count: int, word: str) -> None:
    size = 64 * count * 3 - count  # not all threads of the last block have something to do, those that do have all of it
    found = check_added(vector(count), size)
    assert f"*({word} *)&tc_x0[0] = *(const {word} *)&A[{64 * count} * c0 + {count} * c1];" in found
    assert f"*({word} *)&C[{64 * count} * c0 + {count} * c1] = *({word} *)&tc_y[0];" in found
    assert source(added(vector(count), size)).aligned == ("C", "A", "B")


def test_neighbours_of_which_some_are_outside_go_one_by_one() -> None:
    """Those of the last thread; others move at once."""
    found = check_added(vector(4), 1001)
    both = found[found.index("else {") :]
    assert any("float4" in line for line in found) and not any("float4" in line for line in both)


def test_addresses_that_are_not_aligned_go_one_by_one() -> None:
    text = "def f(float(N) A) -> (B) { B(i) = A(i + 1) where i in 0:N-1 }"
    made = source(mapped(text, {"A": (257,)}, vector(4), threads=[64]))  # type: ignore[arg-type]
    assert made.aligned == ("B",) and "tc_x0[c2] = A[4 * c1 + c2 + 1];" in lines(made)
    if COMPILER:
        a, b = np.arange(257, dtype=np.float32), np.empty(256, np.float32)
        run(made, [b], [a])
        assert (b == a[1:]).all()


def test_strides_of_the_call_go_one_by_one() -> None:
    made = source(added(vector(4), 256, layouts={"A": "n"}))
    assert made.aligned == ("C", "B") and made.numbers == (("stride", "A", 0),)
    assert "tc_x0[c2] = A[(4 * c1 + c2) * A_stride0];" not in lines(made) and any("* A_stride0" in line for line in lines(made))


@pytest.mark.parametrize(
    "dtype, word, moves", [("float16", "ushort4", 1), ("double", "double2", 2), ("int8", "char4", 1), ("bool", "uchar4", 1)]
)
def test_neighbours_of_every_size(dtype: str, word: str, moves: int) -> None:
    text = f"def copy({dtype}(N) A) -> (B) {{ B(i) = A(i) }}"
    made = source(mapped(text, {"A": (1024,)}, vector(4), threads=[64]))  # type: ignore[arg-type]
    assert sum(f"= *(const {word} *)&A[" in line for line in lines(made)) == moves
    assert not any("half" in line for line in lines(made))  # bits are copied as they are
    if COMPILER:
        kind = {"float16": np.uint16, "double": np.float64, "int8": np.int8, "bool": np.bool_}[dtype]
        a = (np.arange(1024) % 251).astype(kind)
        b = np.empty_like(a)
        run(made, [b], [a])
        assert (a == b).all()


def test_neighbours_of_narrow_elements_that_no_vector_holds_go_one_by_one() -> None:
    """Eight bytes beside eight elements of 2 bytes: CUDA has vectors of 4 of them, and of 16 bytes in all."""
    text = "def widen(int8(N) A, int16(N) B) -> (C) { C(i) = int16(A(i)) + B(i) }"
    made = source(mapped(text, {"A": (4096,), "B": (4096,)}, vector(8), threads=[64]))  # type: ignore[arg-type]
    assert "tc_x0[c2] = A[512 * c0 + 8 * c1 + c2];" in lines(made)
    assert sum("*(const uint4 *)&B[" in line for line in lines(made)) == 1 and "None" not in made.text
    if COMPILER:
        a, b, c = np.arange(4096).astype(np.int8), np.arange(4096, dtype=np.int16), np.empty(4096, np.int16)
        run(made, [c], [a, b])
        assert (c == a + b).all()


VECTORS = [("float", 4, "float4", 1), ("float", 2, "float2", 1), ("half", 8, "ushort8", 1), ("half", 4, "ushort4", 1)]
VECTORS += [("int8", 2, "char2", 1), ("bool", 8, "uchar8", 1), ("uint8", 16, "uchar16", 1)]
VECTORS += [("double", 4, "double2", 2), ("int64", 4, "long2", 2)]


@pytest.mark.parametrize(("dtype", "count", "word", "moves"), VECTORS)
def test_neighbours_in_opencl(dtype: str, count: int, word: str, moves: int) -> None:
    """Functions that ask for no more than the boundaries of elements, whatever memory they read and write."""
    text = f"def copy({dtype}(N) A) -> (B) {{ B(i) = A(i) }}"
    made = source(mapped(text, {"A": (64 * count,)}, vector(count), threads=[64]), OPENCL, PLAIN)  # type: ignore[arg-type]
    of = int(re.sub(r"\D", "", word))
    loads = [line for line in lines(made) if line.startswith(f"*({word} *)&tc_x0[") and f" = vload{of}(0, &A[" in line]
    stored = "tc_y" if dtype == "bool" else "tc_x0"  # a caller's bool is made 0 or 1 in between
    stores = [line for line in lines(made) if line.startswith(f"vstore{of}(*({word} *)&{stored}[") and ", 0, &B[" in line]
    assert len(loads) == len(stores) == moves
    assert ("tc_y[c2] = (tc_x0[c2] != 0);" in lines(made)) == (dtype == "bool")


def test_in_opencl_too_addresses_that_are_not_aligned_go_one_by_one() -> None:
    text = "def f(float(N) A) -> (B) { B(i) = A(i + 1) where i in 0:N-1 }"
    made = source(mapped(text, {"A": (257,)}, vector(4), threads=[64]), OPENCL, PLAIN)  # type: ignore[arg-type]
    assert "tc_x0[c2] = A[4 * c1 + c2 + 1];" in lines(made) and "vload" not in made.text and made.text.count("vstore4(") == 1


# ---------------------------------------------------------------- contractions


def registers(m: int, n: int, k: int) -> Mapped:
    """PRODUCT on blocks of 16 by 32 results, 2 by 4 of each thread."""
    rows, columns = "floor((m mod 16)/2)", "floor((n mod 32)/4)"
    inner = ["threads 8x8", [rows, columns]]
    path = [
        "launch 0", "grid", ["floor(m/16)", "floor(n/32)"], "block 0",
        {
            "S0": [*inner, "unroll", ["m mod 2", "n mod 4"]],
            "S1": [["floor(k/8)"], *inner, "unroll", ["k mod 8", "m mod 2", "n mod 4"]],
            "S2": [*inner, "unroll", ["m mod 2", "n mod 4"]],
        },
    ]  # fmt: skip
    held = Buffer("T", GridBlock(0), "thread", (Axis(0, ((1, 2, 4),)), Axis(0, ((1, 4, 1),))), 8)
    return mapped(PRODUCT, {"A": (m, k), "B": (k, n)}, path, threads=[64], buffers=[held])  # type: ignore[arg-type]


def multiplied(made: Mapped, m: int, n: int, k: int) -> list[str]:
    text = source(made)
    if COMPILER:
        draw = np.random.default_rng(1)
        a, b = (draw.integers(-5, 6, shape).astype(np.float32) for shape in ((m, k), (k, n)))
        c = np.empty((m, n), np.float32)
        assert run(text, [c], [a, b]) == 0
        assert (c == a @ b).all()
    return lines(text)


def test_sums_stay_in_registers() -> None:
    found = multiplied(registers(32, 64, 16), 32, 64, 16)
    assert "float T_p[8];" in found and "T_p[4 * c6 + c7] = 0.0f;" not in found
    update = next(line for line in found if line.startswith("T_p[") and "A[" in line)
    assert re.fullmatch(r"T_p\[4 \* c6 \+ c7\] = T_p\[4 \* c6 \+ c7\] \+ A\[.*\] \* B\[.*\];", update)
    assert not any(line.startswith("if") for line in found)


def test_full_tiles_have_no_guards() -> None:
    found = multiplied(registers(50, 70, 19), 50, 70, 19)
    start = found.index("if (c0 <= 2 && c1 <= 1) {")
    middle = found.index("else {")
    full = found[start + 1 : middle]
    # what does not depend on the block is told apart inside: all steps but the last have all their terms
    assert [line for line in full if line.startswith("if")] == ["if (c2 <= 1) {"]
    assert sum(line.startswith("if") for line in found[middle:]) > 3


def test_terms_alone_make_full_steps() -> None:
    found = multiplied(registers(32, 64, 19), 32, 64, 19)
    start = found.index("for (int c2 = 0; c2 <= 2; ++c2) {")
    assert found[start + 1] == "if (c2 <= 1) {"


def test_tiles_in_shared_memory() -> None:
    # every block makes its own copies: the copies' dimensions name the block
    text = TILED.replace("SA(b,s,i,k)", "SA(b,c,s,i,k)").replace("where b in 0:2, s", "where b in 0:2, c in 0:2, s")
    text = text.replace("SB(c,s,k,j)", "SB(b,c,s,k,j)").replace("where c in 0:2, s", "where b in 0:2, c in 0:2, s")
    text = text.replace("SA(m/16, k/8", "SA(m/16, n/16, k/8").replace("SB(n/16, k/8", "SB(m/16, n/16, k/8")
    blocks = {"S0": "b", "S1": "b", "S2": "floor(m/16)", "S3": "floor(m/16)", "S4": "floor(m/16)"}
    others = {"S0": "c", "S1": "c", "S2": "floor(n/16)", "S3": "floor(n/16)", "S4": "floor(n/16)"}
    results = ["threads 16x16", ["m mod 16", "n mod 16"]]
    whole = [
        "launch 0", "grid", [blocks, others], "block 0",
        {
            "S2": results,
            "S0 S1 S3": [
                [{"S0": "s", "S1": "s", "S3": "floor(k/8)"}],
                {
                    "S0": ["sync block", "threads 16x8", ["i", "k"]],
                    "S1": ["threads 8x16", ["k", "j"]],
                    "S3": ["sync block", *results, "unroll", ["k mod 8"]],
                },
            ],
            "S4": results,
        },
    ]  # fmt: skip
    nothing = Axis(0, ())
    buffers = [
        Buffer("SA", GridBlock(0), "shared", (nothing, nothing, nothing, Axis(0, ((1, 16, 9),)), Axis(0, ((1, 8, 1),))), 144),
        Buffer("SB", GridBlock(0), "shared", (nothing, nothing, nothing, Axis(0, ((1, 8, 16),)), Axis(0, ((1, 16, 1),))), 128),
        Buffer("T", GridBlock(0), "thread", (nothing, nothing), 1),
    ]
    made = mapped(text, {"A": (32, 16), "B": (16, 32)}, whole, threads=[256], buffers=buffers)  # type: ignore[arg-type]
    found = multiplied(made, 32, 32, 16)
    assert "__shared__ __align__(16) float SA_p[144];" in found and "__shared__ __align__(16) float SB_p[128];" in found
    assert found.count("__syncthreads();") == 2 and found.count("if (tc_thread < 128) {") == 2
    assert "SA_p[9 * c3 + c4] = A[256 * c0 + 16 * c3 + 8 * c2 + c4];" in found
    assert "T_p[0] = T_p[0] + SA_p[9 * c3 + c5] * SB_p[16 * c5 + c4];" in found
    assert source(made).launches[0].shared_bytes == 4 * (144 + 128)
    opencl = source(made, OPENCL, PLAIN).text
    assert "  __local __attribute__((aligned(16))) float SA_p[144];" in opencl
    assert opencl.count("barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);") == 2


# ---------------------------------------------------------------- shared memory

TURNED = "def turned(float(N) A) -> (B) { T(i) = A(i)  B(i) = T(N - 1 - i) }"


def _array(size: int) -> Buffer:
    return Buffer("T", GridBlock(0), "shared", (Axis(0, ((1, size, 1),)),), size)


def turned(size: int) -> Mapped:
    strided = ["threads 32", ["i mod 32"], ["floor(i/32)"]]
    path = ["launch 0", "block 0", {"S0": strided, "S1": ["sync block", *strided]}]
    shared = _array(size)
    return mapped(TURNED, {"A": (size,)}, path, threads=[32], buffers=[shared])  # type: ignore[arg-type]


def test_more_shared_memory_than_may_be_declared() -> None:
    made = source(turned(1000), shared_bytes=2000)
    assert made.launches[0].shared_bytes == 4000
    assert lines(made)[1:3] == ["extern __shared__ __align__(16) char tc_shared[];", "float *const T_p = (float *)(tc_shared + 0);"]
    if COMPILER:
        a, b = np.arange(1000, dtype=np.float32), np.empty(1000, np.float32)
        run(made, [b], [a])
        assert (b == a[::-1]).all()


def test_more_shared_memory_than_there_is() -> None:
    with pytest.raises(MappingError, match="needs 4000 bytes of shared memory, and a block on sm_90 has 3000"):
        source(turned(1000), shared_bytes=2000, max_shared_bytes=3000)
    with pytest.raises(MappingError, match="needs 4000 bytes"):
        source(turned(1000), OPENCL, PLAIN, shared_bytes=2000, max_shared_bytes=2000)


def test_a_warp_waits_where_the_device_can() -> None:
    strided = ["threads 32", ["i mod 32"], ["floor(i/32)"]]
    path = ["launch 0", "block 0", {"S0": strided, "S1": ["sync warp", *strided]}]
    made = mapped(TURNED, {"A": (100,)}, path, threads=[32], buffers=[_array(100)])  # type: ignore[arg-type]
    assert "__syncwarp(0xffffffffu);" in lines(source(made)) and "__syncwarp(" not in source(made, capabilities=frozenset()).text
    assert "__syncthreads();" in lines(source(made, capabilities=frozenset()))
    assert "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);" in lines(source(made, OPENCL, PLAIN))


# ---------------------------------------------------------------- indices, gathers and numbers

PICK = "def pick(float(E,D) T, int64(B) I) -> (O) { O(b,d) = T(I(b), d) }"
ONE_EACH = ["launch 0", "grid", ["b"], "block 0", "threads 32", ["d"]]


def picked(rows_: int, checked: bool = True, index: str = "int64") -> list[str]:
    made = mapped(PICK.replace("int64", index), {"T": (rows_, 20), "I": (4,)}, ONE_EACH, threads=[32])  # type: ignore[arg-type]
    return lines(source(made, checked=checked))


def test_a_gather_is_checked() -> None:
    assert "O[20 * c0 + c1] = T[20 * (int)tc_at(I[c0], 9, 1, &tc_failed) + c1];" in picked(9)
    assert picked(9)[-1] == "if (tc_failed != 0) tc_raise(tc_failed, tc_flag);"
    assert not any("tc_failed" in line for line in picked(9, checked=False))
    assert "O[20 * c0 + c1] = T[20 * (int)I[c0] + c1];" in picked(9, checked=False)


@host
@pytest.mark.parametrize("index, flag", [(8, 0), (9, 1), (-1, 1), (1 << 40, 1)])
def test_a_gather_out_of_range_raises_the_flag(index: int, flag: int) -> None:
    made = mapped(PICK, {"T": (9, 20), "I": (4,)}, ONE_EACH, threads=[32])  # type: ignore[arg-type]
    t = np.arange(180, dtype=np.float32).reshape(9, 20)
    o = np.empty((4, 20), np.float32)
    text = source(made)
    assert run(text, [o], [t, np.array([3, index, 0, 8])]) == flag and text.sites[0]["tensor"] == "T"
    assert (o[0] == t[3]).all() and (o[3] == t[8]).all()


@host
@pytest.mark.parametrize("index, flag", [(8, 0), (9, 1), (-1, 1)])
def test_gathered_rows_move_16_bytes_at_once(index: int, flag: int) -> None:
    """Where the row begins on a boundary, whichever it is; one that is not there raises the flag, and row 0 takes its place."""
    device = replace(SM_90, processors=1)
    text = "def f(float(R,D) T, int32(B) I, float(D) Z) -> (O) { O(b,d) = T(I(b), d) * Z(d) }"
    made = emit_gpu(map_gpu(program(text, {"T": (9, 64), "I": (64,), "Z": (64,)}), Options(), device), CUDA, device, checked=True)
    assert "= *(const float4 *)&T[64 * (int)tc_at((int64_t)I[" in made.text and "T" in made.aligned
    t, i = np.arange(9 * 64, dtype=np.float32).reshape(9, 64), (np.arange(64) % 9).astype(np.int32)
    i[5], o, z = index, np.empty((64, 64), np.float32), np.full(64, 2, np.float32)
    assert run(made, [o], [t, i, z]) == flag
    assert (o == 2 * t[np.where((i >= 0) & (i < 9), i, 0)]).all()
    short = emit_gpu(map_gpu(program(text, {"T": (9, 62), "I": (64,), "Z": (62,)}), Options(), device), CUDA, device, checked=True)
    assert "float4" not in short.text


@host
def test_nothing_is_read_from_an_empty_table() -> None:
    made = source(mapped(PICK, {"T": (0, 20), "I": (4,)}, ONE_EACH, threads=[32]))  # type: ignore[arg-type]
    o = np.empty((4, 20), np.float32)
    assert run(made, [o], [np.empty((0, 20), np.float32), np.zeros(4, np.int64)]) == 1
    assert (o == 0).all()


def test_an_index_as_a_value_is_64_bits_wide() -> None:
    made = mapped("def f() -> (B) { B(i) = i * i where i in 0:40 }", {}, ["launch 0", "block 0", "threads 64", ["i"]], threads=[64])
    assert any("(int64_t)c0" in line for line in lines(source(made)))
    if COMPILER:
        b = np.empty(40, np.int32)
        run(source(made), [b], [])
        assert (b == np.arange(40) ** 2).all()


def test_addresses_beyond_31_bits() -> None:
    text = "def f(int8(N) A) -> (B) { B(i) = A(i * 100000000) where i in 0:40 }"
    made = source(mapped(text, {"A": (4_000_000_000,)}, ["launch 0", "block 0", "threads 64", ["i"]], threads=[64]))
    assert "B[c0] = A[100000000 * (int64_t)c0];" in lines(made)


def test_numbers_are_doubles_and_64_bits() -> None:
    text = "def f(float(N) A, float x, int32 k, bool p, bfloat16 h) -> (B) { B(i) = p ? A(i) * x + k : h }"
    made = source(mapped(text, {"A": (40,)}, ["launch 0", "block 0", "threads 64", ["i"]], threads=[64], layouts={"A": "n"}))
    assert made.numbers == (
        ("scalar", "x", "float32"), ("scalar", "k", "int32"), ("scalar", "p", "bool"), ("scalar", "h", "bfloat16"), ("stride", "A", 0),
    )  # fmt: skip
    parameters = lines(made)[0].removeprefix("tc_f(").removesuffix(") {").split(", ")
    assert parameters == [
        "float *__restrict__ B", "const float *__restrict__ A", "char *__restrict__ workspace", "const double x_bits",
        "const int64_t k_bits", "const int64_t p_bits", "const double h_bits", "const int64_t A_stride0", "int *tc_flag",
    ]  # fmt: skip


def test_names_that_the_languages_have_taken() -> None:
    text = "def shared(float(N) threadIdx, float(N) short, float(N) global) -> (kernel) { kernel(i) = threadIdx(i) + short(i) * global(i) }"
    shapes = {"threadIdx": (40,), "short": (40,), "global": (40,)}
    made = mapped(text, shapes, ["launch 0", "block 0", "threads 64", ["i"]], threads=[64])
    for dialect, device, taken in ((CUDA, SM_90, "threadIdx"), (OPENCL, PLAIN, "global")):
        text = source(made, dialect, device).text
        assert f" {taken}[" not in text and "tc_shared(" not in text and "tc_shared_(" in text


def test_nothing_to_run() -> None:
    made = source(map_gpu(program(ADD, {"A": (0,), "B": (0,)}), Options(), SM_90))
    assert made.launches == () and made.workspace == 0


# ---------------------------------------------------------------- the compiler


def compiled(text: str, symbols: list[str]) -> nvrtc.CubinFile:
    try:
        return nvrtc.compile(text, symbols, "sm_90", ["--ptxas-options=-v"])
    except CompileError as error:
        if "refused" in str(error):
            raise
        pytest.skip(str(error).splitlines()[0])


@pytest.mark.parametrize("size", [(64, 64, 16), (50, 70, 19)])
def test_registers_are_registers(size: tuple[int, int, int]) -> None:
    made = source(registers(*size))
    binary = compiled(made.text, [made.symbol])
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in binary.log
