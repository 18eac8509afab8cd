"""Several searches at once: of the same def and of others, in processes that know nothing of each other."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tcjit
from tcjit.cache.storage import Store

SCRIPT = """
import sys, torch, tcjit
n, kernels = map(int, sys.argv[1:])
text = "def f(float(N,M) X) -> (Y) { Y(i) +=! X(i, j) * %d }" % (n % kernels)
x = torch.arange(30.0 * 40).reshape(30, 40)
tc = tcjit.define(text)
before = tc.f(x)
result = tc.f.autotune(x, config=tcjit.TunerConfig(trials=4, workers=1, seed=n))
assert torch.equal(before, x.sum(1) * (n % kernels)) and torch.equal(tc.f(x), before), "wrong"
print(result.trials["measured"] + result.trials["same"], len(result.history))
"""


def environment(cache: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "TCJIT_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(sys.path), **more}


@pytest.mark.parametrize("kernels", [2, pytest.param(4, marks=pytest.mark.whole)])
def test_two_processes_compile_and_tune_each_kernel(kernels: int, tmp_path: Path) -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "error::tcjit.cache.CacheWarning", "-c", SCRIPT, str(n), str(kernels)],
            env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for n in range(2 * kernels)
    ]  # fmt: skip
    for process in running:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        worked, tried = map(int, out.split())
        assert worked >= 1 and tried >= 4
    assert len(list(Store(tmp_path).choices())) == kernels
    assert Store(tmp_path).verify() == []


def test_a_full_disk_costs_no_result(tmp_path: Path) -> None:
    limited = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (MOST, MOST))  # fewer bytes than the study needs
"""
    script = limited.replace("MOST", "60000") + SCRIPT.replace("trials=4", "trials=60")
    done = subprocess.run([sys.executable, "-c", script, "1", "4"], env=environment(tmp_path), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "CacheWarning" in done.stderr


def test_the_command_tunes_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from tcjit.cli import main

    monkeypatch.setenv("TCJIT_CACHE_DIR", str(tmp_path / "cache"))
    program, report = tmp_path / "f.tc", tmp_path / "out.html"
    program.write_text("def f(float(N,M) X) -> (Y) { Y(i) +=! X(i, j) }")
    with pytest.raises(SystemExit) as ended:
        main(["tune", str(program), "--shapes", "X=30x40", "--shapes", "X=20x20", "--trials", "3", "--report", str(report)])
    assert not ended.value.code
    with pytest.raises(SystemExit) as refused:
        main(["tune", str(program), "--shapes", "X=30x40", "--report", str(tmp_path / "nowhere" / "out.html")])
    assert refused.value.code == 2
    out = capsys.readouterr().out
    assert "f 30x40; 20x20 on cpu" in out and "ended by trials" in out and str(report) in out
    text = report.read_text(encoding="utf-8")
    assert "<svg" in text and "f 30x40; 20x20 on cpu" in text and "http" not in text.replace("http://www.w3.org", "")
    kept = list(tcjit.cache.store().choices())
    assert {choice.shapes for _, choice in kept} == {((30, 40),), ((20, 20),)}
