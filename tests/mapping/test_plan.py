"""Which patch of a contraction the model takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from support_mapping import AVX512, program

from tcjit.mapping.dependences import dependences
from tcjit.mapping.machine import Machine
from tcjit.mapping.options import Options
from tcjit.mapping.passes.fuse import fuse, groups_of
from tcjit.mapping.plan import patches
from tcjit.mapping.schedule import schedule
from tcjit.mapping.scop import build

FOUR = "def four(float(a_,e_,b_,f_) A, float(f_,e_,c_,d_) B) -> (C) { C(a,b,c,d) +=! A(a,e,b,f) * B(f,e,c,d) }"


def tile(shapes: Mapping[str, tuple[int, ...]], machine: Machine = AVX512) -> tuple[int, ...]:
    """The tile of the best patch."""
    scop = build(program(FOUR, shapes), Options())
    deps = dependences(scop)
    (group,) = groups_of(scop, fuse(scop, deps, schedule(scop, deps), Options())) or ()
    return patches(scop, group, Options(), machine)[0].tile


def test_few_lines_at_the_same_place_of_pages():
    # images of A are 15 pages apart in the first, and a little more in the second
    crowded, free = {"A": (32, 24, 32, 20), "B": (20, 24, 32, 32)}, {"A": (32, 24, 31, 20), "B": (20, 24, 32, 32)}
    assert tile(crowded)[0] <= 4
    assert tile(free)[0] > 4


@pytest.mark.parametrize(("near", "lanes"), [(1 << 15, 16), (1 << 20, 32)])
def test_a_panel_that_stays_in_the_nearest_cache_is_worth_more_rows(near, lanes):
    # 480 terms of 16 columns are 30 KiB, of 32 columns twice that
    assert tile({"A": (32, 24, 32, 20), "B": (20, 24, 32, 32)}, replace(AVX512, near_bytes=near))[3] == lanes
