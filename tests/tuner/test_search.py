"""Searches with real candidates, some of which misbehave, are killed, or are interrupted.

Modules: jit.autotune tuner.config tuner.progress
"""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tuner.candidates import KINDS
from support.tuner.search_kills import kill_searches

import tcjit
from tcjit.jit import autotune
from tcjit.mapping.options import Options
from tcjit.tuner.config import TunerConfig
from tcjit.tuner.result import TuneResult
from tcjit.tuner.search import decided, winner

TEXT = "def sums(float(N,M) X) -> (Y, Z) { Y(i) +=! X(i, j)\n Z(i, j) = X(i, j) - Y(i) }"


def tuned(trials: int, text: str = TEXT, **settings: object) -> TuneResult:
    tc = tcjit.define(text)
    return tc.sums.autotune(torch.randn(40, 50), config=TunerConfig(trials=trials, workers=2, **settings))  # type: ignore[arg-type]


def test_a_search_finds_options_that_are_kept() -> None:
    result = tuned(6, seed=5)
    assert sum(result.trials.values()) == len(result.history) == 6 and result.stopped == "trials"
    assert 0 < result.seconds <= result.default_seconds and result.speedup >= 1
    x = torch.randn(40, 50)
    kernel = tcjit.define(TEXT).sums.compile(x)
    assert kernel.options == result.options.normalised("cpu", ("reduction", "several", "temporary"), 3)
    assert kernel.resources["verified"]
    kernel.check(x)
    assert "sums 40x50 on cpu" in str(result) and "ended by trials" in str(result)


@pytest.mark.parametrize(
    ("seconds", "number"),
    [
        ([[1.0, 0.9], [1.0, 0.9], [1.0, 0.9]], 1),
        ([[1.0, 0.99], [1.0, 0.99], [1.0, 0.99]], 0),  # not worth another kernel
        ([[1.0, 0.5], [1.0, 0.5], [1.0, 1.01]], 0),  # in one process no faster: what decides is not the kernel
        ([[1.0, 0.97, 0.9], [1.0, 0.97, 0.9], [1.0, 0.97, 0.9]], 2),
        ([[1.0, 1.1], [2.0, 2.2], [1.0, 1.1]], 0),
        ([[1.0, 0.9], [5.0, 4.5], [0.1, 0.09]], 1),  # the machine's moods are no differences
    ],
)
def test_the_default_stays_unless_another_is_faster_in_every_process(seconds: list[list[float]], number: int) -> None:
    times = [[[each * mood for mood in (1.0, 1.3, 0.9)] for each in process] for process in seconds]
    assert winner(times, True) == number


@settings(max_examples=200)
@given(st.lists(st.lists(st.floats(0.9, 1.1), min_size=3, max_size=3), min_size=1, max_size=3), st.booleans())
def test_no_further_process_changes_what_is_settled(finalists: list[list[float]], default: bool) -> None:
    """Whatever processes see of the finalists, here one reading of each in each of three."""
    times = [[[1.0]] + [[each[number]] for each in finalists] for number in range(3)]
    for seen in (1, 2):
        if decided(times[:seen], default):
            assert winner(times[:seen], default) == winner(times, default)


def test_what_is_settled() -> None:
    assert decided([[[1.0]]], True) and decided([[[1.0]]], False)
    assert decided([[[1.0], [1.2], [0.99]]], True) and not decided([[[1.0], [1.2], [0.97]]], True)
    assert not decided([[[1.0], [1.2], [0.99]]], False), "without the default the order of the others counts"
    assert decided([[[1.0], [0.9]], [[1.0], [1.0]]], True)


def test_without_the_default_the_fastest_wins() -> None:
    assert winner([[[1.0], [0.99]], [[1.0], [1.2]], [[1.0], [0.9]]], False) == 1


@pytest.mark.bare
def test_the_next_process_neither_schedules_nor_compiles(tmp_path: Path) -> None:
    given = "import sys, torch, tcjit\nx = torch.ones(40, 50)\n"
    define = f"tc = tcjit.define({TEXT!r})\n"
    search = "tc.sums.autotune(x, config=tcjit.TunerConfig(trials=2, workers=1))\n"
    call = "tc.sums(x)\nprint('lark' in sys.modules, 'islpy' in sys.modules)\n"
    environment = {**os.environ, "TCJIT_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    for code, printed in ((given + define + search, ""), (given + define + call, "False False")):
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
        assert (done.stdout.strip(), done.returncode) == (printed, 0), done.stderr


def test_a_budget_counts_what_was_tried_before() -> None:
    first, second = tuned(3, seed=6), tuned(5, seed=6)
    assert [t.values for t in second.history[: len(first.history)]] == [t.values for t in first.history]
    assert len(second.history) >= 5 and all(t.at < 0 for t in second.history[: len(first.history)])


def test_seconds_end_a_search() -> None:
    start = time.monotonic()
    text = TEXT.replace("sums", "sums").replace("X(i, j) - Y(i)", "X(i, j) * Y(i)")
    assert tuned(100_000, text, seconds=1.5).stopped == "seconds"
    assert time.monotonic() - start < 60


def test_misbehaving_candidates_cost_themselves_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "WORKERS", "support.tuner.candidates")
    monkeypatch.setattr(autotune, "PRESETS", {kind: Options(tile=(int(size),)) for size, kind in KINDS.items()})
    monkeypatch.setenv("TCJIT_MISCHIEF", str(tmp_path))
    text = "def sums(float(N,M) X) -> (Y, Z) { Y(i, j) = X(i, j) + 1.0\n Z(i, j) = X(i, j) / 3.0 }"  # which each size of tiles changes
    result = tuned(16, text, timeout=2.0, seed=1)
    reasons = [trial.reason for trial in result.history if trial.state == "failed"]
    for expected in ("no answer in 2 s", "SIGSEGV", "is off by", "not enough memory", "ended with status 3"):
        assert any(expected in reason for reason in reasons), (expected, reasons)
    assert result.trials["measured"] >= 5
    assert not {str(size) for size in result.options.tile[:1]} & set(KINDS)
    x = torch.rand(40, 50)
    torch.testing.assert_close(tcjit.define(text).sums(x), (x + 1, x / 3))


def test_a_kernel_that_fails_untuned_is_an_error() -> None:
    tc = tcjit.define("def take(float(N) X, int32(M) I) -> (Y) { Y(i) = X(I(i)) }")
    with pytest.raises(tcjit.TuneError, match="cannot be run untuned.*GatherError"):
        tc.take.autotune(torch.randn(4), torch.tensor([0, 9], dtype=torch.int32), config=TunerConfig(trials=3))
    with pytest.raises(tcjit.TuneError, match="reference does not run"):
        tcjit.define(TEXT, target="reference").sums.autotune(torch.randn(4, 4))
    with pytest.raises(tcjit.ArgumentError, match="config must be"):
        tcjit.define(TEXT).sums.autotune(torch.randn(4, 4), config={"trials": 3})
    for also in (3, torch.randn(4, 4), [torch.randn(4, 4)]):
        with pytest.raises(tcjit.ArgumentError, match="also= must be"):
            tcjit.define(TEXT).sums.autotune(torch.randn(4, 4), also=also)


@pytest.mark.parametrize(
    ("field", "value"),
    [("population", 2), ("elites", 17), ("mutation", 1.5), ("trials", 0), ("seconds", -1), ("workers", 0), ("seed", "1"), ("storage", 3)],
)
def test_settings_out_of_range_are_named(field: str, value: object) -> None:
    with pytest.raises(tcjit.TuneError, match=field):
        TunerConfig(**{field: value})  # type: ignore[arg-type]


# ---------------------------------------------------------------- in processes of their own

SCRIPT = f"""
import signal, sys, torch, tcjit
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job, and what it starts, would ignore it
result = tcjit.autotune({TEXT!r}, "sums", torch.randn(60, 70), config=tcjit.TunerConfig(trials=int(sys.argv[1]), workers=2))
print(result.stopped, len(result.history), sum(t.at < 0 for t in result.history))
"""


def script(cache: Path, trials: int, **how: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "TCJIT_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(trials)], env=environment, stdout=subprocess.PIPE, text=True, **how)  # type: ignore[call-overload, no-any-return]


def test_ctrl_c_keeps_the_best(tmp_path: Path) -> None:
    process = script(tmp_path, 100_000)
    until_measured(tmp_path, 3)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and out.startswith("interrupt ")


def test_a_killed_search_goes_on(tmp_path: Path) -> None:
    process = script(tmp_path, 100_000)
    lines = until_measured(tmp_path, 3)
    process.kill()
    process.communicate()
    out = subprocess.run(
        [sys.executable, "-c", SCRIPT, "8"],
        env={**os.environ, "TCJIT_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE, text=True, check=True, timeout=120,
    ).stdout.split()  # fmt: skip
    assert out[0] == "trials" and int(out[1]) >= 8 and int(out[2]) >= lines


def test_searches_killed_at_random_moments_lose_nothing(tmp_path: Path) -> None:
    assert kill_searches(tmp_path, 2, 11) == []


def until_measured(cache: Path, lines: int) -> int:
    """Wait until a search has logged so many measurements; how many it has."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        found = sum(file.read_bytes().count(b"\n") for file in cache.rglob("measured-*"))
        if found >= lines:
            return found
        time.sleep(0.05)
    raise AssertionError("nothing was measured")


def test_it_works_from_standard_input(tmp_path: Path) -> None:
    text = textwrap.dedent(SCRIPT).replace("int(sys.argv[1])", "2")
    environment = {**os.environ, "TCJIT_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-"], input=text, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.split()[:2] == ["trials", "2"], done.stderr
