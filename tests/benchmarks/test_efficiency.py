"""The benchmark of searches, on an operator that is done in a moment."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "tuner" / "efficiency.py"
TRIALS = 3
METHODS = ["random", "genetic", "seeds", "model", "taught"]


@pytest.mark.host
@pytest.mark.parametrize("methods", [["random", "model"], pytest.param(METHODS, marks=pytest.mark.whole)], ids=["two", "all"])
def test_methods_on_one_operator(methods: list[str], tmp_path: Path) -> None:
    def run(*more: str) -> str:
        places = ["--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out")]
        environment = {**os.environ, "TMPDIR": str(tmp_path)}  # the lock of all who measure is there
        settings = ["--seeds", "1", "--trials", str(TRIALS), "--methods", ",".join(methods)]
        command = [sys.executable, str(SCRIPT), "lut1", *settings, *places, *more]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = run()
    (file,) = (tmp_path / "out").glob("efficiency-*.json")
    (row,) = json.loads(file.read_text())["rows"]
    assert row["op"] == "lut1" and row["points"] > 1000 and 0 < row["best"] <= row["untuned"] and row["long"] > TRIALS
    assert list(row["trials"]) == methods and all(len(counts) == 1 for counts in row["trials"].values())
    assert all(counts == [None] or 1 <= counts[0] <= TRIALS for counts in row["trials"].values())
    page = file.with_suffix(".md").read_text()
    assert "| lut1 | " in page and page.splitlines()[0].startswith("# Trials to 95 % of the best known on ") and first.endswith(page + "\n")
    (log,) = (tmp_path / "cache").rglob("measured-cpu-*")
    measured = len(log.read_text().splitlines())
    # a second time everything is known
    assert f"of {TRIALS} trials" in (again := run()) or "of 1 trials" in again
    assert len(log.read_text().splitlines()) == measured
    assert "out of time" in run("--minutes", "0.0001", "--seeds", "2")
