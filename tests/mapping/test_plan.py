"""Which patch of a contraction the model takes.

Modules: mapping.machine mapping.pack mapping.passes.pack_operands mapping.strides
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.mapping import AVX512, SOFTMAX, program

from tcjit.mapping.dependences import dependences
from tcjit.mapping.machine import Machine
from tcjit.mapping.options import Options
from tcjit.mapping.passes.fuse import fuse, groups_of
from tcjit.mapping.pipeline import build_scop
from tcjit.mapping.plan import patches, plan
from tcjit.mapping.schedule import schedule

FOUR = "def four(float(a_,e_,b_,f_) A, float(f_,e_,c_,d_) B) -> (C) { C(a,b,c,d) +=! A(a,e,b,f) * B(f,e,c,d) }"


def tile(shapes: Mapping[str, tuple[int, ...]], machine: Machine = AVX512) -> tuple[int, ...]:
    """The tile of the best patch."""
    scop = build_scop(program(FOUR, shapes), Options(nest=False))
    deps = dependences(scop)
    (group,) = groups_of(scop, fuse(scop, deps, schedule(scop, deps), Options(nest=False))) or ()
    return patches(scop, group, Options(nest=False), machine)[0].tile


def test_few_lines_at_the_same_place_of_pages():
    # images of A are 15 pages apart in the first, and a little more in the second
    crowded, free = {"A": (32, 24, 32, 20), "B": (20, 24, 32, 32)}, {"A": (32, 24, 31, 20), "B": (20, 24, 32, 32)}
    assert tile(crowded)[0] <= 4
    assert tile(free)[0] > 4


@pytest.mark.parametrize(("near", "lanes"), [(1 << 15, 16), (1 << 20, 32)])
def test_a_panel_that_stays_in_the_nearest_cache_is_worth_more_rows(near, lanes):
    # 480 terms of 16 columns are 30 KiB, of 32 columns twice that
    assert tile({"A": (32, 24, 32, 20), "B": (20, 24, 32, 32)}, replace(AVX512, near_bytes=near))[3] == lanes


GROUPS = "def gconv(float(N,G,C,H,W) I, float(G,F,C,KH,KW) W1) -> (O) { O(n,g,f,h,w) +=! I(n,g,c,h + kh,w + kw) * W1(g,f,c,kh,kw) }"


@pytest.mark.parametrize(
    ("kernel", "registers", "rows"),
    [
        (3, 32, (1, 12)),  # twelve sums, and thirteen elements that the next steps read again
        (3, 24, (2, 5)),  # ten, and twelve elements: more would not fit
        (9, 32, (12, 2)),  # too long to be written out: nothing is kept, and the larger patch is better
    ],
)
def test_a_row_reads_again_what_it_read_for_its_neighbour(kernel, registers, rows):
    options, machine = Options(nest=False), replace(AVX512, vector_registers=registers)
    scop = build_scop(program(GROUPS, {"I": (4, 4, 16, 11 + kernel, 11 + kernel), "W1": (4, 16, 16, kernel, kernel)}), options)
    deps = dependences(scop)
    found = [group for group in groups_of(scop, fuse(scop, deps, schedule(scop, deps), options)) or () if len(group.columns) == 5]
    best = next(ranked[0] for group in found if (ranked := patches(scop, group, options, machine)))
    assert best.tile[2:4] == rows and best.tile[4] == 16


NORM = """def norm(float(N,C) X) -> (Y) {
    S(n) +=! X(n, c)
    V(n) +=! (X(n, c) - S(n) / C) * (X(n, c) - S(n) / C)
    Y(n, c) = (X(n, c) - S(n) / C) * rsqrt(V(n) / C + 0.001)
}"""
SCALED = "def scaled(float(N,C) X) -> (Y) { S(n) +=! X(n, c)  Y(n, c) = X(n, c) / S(n) }"


@pytest.mark.parametrize(
    ("text", "rows", "columns", "together"),
    [
        (SOFTMAX, 1000, 300, 4),
        (SOFTMAX, 1000, 3000, 2),  # 24 kB a row, 64 of them near enough
        (SOFTMAX, 1000, 20000, 1),
        (SOFTMAX, 32, 300, 2),  # eight turns for each of two threads
        (SOFTMAX, 16, 300, 1),
        (NORM, 1000, 300, 4),
        (NORM, 1000, 1000, 2),  # no function of elements takes longer than reading them
        (NORM, 1000, 2000, 1),
        (SCALED, 1000, 300, 1),  # one wait is hidden by the next row anyway
    ],
)
def test_rows_take_turns_where_sweeps_wait_for_sums(text: str, rows: int, columns: int, together: int) -> None:
    made = build_scop(program(text, {"I" if text is SOFTMAX else "X": (rows, columns)}), Options(nest=False))
    deps = dependences(made)
    (group,) = groups_of(made, fuse(made, deps, schedule(made, deps), Options(nest=False))) or ()
    assert plan(made, group, Options(nest=False), AVX512).tile == (together,)
    assert plan(made, group, Options(nest=False, tile=(3,)), AVX512).tile == (3,)


@pytest.mark.parametrize("register_tile", [(2, 1), (2, 4), (1, 2)])
def test_registers_along_a_sum_are_those_asked_for(register_tile: tuple[int, int]) -> None:
    text, options = "def mv(float(M,K) A, float(K) x) -> (y) { y(m) +=! A(m,k) * x(k) }", Options(nest=False, register_tile=register_tile)
    scop = build_scop(program(text, {"A": (64, 256), "x": (256,)}), options)
    deps = dependences(scop)
    (group,) = groups_of(scop, fuse(scop, deps, schedule(scop, deps), options)) or ()
    made = [one.patch for one in patches(scop, group, options, AVX512) if isinstance(one.patch.lane, str)]
    assert made and {one.vectors for one in made} == {register_tile[1]}
