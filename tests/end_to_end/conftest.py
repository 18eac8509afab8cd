"""Fixtures of several files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from tcjit.jit.targets import cpu
from tcjit.mapping.machine import Machine
from tcjit.mapping.passes import parallelise


@pytest.fixture
def threads_share_small_loops(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Loops of any size are worth threads, of which there are as many behind the test as before."""
    before = torch.get_num_threads()
    monkeypatch.setattr(parallelise, "WORTH_THREADS", 1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=(2, 3))
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """So many threads, for which even small programs are worth a region."""
    machine_of = cpu.machine_of

    def with_threads(*args: object) -> Machine:
        return replace(machine_of(*args), threads=request.param)  # type: ignore[arg-type]

    monkeypatch.setattr(cpu, "machine_of", with_threads)
    monkeypatch.setattr(parallelise, "REGIONS", 1e-4)
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
