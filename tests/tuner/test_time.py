"""A search keeps to its seconds, whatever hangs, and waits for no lock without end.

Modules: tuner.journal
"""
from __future__ import annotations

import fcntl
import os
import stat
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import tcjit
from tcjit.cache import CacheWarning, store
from tcjit.cache.log import Log
from tcjit.errors import TuneError
from tcjit.runtime import host
from tcjit.tuner import evaluator, journal
from tcjit.tuner.config import TunerConfig
from tcjit.tuner.storage import open_storage

pytestmark = pytest.mark.host
TEXT = "def hung(float(N,M) X) -> (Y, Z) { Y(i) +=! X(i, j)\n Z(i, j) = X(i, j) - 3 * Y(i) }"
LATE = 10.0  # seconds that a machine under load may need to end processes and the rest


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TCJIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(host, "_known", {})


def compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, hangs: str) -> Path:
    """CC is one that hangs on the files that match, while the file that is returned exists."""
    armed, path = folder / "armed", folder / "cc"
    path.write_text(f'#!/bin/sh\ncase "$*" in {hangs}) [ -e {armed} ] && sleep 600;; esac\nexec gcc "$@"\n')
    path.chmod(0o755)
    monkeypatch.setenv("CC", str(path))
    return armed


@pytest.mark.parametrize("hangs", ["*kernel.c*", "*"])
def test_a_compiler_that_hangs_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: str) -> None:
    compiler(tmp_path, monkeypatch, hangs).touch()
    began = time.monotonic()
    with pytest.raises(TuneError, match="seconds=2 were over before any candidate was measured(.|\n)*compiler"):
        tcjit.define(TEXT).hung.autotune(torch.zeros(40, 50), config=TunerConfig(seconds=2, timeout=1, workers=1))
    assert time.monotonic() - began < 2 + 1 + evaluator.SLACK + LATE


def test_a_compiler_that_hangs_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured before decides, here in an earlier session."""
    armed = compiler(tmp_path, monkeypatch, "*kernel.c*")
    tc, x = tcjit.define(TEXT), torch.zeros(40, 50)
    first = tc.hung.autotune(x, config=TunerConfig(trials=3, workers=1), cache=False)
    armed.touch()
    began = time.monotonic()
    result = tc.hung.autotune(x, config=TunerConfig(trials=1000, seconds=2, timeout=1, workers=1))
    assert time.monotonic() - began < 2 + 1 + evaluator.SLACK + 1 + LATE
    assert result.stopped == "seconds" and len(result.history) >= len(first.history) and result.seconds > 0


@contextmanager
def locked(handle: int) -> Iterator[None]:
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(handle)


def test_a_device_that_another_search_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "WAIT", 0.3)
    with evaluator.Evaluator("support.tuner.repeats", {"note": str(tmp_path), "threads": 1}, "cpu", 1, 5.0) as one:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with one.lock():
                pass
        (file,) = (store().path / "v1" / "locks").iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and file.name.endswith("-cpu"), "nobody else can open it"
        with locked(os.open(file, os.O_RDWR)):
            with pytest.warns(CacheWarning, match="process .* has been tuning on cpu"), one.lock():
                pass
            began = time.monotonic()
            for _ in range(20):
                with one.lock():
                    pass
            assert time.monotonic() - began < 3, "it is not waited for again and again"
    assert file.exists()
    tcjit.cache.clear()
    assert file.exists(), "two searches must not hold two files"


def test_a_lock_that_is_no_file_of_the_users_own(tmp_path: Path) -> None:
    handle = store().lock_file("one")
    os.close(handle)
    file = store().path / "v1" / "locks" / "one"
    file.chmod(0o666)
    with pytest.raises(PermissionError):
        store().lock_file("one")
    file.unlink()
    file.symlink_to(tmp_path / "victim")
    with pytest.raises(OSError):
        store().lock_file("one")
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("kind", [fcntl.LOCK_EX, fcntl.LOCK_SH])
def test_a_log_that_another_process_keeps_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    """A writer waits for readers, too: without that, two writers would mix their lines."""
    monkeypatch.setattr("tcjit.cache.log.WAIT", 0.2)
    log = Log(tmp_path / "log")
    log.append([{"a": 1}])
    handle = os.open(log.path, os.O_RDWR)
    fcntl.flock(handle, kind)
    again = Log(log.path)
    for _ in range(2):
        with pytest.raises(TimeoutError, match="has it locked"):
            again.append([{"a": 2}])
    if kind == fcntl.LOCK_EX:
        with pytest.raises(TimeoutError, match="has it locked"):
            Log(log.path).read()
        with pytest.raises(TuneError, match="cannot be written: .* has it locked"):
            open_storage(log.path)
    else:
        assert Log(log.path).read() == [{"a": 1}]
    os.close(handle)
    assert again.append([{"a": 3}]) == 2 and again.read() == [{"a": 1}, {"a": 3}]


def test_a_journal_that_is_locked_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import optuna

    monkeypatch.setattr("tcjit.cache.log.WAIT", 0.2)
    storage = open_storage(tmp_path / "study")
    assert isinstance(storage, journal.Journal)
    study = optuna.create_study(storage=storage, study_name="one")
    trial = study.ask({"tile": optuna.distributions.CategoricalDistribution(["8", "16"])})
    with locked(os.open(tmp_path / "study", os.O_RDWR)), pytest.warns(CacheWarning, match="the search goes on without"):
        assert study.tell(trial, 1.0).value == 1.0
    trial = study.ask({"tile": optuna.distributions.CategoricalDistribution(["8", "16"])})
    study.tell(trial, 2.0)
    assert [t.value for t in trials_of(tmp_path / "study")] == [1.0, 2.0], "what was not written was written later"


def trials_of(path: Path) -> list[object]:
    storage = open_storage(path)
    return list(storage.get_all_trials(storage.get_study_id_from_name("one")))
