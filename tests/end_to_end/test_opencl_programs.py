"""The GPU mapping in OpenCL against the reference: random programs and those that once failed.

PoCL runs them, in a worker process; oclgrind watches over some. `make soak` draws fresh ones.
"""
from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.cases import REGRESSIONS, Case, Fill, load
from support.fuzz.programs import draw
from support.rings.oclgrind import Edit, assert_clean, inspect
from support.rings.opencl import assert_agrees, require

from tcjit.mapping.options import Options

pytestmark = pytest.mark.opencl

PROGRAMS, SHARDS, SEED = 18, 6, 20240601
WATCHED = 12
SAVED = sorted(REGRESSIONS.glob("*.tc"))
TEXT = "def mm(float(M, K) A, float(K, N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }"
FILLS = {name: Fill("float32", "small", 1, -3, 3) for name in "AB"}
MATMUL = Case(TEXT, {"A": (20, 20), "B": (20, 33)}, FILLS, exact=True, options=Options(reduction_tile=8))  # three steps
BARRIER = "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"


@pytest.fixture(autouse=True)
def pocl() -> None:
    require("pocl")


@pytest.mark.sample(2)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_opencl_agrees_with_the_reference(shard: int) -> None:
    for number in range(shard, PROGRAMS, SHARDS):
        assert_agrees(draw(random.Random(f"{SEED} {number}")))


@pytest.mark.parametrize("path", SAVED, ids=[p.stem for p in SAVED])
def test_programs_that_once_failed(path: Path) -> None:
    assert_agrees(load(path))


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", "half bfloat16 float double int8 uint8 int16 uint32 int64 bool".split())
def test_vectors_of_every_type(dtype: str) -> None:
    """Copied, computed with, and turned in shared memory; tensors that begin on no boundary of a vector are among the layouts drawn."""
    text = f"""def f({dtype}(M, N) A, {dtype}(M, N) B, {dtype}(N, M) C) -> (X, Y, Z) {{
        X(m, n) = A(m, n)
        Y(m, n) = min(A(m, n), B(m, n))
        Z(m, n) = C(n, m)
    }}"""
    kind = {"half": "float16", "float": "float32", "double": "float64"}.get(dtype, dtype)
    fills = {name: Fill(kind, "small", number, 0, 1 if dtype == "bool" else 5) for number, name in enumerate("ABC")}
    shapes = {"A": (96, 64), "B": (96, 64), "C": (64, 96)}
    case = Case(text, shapes, fills, exact=True, options=Options(vector=4, fusion="minimal"), device={"processors": 1})
    assert_agrees(case)
    if dtype in ("half", "float", "uint8"):
        require("oclgrind")
        assert_clean(case)


@pytest.mark.sample(2)
@pytest.mark.parametrize("number", range(WATCHED))
def test_oclgrind_has_nothing_to_say(number: int) -> None:
    require("oclgrind")
    rng = random.Random(f"watched {number}")
    case = draw(rng)
    while case.faults:  # a wrong index is one that oclgrind may speak of
        case = draw(rng)
    assert_clean(case)


def test_oclgrind_has_nothing_to_say_of_a_product() -> None:
    require("oclgrind")
    assert_clean(MATMUL)


@pytest.mark.parametrize("number", [0, 1])
def test_oclgrind_misses_a_removed_barrier(number: int) -> None:
    require("oclgrind")
    _, found = inspect(MATMUL, Edit(BARRIER, number=number))
    assert any("data race at local memory" in finding.what and finding.kernel == "tc_mm" for finding in found), found


def test_oclgrind_has_nothing_to_say_of_atomic_updates() -> None:
    """Nor of sums of floats, which take several instructions; but of updates that are not atomic."""
    require("oclgrind")
    text = "def f(int64(N) I, {0}(N) X, {0}(V) Like) -> ({0}(V) O) {{ O(I(n)) +=! X(n) }}"
    for dtype in ("float", "int32"):
        kind = "float32" if dtype == "float" else dtype
        fills = {"I": Fill("int64", "small", 1, 0, 9), "X": Fill(kind, "small", 2, -3, 3), "Like": Fill(kind, "small", 3, 0, 1)}
        case = Case(text.format(dtype), {"I": (200,), "X": (200,), "Like": (300,)}, fills, exact=True, device={"processors": 1})
        assert_clean(case)
    _, found = inspect(case, Edit("  atomic_add((__global uint32_t *)p, (uint32_t)v);", "  *p = *p + v;"))
    assert any("data race at global memory" in finding.what for finding in found), found
