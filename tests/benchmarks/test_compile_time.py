"""The benchmark of compiling for a GPU, with one process for one kernel."""
from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tcjit.errors import CompileError
from tcjit.runtime import nvrtc

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "compile_time.py"
PARTS = ["imports", "text", "isl", "proofs", "emit", "nvrtc"]


def test_one_process_for_one_kernel(tmp_path: Path) -> None:
    try:
        nvrtc.find()
    except CompileError as missing:
        pytest.skip(f"{missing.args[0]}: {nvrtc.INSTALL}")
    file = tmp_path / "times.json"
    command = [sys.executable, str(SCRIPT), "1", "--only", "softmax", "--arch", "sm_90", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert found["runs"] == 1 and list(found["kernels"]) == ["softmax sm_90"]
    times = found["kernels"]["softmax sm_90"]
    for which in ("first", "after"):
        assert list(times[which]) == [*PARTS, "total"]
        assert all(times[which][part] > 0 for part in PARTS), times
    first = times["first"]
    assert first["total"] == pytest.approx(sum(first[part] for part in PARTS), abs=0.1)
    assert first["imports"] > times["after"]["imports"]
    title, head, *rows = done.stdout.splitlines()
    assert "medians of 1 processes" in title and head.split() == ["total", *PARTS]
    assert re.match(r"softmax sm_90 +first +[\d.]+ ", rows[0]) and re.match(r" +after +[\d.]+ ", rows[1]) and len(rows) == 2
