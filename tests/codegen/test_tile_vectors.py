"""Vectors of register tiles: every function at every mask, beside memory that nobody may touch, on processors with masks and without."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import tile_vectors

from tcjit.codegen.tile_vectors import declarations, suffix, vector_type

TESTS = Path(__file__).resolve().parents[1]
CPUINFO = Path("/proc/cpuinfo")
KNOWN = CPUINFO.read_text().split() if CPUINFO.exists() else []
FLAGS = {"avx512f": "-mavx512f", "avx2": "-mavx2", "": ""}


@pytest.mark.skipif(shutil.which("gcc") is None or platform.machine() != "x86_64", reason="gcc's flags for x86")
@pytest.mark.parametrize("feature", FLAGS, ids=lambda feature: feature or "baseline")
def test_every_function(feature: str, tmp_path: Path) -> None:
    if feature and feature not in KNOWN:
        pytest.skip(f"a processor without {feature}")
    (tmp_path / "vectors.c").write_text(tile_vectors.source())
    flags = [flag for flag in (FLAGS[feature],) if flag]
    made = subprocess.run(
        ["gcc", "-std=gnu11", "-O2", "-w", "-ffp-contract=off", *flags, "-shared", "-fPIC", "vectors.c", "-o", "vectors.so"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    ran = subprocess.run(
        [sys.executable, "-m", "support.tile_vectors", "./vectors.so"],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert ran.returncode == 0 and ran.stdout == "fine\n", f"{ran.returncode}\n{ran.stderr}"


def test_names() -> None:
    assert vector_type("float32", 16) == "tc_float16" and suffix("float64", 8) == "_f64x8"
    assert vector_type("float32", 8) != vector_type("float64", 8)


@pytest.mark.parametrize("width", tile_vectors.WIDTHS)
@pytest.mark.parametrize("dtype", tile_vectors.TYPES)
def test_nothing_is_left_to_fill_in(dtype: str, width: int) -> None:
    text = "\n".join(declarations(dtype, width))
    assert "$" not in text and text.count("#if") == text.count("#endif")
    assert ("__AVX512F__" in text) == (width * (4 if dtype == "float32" else 8) == 64)
