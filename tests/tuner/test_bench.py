"""Processes of a search start beside one another, and none outlives it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tcjit.tuner.bench import Bench
from tcjit.tuner.pool import Lost, Worker

MODULE = "support_slow_opening"


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("begun", [0, 3])
def test_a_search_that_is_left_while_it_begins_leaves_nothing(tmp_path: Path, begun: int) -> None:
    """At once, and when all its processes are busy with their openings."""
    with Bench(MODULE, {"note": str(tmp_path), "threads": 1}, "cpu", 2, 5.0) as bench:
        deadline = time.monotonic() + 60
        while len(os.listdir(tmp_path)) < begun:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        left = time.monotonic()
    assert time.monotonic() - left < 10, "an opening is waited for"
    assert not os.path.exists(bench.folder)
    assert not any(running(int(pid)) for pid in os.listdir(tmp_path))


def test_a_stopped_worker_starts_no_more(tmp_path: Path) -> None:
    worker = Worker(MODULE, [{"do": "open", "note": str(tmp_path)}])
    worker.stop()
    with pytest.raises(Lost, match="the search is over"):
        worker.open()
    assert not os.listdir(tmp_path)
