"""The table of training steps: small models go through every way that needs no other compiler, with the gradients of eager."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

pytestmark = pytest.mark.host


def test_a_quick_run(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "training.py"
    command = [sys.executable, "-W", "ignore", script, "mlp", "transformer", "--quick", "--ways", "tcjit,partition"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith(("mlp", "transformer"))]
    assert [line[:2] for line in lines] == [[name, way] for name in ("mlp", "transformer") for way in ("eager", "tcjit", "partition")]
    assert all(float(line[-1]) < 1e-4 for line in lines), done.stdout
    assert "eager's time to that of partition: geometric mean" in done.stdout


def test_unknown_names_are_refused() -> None:
    done = subprocess.run([sys.executable, ROOT / "benchmarks" / "training.py", "nothing"], capture_output=True, text=True)
    assert done.returncode == 2 and "no nothing; there are mlp" in done.stderr
