"""Groups inside common loops, and what is kept there.

Modules: mapping.passes.share
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.mapping import AVX512, mapped, program

from tcjit.grammar.dynamic import generalise
from tcjit.grammar.front import read
from tcjit.mapping.dependences import dependences
from tcjit.mapping.options import Options
from tcjit.mapping.passes.fuse import fuse, groups_of
from tcjit.mapping.passes.share import Shared, share
from tcjit.mapping.pipeline import build_scop, map_program
from tcjit.mapping.plan import plan
from tcjit.mapping.schedule import schedule
from tcjit.mapping.tree import show

GROUPS = """def gconv(float(N,G,C,H,W) I, float(G,F,C,KH,KW) W1, float(G,F) B) -> (O) {
    O(n,g,f,h,w) +=! I(n,g,c,h + kh,w + kw) * W1(g,f,c,kh,kw)
    O(n,g,f,h,w) = O(n,g,f,h,w) + B(g,f)
}"""
SHAPES = {"I": (8, 4, 16, 14, 14), "W1": (4, 16, 16, 3, 3), "B": (4, 16)}


def shares(options: Options | None = None, shapes=SHAPES, machine=AVX512) -> tuple[Shared, ...]:
    options = options or Options(nest=False)
    scop = build_scop(program(GROUPS, shapes), options)
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
        {"options": Options(nest=False, fusion="minimal")},
        {"options": Options(nest=False, tile=(2, 2))},  # a tile of several images cannot run beside single ones
        # twelve rounds, of four groups and three rows, are too few for eight threads
        {"shapes": {**SHAPES, "I": (1, 4, 16, 5, 14)}, "machine": replace(AVX512, threads=8)},
        {"machine": replace(AVX512, threads=64)},  # and 32 too few for so many
        {"machine": replace(AVX512, cache_bytes=1 << 10, near_bytes=1 << 9)},  # not even one row stays in cache
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
    text = show(map_program(program(GROUPS, shapes), Options(nest=False), AVX512).tree)
    assert text.count('mark: "parallel"') == 2  # one around the packed weights, one around sum and copy


PRODUCTS = "def bmm(float(B,N,K) X, float(B,M,K) Y) -> (Z) { Z(b,n,m) +=! X(b,n,k) * Y(b,m,k) }"


def products(batch: int, size: int, options: Options | None = None, machine=AVX512):
    return map_program(program(PRODUCTS, {"X": (batch, size, size), "Y": (batch, size, size)}), options or Options(nest=False), machine)


def test_an_operand_is_packed_in_the_round_that_needs_it():
    made = products(64, 40)
    assert made.verified
    (buffer,) = made.privates
    assert (buffer.tensor, buffer.elements) == ("Y_packed", 40 * 40)
    assert show(made.tree).count('mark: "parallel"') == 1


@pytest.mark.parametrize(
    "apart",
    [
        products(3, 40),  # too few rounds for two threads
        products(12, 96),  # and for what is worth threads inside
        products(64, 40, Options(nest=False, fusion="minimal")),
        products(64, 40, machine=replace(AVX512, cache_bytes=1 << 12)),
    ],
    ids=["few", "heavy", "minimal", "large"],
)
def test_where_it_is_packed_before(apart):
    assert any(t.name == "Y_packed" for t in apart.scop.tensors) and not apart.privates


def test_light_rounds_may_be_few():
    assert products(12, 38).privates, "12 rounds of 55,000 products are no work for threads inside"


def test_weights_of_all_images_are_packed_once():
    made = mapped(GROUPS, SHAPES)
    assert [buffer.tensor for buffer in made.privates] == ["O_turned"]


def test_packing_sum_and_copy_share_the_same_loops():
    """One image: its groups are all the outer loops there are, for the weights' copy too."""
    made = mapped(GROUPS, {"I": (1, 32, 16, 14, 14), "W1": (32, 16, 16, 3, 3), "B": (32, 16)})
    assert made.verified
    assert sorted((buffer.tensor, buffer.elements) for buffer in made.privates) == [("O_turned", 12 * 12 * 16), ("W1_packed", 16 * 9 * 16)]
    assert show(made.tree).count('mark: "parallel"') == 1


@pytest.mark.parametrize(("size", "least", "shared"), [(38, 33, True), (38, 1, True), (96, 33, True), (96, 1, False)])
def test_rounds_that_only_the_call_counts(size, least, shared):
    """Light ones may turn out to be few; what would keep threads busy inside a round is not left to one of them."""
    for greatest in (least + 31, 1024):
        sizes = {"B": greatest, "N": size, "M": size, "K": size}
        made = map_program(generalise(read(PRODUCTS)[0], sizes, {}, {"B": (least, greatest)}), Options(nest=False), AVX512)
        assert made.verified and bool(made.privates) == shared


def test_of_two_copies_around_a_sum_the_larger_one_stays_near():
    """Loops over groups, then images: the weights' copy could share the outer loop, the result's copy shares both."""
    made = mapped(GROUPS, {"I": (32, 32, 32, 7, 7), "W1": (32, 32, 32, 3, 3), "B": (32, 32)})
    assert made.verified
    assert [(buffer.tensor, buffer.elements) for buffer in made.privates] == [("O_turned", 5 * 5 * 32)]
