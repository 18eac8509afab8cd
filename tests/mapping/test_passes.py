"""Passes: which statements share loops, how tiles are cut, what runs in lanes and registers, what becomes private.

Modules: mapping.passes.contract mapping.passes.fuse mapping.passes.parallelise mapping.passes.vectorise mapping.pipeline
mapping.schedule mapping.tree
"""
from __future__ import annotations

import pytest
from support.mapping import AVX512, CONVOLUTION, GATHER, MATMUL, SOFTMAX, mapped, scop

from tcjit.mapping.dependences import dependences
from tcjit.mapping.isl import descendants
from tcjit.mapping.marks import Mark, Parallel, RegisterTile, Simd, Tile, Unroll
from tcjit.mapping.options import Options
from tcjit.mapping.passes.fuse import fuse, groups_of
from tcjit.mapping.pipeline import Mapped
from tcjit.mapping.plan import plan
from tcjit.mapping.schedule import schedule
from tcjit.mapping.tree import mark_of, read, show

MLP = """
def mlp(float(B,I) X, float(O,I) W, float(O) b, float(P,O) V) -> (Y, Z) {
    Y(n, o) +=! X(n, i) * W(o, i)
    Y(n, o) = fmax(Y(n, o) + b(o), 0)
    Z(n, p) +=! Y(n, o) * V(p, o)
}"""
MLP_SHAPES = {"X": (64, 300), "W": (48, 300), "b": (48,), "V": (32, 48)}


def grouping(text: str, shapes: dict[str, tuple[int, ...]], options: Options) -> list[tuple[tuple[str, ...], int]]:
    """The statements that share loops, and how many loops they share."""
    made = scop(text, shapes, options)
    deps = dependences(made)
    groups = groups_of(made, fuse(made, deps, schedule(made, deps), options))
    assert groups is not None
    return [(g.statements, len(g.columns)) for g in groups]


def marks(made: Mapped) -> list[Mark]:
    return [mark for node in descendants(made.tree.get_root()) if (mark := mark_of(node))]


def test_an_epilogue_joins_its_product_and_the_next_product_does_not() -> None:
    groups = grouping(MLP, MLP_SHAPES, Options(nest=False, pack=False))
    assert groups == [(("S0", "S1", "S2"), 2), (("S3", "S4"), 2)]


def test_minimal_fusion_joins_only_initialisations() -> None:
    groups = grouping(MLP, MLP_SHAPES, Options(nest=False, fusion="minimal", pack=False))
    assert groups == [(("S0", "S1"), 2), (("S2",), 2), (("S3", "S4"), 2)]


def test_the_statements_of_a_softmax_share_the_row() -> None:
    assert grouping(SOFTMAX, {"I": (64, 50)}, Options(nest=False)) == [(("S0", "S1", "S2", "S3", "S4", "S5"), 1)]


def test_a_single_row_keeps_its_parallel_columns() -> None:
    groups = grouping(SOFTMAX, {"I": (1, 5000)}, Options(nest=False))
    assert len(groups) > 1


@pytest.mark.parametrize("m, n, regions", [(64, 64, 1), (64, 70, 2), (67, 70, 4)])
def test_remainders_are_regions_of_their_own(m: int, n: int, regions: int) -> None:
    made = mapped(MATMUL, {"A": (m, 32), "B": (32, n)}, Options(nest=False, tile=(4, 32)))
    assert sum(isinstance(mark, Tile) for mark in marks(made)) == regions
    assert marks(made).count(RegisterTile()) == regions


def test_a_contraction_runs_in_registers_and_small_work_on_one_thread() -> None:
    assert {RegisterTile(), Unroll(), Simd()} <= set(marks(mapped(MATMUL, {"A": (64, 64), "B": (64, 64)})))
    assert Parallel() in marks(mapped(MATMUL, {"A": (64, 64), "B": (64, 64)}))
    assert Parallel() not in marks(mapped(MATMUL, {"A": (4, 4), "B": (4, 4)}))
    assert Parallel() not in marks(mapped(MATMUL, {"A": (64, 64), "B": (64, 64)}, Options(nest=False, parallel=False)))


def test_lanes_follow_unit_stride() -> None:
    made = scop(MATMUL, {"A": (64, 64), "B": (64, 64)})
    deps = dependences(made)
    (group,) = groups_of(made, fuse(made, deps, schedule(made, deps), Options(nest=False))) or ()
    chosen = plan(made, group, Options(nest=False), AVX512)
    assert chosen.lane("S1") == "n" and chosen.patch is not None and chosen.patch.width == 16
    assert plan(made, group, Options(nest=False, vector_width=1), AVX512).patch is None


def test_long_dot_products_run_along_the_reduction() -> None:
    text = "def tmm(float(M,K) A, float(N,K) B) -> (C) { C(m,n) +=! A(m,k) * B(n,k) }"
    made = mapped(text, {"A": (32, 1024), "B": (32, 1024)})
    assert "B_packed" not in {t.name for t in made.scop.tensors}
    assert "(k) mod" in show(made.tree)


def test_row_statistics_of_a_softmax_are_private() -> None:
    made = mapped(SOFTMAX, {"I": (64, 50)})
    assert {(p.tensor, p.elements) for p in made.privates} == {("top", 4), ("total", 4)}, "of the rows that take turns"
    assert mapped(SOFTMAX, {"I": (64, 50)}, Options(nest=False, private_buffers=False)).privates == ()


@pytest.mark.parametrize(
    "text, shapes",
    [
        (MATMUL, {"A": (33, 17), "B": (17, 40)}),
        (SOFTMAX, {"I": (8, 33)}),
        (GATHER, {"T": (7, 3), "I": (2, 5)}),
        (CONVOLUTION, {"I": (1, 2, 5, 5), "W1": (2, 2, 3, 3)}),
        (MLP, MLP_SHAPES),
    ],
)
def test_trees_read_back_from_their_text(text: str, shapes: dict[str, tuple[int, ...]]) -> None:
    made = mapped(text, shapes)
    assert read(made.scop.ctx, show(made.tree)).plain_is_equal(made.tree)


def test_the_same_input_gives_the_same_tree() -> None:
    assert show(mapped(MLP, MLP_SHAPES).tree) == show(mapped(MLP, MLP_SHAPES).tree)
