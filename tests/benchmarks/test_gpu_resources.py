"""What the benchmark's operators take at full size: no stack, no spills, for two architectures and releases of NVRTC in turn."""
from __future__ import annotations

from itertools import cycle, product

import pytest
import torch
from support.gpu_bench import Entry, suites
from support.rings.nvrtc import RELEASES, using

import tcjit

COMBINATIONS = product(("sm_90", "sm_80"), RELEASES)
CASES = [
    pytest.param(entry, *how, id=f"{entry.name}-{'-'.join(how)}") for entry, how in zip(suites.choose(), cycle(COMBINATIONS))
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("entry", "architecture", "release"), CASES)
def test_all_values_stay_in_registers(entry: Entry, architecture: str, release: str) -> None:
    case = entry.case()
    given = [torch.empty(one.shape, dtype=getattr(torch, one.dtype), device="meta") for one in case.inputs]
    with using(release):
        kernel = getattr(tcjit.define(case.source, target=f"cuda:{architecture}"), case.entry).compile(*given, *case.scalars)
    assert kernel.resources["registers"] > 0
    assert kernel.resources["stack_bytes"] == kernel.resources["spill_bytes"] == 0, kernel.resources["kernels"]
