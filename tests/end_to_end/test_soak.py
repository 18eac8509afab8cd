"""The soak's own machinery: its closing line, and what it does when a program takes its process down."""
from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import soak

HERE = Path(__file__).parent


def test_a_short_soak_ends_with_its_line(tmp_path: Path) -> None:
    command = [sys.executable, soak.__file__, "--programs", "3", "--jobs", "1", "--seed", "7", "--keep", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1] == "3 run, 0 failed, seed 7", done.stdout + done.stderr
    assert done.returncode == 0


def test_a_program_that_takes_its_process_down_is_one_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def events(seed: int, keep: Path, first: int, last: int) -> Iterator[dict[str, Any]]:
        for number in range(first, last):
            yield {"kind": "begin", "number": number}
            if number == 2:
                return  # the process is gone
            yield {"kind": "end", "number": number, "what": "", "drawn": 1, "refused": 0}

    monkeypatch.setattr(soak, "_events", events)
    monkeypatch.setattr(soak, "_crash", lambda seed, keep, number: f"number {number} of seed {seed}")
    assert soak.Soak(seed=7, first=0, programs=5, jobs=1, seconds=None, keep=HERE).run() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "5 run, 1 failed, seed 7"


def test_a_child_that_says_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "_events", lambda seed, keep, first, last: iter(()))
    with pytest.raises(RuntimeError, match="before its first program"):
        soak.Soak(seed=7, first=0, programs=5, jobs=1, seconds=None, keep=HERE).run()
