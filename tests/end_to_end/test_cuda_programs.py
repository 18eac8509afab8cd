"""The CUDA target on a GPU against the reference: random programs, and those that once failed."""
from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from support_cases import REGRESSIONS, load
from support_programs import draw
from support_run import check

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU")]

PROGRAMS, SHARDS, SEED = 500, 25, 20240601
SAVED = sorted(REGRESSIONS.glob("*.tc"))


@pytest.mark.parametrize("shard", range(SHARDS))
def test_cuda_agrees_with_the_reference(shard: int) -> None:
    for number in range(shard, PROGRAMS, SHARDS):
        case = draw(random.Random(f"{SEED} {number}"))
        try:
            check(case, "cuda")
        except Exception as error:
            raise AssertionError(f"program {number}: {error}\n{case}\n{case.text}") from error


@pytest.mark.parametrize("path", SAVED, ids=[p.stem for p in SAVED])
def test_programs_that_once_failed(path: Path) -> None:
    check(load(path), "cuda")
