"""The CUDA target on a GPU against the reference: random programs, and those that once failed, in a worker process."""
from __future__ import annotations

import random
from pathlib import Path

import pytest
from support.cases import REGRESSIONS, load
from support.fuzz.programs import draw
from support.rings.cuda import assert_agrees, missing

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(bool(missing()), reason=missing())]

PROGRAMS, SHARDS, SEED = 500, 25, 20240601
SAVED = sorted(REGRESSIONS.glob("*.tc"))


@pytest.mark.parametrize("shard", range(SHARDS))
def test_cuda_agrees_with_the_reference(shard: int) -> None:
    for number in range(shard, PROGRAMS, SHARDS):
        assert_agrees(draw(random.Random(f"{SEED} {number}")))


@pytest.mark.parametrize("path", SAVED, ids=[p.stem for p in SAVED])
def test_programs_that_once_failed(path: Path) -> None:
    assert_agrees(load(path))
