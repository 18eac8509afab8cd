"""The GPU mapping in OpenCL against the reference: random programs, those that once failed, and what the CPU target promises.

PoCL runs them, in a worker process; oclgrind watches over some.
"""
from __future__ import annotations

import random
from pathlib import Path

import pytest
from support_cases import REGRESSIONS, Case, Fill, load
from support_oclgrind import Edit, clean, inspect
from support_opencl import agrees, require, worker
from support_programs import draw

pytestmark = pytest.mark.opencl

PROGRAMS, SHARDS, SEED = 120, 12, 20240601
WATCHED = 12
SAVED = sorted(REGRESSIONS.glob("*.tc"))
CONFORMANCE = """
several_python_threads_call_and_compile_at_once special_values_through_reductions_and_functions a_nan_stays_in_its_row_and_column
minus_zero_is_kept_where_nothing_is_computed denormals_survive half_sums_accumulate_in_float32
integers_wrap_and_the_least_divided_by_minus_one_too faults_are_seen_wherever_they_happen a_program_of_thirty_statements
everything_of_rank_zero extents_of_one_in_each_place extents_of_zero fusion_keeps_the_order_that_matters
padded_copies_read_only_what_exists a_gathered_temporary_is_whole_before_it_is_read
a_patch_with_loops_outside_the_shared_ones_loses_no_sum maximal_fusion_ends_whatever_the_subscripts signs_in_a_row_on_vectors
any_name_for_inputs_and_scalars any_name_for_outputs_and_temporaries any_name_for_sizes_and_indices any_name_for_a_def
""".split()


TEXT = "def mm(float(M, K) A, float(K, N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }"
MATMUL = Case(TEXT, {"A": (20, 40), "B": (40, 33)}, {n: Fill("float32", "small", 1, -3, 3) for n in "AB"}, exact=True)
BARRIER = "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"


@pytest.fixture(autouse=True)
def pocl() -> None:
    require("pocl")


@pytest.mark.parametrize("shard", range(SHARDS))
def test_opencl_agrees_with_the_reference(shard: int) -> None:
    for number in range(shard, PROGRAMS, SHARDS):
        agrees(draw(random.Random(f"{SEED} {number}")))


@pytest.mark.parametrize("path", SAVED, ids=[p.stem for p in SAVED])
def test_programs_that_once_failed(path: Path) -> None:
    agrees(load(path))


@pytest.mark.parametrize("name", CONFORMANCE)
def test_what_the_cpu_promises(name: str) -> None:
    report = worker().tested(f"tests/end_to_end/test_cpu_target.py::test_{name}")
    assert not report, report


@pytest.mark.parametrize("number", range(WATCHED))
def test_oclgrind_has_nothing_to_say(number: int) -> None:
    require("oclgrind")
    rng = random.Random(f"watched {number}")
    case = draw(rng)
    while case.faults:  # a wrong index is one that oclgrind may speak of
        case = draw(rng)
    clean(case)


@pytest.mark.parametrize("number", [0, 1])
def test_oclgrind_misses_a_removed_barrier(number: int) -> None:
    require("oclgrind")
    clean(MATMUL)
    _, found = inspect(MATMUL, Edit(BARRIER, number=number))
    assert any("data race at local memory" in finding.what and finding.kernel == "tc_mm" for finding in found), found
