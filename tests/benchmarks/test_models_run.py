"""The benchmark of whole models: its page and verdicts, and one small model from end to end."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPT = BENCHMARKS / "models" / "run.py"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script as a module, with the path that it makes for itself."""
    from support.byoc import models  # noqa: F401 - makes the models importable

    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "path", [""] + sys.path)
    from models import run as found

    return found


def record(name: str = "unet", partitioned: float = 0.5, wrapped: float = 1.0, **cost: Any) -> dict[str, Any]:
    way = {"regions": {"tcjit": 2, "vendor": 1}, "nodes": 0.5, "flops": 0.25, "bytes": 1.0, "partition_s": 1.0, "first_s": 0.5}
    way |= {"error": 1e-6}
    made = {"all": {**way, "reloaded": 1e-6}, "cost": {**way, "reloaded": 1e-6, **cost}, "wrapped": {**way, "regions": {}, "reloaded": 0.0}}
    made["compiled"] = {"first_s": 12.0, "error": 0.0}
    times = {"eager": [1.0] * 3, "again": [1.01] * 3, "compiled": [0.8] * 3, "all": [0.6, 0.6, 9.0], "cost": [partitioned] * 3}
    return {"model": name, "inputs": [[1, 3, 8, 8]], "parameters": 5, "made": made, "times": {**times, "wrapped": [wrapped] * 3}}


def page(run: Any, *records: dict[str, Any]) -> list[str]:
    given = Namespace(small=True, measure=False, rounds=3)
    facts = {"cpu": "a processor", "cores": 2, "torch": "2"}
    return str(run.page([run.row(each) for each in records], given, facts, 1e-3)).splitlines()


def test_the_page(run: Any) -> None:
    lines = page(run, record())
    assert "| unet | 1x3x8x8 | 3 (2 tcjit, 1 vendor) | 600 | 3 (2 tcjit, 1 vendor) | 500 | 50 %, 25 %, 100 % | 1005 | 1.0 % |" in lines
    assert "| unet | 1005 | 800 | 12 | 500 | 3 (2 tcjit, 1 vendor) | 1.5 | 2.01 | 1.60 | 1.00 | 1e-06 |" in lines
    said = lines[-4:]
    assert said[0].endswith("at least: none.") and said[1].endswith("left to ATen: none.")
    assert said[2] == "Geometric mean of eager / partitioned: 2.01." and said[3].endswith("within 0.001 of eager: yes.")


def test_the_page_says_what_is_wrong(run: Any) -> None:
    broken = record("vgg19")
    broken["made"]["compiled"], broken["made"]["all"] = {"failed": "Error: no | way"}, {"failed": "PartitionError: no"}
    del broken["times"]["compiled"], broken["times"]["all"]
    gone = {"model": "dlrm", "inputs": [], "parameters": 0, "made": {}, "times": {}, "failed": "status -9: nothing said"}
    lines = page(run, record("slow", partitioned=1.2, wrapped=1.1), record("off", error=0.5, reloaded=None, why="no file"), broken, gone)
    text = "\n".join(lines)
    assert "2 % at least: slow." in text and "left to ATen: slow." in text and "| Error: no / way |" in text
    assert "| dlrm |  | - | status -9: nothing said | - |" in text
    faults = "off: cost: off by 0.5; off: cost: not reloaded, no file; vgg19: all: PartitionError: no; dlrm: status -9: nothing said."
    assert f"of eager: {faults}" in text


def test_a_run_of_some_models_takes_the_place_of_their_rows(run: Any, tmp_path: Path) -> None:
    file, facts = tmp_path / "models.json", {"machine": {"cpu": "a processor"}, "rounds": 3}
    old = [{"model": "unet", "ms": 1}, {"model": "dlrm", "ms": 2}]
    file.write_text(json.dumps({**facts, "rows": old}))
    new = [{"model": "unet", "ms": 3}, {"model": "vgg19", "ms": 4}]
    assert [(r["model"], r["ms"]) for r in run.beside(file, facts, new)] == [("vgg19", 4), ("unet", 3), ("dlrm", 2)]
    for other in ({**facts, "rounds": 30}, {**facts, "machine": {"cpu": "another"}}, {**facts, "measure": True}):
        assert {r["model"] for r in run.beside(file, other, new)} == {"unet", "vgg19"}
    file.write_text("{")
    assert len(run.beside(file, facts, new)) == len(run.beside(tmp_path / "none", facts, new)) == 2


def test_one_model_from_end_to_end(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}  # the lock of all who measure is there
    settings = ["--small", "--rounds", "2", "--without", "compiled,all", "--out", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, str(SCRIPT), "dlrm", *settings], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = (tmp_path / "out").glob("models-*-small.json")
    (row,) = json.loads(file.read_text())["rows"]
    assert row["model"] == "dlrm" and row["inputs"] == [[2, 13], [2, 3, 4]]
    assert set(row["ms"]) == {"cost", "wrapped"} and row["eager_ms"] > 0
    cost = row["made"]["cost"]
    assert cost["error"] < 1e-5 and cost["reloaded"] < 1e-5 and sum(cost["regions"].values()) > 0
    assert row["made"]["wrapped"]["regions"] == {} and done.stdout.endswith(file.with_suffix(".md").read_text() + "\n")
    assert subprocess.run([sys.executable, str(SCRIPT), "nosuch"], env=environment, capture_output=True).returncode == 2
