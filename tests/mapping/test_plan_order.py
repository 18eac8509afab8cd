"""The order of a contraction's tile loops."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.mapping import AVX512, MATMUL, program

from tcjit.mapping.machine import Machine
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import build_scop
from tcjit.mapping.plan_order import START, Nest

FAR = replace(AVX512, cache_bytes=1 << 40)


def order(m: int, k: int, n: int, machine: Machine, tile: tuple[int, int] = (6, 64)) -> str:
    """The columns of a matrix product, outermost first."""
    scop = build_scop(program(MATMUL, {"A": (m, k), "B": (k, n)}), Options(nest=False))
    sums = next(s for s in scop.statements if s.reduction)
    return "".join("mn"[c] for c in Nest(scop, sums, ("m", "n"), tile, m * k * n / 16, machine).order())


@pytest.mark.parametrize(
    ("m", "k", "n", "machine", "expected"),
    [
        (1000, 777, 555, FAR, "mn"),  # the larger operand outside, where all stays in cache
        (1000, 777, 555, AVX512, "nm"),  # columns of B for all rows of A: A comes 9 times, B once, not 167 times
        (555, 777, 1000, AVX512, "nm"),
        (1000, 777, 555, replace(AVX512, threads=64), "mn"),  # 9 pieces are no work for 64 threads
    ],
)
def test_what_inner_loops_sweep_stays_in_cache(m, k, n, machine, expected):
    assert order(m, k, n, machine) == expected


def test_traffic_of_both_orders():
    scop = build_scop(program(MATMUL, {"A": (960, 512), "B": (512, 640)}), Options(nest=False))
    nest = Nest(scop, scop.statements[1], ("m", "n"), (6, 64), 1.0, AVX512)
    a, b, c = 960 * 512 * 4, 512 * 640 * 4, 960 * 640 * 4
    assert nest._traffic([1, 0])[0] == 10 * a + b + c
    assert nest._traffic([0, 1])[0] == a + 160 * b + c
    assert Nest(scop, scop.statements[1], ("m", "n"), (6, 64), 1.0, FAR)._traffic([0, 1])[0] == a + b + c


GROUPED = "def gconv(float(N,G,C,H,W) I, float(G,C,KH,KW,F) K) -> (O) { O(n,g,h,w,f) +=! I(n,g,c,h + kh,w + kw) * K(g,c,kh,kw,f) }"


def test_images_come_as_they_lie_in_memory():
    shapes = {"I": (32, 32, 16, 14, 14), "K": (32, 16, 3, 3, 16)}
    scop = build_scop(program(GROUPED, shapes), Options(nest=False))
    sums = next(s for s in scop.statements if s.reduction)
    nest = Nest(scop, sums, ("n", "g", "h", "w", "f"), (1, 1, 12, 2, 16), 2.3e7, AVX512)
    images, kernels = 32, 32
    every, beside = nest._traffic([1, 0])[1], nest._traffic([0, 1])[1]
    # group by group each image is a stretch of its own; image by image only the first, and the kernels begin anew for each
    assert every >= START * images * kernels > 10 * START * (images + 1) >= beside
    assert nest.order()[0] == 0
