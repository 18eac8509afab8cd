"""Processes of a search start beside one another, and none outlives it.

Modules: tuner.worker tuner.worker_pool
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tcjit.tuner.evaluator import Evaluator
from tcjit.tuner.worker_pool import Worker, WorkerDied

MODULE = "support.tuner.slow_opening"


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.cold
@pytest.mark.parametrize("begun", [0, 3])
def test_a_search_that_is_left_while_it_begins_leaves_nothing(tmp_path: Path, begun: int) -> None:
    """At once, and when all its processes are busy with their openings."""
    with Evaluator(MODULE, {"note": str(tmp_path), "threads": 1}, "cpu", 2, 5.0) as bench:
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
    with pytest.raises(WorkerDied, match="the search is over"):
        worker.open()
    assert not os.listdir(tmp_path)


def test_a_final_ends_once_it_is_settled(tmp_path: Path) -> None:
    seen: list[int] = []

    def settled(found: list[list[list[float]]]) -> bool:
        seen.append(len(found))
        return len(found) == 1

    with Evaluator("support.tuner.repeats", {"note": str(tmp_path), "threads": 1}, "cpu", 1, 5.0) as bench:
        found = bench.final(["a", "b"], 8, settled)
    assert isinstance(found, list) and [[len(rounds) for rounds in sitting] for sitting in found] == [[2, 2]] and seen == [1]
    asked = [file for file in tmp_path.iterdir() if '"final"' in file.read_text(encoding="utf-8")]
    loaded = [file for file in tmp_path.iterdir() if '"load"' in file.read_text(encoding="utf-8")]
    assert len(asked) == 1 and not loaded, "no other process was started"


def test_the_processes_of_the_final_load_together_and_hold_tensors_one_at_a_time(tmp_path: Path) -> None:
    with Evaluator("support.tuner.repeats", {"note": str(tmp_path), "threads": 1}, "cpu", 1, 5.0) as bench:
        found = bench.final(["a", "b"], 8)
    assert isinstance(found, list)
    assert [[len(rounds) for rounds in sitting] for sitting in found] == [[2, 2], [3, 3], [3, 3]], "eight rounds of two, in three processes"
    pids = [int(sitting[0][0]) for sitting in found]
    assert len(set(pids)) == 3
    asked = {}
    for pid in pids:
        lines = (tmp_path / f"{pid}.jsonl").read_text(encoding="utf-8").splitlines()
        asked[pid] = {do: (began, ended) for do, began, ended in map(json.loads, lines)}
    first, second, third = (asked[pid] for pid in pids)
    assert [*first] == ["open", "ready", "expect", "time", "final"] and [*second] == [*third] == ["open", "load", "ready", "final"]
    assert first["final"][1] <= min(second["open"][0], third["open"][0]), "no process starts while another one is timed"
    assert max(second["load"][0], third["load"][0]) < min(second["load"][1], third["load"][1]), "at the same time"
    assert max(second["load"][1], third["load"][1]) <= second["ready"][0] and second["final"][1] <= third["ready"][0]
