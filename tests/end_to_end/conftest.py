"""Fixtures of several files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tcjit.mapping.passes import parallelise


@pytest.fixture
def threads_share_small_loops(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Loops of any size are worth threads, of which there are as many behind the test as before."""
    before = torch.get_num_threads()
    monkeypatch.setattr(parallelise, "WORTH_THREADS", 1)
    yield
    torch.set_num_threads(before)
