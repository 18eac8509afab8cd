"""Random programs with sizes left open against the reference, at several values of them: in C, as CUDA text on the host, in OpenCL.

`make soak` draws fresh ones.
"""
from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import pytest
import torch
from support.cases import Case
from support.fuzz.dynamic import opened, resized
from support.fuzz.programs import draw
from support.rings.cuda_host import COMPILER
from support.rings.cuda_target import TARGET
from support.rings.opencl import assert_agrees, require
from support.run import assert_right

import tcjit
from tcjit.errors import TCError

SEED = "dynamic 20261121"
SHARDS, PROGRAMS = 6, 18


def run(number: int, compare: Callable[[Case], None]) -> None:
    rng = random.Random(f"{SEED} {number}")
    case = opened(draw(rng), rng)
    for one in (case, *resized(case, rng, 2)):
        try:
            compare(one)
        except (AssertionError, TCError) as error:
            raise AssertionError(f"program {number}: {error}\n{one}\n{one.text}") from error


@pytest.mark.filterwarnings("ignore:.* gets a kernel for every value:UserWarning")
@pytest.mark.parametrize("shard", range(SHARDS))
def test_cpu(shard: int) -> None:
    for number in range(shard, PROGRAMS, SHARDS):
        run(number, lambda case: assert_right(case, "cpu"))


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.filterwarnings("ignore:.* gets a kernel for every value:UserWarning")
@pytest.mark.sample(2)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_cuda_on_the_host(shard: int) -> None:
    for number in range(shard, 6, SHARDS):
        run(number, lambda case: assert_right(case, TARGET))


@pytest.mark.opencl
@pytest.mark.sample(2)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_opencl(shard: int) -> None:
    require("pocl")
    for number in range(shard, 6, SHARDS):
        run(number, assert_agrees)


@pytest.mark.filterwarnings("error")
def test_few_programs_need_fixed_kernels() -> None:
    """Whatever cannot be dynamic says so; of those that the CPU runs at most one."""
    refused = 0
    for number in range(PROGRAMS):
        rng = random.Random(f"{SEED} {number}")
        case = opened(draw(rng), rng)
        try:
            assert_right(case, "cpu")
        except UserWarning:
            refused += 1
    assert refused <= 1


def test_mirrored_subscripts_of_a_dynamic_size() -> None:
    """Whether a copy beside them stays inside depends on the size: one kernel serves all sizes, and nothing warns of others."""
    text = """def f(float(B,N) M, half(B,N) H) -> (Y) {
        Y(i) min=! M(i,j) > 0.0 ? (i + 2 < B ? H(i + 2,j) : 1.0) : (B - 1 - j >= 0 && j + 7 < N ? M(B - 1 - j,j + 7) : 0.0)
            where i in 0:B, j in 0:N }"""
    f = tcjit.define(text, dynamic=["B"]).f
    for size in (5, 12, 30):
        m, h, j = torch.randn(size, 64), torch.randn(size, 64).half(), torch.arange(64)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            y = f.compile(m, h, options=tcjit.Options(tile=(0, 16), parallel=False))(m, h)
        behind = torch.cat([h[2:].float(), torch.ones(2, 64)])
        there = (size - 1 - j >= 0) & (j + 7 < 64)
        mirrored = torch.where(there, m[(size - 1 - j).clamp_min(0), (j + 7).clamp_max(63)], 0.0)
        assert torch.equal(y.float(), torch.where(m > 0, behind, mirrored).amin(1))
