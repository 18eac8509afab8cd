"""Numbers that printers count of the nodes they write.

Modules: codegen.profile
"""
from __future__ import annotations

import math

import pytest
from support.mapping import AVX512, MATMUL, program

from tcjit.codegen.c import emit_c
from tcjit.codegen.dialect import CUDA, C
from tcjit.codegen.gpu_kernel import emit_gpu
from tcjit.codegen.loops import For
from tcjit.codegen.profile import UNKNOWN, Profile, features, scaled, trips
from tcjit.codegen.source import KernelLaunch, Source
from tcjit.grammar.linear import Linear, combine
from tcjit.mapping.machine import SM_80
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import map_gpu, map_program


def counts(text: str, shapes: dict[str, tuple[int, ...]], options: Options | None = None) -> dict[str, float]:
    """The figures, those that are logarithms as counts."""
    found = features(emit_c(map_program(program(text, shapes), options or Options(), AVX512), C, AVX512, checked=True))
    return {name: value if name in ("depth", "regions") else 2**value - 1 for name, value in found.items()}


def test_registers_of_results_are_counted() -> None:
    found = counts(MATMUL, {"A": (48, 64), "B": (64, 96)}, Options(register_tile=(8, 2)))
    assert found["accumulators"] == pytest.approx(16, rel=0.01) and found["width"] == pytest.approx(16, rel=0.01)


def test_without_vectors_there_are_none_and_far_more_to_do() -> None:
    shapes = {"A": (48, 64), "B": (64, 96)}
    fast, slow = counts(MATMUL, shapes), counts(MATMUL, shapes, Options.preset("naive"))
    assert slow["sums"] == slow["accumulators"] == 0 and slow["width"] == pytest.approx(1, rel=0.01)
    assert slow["stores"] == pytest.approx(48 * 96 * (64 + 1), rel=0.01)
    assert slow["runs"] > 8 * fast["runs"] and slow["loops"] > 8 * fast["loops"]


def test_threads_share_the_iterations_of_parallel_loops() -> None:
    text = "def f(float(M,N) X, float(N) Z) -> (Y) { Y(m,n) = X(m,n) + Z(n) }"
    shapes: dict[str, tuple[int, ...]] = {"X": (4096, 512), "Z": (512,)}
    found = counts(text, shapes)
    assert found["regions"] == 1 and found["share"] == pytest.approx(4096, rel=0.01)
    assert found["runs"] == pytest.approx(4096 * 512 / 8, rel=0.01) == found["stores"]
    alone = counts(text, shapes, Options(parallel=False))
    assert alone["regions"] == alone["share"] == 0 and alone["runs"] == found["runs"]


def test_what_an_innermost_loop_takes_apart_is_counted() -> None:
    text = "def f(float(M,N) X) -> (Y) { Y(n,m) = X(m,n) + 1.0 }"
    assert counts(text, {"X": (64, 64)}, Options(private_buffers=False))["strided"] == pytest.approx(64 * 64, rel=0.01)
    assert counts(text.replace("Y(n,m)", "Y(m,n)"), {"X": (64, 64)})["strided"] == 0
    for transposed in (text, text.replace(" + 1.0", "")):  # in vectors
        assert counts(transposed, {"X": (64, 64)})["strided"] < 64 * 64 / 8


def test_loops_that_end_at_a_border_count_as_the_full_ones() -> None:
    text = "def f(float(M,N) X) -> (Y) { Y(m,n) = X(m,n) + 1 }"
    assert counts(text, {"X": (100, 96)}, Options(tile=(32, 32)))["runs"] == pytest.approx(128 * 96 / 8, rel=0.01)


def test_grids_and_barriers_of_a_gpu() -> None:
    profile = Profile()
    profile.counts["private"] += 256
    with profile.loop("c0", 32):
        for name in ("tested", "runs", "stores", "waits"):
            profile.count(name)
    found = features(Source("", "tc_f", (), 0, (), (KernelLaunch("tc_f", (4, 8, 2), 128, 1024),), profile=profile.totals()))
    wanted = {"blocks": 64, "threads": 128, "shared": 1024, "private": 256}
    wanted |= dict.fromkeys(("waits", "stores", "runs", "tested", "loops"), 32)
    assert {name: found[name] for name in wanted} == {name: round(math.log2(1 + count), 3) for name, count in wanted.items()}
    assert found["depth"] == 1 and set(found) >= {"workspace", "regions", "share"}


def test_the_kernels_of_a_gpu_are_counted_together() -> None:
    mapped = map_gpu(program(MATMUL, {"A": (256, 256), "B": (256, 256)}), Options(), SM_80)
    source = emit_gpu(mapped, CUDA, SM_80, checked=True)
    assert source.profile["stores"] > 0 and source.profile["lines"] > 0
    assert source.profile["waits"] >= source.text.count("__syncthreads();") > 0  # in loops more often


@pytest.mark.parametrize("lower, upper, step, count", [(0, 62, 2, 32), (3, 9, 1, 7), (0, -1, 1, 1)])
def test_trips_of_loops_between_constants(lower: int, upper: int, step: int, count: int) -> None:
    assert trips(For("c0", Linear.of(lower), Linear.of(upper), step, ())) == count


def test_trips_of_other_loops_are_estimated() -> None:
    size = Linear.of("n")
    assert trips(For("c0", Linear.of(0), combine("min", (size - 1, Linear.of(31))), 1, ())) == 32
    assert trips(For("c0", Linear.of(0), size - 1, 1, ())) == UNKNOWN == trips(For("c0", size, size + size, 1, ()))


def test_only_factors_count_as_strides() -> None:
    value = Linear.of("a").times(3) + Linear.of("b") - Linear.of("c") + combine("floor", (Linear.of("d").times(5), Linear.of(2)))
    assert list(scaled(value)) == ["a", "d"]
