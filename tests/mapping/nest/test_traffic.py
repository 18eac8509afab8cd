"""What the loops of a nest bring into a cache, against counts of lines one by one, and the plans that follow from it.

Modules: mapping.nest.traffic
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import pytest
from support.mapping import AVX512
from support.nests import flat

from tcjit.mapping.machine import LINE, core_of
from tcjit.mapping.nest.merge_dims import shift_dims
from tcjit.mapping.nest.nest import Leaf, Loop, Nest
from tcjit.mapping.nest.operands import operands
from tcjit.mapping.nest.plan_nest import plan_nest
from tcjit.mapping.nest.traffic import Moved, Traffic

CORE = core_of(AVX512, 16, 4)
MATMUL = "def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"
M, K, N = 96, 64, 128
BYTES = {"A": 4 * M * K, "B": 4 * K * N, "C": 4 * M * N}
MANY = "def f(float(C,L) X, float(C,F) w) -> (O) { O(f,l) +=! X(c,l) * w(c,f) }"


@pytest.mark.parametrize(
    ("form", "sizes"),
    [
        ({"h": 64, "w": 1}, {"h": 6, "w": 64}),  # whole rows
        ({"h": 64, "w": 1}, {"h": 6, "w": 16}),  # a line of each
        ({"h": 64, "kh": 64, "w": 1}, {"h": 6, "kh": 3, "w": 32}),  # windows overlap
        ({"h": 128, "kh": 64, "w": 1}, {"h": 6, "kh": 3, "w": 32}),
        ({"c": 4096, "h": 64, "kh": 64, "w": 1, "kw": 1}, {"c": 5, "h": 4, "kh": 2, "w": 30, "kw": 3}),
        ({"w": 3, "kw": 1, "h": 8}, {"w": 2, "kw": 3, "h": 50}),  # rows that share lines
        ({"n": 32, "m": 320}, {"n": 10, "m": 7}),  # each element has a line
        ({"n": -1}, {"n": 40}),
        ({}, {}),
    ],
)
def test_lines_of_a_box(form: Mapping[str, int], sizes: Mapping[str, int]) -> None:
    places = {sum(form[dim] * at for dim, at in zip(sizes, point)) for point in product(*map(range, sizes.values()))}
    lines = {4 * (place - min(places)) // LINE for place in places}
    assert Moved(form, 4, packed=False).footprint(sizes) == LINE * len(lines)
    assert Moved({"n": 1, "k": 999}, 4, packed=True).footprint({"n": 3, "k": 5}) == 60, "a panel has no other elements between"


def traffic(*loops: tuple[str, int]) -> Traffic:
    s = flat(MATMUL, {"A": (M, K), "B": (K, N)})
    found, _ = operands(s, "n")
    return Traffic(s, Nest(tuple(Loop(*loop) for loop in loops), Leaf("n", 1, (("m", 8),))), found, (), 4)


@pytest.mark.parametrize(
    ("loops", "capacity", "times"),
    [
        ((("n", 16), ("m", 8), ("k", 1)), 1 << 20, {"A": 1, "B": 1, "C": 1}),  # all of them fit
        ((("n", 16), ("m", 8), ("k", 1)), 40 << 10, {"A": 1, "B": 1, "C": 1}),  # one panel of lanes with all rows
        ((("n", 16), ("m", 8), ("k", 1)), 10 << 10, {"A": N // 16, "B": 1, "C": 1}),  # a panel of lanes with one tile of rows
        ((("m", 8), ("n", 16), ("k", 1)), 10 << 10, {"A": 1, "B": M // 8, "C": 1}),
        ((("k", 16), ("n", 16), ("m", 8), ("k", 1)), 20 << 10, {"A": 1, "B": 1, "C": 2 * K // 16 - 1}),  # blocks of terms outermost
    ],
)
def test_a_product(loops: tuple[tuple[str, int], ...], capacity: int, times: Mapping[str, int]) -> None:
    assert traffic(*loops).into(capacity) == sum(BYTES[name] * count for name, count in times.items())


def test_cycles_count_what_leaves_the_second_cache() -> None:
    nest = traffic(("n", 16), ("m", 8), ("k", 1))
    assert nest.cycles(replace(CORE, l2=1 << 20)) == 0.0
    far = replace(CORE, l2=10 << 10, last=1 << 20)
    assert nest.cycles(far) == pytest.approx(nest.into(10 << 10) * CORE.l3_byte)
    assert nest.cycles(replace(far, last=10 << 10)) > nest.cycles(far), "memory is slower"


def test_results_in_short_stretches_come_late() -> None:
    along, across = traffic(("m", 8), ("n", 16), ("k", 1)), traffic(("n", 16), ("m", 8), ("k", 1))
    assert along.written_late < across.written_late


def test_an_operand_that_no_cache_holds_is_read_by_few_tiles() -> None:
    """Many terms of long rows: a tile of all results shares what it reads; one of few rows would read it again for each of the others."""
    s = shift_dims(flat(MANY, {"X": (1000, 12000), "w": (1000, 11)}))
    plan = plan_nest(s, CORE)
    nest = Traffic(s, plan.nest, plan.operands, plan.estimate.staged, 4)
    assert nest.into(CORE.l2) < 1.5 * 4 * 1000 * 12000
