"""A run of the GPU benchmark, without a GPU: pages, workers that die, the command from end to end, the way to another machine."""
from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support.gpu_bench import BENCHMARKS, CEILINGS, ROOT, entry, measure, report, run

# ---------------------------------------------------------------- pages


def row_of(name: str, suite: str = "tc", floor: float | None = 10.0, error: str = "", **times: Any) -> dict[str, Any]:
    found = {}
    for who, us in times.items():
        facts = {"correct": True, "error_norm": 1e-7, "first_s": 1.25, "how": "events"}
        found[who] = {"us": us, "p10": us * 0.9, "p90": us * 1.1, **facts} if isinstance(us, float) else us
    return {"name": name, "suite": suite, "dims": {"N": 5}, "dtype": "float32", "floor_us": floor, "contenders": found} | (
        {"error": error} if error else {}
    )


RESULTS = {
    "meta": {"time": "now", "tf32": False, "not_reached": ["late"], "machine": {
        "name": "card", "device": "Card 1", "arch": "sm_90", "processors": 132, "memory_gb": 141, "versions": {"torch": "2"},
    }},
    "ceilings": {"copy_gbs": 4000.0, "ffma_tflops": "LaunchError: none\nmore", "launch_us": 2.5},
    "rows": [
        row_of("mm", eager=40.0, compile=20.0, triton={"skipped": "not here"}, tcjit=25.0),
        row_of("slow", eager=40.0, compile=20.0, triton={"skipped": "not here"}, tcjit={"error": "MappingError: no"}),
        row_of("rows", "rows", eager=100.0, compile=30.0, triton={"skipped": "not here"}, tcjit=10.0),
        row_of("dead", "rows", None, "inputs: the process ended with SIGKILL"),
    ],
}  # fmt: skip


def test_the_page() -> None:
    page = report.page(RESULTS)
    assert page.startswith("# Card 1\n\nsm_90, 132 multiprocessors, 141 GB; torch 2; now.\ntf32 is off")
    assert "triton was skipped: not here." in page and "No time was left for late." in page
    assert "| copy of several GB, read plus written | 4000 | GB/s |" in page
    assert "| float32 multiply-adds in registers | LaunchError: none |  |" in page
    assert "| mm | N=5 | 10.0 | 40.0 | 20.0 |  | 25.0 (22.5-27.5) | 0.40 | 0.50 | 1.60 | 0.80 |  | 1.0e-07 | 1.2 |  | 1.2 |" in page
    assert "| slow | N=5 | 10.0 | 40.0 | 20.0 |  | ERR |  | 0.50 |  |  |  |  | 1.2 |  |  |" in page
    assert "| tc | 1 of 2 | 0 of 2 |  | 1.60 | 0.80 |  |" in page
    assert "| rows | 1 of 1 | 1 of 1 |  | 10.00 | 3.00 |  |" in page
    assert "- slow, tcjit: MappingError: no\n- dead: inputs: the process ended with SIGKILL\n" in page
    widths = {line.count(" | ") for line in page.splitlines() if line.startswith(("| operator", "| mm", "| slow", "| dead"))}
    assert len(widths) == 1


def test_wrong_results_are_named() -> None:
    wrong = row_of("mm", eager=40.0, tcjit={"us": 1.0, "correct": False, "error_norm": "nan", "first_s": 1.0, "p10": 1.0, "p90": 1.0})
    page = report.page({**RESULTS, "rows": [wrong]})
    assert "| 1.00 WRONG |" in page and "- mm, tcjit: wrong, the error's norm is nan of the result's" in page
    assert "| tc | 0 of 1 |" in page
    assert report.line(wrong).split() == ["mm", "eager", "40.0", "tcjit", "1.00", "WRONG"]


def test_graphs_are_marked_and_numbers_are_short() -> None:
    row = row_of("mm", tcjit={**row_of("", tcjit=2.5)["contenders"]["tcjit"], "how": "a graph of 32 calls"})
    assert "| 2.50 (2.25-2.75) `g` |" in report.page({**RESULTS, "rows": [row]})
    assert [report.number(x) for x in (0.0123, 1.005, 99.96, 1234.5)] == ["0.012", "1.00", "100.0", "1234"]


# ---------------------------------------------------------------- workers and runs


class Puppet:
    """A worker that answers from a list; an exception in it is raised."""

    def __init__(self, answers: list[Any], log: list[dict[str, Any]]) -> None:
        self.answers, self.log, self.closed = answers, log, False

    def ask(self, patience_s: float, **request: Any) -> dict[str, Any]:
        self.log.append(copy.deepcopy(request))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    def close(self) -> None:
        self.closed = True


def runner(answers: list[Any]) -> tuple[run.Run, list[dict[str, Any]], list[Puppet]]:
    log: list[dict[str, Any]] = []
    started: list[Puppet] = []

    def start() -> Any:
        started.append(Puppet(answers, log))
        return started[-1]

    return run.Run(measure.Settings(("eager", "tcjit")), start, 5.0, lambda line: None), log, started


READY = {"facts": {"name": "card", "device": "Card"}, "ceilings": CEILINGS}


def test_a_contender_that_kills_the_process_is_left_out_of_a_second_try() -> None:
    ok = {"row": row_of("twice", tcjit=5.0)}
    made, log, started = runner([READY, run.Gone("the process ended with SIGSEGV", "tcjit"), ok, {"lost": "eager", "error": "bad"}, ok])
    assert made.begin() == "card"
    assert made.row(entry())["name"] == "twice" and len(started) == 2 and started[0].closed
    assert log[1]["excluded"] == {} and log[2]["excluded"] == {"tcjit": "the process ended with SIGSEGV"}
    assert log[1]["ceilings"] == CEILINGS
    made.row(entry())
    assert log[4]["excluded"] == {"eager": "bad"} and len(started) == 3


def test_an_operator_that_fails_before_any_contender_is_a_row() -> None:
    made, _, started = runner([run.Gone("no answer within 5 s", "timing"), {"row": row_of("next"), "lost": ""}, {"row": row_of("last")}])
    row = made.row(entry())
    assert row["error"] == "timing: no answer within 5 s" and row["suite"] == "tc" and row["contenders"] == {}
    assert made.row(entry())["name"] == "next" and made.row(entry())["name"] == "last" and len(started) == 3


def test_a_device_that_cannot_be_used_ends_the_run() -> None:
    made, _, _ = runner([run.Gone("the process ended with status 1", "")])
    with pytest.raises(SystemExit, match="cannot be used: the process ended with status 1"):
        made.begin()


def test_results_are_written_after_every_row(tmp_path: Path) -> None:
    made, _, _ = runner([READY, {"row": row_of("twice", tcjit=4.0)}, run.Gone("gone", "inputs")])
    made.begin()
    made.results["rows"] = [row_of("kept", tcjit=1.0), row_of("twice", tcjit=9.0)]
    out = tmp_path / "new" / "card.json"
    made.all([entry(), entry("thrice")], out)
    rows = json.loads(out.read_text())["rows"]
    assert [row["name"] for row in rows] == ["kept", "twice", "thrice"]
    assert rows[1]["contenders"]["tcjit"]["us"] == 4.0 and rows[2]["error"] == "inputs: gone"
    assert "- thrice: inputs: gone" in out.with_suffix(".md").read_text()


def test_no_operator_begins_when_the_time_is_over(tmp_path: Path) -> None:
    made, log, _ = runner([])
    made.all([entry(), entry("thrice")], tmp_path / "card.json", seconds=-1.0)
    assert json.loads((tmp_path / "card.json").read_text())["meta"]["not_reached"] == ["twice", "thrice"] and not log


def test_what_this_version_has_measured_is_not_measured_again(tmp_path: Path) -> None:
    made, _, _ = runner([{"row": row_of("twice", tcjit=4.0)}, run.Gone("gone", "inputs")])
    made.all([entry(), entry("thrice")], tmp_path / "card.json")
    made.results["rows"] = json.loads((tmp_path / "card.json").read_text())["rows"]
    assert made.measured() == {"twice"}, "what failed is measured again"
    made.results["rows"][0]["run"]["code"] = "another version"
    assert made.measured() == set()


def test_our_own_sets_of_options_are_no_others() -> None:
    row = row_of("mm", eager=40.0, tcjit=20.0) | {"seconds": 1.0}
    row["contenders"]["tcjit-options"] = {**row["contenders"]["tcjit"], "us": 10.0}
    (line,) = (line for line in report.page({**RESULTS, "rows": [row]}).splitlines() if line.startswith("| mm |"))
    assert "| 0.50 | 0.25 | 2.00 | 0.50 |" in line, "of ceiling, best other, over eager, over the sets"


def child(code: str, tmp_path: Path) -> run.Worker:
    return run.Worker([sys.executable, "-c", f"import json, os, signal, subprocess, sys, time\n{code}"], os.environ, tmp_path / "log")


def test_a_worker_speaks_and_dies(tmp_path: Path) -> None:
    code = f"""
def say(**facts): print("\\n{run.HEADING}" + json.dumps(facts), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    print("a library's chatter")
    say(stage="eager")
    if request["name"] == "die":
        say(stage="tcjit")
        os.kill(os.getpid(), signal.SIGKILL)
    if request["name"] == "orphan":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(20)"])
        os._exit(3)
    if request["name"] == "hang":
        time.sleep(60)
    say(row=request)
"""
    worker = child(code, tmp_path)
    assert worker.ask(30.0, name="a") == {"row": {"name": "a"}}
    assert worker.ask(30.0, name="b") == {"row": {"name": "b"}}
    with pytest.raises(run.Gone, match="ended with SIGKILL") as gone:
        worker.ask(30.0, name="die")
    assert gone.value.stage == "tcjit"
    with pytest.raises(run.Gone, match="SIGKILL"):
        worker.ask(30.0, name="again")
    other = child(code, tmp_path)
    with pytest.raises(run.Gone, match="no answer within 1 s") as gone:
        other.ask(1.0, name="hang")
    assert gone.value.stage == "eager"
    other.close()
    with pytest.raises(run.Gone, match="ended with status 3"):
        child(code, tmp_path).ask(15.0, name="orphan")


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(BENCHMARKS / "gpu.py"), *arguments], capture_output=True, text=True, cwd=ROOT)


def test_a_dry_run_from_end_to_end(tmp_path: Path) -> None:
    out = tmp_path / "dry.json"
    done = bench("--dry-run", "--only", "mlp3,cross_entropy_4096", "--peers", "eager,triton,tcjit", "--out", str(out))
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert [row["name"] for row in found["rows"]] == ["mlp3", "cross_entropy_4096"]
    for row in found["rows"]:
        assert "error" not in row and row["floor_us"] > 0 and row["contenders"]["triton"].keys() == {"skipped"}
        for name in ("eager", "tcjit"):
            assert row["contenders"][name]["correct"] and row["contenders"][name]["samples"] >= measure.FEWEST, row
        assert row["contenders"]["tcjit"]["compile_s"] > 0 and row["contenders"]["tcjit"]["trials"] == 0
    assert "| mlp3 | B=7 N=7 O=7 P=7 Q=2 |" in out.with_suffix(".md").read_text()
    again = bench("--dry-run", "--only", "tmm_s", "--peers", "eager", "--update", "--out", str(out))
    assert again.returncode == 0 and len(json.loads(out.read_text())["rows"]) == 3
    rest = bench("--dry-run", "--only", "tmm_s,mlp1", "--peers", "eager", "--resume", "--out", str(out))
    assert rest.returncode == 0 and rest.stdout.count("mlp1") == 1 and "tmm_s" not in rest.stdout, rest.stdout + rest.stderr


def test_the_fastest_set_of_options_competes(tmp_path: Path) -> None:
    out = tmp_path / "dry.json"
    done = bench("--dry-run", "--only", "mlp1", "--peers", "eager,tcjit-options", "--out", str(out))
    (row,) = json.loads(out.read_text())["rows"]
    ours = row["contenders"]["tcjit-options"]
    assert done.returncode == 0 and ours["correct"] and ours["trials"] >= 5 and ours["configuration"], done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    done = bench("--quick")
    assert done.returncode == 1 and "no CUDA device" in done.stderr and "--dry-run" in done.stderr


def test_it_lists_what_it_measures() -> None:
    done = bench("--list", "--only", "sgemm,mlp3")
    assert done.returncode == 0 and re.search(r"^mlp3 +tc +quick +B=128 N=128", done.stdout, re.MULTILINE)
    assert len(done.stdout.splitlines()) == 9


# ---------------------------------------------------------------- getting there


def test_what_travels_is_what_tcjit_needs() -> None:
    names = (BENCHMARKS / "gpu" / "carried.txt").read_text()
    carried = {re.match(r"[\w-]+", line)[0].lower() for line in names.splitlines() if line and not line.startswith("#")}  # type: ignore[index]
    setup = (ROOT / "setup.py").read_text().partition("install_requires=[")[2].partition("]")[0]
    needed = set(re.findall(r'"([\w-]+)', setup))
    assert needed - {"torch", "numpy"} <= carried and not carried & {"torch", "numpy", "triton"}
    assert {"pytest", "pytest-xdist", "hypothesis"} <= carried
    script = BENCHMARKS / "gpu" / "carry.sh"
    assert os.access(script, os.X_OK) and "//" not in script.read_text().replace("#!/bin/sh", "")
    assert subprocess.run(["sh", "-n", str(script)]).returncode == 0


def test_make_gpu_takes_a_python_that_is_there() -> None:
    done = subprocess.run(["make", "-n", "gpu", "PYTHON=/some/python", "VENV="], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "pip" not in done.stdout and "venv" not in done.stdout
    assert re.search(r"^/some/python tests/cuda_ring\.py --out build/gpu --jobs 2 +-- --quick$", done.stdout, re.MULTILINE)
    given = ["OUT=/there", "SECONDS=480", "GPU=", "RING=--again"]
    more = subprocess.run(["make", "-n", "gpu", "PYTHON=/some/python", "VENV=", *given], capture_output=True, text=True, cwd=ROOT)
    assert re.search(r"cuda_ring\.py --out /there --jobs 2 --seconds 480 --again -- *$", more.stdout, re.MULTILINE), more.stdout
