"""Passes: which statements share loops, how tiles are cut, what runs in lanes, what becomes private.

Modules: mapping.scop mapping.machine mapping.passes.contract mapping.passes.fuse mapping.passes.parallelise mapping.passes.tile
mapping.pipeline mapping.plan_loops mapping.strides mapping.tree
"""
from __future__ import annotations

from dataclasses import replace

import pytest
from support.mapping import AVX512, CONVOLUTION, GATHER, MATMUL, SOFTMAX, mapped, program, scop

from tcjit.errors import VerifyError
from tcjit.grammar.ast import Const
from tcjit.grammar.printer import show as show_expr
from tcjit.mapping import pipeline
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.dependences import dependences
from tcjit.mapping.isl import descendants
from tcjit.mapping.marks import Mark, Parallel, Simd, Tile
from tcjit.mapping.options import Options
from tcjit.mapping.passes.fuse import fused_groups
from tcjit.mapping.pipeline import Mapped, Proof, map_program
from tcjit.mapping.plan_loops import plan_loops
from tcjit.mapping.tree import mark_of, read, show

MLP = """
def mlp(float(B,I) X, float(O,I) W, float(O) b, float(P,O) V) -> (Y, Z) {
    Y(n, o) +=! X(n, i) * W(o, i)
    Y(n, o) = fmax(Y(n, o) + b(o), 0)
    Z(n, p) +=! Y(n, o) * V(p, o)
}"""
CLAMPED = "def f(float(M,N) X) -> (Y) { Y(i,j) = X(i, j) + X(i, min(j + 2, N - 1)) }"
MLP_SHAPES = {"X": (64, 300), "W": (48, 300), "b": (48,), "V": (32, 48)}


def grouping(text: str, shapes: dict[str, tuple[int, ...]], options: Options) -> list[tuple[tuple[str, ...], int]]:
    """The statements that share loops, and how many loops they share."""
    made = scop(text, shapes, options)
    deps = dependences(made)
    groups = fused_groups(made, deps, options)
    return [(g.statements, len(g.columns)) for g in groups]


def marks(made: Mapped) -> list[Mark]:
    return [mark for node in descendants(made.tree.get_root()) if (mark := mark_of(node))]


def test_an_epilogue_joins_its_product_and_the_next_product_does_not() -> None:
    groups = grouping(MLP, MLP_SHAPES, Options(vector_width=1, pack=False))
    assert groups == [(("S0", "S1", "S2"), 2), (("S3", "S4"), 2)]


def test_minimal_fusion_joins_only_initialisations() -> None:
    groups = grouping(MLP, MLP_SHAPES, Options(vector_width=1, fusion="minimal", pack=False))
    assert groups == [(("S0", "S1"), 2), (("S2",), 2), (("S3", "S4"), 2)]


def test_the_statements_of_a_softmax_share_the_row() -> None:
    assert grouping(SOFTMAX, {"I": (64, 50)}, Options(vector_width=1)) == [(("S0", "S1", "S2", "S3", "S4", "S5"), 1)]


def test_a_single_row_keeps_its_parallel_columns() -> None:
    groups = grouping(SOFTMAX, {"I": (1, 5000)}, Options(vector_width=1))
    assert len(groups) > 1


SOFTMAX_OF_COLUMNS = SOFTMAX.replace("I(m, n)", "I(n, m)").replace("O(m, n)", "O(n, m)")


@pytest.mark.parametrize(("columns", "tiles", "sizes"), [(64, 1, {32}), (128, 1, {64}), (200, 2, {96, 8})])
def test_remainders_are_regions_of_their_own(columns: int, tiles: int, sizes: set[int]) -> None:
    """Where results stay in registers along a loop, so that each has as many as a tile has; elsewhere a loop ends as it does. Two threads
    have equal shares of them."""
    made = mapped(SOFTMAX_OF_COLUMNS, {"I": (300, columns)}, Options())
    assert sum(isinstance(mark, Tile) for mark in marks(made)) == tiles
    assert {p.elements for p in made.privates if p.tensor == "top"} == sizes
    assert sum(isinstance(mark, Tile) for mark in marks(mapped(SCALED, {"X": (70, 5000)}, Options(tile=(4, 32))))) == 1


SCALED = "def f(float(M,N) X) -> (Y) { Y(m,n) = X(m,n) * 2.0 }"


@pytest.mark.parametrize("tile", [(4, 32), (0, 32), (7,)])
def test_tiles_have_the_sizes_that_are_asked_for(tile: tuple[int, ...]) -> None:
    text = show(mapped(SCALED, {"X": (70, 500)}, Options(tile=tile)).tree)
    for dim, size in zip(("m", "n"), tile, strict=False):
        assert f"floor(({dim})/{size})" in text if size else f"{dim})/" not in text


def test_small_work_stays_on_one_thread() -> None:
    assert Simd() in marks(mapped(SCALED, {"X": (64, 640)}))
    assert Parallel() in marks(mapped(SCALED, {"X": (64, 640)}))
    assert Parallel() not in marks(mapped(SCALED, {"X": (4, 4)}))
    assert Parallel() not in marks(mapped(SCALED, {"X": (64, 640)}, Options(parallel=False)))


def test_lanes_follow_unit_stride() -> None:
    made = scop(MATMUL, {"A": (64, 64), "B": (64, 64)})
    deps = dependences(made)
    (group,) = fused_groups(made, deps, Options())
    assert plan_loops(made, group, Options(), AVX512).lane("S1") == "n"


NORM = """def norm(float(N,C) X) -> (Y) {
    S(n) +=! X(n, c)
    V(n) +=! (X(n, c) - S(n) / C) * (X(n, c) - S(n) / C)
    Y(n, c) = (X(n, c) - S(n) / C) * rsqrt(V(n) / C + 0.001)
}"""
ONE_SUM = "def scaled(float(N,C) X) -> (Y) { S(n) +=! X(n, c)  Y(n, c) = X(n, c) / S(n) }"


@pytest.mark.parametrize(
    ("text", "rows", "columns", "together"),
    [
        (SOFTMAX, 1000, 300, 4),
        (SOFTMAX, 1000, 20000, 1),
        (SOFTMAX, 32, 300, 2),  # eight turns for each of two threads
        (SOFTMAX, 16, 300, 1),
        (NORM, 1000, 300, 4),
        (NORM, 1000, 1000, 2),
        (NORM, 1000, 2000, 1),
        (ONE_SUM, 1000, 300, 1),  # one wait is hidden by the next row anyway
    ],
)
def test_rows_take_turns_where_sweeps_wait_for_sums(text: str, rows: int, columns: int, together: int) -> None:
    options = Options(vector_width=1)
    made = scop(text, {"I" if text is SOFTMAX else "X": (rows, columns)}, options)
    deps = dependences(made)
    (group,) = fused_groups(made, deps, options)
    assert plan_loops(made, group, options, AVX512).tile == (together,)
    assert plan_loops(made, group, options.but(tile=(3,)), AVX512).tile == (3,)


def test_row_statistics_of_a_softmax_are_private() -> None:
    made = mapped(SOFTMAX, {"I": (64, 50)})
    assert {(p.tensor, p.elements) for p in made.privates} == {("top", 4), ("total", 4)}, "of the rows that take turns"
    assert mapped(SOFTMAX, {"I": (64, 50)}, Options(vector_width=1, private_buffers=False)).privates == ()


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


@pytest.mark.parametrize("prove", ["last", "every"])
def test_a_pass_without_a_proof_is_left_out(monkeypatch: pytest.MonkeyPatch, prove: Proof) -> None:
    """A user gets a slower kernel and a warning; where every tree is verified, as in tests, the fault is an error."""
    read = program(CLAMPED, {"X": (70, 200)})
    right = map_program(read, Options(), AVX512).scop

    def split_subscripts(before: Assignments) -> Assignments:
        made = pipeline_pass(before)
        return replace(made, replaced=tuple((replace(a, value=Const(0.0, dtype="float32")),) for (a,) in made.replaced))

    pipeline_pass = pipeline.split_subscripts
    monkeypatch.setattr(pipeline, "split_subscripts", split_subscripts)
    if prove == "every":
        with pytest.raises(VerifyError, match="split_subscripts"):
            map_program(read, Options(), AVX512, prove=prove)
        return
    warned = r"f\(\) is compiled without split_subscripts, which has no proof; please report it: split_subscripts: "
    with pytest.warns(UserWarning, match=warned):
        made = map_program(read, Options(), AVX512, prove=prove).scop
    texts = [" ".join(show_expr(s.value) for s in one.statements) for one in (made, right)]
    assert "min(" in texts[0] and "min(" not in texts[1]
