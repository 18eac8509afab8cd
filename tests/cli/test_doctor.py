"""The doctor tells the truth about this machine, and about one that lacks things.

Modules: mapping.machine
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tcjit import cache
from tcjit.cli import doctor
from tcjit.errors import CompileError
from tcjit.mapping.machine import Costs
from tcjit.runtime.calibrate import costs_of_host

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


@pytest.mark.opencl
def test_a_kernel_is_run_through_opencl() -> None:
    finding = doctor.opencl()
    assert finding.state == "ok" and ", in use" in finding.found, finding


@pytest.mark.parametrize("program", [doctor.CALIBRATE, doctor.ISL, doctor.OPENCL, doctor.CUDA, doctor.NVRTC])
def test_programs_of_children_use_names_that_exist(program: str) -> None:
    """No type checker reads them."""
    for module, name in re.findall(r"^from (tcjit\S*) import (\w+)", program, re.MULTILINE):
        imported = importlib.import_module(module)
        assert hasattr(imported, name) or importlib.import_module(f"{module}.{name}")
        for attribute in re.findall(rf"(?<![\w.]){name}\.(\w+)", program):
            if inspect.ismodule(used := getattr(imported, name)):
                assert hasattr(used, attribute), f"{name}.{attribute}"


def test_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured is kept for this processor, and said; what the child says wrong is not."""
    monkeypatch.setenv("TCJIT_CACHE_DIR", str(tmp_path))
    assert "tcjit doctor --calibrate measures" in doctor.constants()
    monkeypatch.setattr(doctor, "ask", lambda code: asdict(Costs(frequency=4e9)))
    lines = doctor.calibrate()
    assert lines[0] == "frequency 4e+09 Hz" and len(lines) == len(Costs.described())
    assert costs_of_host(cache.store()) == Costs(frequency=4e9)
    assert doctor.constants().startswith("measured: 4.00 GHz")
    for wrong in ("crashed with signal 11", {**asdict(Costs()), "gather": 0}):
        monkeypatch.setattr(doctor, "ask", lambda code, wrong=wrong: wrong)
        with pytest.raises(CompileError, match="cannot be measured"):
            doctor.calibrate()
    assert costs_of_host(cache.store()) == Costs(frequency=4e9)


def test_measured_constants_decide_what_a_region_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tcjit.byoc.cost import HostCosts, measured_costs

    costs = measured_costs(Costs(frequency=2e9, fma_rate=2.0, memory_read=5e10), lanes=16, cores=4)
    assert costs == HostCosts(bandwidth=5e10, flops=5.12e11, cores=4)


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


@pytest.mark.parametrize(
    "module, line",
    [
        pytest.param("torch", "missing  PyTorch", marks=pytest.mark.cold),
        pytest.param("islpy", "missing  isl", marks=pytest.mark.bare),
        pytest.param("pyopencl", "missing  OpenCL", marks=pytest.mark.bare),
    ],
)
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
