"""Vectors of register tiles: every function at every mask, beside memory that nobody may touch, on processors with masks and without.

Modules: codegen.strided_vectors codegen.avx_masks codegen.narrow_vectors
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import tile_vectors

from tcjit.codegen.narrow_vectors import narrow_declarations
from tcjit.codegen.tile_vectors import declarations, suffix, vector_type
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.nest.vector_forms import NARROW

TESTS = Path(__file__).resolve().parents[1]
CPUINFO = Path("/proc/cpuinfo")
KNOWN = CPUINFO.read_text().split() if CPUINFO.exists() else []
# a feature of the processor, and what lets gcc use it
FLAGS = {"avx512_vnni": "-march=cascadelake", "avx512vl": "-march=skylake-avx512", "avx2": "-mavx2", "avx": "-mavx", "": ""}
KERNELS = ("-std=gnu11", "-O2", "-w", "-fwrapv", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
needs_x86 = pytest.mark.skipif(shutil.which("gcc") is None or platform.machine() != "x86_64", reason="gcc's flags for x86")


@pytest.fixture(scope="module", params=FLAGS, ids=lambda feature: feature or "baseline")
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All functions compiled for a kind of processor."""
    if request.param and request.param not in KNOWN:
        pytest.skip(f"a processor without {request.param}")
    folder = tmp_path_factory.mktemp("vectors")
    (folder / "vectors.c").write_text(tile_vectors.source())
    flags = [*KERNELS, *FLAGS[request.param].split(), "-shared", "-fPIC"]
    made = subprocess.run(["gcc", *flags, "vectors.c", "-o", "vectors.so"], cwd=folder, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return folder / "vectors.so"


def check(library: Path, *what: str) -> None:
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    command = [sys.executable, "-m", "support.tile_vectors", str(library), *what]
    ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert ran.returncode == 0 and ran.stdout == "fine\n", f"{ran.returncode}\n{ran.stderr}"


@needs_x86
def test_every_function(library: Path) -> None:
    check(library)


@needs_x86
def test_masks_that_the_compiler_would_know(library: Path) -> None:
    check(library, "known")


def test_names() -> None:
    assert vector_type("float32", 16) == "tc_float16" and suffix("float64", 8) == "_f64x8"
    assert vector_type("float32", 8) != vector_type("float64", 8)


@pytest.mark.parametrize(("dtype", "width"), tile_vectors.VECTORS)
def test_nothing_is_left_to_fill_in(dtype: str, width: int) -> None:
    text = "\n".join(declarations(dtype, width))
    assert "$" not in text and text.count("#if") == text.count("#endif")
    for narrow in NARROW.get(dtype, ()):
        more = "\n".join(narrow_declarations(narrow, dtype, width))
        assert "$" not in more and more.count("#if") == more.count("#endif")
    size = DTYPES[dtype].bytes
    assert ("__AVX512BW__) && !defined(__clang__)\n" in text or "__AVX512F__" in text) == (width * size == 64)
