"""Loads, stores, extrema and selections of vectors under masks: on processors with AVX-512, with AVX2, and without either.

Modules: codegen.avx_masks codegen.strided_vectors codegen.narrow_vectors
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tcjit.codegen import tile_vectors
from tcjit.codegen.narrow_vectors import narrow_declarations

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None or platform.machine() != "x86_64", reason="gcc's flags for x86")
CPUINFO = Path("/proc/cpuinfo")
FLAGS = {"avx512": ("avx512bw", "-march=skylake-avx512"), "avx2": ("avx2", "-march=haswell"), "baseline": ("sse2", "-O2")}
VECTORS = [("float32", 8), ("float64", 4), ("int32", 8), ("float32", 4), ("float64", 2), ("float32", 16), ("float64", 8)]
NARROW = ("bfloat16", "float16")
WRAPPERS = """
static tc_mask$N of_bits(int bits) {
  tc_lanes$N lanes;
  for (int l = 0; l < $W; ++l) lanes[l] = bits >> l & 1 ? -1 : 0;
  return tc_ne$N(($V)(lanes & 1), ($V){0});
}
void load(void *to, const void *from, int bits) { tc_store$N(to, tc_load_masked$N(from, tc_opaque$N(of_bits(bits)))); }
void store(void *to, const void *from, int bits) { tc_store_masked$N(to, tc_load$N(from), tc_opaque$N(of_bits(bits))); }
void every2(void *to, const void *from, int bits) { tc_store$N(to, tc_every2_masked$N(from, tc_opaque$N(of_bits(bits)))); }
void every3(void *to, const void *from, int bits) { tc_store$N(to, tc_every3_masked$N(from, tc_opaque$N(of_bits(bits)))); }
void every4(void *to, const void *from, int bits) { tc_store$N(to, tc_every4_masked$N(from, tc_opaque$N(of_bits(bits)))); }
void strided(void *to, const void *from, int bits) { tc_store$N(to, tc_strided_masked$N(from, 5, tc_opaque$N(of_bits(bits)))); }
void added(void *to, const void *from, int bits) { tc_store$N(to, tc_add_masked$N(tc_load$N(to), tc_load$N(from), of_bits(bits))); }
void blended(void *to, const void *from, int bits) { tc_store$N(to, tc_blend$N(tc_load$N(to), tc_load$N(from), of_bits(bits))); }
void greatest(void *to, const void *from, int bits) { tc_store$N(to, tc_max$N(tc_load$N(to), tc_load$N(from))); }
void least(void *to, const void *from, int bits) { tc_store$N(to, tc_min$N(tc_load$N(to), tc_load$N(from))); }
int any(int bits) { return tc_any$N(of_bits(bits)); }
int all(int bits) { return tc_all$N(of_bits(bits)); }
"""
HALVES = """
void load_halves(void *to, const void *from, int bits) { tc_store$N(to, tc_load_f16_masked$N(from, tc_opaque$N(of_bits(bits)))); }
void load_bfloats(void *to, const void *from, int bits) { tc_store$N(to, tc_load_bf16_masked$N(from, tc_opaque$N(of_bits(bits)))); }
"""


@pytest.fixture(scope="module", params=list(FLAGS))
def flags(request: pytest.FixtureRequest) -> list[str]:
    known, flag = FLAGS[request.param]
    if known not in CPUINFO.read_text():
        pytest.skip(f"a processor without {known}")
    return [flag]


@pytest.fixture(scope="module", params=VECTORS, ids=lambda vector: f"{vector[0]}x{vector[1]}")
def vector(request: pytest.FixtureRequest) -> tuple[str, int]:
    return request.param


@pytest.fixture(scope="module")
def functions(vector: tuple[str, int], flags: list[str], tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The functions of a kind of vectors, for a kind of processor."""
    dtype, width = vector
    folder = tmp_path_factory.mktemp("masks")
    texts, wrappers = tile_vectors.declarations(dtype, width), WRAPPERS
    if dtype == "float32":
        texts = [*texts, *itertools.chain.from_iterable(narrow_declarations(narrow, dtype, width) for narrow in NARROW)]
        wrappers += HALVES
    for name, value in {"N": tile_vectors.suffix(dtype, width), "W": str(width), "V": tile_vectors.vector_type(dtype, width)}.items():
        wrappers = wrappers.replace(f"${name}", value)
    (folder / "masks.c").write_text("\n".join(["#include <stdint.h>", *dict.fromkeys(texts), wrappers]))
    line = ["gcc", "-std=gnu11", "-O2", "-fno-math-errno", "-fno-trapping-math", "-w", "-shared", "-fPIC", *flags]
    subprocess.run([*line, "masks.c", "-o", "masks.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "masks.so"))


class Guarded:
    """A page between two that cannot be accessed."""

    def __init__(self) -> None:
        self.page = mmap.PAGESIZE
        self.mapped = mmap.mmap(-1, 3 * self.page)
        self.memory = np.frombuffer(self.mapped, np.uint8)
        self.protect(0)

    def protect(self, access: int) -> None:
        for first in (0, 2 * self.page):
            where = ctypes.c_void_p(self.memory.ctypes.data + first)
            assert ctypes.CDLL(None).mprotect(where, ctypes.c_size_t(self.page), access) == 0

    def inside(self, dtype: str) -> np.ndarray:
        return self.memory[self.page : 2 * self.page].view(dtype)


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    pages = Guarded()
    yield pages
    pages.protect(mmap.PROT_READ | mmap.PROT_WRITE)


def place(array: np.ndarray, first: int = 0) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data + first * array.itemsize)


def masks(width: int) -> list[int]:
    """Those of lanes that follow one another, and some others."""
    runs = [((1 << count) - 1) << first for first in range(width) for count in range(width - first + 1)]
    return sorted({*runs, 0b101 % (1 << width), 0b1011_0110_0101_1101 % (1 << width)})


@pytest.mark.parametrize(("name", "step"), [("load", 1), ("every2", 2), ("every3", 3), ("every4", 4), ("strided", 5)])
def test_loads_read_lanes_alone(functions: ctypes.CDLL, vector: tuple[str, int], guarded: Guarded, name: str, step: int) -> None:
    """At the ends of a page with none beside it, and in the middle."""
    dtype, width = vector
    memory = guarded.inside(dtype)
    memory[:] = np.arange(1, len(memory) + 1)
    for bits in masks(width):
        lanes = [lane for lane in range(width) if bits >> lane & 1]
        first, last = (lanes[0], lanes[-1]) if lanes else (0, 0)
        for at in (-first * step, 100, len(memory) - 1 - last * step, *([-len(memory) // 2, 3 * len(memory) // 2] if not lanes else [])):
            found = np.zeros(width, dtype)
            getattr(functions, name)(place(found), place(memory, at), bits)
            np.testing.assert_array_equal(found, [memory[at + lane * step] if lane in lanes else 0 for lane in range(width)])


@pytest.mark.parametrize(("name", "dtype"), [("load_halves", np.float16), ("load_bfloats", np.uint16)])
def test_loads_of_halves(functions: ctypes.CDLL, vector: tuple[str, int], guarded: Guarded, name: str, dtype: type) -> None:
    if vector[0] != "float32":
        pytest.skip("they are converted to float32")
    width, memory = vector[1], guarded.inside("uint8").view(dtype)
    memory[:] = np.arange(len(memory)) % 1000 + 1
    wide = memory.astype(np.float32) if dtype == np.float16 else (memory.astype(np.uint32) << 16).view(np.float32)
    for bits in masks(width):
        lanes = [lane for lane in range(width) if bits >> lane & 1]
        first, last = (lanes[0], lanes[-1]) if lanes else (0, 0)
        for at in (-first, 100, len(memory) - 1 - last, *([-len(memory) // 2] if not lanes else [])):
            found = np.zeros(width, np.float32)
            getattr(functions, name)(place(found), place(memory, at), bits)
            np.testing.assert_array_equal(found, [wide[at + lane] if lane in lanes else 0 for lane in range(width)])


def test_stores_write_lanes_alone(functions: ctypes.CDLL, vector: tuple[str, int], guarded: Guarded) -> None:
    dtype, width = vector
    memory, source = guarded.inside(dtype), np.arange(1, width + 1).astype(dtype)
    for bits in masks(width):
        lanes = [lane for lane in range(width) if bits >> lane & 1]
        if not lanes:
            continue
        for at in (-lanes[0], 100, len(memory) - 1 - lanes[-1]):
            memory[:] = 0
            functions.store(place(memory, at), place(source), bits)
            expected = np.zeros_like(memory)
            expected[[at + lane for lane in lanes]] = source[lanes]
            np.testing.assert_array_equal(memory, expected)


def test_any_and_all(functions: ctypes.CDLL, vector: tuple[str, int]) -> None:
    for bits in masks(vector[1]):
        assert bool(functions.any(bits)) == bool(bits) and bool(functions.all(bits)) == (bits == (1 << vector[1]) - 1)


def test_selections_and_sums(functions: ctypes.CDLL, vector: tuple[str, int]) -> None:
    dtype, width = vector
    one, two = np.arange(1, width + 1).astype(dtype), np.arange(10, width + 10).astype(dtype)
    for bits in masks(width):
        chosen = np.array([bits >> lane & 1 for lane in range(width)], bool)
        for name, expected in (("blended", np.where(chosen, two, one)), ("added", one + two * chosen)):
            found = one.copy()
            getattr(functions, name)(place(found), place(two), bits)
            np.testing.assert_array_equal(found, expected)


def test_extrema_keep_nan(functions: ctypes.CDLL, vector: tuple[str, int]) -> None:
    dtype, width = vector
    special = [-3, 0, 7, 7, -1, 5, 2, -9] if dtype == "int32" else [np.nan, 1, -np.inf, np.inf, 0.0, -2.5, 7, np.nan]
    for turn in range(8):
        one, two = (np.resize(np.roll(special, by), width).astype(dtype) for by in (turn, 3 * turn + 1))
        for name, expected in (("greatest", np.maximum(one, two)), ("least", np.minimum(one, two))):
            found = one.copy()
            getattr(functions, name)(place(found), place(two), 0)
            np.testing.assert_array_equal(found, expected)
