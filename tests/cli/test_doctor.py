"""The doctor tells the truth about this machine, and about one that lacks things."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tcjit.cli import doctor

NAMES = ["Python", "PyTorch", "isl", "Libraries", "C compiler", "Fast calls", "Processor", "Cache"]
NAMES += ["OpenCL", "CUDA driver", "NVRTC", "Tuner's model"]


def report(environment: dict[str, str] | None = None, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tcjit", "doctor", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(environment or {})})
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def test_a_healthy_machine() -> None:
    status, out = report()
    assert status == 0
    assert "OpenMP works" in out and "The CPU target works here." in out
    assert "\nmissing  isl" not in out and "\nmissing  PyTorch" not in out


def test_as_json() -> None:
    status, out = report(None, "--json")
    facts = json.loads(out)
    assert status == 0 and facts["healthy"] is True
    assert [f["name"] for f in facts["findings"]] == NAMES
    for finding in facts["findings"]:
        assert finding["state"] in ("ok", "missing", "problem")
        assert finding["state"] == "ok" or finding["advice"], finding
    assert {f["name"] for f in facts["findings"] if f["required"]} == {"PyTorch", "isl", "Libraries", "C compiler"}


def test_no_compiler() -> None:
    status, out = report({"CC": "/nowhere/cc"})
    assert status == 1
    assert "missing  C compiler" in out and "apt install gcc" in out and "The CPU target cannot work here" in out


@pytest.mark.parametrize("module, line", [("torch", "missing  PyTorch"), ("islpy", "missing  isl"), ("pyopencl", "missing  OpenCL")])
def test_a_module_that_crashes_costs_one_line(module: str, line: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text("import os\nos.abort()\n")
    status, out = report({"PYTHONPATH": str(tmp_path)})
    assert line in out and "crashed with signal 6" in out
    assert status == (0 if module == "pyopencl" else 1)


def test_a_cache_that_others_may_write(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    status, out = report({"TCJIT_CACHE_DIR": str(folder)})
    assert status == 0 and "problem  Cache" in out


def test_what_a_child_says() -> None:
    assert doctor.ask("print('{\"a\": 1}')") == {"a": 1}
    assert doctor.ask("raise ValueError('no luck')") == "ValueError: no luck"
    assert doctor.ask("import os; os.kill(os.getpid(), 11)") == "crashed with signal 11"
    assert doctor.ask("raise SystemExit(3)") == "ended with status 3"


def test_a_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor._installed
    monkeypatch.setattr(doctor, "_installed", lambda name: "" if name == "lark" else real(name))
    finding = doctor.libraries()
    assert (finding.state, finding.advice, finding.required) == ("missing", "pip install lark", True)
