"""What a nest fetches ahead: small blocks from beyond the second cache, not what processors foresee.

Modules: mapping.nest.prefetch
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.mapping import AVX512
from support.nests import Shapes, flat

from tcjit.mapping.machine import core_of
from tcjit.mapping.nest.nest import Leaf, Prefetch
from tcjit.mapping.nest.plan_nest import plan_nest
from tcjit.mapping.nest.prefetch import STEPS_AHEAD, lines_of_step

CORE = replace(core_of(AVX512, 16, 4), l2=1 << 20)
GROUPS = "def f(float(N,G,C,H,W) X, float(G,C,KH,KW,F) K) -> (O) { O(n,g,f,h,w) +=! X(n,g,c,h+kh,w+kw) * K(g,c,kh,kw,f) }"
WEIGHTS = (32, 16, 3, 3, 16)


def prefetched(text: str, shapes: Shapes) -> tuple[Prefetch, ...]:
    return plan_nest(flat(text, shapes), CORE).nest.prefetch


@pytest.mark.parametrize(
    ("images", "dims"),
    [
        ((32, 32, 16, 14, 14), ["n"]),
        ((2, 32, 16, 14, 14), []),  # which the second cache holds
        ((2, 32, 16, 114, 114), []),  # one of which it does not
    ],
)
def test_the_next_image_of_a_batch(images: tuple[int, ...], dims: list[str]) -> None:
    """Its channels are read a few rows of each at a time."""
    assert [prefetch.dim for prefetch in prefetched(GROUPS, {"X": images, "K": WEIGHTS})] == dims


@pytest.mark.parametrize(
    ("shape", "filters", "dims"),
    [
        ((5, 243, 1124, 23), 4, ["h"]),  # eight rows of a channel, two of which the tile before has read, then the next channel
        ((5, 243, 1124, 300), 4, ["h"]),  # parts of eight rows, the next tile below: with a window that is written out as well
        ((5, 64, 58, 58), 64, []),  # the next tile is beside, in the lines of this one
    ],
)
def test_the_next_rows_of_every_channel(shape: tuple[int, ...], filters: int, dims: list[str]) -> None:
    """Where lines of a channel are few, and those of the next one lie on another page."""
    text = "def f(float(N,C,H,W) X, float(F,C,3,3) K) -> (O) { O(n,f,h,w) +=! X(n,c,h+i,w+j) * K(f,c,i,j) }"
    assert [prefetch.dim for prefetch in prefetched(text, {"X": shape, "K": (filters, shape[1], 3, 3)})] == dims


def test_what_is_read_in_order_is_foreseen() -> None:
    """Matrices one after the other, each from its first line to its last."""
    text = "def f(float(B,M,K) A, float(B,K,N) X) -> (C) { C(b,m,n) +=! A(b,m,k) * X(b,k,n) }"
    assert prefetched(text, {"A": (500, 14, 26), "X": (500, 26, 32)}) == ()


def test_lines_of_a_step() -> None:
    s = flat(GROUPS, {"X": (32, 32, 16, 14, 14), "K": WEIGHTS})
    [image] = (found for access, found in s.reads.items() if access.tensor == "X")
    assert lines_of_step(image, s, Leaf("f", 1, (("w", 12),), ("kw",)), 16, 4) == [0]
    assert lines_of_step(image, s, Leaf("f", 1, (("w", 12),), ("kh", "kw")), 16, 4) == [0, 16, 32], "three rows of fourteen, side by side"
    assert lines_of_step(image, s, Leaf("f", 1, (("h", 3),)), 16, 8) == [0, 14, 28]


def test_the_next_tile_is_that_of_the_innermost_loop() -> None:
    """Not that of another loop, whose next tile is as many tiles later as the loops inside have."""
    text = "def f(float(A,8,D) X, float(A,D,N) U) -> (O) { O(n,a,m) +=! X(a,m,d) * U(a,d,n) }"
    nest = plan_nest(flat(text, {"X": (64, 8, 88), "U": (64, 88, 2172)}), CORE, None, (8, 3)).nest
    loops = [loop.dim for loop in nest.loops if loop.dim in "na"]
    assert [prefetch.dim for prefetch in nest.prefetch] == loops[-1:] and nest.leaf.lane == "n" and len(loops) > 1


def test_what_few_rows_use_is_not_fetched() -> None:
    """Little is computed meanwhile: memory is as fast without."""
    text = "def f(float(A,D) X, float(A,D,N) U) -> (O) { O(n,a) +=! X(a,d) * U(a,d,n) }"
    assert all(prefetch.distance == STEPS_AHEAD for prefetch in prefetched(text, {"X": (64, 88), "U": (64, 88, 2172)}))


@pytest.mark.parametrize(("terms", "fetched"), [(1024, [("k", STEPS_AHEAD)]), (128, [])])
def test_lines_of_a_panel_that_the_first_cache_does_not_hold(terms: int, fetched: list[tuple[str, int]]) -> None:
    text = "def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"
    found = prefetched(text, {"A": (960, terms), "B": (terms, 960)})
    assert [(prefetch.dim, prefetch.distance) for prefetch in found] == fetched


def test_what_does_not_move_with_the_terms_is_not_fetched_at_each() -> None:
    text = "def f(float(D,A) U, float(A,C,D) V) -> (T) { T(a,d) +=! U(d,a) * V(a,c,d) }"
    found = prefetched(text, {"U": (512, 2000), "V": (2000, 60, 512)})
    assert [prefetch.operand for prefetch in found if prefetch.distance == STEPS_AHEAD] == [1]
