"""``tcjit tune`` on several machines: three processes, each with a cache of its own, share one study; one is killed in the middle."""
from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from optuna.trial import TrialState
from support import PYTHONPATH
from support.tuner.postgres import server

from tcjit.tuner.storage import open_storage

pytestmark = pytest.mark.host
PROGRAM = "def mm(float(M,K) A, float(K,N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }\n"
TRIALS = 6


def tune(folder: Path, where: str, machine: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tcjit", "tune", str(folder / "mm.tc"), "--shapes", "A=30x40,B=40x50", "--storage", where]
    more = ["--trials", str(TRIALS), "--workers", "1", "--seed", str(machine)]
    variables = {**os.environ, "PYTHONPATH": PYTHONPATH, "TCJIT_CACHE_DIR": str(folder / f"cache {machine}")}
    return subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables, cwd=folder)


def wait_until_it_is_busy(where: str, process: subprocess.Popen[str]) -> None:
    """Until some candidates are told and another is in flight."""
    storage = open_storage(where)
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        for study in storage.get_all_studies():
            states = [trial.state for trial in storage.get_all_trials(study._study_id, deepcopy=False)]
            if states.count(TrialState.COMPLETE) >= 2 and TrialState.RUNNING in states:
                storage.close()
                return
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    raise AssertionError("nothing was tried in four minutes")


def assert_kill_loses_nothing(folder: Path, where: str) -> None:
    (folder / "mm.tc").write_text(PROGRAM)
    victim = tune(folder, where, 0)
    wait_until_it_is_busy(where, victim)
    others = [tune(folder, where, machine) for machine in (1, 2)]
    victim.kill()
    victim.communicate()
    for process in others:
        out, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        assert "ended by trials" in out
    storage = open_storage(where)
    (study,) = storage.get_all_studies()
    if "://" in where:
        storage._backend.grace_period = -1  # type: ignore[attr-defined]  # do not wait for three heartbeats
    ended = storage.fail_orphans(study.study_name)
    trials = storage.get_all_trials(study._study_id)
    states = [trial.state for trial in trials]
    assert TrialState.RUNNING not in states and len(states) - states.count(TrialState.WAITING) >= TRIALS
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert all(trial.params and trial.value and trial.value > 0 for trial in complete)
    lost = [trial for trial in trials if trial.state == TrialState.FAIL and not trial.user_attrs.get("tcjit", {}).get("reason")]
    assert 1 <= len(lost) <= 2 and set(ended) <= {trial.number for trial in lost}  # one worker has two candidates in hand
    storage.close()


def test_a_journal_on_a_shared_disk(tmp_path: Path) -> None:
    assert_kill_loses_nothing(tmp_path, str(tmp_path / "study"))


@pytest.mark.whole  # tests/tuner/test_storage.py kills one of four on a server
def test_a_postgresql_server(tmp_path: Path) -> None:
    with server("fsync=off") as url:
        assert_kill_loses_nothing(tmp_path, url)
