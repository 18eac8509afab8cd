"""Numbers read off printed kernels."""
from __future__ import annotations

import math

import pytest
from support.mapping import AVX512, MATMUL, program

from tcjit.codegen.c import emit
from tcjit.codegen.code_features import figures
from tcjit.codegen.dialect import C
from tcjit.codegen.source import KernelLaunch, Source
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import map_program


def counts(text: str, shapes: dict[str, tuple[int, ...]], options: Options | None = None) -> dict[str, float]:
    """The figures, those that are logarithms as counts."""
    found = figures(emit(map_program(program(text, shapes), options or Options(), AVX512), C, AVX512, checked=True))
    return {name: value if name in ("depth", "regions") else 2**value - 1 for name, value in found.items()}


def test_multiplications_on_vectors_are_all_there() -> None:
    found = counts(MATMUL, {"A": (48, 64), "B": (64, 96)}, Options(patch=(8, 2)))
    assert found["sums"] == pytest.approx(48 * 96 * 64 / 16, rel=0.01)
    assert found["loads"] == pytest.approx(found["sums"] * (8 + 2) / 16, rel=0.01)
    assert found["accumulators"] == pytest.approx(16, rel=0.01) and found["width"] == pytest.approx(16, rel=0.01)


def test_without_vectors_there_are_none_and_far_more_to_do() -> None:
    shapes = {"A": (48, 64), "B": (64, 96)}
    fast, slow = counts(MATMUL, shapes), counts(MATMUL, shapes, Options.preset("naive"))
    assert slow["sums"] == slow["accumulators"] == 0 and slow["width"] == pytest.approx(1, rel=0.01)
    assert slow["stores"] == pytest.approx(48 * 96 * (64 + 1), rel=0.01)
    assert slow["runs"] > 10 * fast["runs"] and slow["loops"] > 10 * fast["loops"]


def test_threads_share_the_iterations_of_parallel_loops() -> None:
    text = "def f(float(M,N) X) -> (Y) { Y(m,n) = X(m,n) + 1 }"
    shapes = {"X": (4096, 512)}
    found = counts(text, shapes)
    assert found["regions"] == 1 and found["share"] == pytest.approx(4096, rel=0.01)
    assert found["runs"] == pytest.approx(4096 * 512 / 8, rel=0.01) == found["stores"]
    alone = counts(text, shapes, Options(parallel=False))
    assert alone["regions"] == alone["share"] == 0 and alone["runs"] == found["runs"]


def test_what_an_innermost_loop_takes_apart_is_counted() -> None:
    text = "def f(float(M,N) X) -> (Y) { Y(n,m) = X(m,n) }"
    assert counts(text, {"X": (64, 64)})["strided"] == pytest.approx(64 * 64, rel=0.01)
    assert counts(text.replace("Y(n,m)", "Y(m,n)"), {"X": (64, 64)})["strided"] == 0


def test_loops_that_end_at_a_border_count_as_the_full_ones() -> None:
    text = "def f(float(M,N) X) -> (Y) { Y(m,n) = X(m,n) + 1 }"
    assert counts(text, {"X": (100, 96)}, Options(tile=(32, 32)))["runs"] == pytest.approx(128 * 96 / 8, rel=0.01)


def test_grids_and_barriers_of_a_gpu() -> None:
    body = """__kernel void tc_f(__global float *Y) {
  __local __attribute__((aligned(16))) float Y_p[256];
  for (int c0 = 0; c0 <= 62; c0 += 2) {
    if (c0 < tc_thread) {
      Y_p[c0] = 0.0f;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
}
"""
    found = figures(Source(body, "tc_f", (), 0, (), (KernelLaunch("tc_f", (4, 8, 2), 128, 1024),)))
    wanted = {"blocks": 64, "threads": 128, "shared": 1024, "private": 256}
    wanted |= dict.fromkeys(("waits", "stores", "runs", "tested", "loops"), 32)
    assert {name: found[name] for name in wanted} == {name: round(math.log2(1 + count), 3) for name, count in wanted.items()}
    assert found["depth"] == 1 and set(found) >= {"workspace", "regions", "share", "lines"}
