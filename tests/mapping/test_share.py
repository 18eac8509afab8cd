"""Groups inside common loops, and what is kept there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support_mapping import AVX512, mapped, program

from tcjit.mapping.dependences import dependences
from tcjit.mapping.options import Options
from tcjit.mapping.passes.fuse import fuse, groups_of
from tcjit.mapping.passes.share import Shared, share
from tcjit.mapping.pipeline import map_program
from tcjit.mapping.plan import plan
from tcjit.mapping.schedule import schedule
from tcjit.mapping.scop import build
from tcjit.mapping.tree import show

GROUPS = """def gconv(float(N,G,C,H,W) I, float(G,F,C,KH,KW) W1, float(G,F) B) -> (O) {
    O(n,g,f,h,w) +=! I(n,g,c,h + kh,w + kw) * W1(g,f,c,kh,kw)
    O(n,g,f,h,w) = O(n,g,f,h,w) + B(g,f)
}"""
SHAPES = {"I": (8, 4, 16, 14, 14), "W1": (4, 16, 16, 3, 3), "B": (4, 16)}


def shares(options: Options | None = None, shapes=SHAPES, machine=AVX512) -> tuple[Shared, ...]:
    options = options or Options()
    scop = build(program(GROUPS, shapes), options)
    deps = dependences(scop)
    groups = groups_of(scop, fuse(scop, deps, schedule(scop, deps), options))
    plans = [plan(scop, group, options, machine) for group in groups]
    return share(scop, deps, groups, plans, options, machine)


def test_a_copy_of_a_turned_result_runs_beside_its_sum():
    packed, both = shares()
    assert (packed.first, packed.last, packed.columns) == (0, 0, ())
    assert (both.first, both.last) == (1, 2)
    assert sorted(map(set, (column.values() for column in both.columns)), key=min) == [{"g"}, {"n"}]


@pytest.mark.parametrize(
    "kept_apart",
    [
        {"options": Options(fusion="minimal")},
        {"options": Options(tile=(2, 2))},  # a tile of several images cannot run beside single ones
        {"shapes": {**SHAPES, "I": (1, 4, 16, 14, 14)}},  # four rounds are too few for threads
        {"machine": replace(AVX512, threads=64)},  # and 32 too few for so many
        {"machine": replace(AVX512, cache_bytes=1 << 12)},  # what would be left for the copy does not stay in cache
    ],
)
def test_where_it_does_not(kept_apart):
    assert all(not each.columns and each.first == each.last for each in shares(**kept_apart))


def test_the_turned_result_is_a_buffer_of_one_round():
    made = mapped(GROUPS, SHAPES)
    assert made.verified
    (buffer,) = made.privates
    assert buffer.tensor == "O_turned"
    assert buffer.elements == 12 * 12 * 16


def test_only_the_outermost_loops_are_parallel():
    shapes = {"I": (32, 32, 16, 14, 14), "W1": (32, 16, 16, 3, 3), "B": (32, 16)}
    text = show(map_program(program(GROUPS, shapes), Options(), AVX512).tree)
    assert text.count('mark: "parallel"') == 2  # one around the packed weights, one around sum and copy
