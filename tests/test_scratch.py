"""Temporary folders end with their process, however it ends; locks are not waited for without end."""
from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tcjit import scratch

HOLD = """
import sys, time
from tcjit import scratch
made = scratch.LockedFolder("build")
open(made.path + "/kernel.c", "w").close()
print(made.path, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "_swept", set())
    return tmp_path


@contextmanager
def holding(place: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    environment = {**os.environ, "TMPDIR": str(place), "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", HOLD], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_what_a_killed_process_left_is_swept_up_by_the_next_one(place: Path) -> None:
    others = [place / name for name in ("tcjit-build-old", "other.held", "tcjit-note.held")]
    for other in others[:2]:
        other.mkdir()
    others[2].write_text("a file")
    link = place / "tcjit-link.held"
    link.symlink_to(others[0])
    with holding(place) as (process, folder):
        with scratch.folder("tune") as mine:
            assert (folder / "kernel.c").exists() and os.path.isdir(mine), "what lives stays"
        assert not os.path.exists(mine)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert folder.exists()
        with scratch.folder("tune") as mine:
            assert folder.exists(), "a process looks once"
            scratch.sweep(str(place))
            assert not folder.exists() and os.path.isdir(mine)
    assert all(other.exists() for other in others) and link.is_symlink()


def test_a_folder_that_another_process_sweeps_up_at_once_is_made_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is locked, it looks like one that was left behind."""
    make, made = tempfile.mkdtemp, []

    def swept(**how: str) -> str:
        made.append(make(**how))
        if len(made) == 1:
            scratch.sweep(str(place))
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", swept)
    with scratch.folder("tune") as mine:
        assert made[1:] == [mine] and not os.path.exists(made[0])


def test_another_user_keeps_his(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = place / "tcjit-build-x.held"
    folder.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    scratch.sweep(str(place))
    assert folder.exists()
    monkeypatch.undo()
    scratch.sweep(str(place))
    assert not folder.exists()


def test_refused_code_is_kept_for_a_day(place: Path) -> None:
    made = scratch.LockedFolder("build")
    Path(made.path, "kernel.c").write_text("x")
    kept = Path(made.keep())
    made.remove()
    assert (kept / "kernel.c").read_text() == "x" and not os.path.exists(made.path or place / "none")
    scratch.sweep(str(place))
    assert kept.exists()
    os.utime(kept, (time.time() - 2 * scratch.KEPT,) * 2)
    scratch.sweep(str(place))
    assert not kept.exists()


def test_a_lock_is_waited_for_so_long_and_no_longer(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = (os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert scratch.lock(first, fcntl.LOCK_EX, 0)
    began = time.monotonic()
    assert not scratch.lock(second, fcntl.LOCK_SH, 0.2)
    assert 0.2 <= time.monotonic() - began < 5
    assert scratch.holder(second) in (f"process {os.getpid()}", "another process")
    fcntl.flock(first, fcntl.LOCK_UN)
    assert scratch.lock(second, fcntl.LOCK_EX, 0)
    os.close(first), os.close(second)
