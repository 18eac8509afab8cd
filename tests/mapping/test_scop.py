"""Lowering: what a program becomes before isl sees it.

Modules: mapping.assignment mapping.extract mapping.options mapping.passes.chunk_reductions mapping.passes.split_initialisation
mapping.passes.widen mapping.reduction
"""

from __future__ import annotations

import islpy as isl
import pytest
from support.mapping import CONVOLUTION, GATHER, MATMUL, program, scop

from tcjit.errors import MappingError, VerifyError
from tcjit.mapping.machine import SM_90
from tcjit.mapping.options import Options
from tcjit.mapping.pipeline import _within_budget, build_scop
from tcjit.step import Steps


def test_a_reduction_becomes_initialisation_and_update() -> None:
    made = scop(MATMUL, {"A": (4, 8), "B": (8, 16)})
    assert [(s.operator, s.dims, s.reduction) for s in made.statements] == [("=", ("m", "n"), ()), ("+=", ("m", "n", "k"), ("k",))]
    assert made.domain.is_equal(made.reads.domain().union(made.writes.domain()))


def test_accesses_are_exact_under_affine_guards() -> None:
    made = scop(CONVOLUTION, {"I": (1, 1, 5, 5), "W1": (1, 1, 3, 3)}, Options(vector_width=1, pack=False))
    rows = made.reads.range()
    assert "I[" in str(rows)
    box = type(rows).read_from_str(made.ctx, "{ I[n, c, h, w] : n = 0 and c = 0 and 0 <= h < 5 and 0 <= w < 5 }")
    reads_of_input = rows.intersect(box.universe())
    assert reads_of_input.is_subset(box)


def test_a_gather_may_read_the_whole_dimension() -> None:
    made = scop(GATHER, {"T": (7, 3), "I": (2, 5)})
    touched = type(made.domain).read_from_str(made.ctx, "{ T[e, d] : 0 <= e < 7 and 0 <= d < 3 }")
    assert touched.is_subset(made.reads.range())


def test_half_sums_run_in_a_wider_temporary() -> None:
    text = "def s(half(M,K) A) -> (r) { r(m) +=! A(m,k) }"
    made = scop(text, {"A": (3, 9)})
    wide = made.tensor("r_wide")
    assert wide.dtype == "float32" and wide.role == "temporary"
    assert [s.tensor for s in made.statements] == ["r_wide", "r_wide", "r"]


def test_few_long_reductions_are_cut_into_fixed_chunks() -> None:
    text = "def s(float(N) A) -> (r) { r() +=! A(n) }"
    made = scop(text, {"A": (1 << 20,)})
    assert made.tensor("r_part").shape[0] >= 16
    uneven = scop(text, {"A": ((1 << 20) + 7,)})
    assert sum(s.points for s in uneven.statements if s.constraints) >= (1 << 20) + 7
    assert "r_part" not in {t.name for t in scop(text, {"A": (1 << 20,)}, Options(vector_width=1, reduction_chunks=1)).tensors}


def test_few_long_products_are_cut_for_a_gpu_whether_under_conditions_or_not() -> None:
    for condition in ("", "j <= i ? "):
        value = f"{condition}Q(b,i,d) * K(b,j,d){' : 0.0' if condition else ''}"
        text, shape = f"def f(float(B,M,D) Q, float(B,M,D) K) -> (P) {{ P(b,i,j) +=! {value} }}", (101, 64, 7424)
        given = program(text, {"Q": shape, "K": shape})
        assert "P_part" in {t.name for t in build_scop(given, Options(), None, SM_90).tensors}


def test_chunks_are_of_whole_rows_where_there_are_enough() -> None:
    """Rather than of parts of every row, whose runs in memory are short."""
    sums = "def s(bfloat16(M,K) A) -> (r) { r() +=! A(m,k) }"
    made = scop(sums, {"A": (231, 4087)})
    update = next(s for s in made.statements if s.tensor == "r_wide_part" and s.operator == "+=")
    assert dict(zip(update.dims, map(update.extent, update.dims)))["k"] == 4087
    few = scop(sums, {"A": (20, 40870)})  # more chunks than rows
    assert few.tensor("r_wide_part").shape[0] >= 32
    long = scop(sums, {"A": (57, 280240)})  # runs of about a thousand neighbours
    assert 32 <= long.tensor("r_wide_part").shape[0] <= 280240 // 512
    assert scop(sums, {"A": (57, 280240)}, Options(vector_width=1, reduction_chunks=2000)).tensor("r_wide_part").shape[0] > 1000


@pytest.mark.parametrize("shape, statements", [((0, 4), 0), ((3, 0), 1)])
def test_empty_domains_disappear(shape: tuple[int, int], statements: int) -> None:
    text = "def s(float(M,K) A) -> (r) { r(m) +=! A(m,k) }"
    assert len(build_scop(program(text, {"A": shape}), Options(vector_width=1)).statements) == statements


def test_every_pass_before_the_scop_shows_what_it_made() -> None:
    steps = Steps("half sums")
    build_scop(program("def s(half(M,K) A) -> (r) { r(m) +=! A(m,k) }", {"A": (3, 9)}), Options(), steps=steps)
    assert list(steps.artifacts) == [
        "extract", "split_addends", "narrow_bounds", "eliminate_conditions", "eliminate_indices",
        "split_subscripts", "split_selects", "split_unions",
        "tabulate", "skew_reductions", "widen",
        "reduce_strength",
        "number_values", "multiply_predicates", "promote_counts", "distribute_offsets", "factor_contractions", "tabulate_conditions",
        "strip_mine_gathers", "unswitch_reductions",
        "split_around_invariants", "hoist_invariants",
        "merge_temporaries", "substitute_forward", "eliminate_dead_instances", "factor_scans", "segment_scans",
        "simplify_reductions", "scatter_reductions",
        "collapse_axes", "pad_operands", "split_copies", "split_sums", "split_terms",
        "strip_mine_copies", "transpose_tables", "fold_contractions", "fuse_parallel_regions", "fuse_outer_loops", "overlap_tiles",
        "fuse_column_reductions", "block_panels", "tile_reductions", "unroll_dims", "expand_operands",
        "transpose_operands", "chunk_reductions", "split_index_sets", "split_initialisation", "settle_outer_loops", "scop",
    ]  # fmt: skip
    lines = [len(steps.artifacts[name].splitlines()) for name in ("extract", "widen", "split_initialisation")]
    assert lines == [1, 2, 2]  # the sum is a nest
    assert "r_wide(m) += " in steps.artifacts["widen"] and " from 0.0 where m in 0:3, k in 0:9" in steps.artifacts["widen"]


def test_what_isl_cannot_read_is_a_fault_of_the_mapping() -> None:
    with pytest.raises(VerifyError, match="isl: "), _within_budget():
        isl.UnionPwAff.read_from_str(isl.Context(), "{ S[a] -> [(e)] }")
    with pytest.raises(MappingError, match="the compile budget does not suffice"), _within_budget():
        context = isl.Context()
        context.set_max_operations(1)
        isl.Set.read_from_str(context, "{ [a, b] : 0 <= a < 10 and b = 2a }")
