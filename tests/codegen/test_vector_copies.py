"""Copies of words in vectors: sizes around those of vectors, elements at the ends of their types, processors with and without AVX-512.

Modules: codegen.vector_copies codegen.copy_functions
"""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
import platform
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from support.mapping import AVX512, program

import tcjit
from tcjit.codegen.c import emit_c
from tcjit.codegen.copy_functions import INTERLEAVE, PADDED, TRANSPOSE
from tcjit.codegen.dialect import C
from tcjit.codegen.vector_copies import MASKED, SIGNS
from tcjit.jit.targets.cpu import machine_of
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import map_program
from tcjit.runtime import host

CPUINFO = Path("/proc/cpuinfo")
VECTOR_BYTES = machine_of(host.compiler()).vector_bytes
WIDE = VECTOR_BYTES == 64
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None or platform.machine() != "x86_64", reason="gcc's flags for x86")
WRAPPERS = """
void interleave(void *to, const void *from, int64_t step, int32_t signs) { tc_interleave(to, from, step, signs); }
#define FEW(n) void interleave_##n(void *to, const void *from, int64_t step) { tc_interleave_few(to, from, step, 0, n); }
FEW(4) FEW(9) FEW(15)
void transpose_2(void *to, int64_t to_step, const void *from, int64_t step) { tc_transpose_2(to, to_step, from, step, 0); }
void transpose_1(void *to, int64_t to_step, const void *from, int64_t step) { tc_transpose_1(to, to_step, from, step); }
void copy_padded(void *to, const void *from, int64_t first, int64_t last, int64_t count) { tc_copy_padded(to, from, first, last, count); }
#define OF(n) \\
  void transpose_4_##n(void *to, int64_t to_step, const void *from, int64_t step, int32_t signs) \\
  { tc_transpose_4(to, to_step, from, step, n, signs); } \\
  void transpose_8_##n(void *to, int64_t to_step, const void *from, int64_t step) \\
  { tc_transpose_8(to, to_step, from, step, n < 8 ? n : 8); }
OF(4) OF(5) OF(14) OF(16)
"""
ORDERS = {"nn": "X(m,k) U(k,n)", "nt": "X(m,k) U(n,k)", "tn": "X(k,m) U(k,n)", "tt": "X(k,m) U(n,k)"}


@pytest.fixture(scope="module", params=["avx512bw", "avx2", ""], ids=["avx512", "avx2", "baseline"])
def functions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The functions compiled for a kind of processor."""
    if request.param not in CPUINFO.read_text():
        pytest.skip(f"a processor without {request.param}")
    folder = tmp_path_factory.mktemp("copies")
    (folder / "copies.c").write_text("\n".join(["#include <stdint.h>", *dict.fromkeys((*INTERLEAVE, *TRANSPOSE, *PADDED)), WRAPPERS]))
    kinds = {"avx512bw": ["-march=skylake-avx512"], "avx2": ["-march=haswell"]}
    flags = ["-std=gnu11", "-O2", "-w", "-shared", "-fPIC", *kinds.get(request.param, [])]
    subprocess.run(["gcc", *flags, "copies.c", "-o", "copies.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "copies.so"))


def place(array: np.ndarray, offset: int = 0) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data + offset)


@needs_gcc
@pytest.mark.parametrize("signs", [0, SIGNS])
@pytest.mark.parametrize("step", [16, 17, 67, -33])
def test_interleaved_rows(functions: ctypes.CDLL, step: int, signs: int) -> None:
    memory = np.random.default_rng(0).integers(0, 256, 400).astype(np.uint8)
    first = 1 if step > 0 else 3 * -step
    found = np.zeros(18, np.int32)
    functions.interleave(place(found, 4), place(memory, first), ctypes.c_int64(step), ctypes.c_int32(signs))
    columns = np.stack([memory[first + row * step :][:16] for row in range(4)], 1)
    expected = columns.copy().view(np.int32)[:, 0] ^ np.int32(signs)
    np.testing.assert_array_equal(found, [0, *expected, 0])


@needs_gcc
@pytest.mark.parametrize("columns", [4, 9, 15])
def test_few_interleaved_columns(functions: ctypes.CDLL, columns: int) -> None:
    """Nothing is written behind them, nor read behind the last row."""
    page = mmap.PAGESIZE
    memory = np.frombuffer(guarded := mmap.mmap(-1, 2 * page), np.uint8)
    libc = ctypes.CDLL(None)
    assert libc.mprotect(place(memory, page), ctypes.c_size_t(page), 0) == 0, "no access"
    try:
        rows = memory[page - 4 * columns : page].reshape(4, columns)
        rows[:] = np.random.default_rng(0).integers(0, 256, rows.shape)
        found = np.full(18, -1, np.int32)
        getattr(functions, f"interleave_{columns}")(place(found, 4), place(memory, page - 4 * columns), ctypes.c_int64(columns))
        words = np.ascontiguousarray(rows.T).view(np.int32)[:, 0]
        np.testing.assert_array_equal(found, [-1, *words, *[-1] * (17 - columns)])
    finally:
        libc.mprotect(place(memory, page), ctypes.c_size_t(page), mmap.PROT_READ | mmap.PROT_WRITE)
    assert len(guarded) == 2 * page


@needs_gcc
@pytest.mark.parametrize("signs", [0, SIGNS])
@pytest.mark.parametrize("step", [16, 21, 70])
@pytest.mark.parametrize("lanes", [4, 5, 14, 16])
def test_transposed_words(functions: ctypes.CDLL, lanes: int, step: int, signs: int) -> None:
    memory = np.random.default_rng(0).integers(0, 256, 3 + (lanes - 1) * step + 16).astype(np.uint8)
    found = np.zeros((4, 20), np.int32)
    transpose = getattr(functions, f"transpose_4_{lanes}")
    transpose(place(found), ctypes.c_int64(80), place(memory, 3), ctypes.c_int64(step), ctypes.c_int32(signs))
    rows = np.stack([memory[3 + lane * step :][:16] for lane in range(lanes)])
    np.testing.assert_array_equal(found[:, :lanes], rows.view(np.int32).T ^ np.int32(signs))
    assert not found[:, lanes:].any()


@needs_gcc
@pytest.mark.parametrize("step", [16, 24, 72])
@pytest.mark.parametrize("lanes", [4, 5, 14])
def test_transposed_elements_of_eight_bytes(functions: ctypes.CDLL, lanes: int, step: int) -> None:
    memory = np.random.default_rng(0).integers(0, 256, 2000).astype(np.uint8)
    found = np.zeros((2, 12), np.int64)
    getattr(functions, f"transpose_8_{lanes}")(place(found), ctypes.c_int64(96), place(memory, 3), ctypes.c_int64(step))
    lanes = min(lanes, 8)
    rows = np.stack([memory[3 + lane * step :][:16] for lane in range(lanes)])
    np.testing.assert_array_equal(found[:, :lanes], rows.view(np.int64).T)
    assert not found[:, lanes:].any()


@needs_gcc
@pytest.mark.parametrize("step", [16, 22, 70])
def test_transposed_halves(functions: ctypes.CDLL, step: int) -> None:
    memory = np.random.default_rng(0).integers(0, 256, 2000).astype(np.uint8)
    found = np.zeros((8, 20), np.int16)
    functions.transpose_2(place(found), ctypes.c_int64(40), place(memory, 3), ctypes.c_int64(step))
    rows = np.stack([memory[3 + lane * step :][:16] for lane in range(16)])
    np.testing.assert_array_equal(found[:, :16], rows.view(np.int16).T)
    assert not found[:, 16:].any()


@needs_gcc
@pytest.mark.parametrize("step", [16, 21, 70])
def test_transposed_bytes(functions: ctypes.CDLL, step: int) -> None:
    memory = np.random.default_rng(0).integers(0, 256, 2000).astype(np.uint8)
    found = np.zeros((16, 20), np.uint8)
    functions.transpose_1(place(found), ctypes.c_int64(20), place(memory, 3), ctypes.c_int64(step))
    np.testing.assert_array_equal(found[:, :16], np.stack([memory[3 + lane * step :][:16] for lane in range(16)]).T)
    assert not found[:, 16:].any()


def text(order: str, dtype: str) -> str:
    one, two = ORDERS[order].split()
    value = f"int32({one}) * int32({two})" if dtype == "int8" else f"{one} * {two}"
    return f"def f({dtype}{one[1:].upper()} X, {dtype}{two[1:].upper()} U) -> (O) {{ O(m,n) +=! {value} }}"


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", ["int8", "float"])
@pytest.mark.parametrize("order", ORDERS)
def test_panels(order: str, dtype: str) -> None:
    """Rows and lanes that fill blocks and vectors, and those that do not."""
    function, used = tcjit.define(text(order, dtype)).f, set()
    random = np.random.default_rng(3)
    for m, k, n in ((70, 64, 96), (65, 67, 49), (33, 130, 47), (100, 5, 63), (40, 3, 40)):
        x, u = (random.integers(-128, 128, shape) for shape in ((m, k), (k, n)))
        given = [torch.from_numpy(a).to(torch.int8 if dtype == "int8" else torch.float32) for a in (x, u)]
        x_given, u_given = (one.T.contiguous() if turned == "t" else one for one, turned in zip(given, order, strict=True))
        kernel = function.compile(x_given, u_given)
        np.testing.assert_array_equal(kernel(x_given, u_given).numpy(), x @ u)
        used |= set(re.findall(r"  (tc_interleave|tc_transpose_[14])\(&", kernel.source))
    expected = {"nn": {"tc_interleave"}, "tn": {"tc_interleave", "tc_transpose_1"}, "nt": {"tc_transpose_4"}}
    expected["tt"] = expected["tn"] | expected["nt"]
    if WIDE:
        if dtype == "int8":  # rows may stay as they are where the product has no panels of them
            assert used and used <= expected[order]
        else:
            assert used == expected[order] & {"tc_transpose_4"}


def test_other_loops_are_left_alone() -> None:
    """Of bytes that are computed with, of rows shorter than a vector, and of what lies as its result does."""
    for given, x in (
        ("def f(int8(M,N) X) -> (O) { O(n,m) = X(m,n) + int8(1) }", torch.zeros(64, 8, dtype=torch.int8)),
        ("def f(float(M,N) X) -> (O) { O(n,m) = X(m,n) }", torch.randn(15, 3)),
        ("def f(float(M,N) X) -> (O) { O(m,n) = X(m,n) }", torch.randn(64, 64)),
    ):
        kernel = tcjit.define(given).f.compile(x)
        assert "  tc_transpose_" not in kernel.source and "tc_interleave(" not in kernel.source


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int16], ids=str)
@pytest.mark.parametrize(("m", "n"), [(64, 64), (37, 101), (16, 4), (100, 3), (259, 130), (30001, 18), (18, 30001), (3000, 42)])
def test_transpositions(m: int, n: int, dtype: torch.dtype) -> None:
    x = torch.randint(-(1 << 15), 1 << 15, (m, n)).to(torch.int16)
    x = x.to(dtype) if dtype == torch.float32 else x.view(dtype)
    kernel = tcjit.define(f"def f({str(dtype)[6:]}(M,N) X) -> (O) {{ O(n,m) = X(m,n) }}").f.compile(x)
    whole = (torch.int16, torch.int32)[dtype == torch.float32]  # every bit, those of a NaN too
    assert torch.equal(kernel(x).view(whole), x.T.contiguous().view(whole))
    if min(m, n) >= 16:
        assert f"  tc_transpose_{x.element_size()}(&" in kernel.source


@pytest.mark.parametrize(
    ("dtype", "size"), [("double", 8), ("int64", 8), ("float", 4), ("int32", 4), ("half", 2), ("int8", 1), ("uint8", 1), ("bool", 1)]
)
@pytest.mark.parametrize("shape", [(64, 64), (37, 53), (8, 9), (130, 3), (300, 270)])
def test_transposed_elements_of_every_size(dtype: str, size: int, shape: tuple[int, int]) -> None:
    kinds = {"double": torch.float64, "float": torch.float32, "half": torch.float16}
    x = (torch.arange(shape[0] * shape[1]) % 251).to(kinds.get(dtype) or getattr(torch, dtype)).reshape(shape)
    kernel = tcjit.define(f"def f({dtype}(M,N) X) -> (O) {{ O(n,m) = X(m,n) }}").f.compile(x)
    assert torch.equal(kernel(x), x.t())
    if shape == (64, 64):
        assert f"  tc_transpose_{size}(&" in kernel.source


@pytest.mark.parametrize("dtype", ["float", "double", "half"])
@pytest.mark.parametrize("width", [5, 18, 37, 70, 136])
def test_padded_copies_are_transposed(width: int, dtype: str) -> None:
    """A convolution of channels-last images copies them with zeros before and behind each row, which no vector reads past."""
    kind = {"float": torch.float32, "double": torch.float64, "half": torch.float16}[dtype]
    torch.manual_seed(width)
    x = torch.randn(2, 33, 6, width).to(kind).contiguous(memory_format=torch.channels_last)
    k = torch.randn(33, 3, 3).to(kind)
    text = f"""def f({dtype}(N,C,H,W) X, {dtype}(C,KH,KW) K) -> (O) {{
        O(n,c,h,w) +=! (y >= 0 && y < H && x >= 0 && x < W ? X(n,c,y,x) : {dtype}(0)) * K(c,kh,kw)
            where h in 0:6, w in 0:{width}, y = h + kh - 1, x = w + kw - 1 }}"""
    kernel = tcjit.define(text).f.compile(x, k)
    expected = torch.conv2d(x.double(), k.double()[:, None], padding=1, groups=33)
    near = 1e-2 if dtype == "half" else 1e-4
    torch.testing.assert_close(kernel(x, k).double(), expected, rtol=near, atol=near)
    if width > 64 and dtype != "half":  # halves are converted as they are copied
        assert re.search(r"tc_transpose_\d\(&X_padded", kernel.source)


@needs_gcc
@pytest.mark.parametrize("count", [1, 13, 16, 17, 40])
def test_padded_words(functions: ctypes.CDLL, count: int) -> None:
    """None outside the first and the last is read, and none behind the last of all is written."""
    source = np.arange(1, 65, dtype=np.int32)
    for first, last in ((0, count - 1), (1, count - 2), (2, count + 5), (count - 1, count - 1), (0, -1), (5, 3), (-3, 1)):
        target = np.full(64, -1, dtype=np.int32)
        functions.copy_padded(place(target), place(source), *map(ctypes.c_int64, (first, last, count)))
        inside = (np.arange(count) >= first) & (np.arange(count) <= last)
        assert (target[:count] == np.where(inside, source[:count], 0)).all() and (target[count:] == -1).all(), (first, last)


@pytest.mark.skipif(MASKED > VECTOR_BYTES, reason="vectors under masks")
@pytest.mark.parametrize(("shape", "offset"), [((7, 5, 11), 1), ((3, 9, 15), 2), ((2, 4, 40), 3), ((5, 1, 1), 1), ((4, 6, 62), 1)])
def test_short_padded_rows(shape: tuple[int, int, int], offset: int) -> None:
    text = f"""def f(float(N,H,W) X) -> (O) {{
        O(n,y,x) = (y >= {offset} && y < H + {offset} && x >= {offset} && x < W + {offset}) ? X(n, y - {offset}, x - {offset}) : 0.0
            where y in 0:{shape[1] + 2 * offset}, x in 0:{shape[2] + 2 * offset}
    }}"""
    x = torch.randn(shape)
    kernel = tcjit.define(text).f.compile(x)
    assert ("tc_copy_padded(&" in kernel.source) == (shape[2] + 2 * offset <= 64)
    assert torch.equal(kernel(x), torch.nn.functional.pad(x, (offset,) * 4))


def test_reversed_rows_are_lanes() -> None:
    x = torch.randn(9, 40, dtype=torch.float64)
    kernel = tcjit.define("def f(double(M,N) X) -> (O) { O(m,n) = X(m,N - 1 - n) where n in 0:N }").f.compile(x)
    assert "#pragma omp simd" in kernel.source and torch.equal(kernel(x), x.flip(1))


def test_the_rest_of_a_panel_is_filled_in_the_same_region() -> None:
    """One thread stores the zeros that tiles want behind the last row, and loops that write other parts of a panel do not wait for it."""
    machine = dataclasses.replace(AVX512, dot_ways=4, matrix_types=frozenset({"int8"}), cache_bytes=2 << 20)
    mapped = map_program(program(text("tn", "int8"), {"X": (4096, 105), "U": (4096, 64)}), Options(), machine)
    body = emit_c(mapped, C, machine, checked=True).text.partition("int64_t tc_f(")[2]
    assert body.count("#pragma omp parallel") == body.count("#pragma omp single") == 1 and body.count("nowait") >= 3
    x, u = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((4096, 105), (4096, 64)))
    kernel = tcjit.define(text("tn", "int8")).f.compile(x, u)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(kernel(x, u), x.T.int() @ u.int())
    finally:
        torch.set_num_threads(before)
