"""The soak's own machinery: its closing line, the options it draws, Ctrl-C, and a program that takes its process down."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import soak
from support import threads
from support.cases import Case, Fill, load

from tcjit import library
from tcjit.mapping.options import Options

WORK = soak.Work(7, Path(__file__).parent)
ON_THE_CPU = soak.Work(7, Path(__file__).parent, target="cpu")


def test_a_short_soak_ends_with_its_line(tmp_path: Path) -> None:
    command = [sys.executable, soak.__file__, "--programs", "3", "--jobs", "1", "--seed", "7", "--keep", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1] == "3 run, 0 failed, seed 7", done.stdout + done.stderr
    assert done.returncode == 0


PEEK = """
#include <stdint.h>
int64_t peek(const int64_t *size) {
  int64_t kept[16];
  volatile const int64_t *seen = kept;
  return seen[*size];
}"""


def test_poisoned_memory_is_seen(tmp_path: Path) -> None:
    """Arrays of kernels and tensors without values hold the pattern, in a process that begins with those variables."""
    code = """if True:
        import ctypes, pathlib, sys, torch
        from tcjit.runtime import host
        path = pathlib.Path(sys.argv[1], "peek.so")
        path.write_bytes(host.build(sys.argv[2], "peek"))
        peek = ctypes.CDLL(str(path)).peek
        peek.restype = ctypes.c_int64
        print(hex(peek(ctypes.byref(ctypes.c_int64(3))) % 2**64), hex(torch.empty(100000, dtype=torch.uint8)[77777].item()))
    """
    environment = {**os.environ, **soak.poisoned(), "TCJIT_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path), PEEK], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["0xfefefefefefefefe", "0x5a"], done.stdout + done.stderr


def test_a_short_soak_in_poisoned_memory() -> None:
    for work in (["--programs", "4"], ["--library", "1", "--first", "220"]):
        command = [sys.executable, soak.__file__, "--poison", *work, "--jobs", "1", "--seed", "7", "--target", "cpu"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.stdout.splitlines()[-1] == "4 run, 0 failed, seed 7", done.stdout + done.stderr


def test_a_program_that_takes_its_process_down_is_one_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def events(work: soak.Work, first: int, last: int, stopped: soak.Flag) -> Iterator[dict[str, Any]]:
        for number in range(first, last):
            yield {"kind": "begin", "number": number}
            if number == 2:
                yield {"kind": "ended", "how": "signal 11"}
                return
            yield {"kind": "end", "number": number, "what": "", "drawn": 1, "refused": 0}

    monkeypatch.setattr(soak, "_events", events)
    monkeypatch.setattr(soak, "_crash", lambda work, number, ended, stopped: f"its process died ({ended})")
    assert soak.Soak(WORK, first=0, programs=5, jobs=1, seconds=None).run() == 1
    lines = capsys.readouterr().out.splitlines()
    assert "number 2: its process died (signal 11)" in lines and lines[-1] == "5 run, 1 failed, seed 7"


@pytest.mark.parametrize(
    ("program", "how", "patience"),
    [
        ("import sys; sys.exit(3)", "exit status 3", 60.0),
        ("import os; os.abort()", "signal 6", 60.0),
        ("import time; time.sleep(60)", "silent", 1.0),
    ],
)
def test_how_a_child_ended_is_said(program: str, how: str, patience: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "soak.py").write_text(program)
    monkeypatch.setattr(soak, "HOME", tmp_path)
    monkeypatch.setattr(soak, "PATIENCE", patience)
    events = list(soak._events(WORK, 0, 5, soak.Flag()))
    assert [event["kind"] for event in events] == ["ended"] and events[0]["how"].startswith(how)


def test_a_child_that_says_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "_events", lambda *_: iter(()))
    with pytest.raises(RuntimeError, match="before its first program"):
        soak.Soak(WORK, first=0, programs=5, jobs=1, seconds=None).run()


def test_half_of_the_programs_have_options_of_their_own() -> None:
    drawn = [soak._case(ON_THE_CPU, number)[0].options for number in range(60)]
    assert 15 < sum(options is None for options in drawn) < 45
    for name in ("fusion", "tile", "vector_width", "reduction_chunks", "parallel", "private_buffers", "pack"):
        assert len({getattr(options, name) for options in drawn if options is not None}) > 1, name
    assert drawn == [soak._case(ON_THE_CPU, number)[0].options for number in range(60)]


def test_gpu_rings_have_a_share_of_the_programs_with_options_that_they_heed() -> None:
    rings = [WORK.ring(number) for number in range(1000)]
    assert {ring: rings.count(ring) for ring in soak.RINGS} == {"cpu": 800, "cuda_host": 100, "opencl": 100}
    for ring in ("cuda_host", "opencl"):
        work = soak.Work(7, WORK.keep, target=ring)
        cases = [soak._case(work, number)[0] for number in range(60)]
        options = [case.options for case in cases if case.options is not None]
        assert 45 < len(options) < 60 and any(case.device for case in cases)
        numbers = ("block", "threads", "registers", "reduction_tile", "vector", "pipeline_stages", "reduction_chunks")
        for name in ("fusion", *numbers, "shared", "pack"):
            assert len({getattr(one, name) for one in options}) > 1, name
        assert not any(one.tile or one.vector_width for one in options)
    assert {soak.Work(7, WORK.keep, target="opencl").ring(number) for number in range(20)} == {"opencl"}


def test_the_numbers_of_the_library_are_its_operators_on_both_rings() -> None:
    work = soak.Work(7, WORK.keep, library=2)
    numbers = [(soak._operator(work, number), work.ring(number)) for number in range(work.size())]
    assert {numbers.count((name, ring)) for name in library.names() for ring in soak.RINGS[1:]} == {3}


def test_a_short_soak_of_the_library_ends_with_its_line() -> None:
    command = [sys.executable, soak.__file__, "--library", "0", "--target", "cuda_host", "--first", "108", "--jobs", "1", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines()[-1] == f"{len(library.names()) - 108} run, 0 failed, seed 7", done.stdout + done.stderr


def test_an_operator_that_is_wrong_is_named_with_its_ring(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object, **__: object) -> None:
        raise AssertionError("one element is wrong")

    monkeypatch.setattr("support.library.assert_agrees", wrong)
    work = soak.Work(7, WORK.keep, library=1)
    name = library.names()[0]
    assert soak._named(work, 0) == f"{name} on cuda_host: AssertionError: one element is wrong"
    later = soak._named(work, 2 * len(library.names()) + 1)
    assert later.startswith(f"{name} on opencl: AssertionError: {name}") and "one element is wrong" in later


def test_a_failure_is_kept_with_the_options_that_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that is wrong for odd lanes alone: those remain, everything else is shrunk away."""
    text = "def f(float(N) X) -> (Y, Z) { Y(i) = X(i) * 2  Z(i) = X(i) }"
    options = Options(fusion="maximal", tile=(3, 16), vector_width=2, parallel=False)
    case = Case(text, {"X": (9,)}, {"X": Fill("float32", "small", 1)}, options=options)

    def check(case: Case, target: str) -> None:
        assert case.options is None or case.options.vector_width != 2, "two lanes"

    monkeypatch.setattr("support.run.assert_right", check)
    assert "kept in" in soak._program(case, soak.Work(7, tmp_path), 1)
    kept = load(tmp_path / "soak_7_1.tc")
    assert kept.options == Options(vector_width=2) and kept.shapes == {"X": (0,)} and len(kept.text) < len(text)


def test_a_failure_that_needs_no_options_is_kept_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fills = {"X": Fill("float32", "small", 1)}
    case = Case("def f(float(N) X) -> (Y) { Y(i) = X(i) }", {"X": (9,)}, fills, options=Options(vector_width=2))

    def wrong(case: Case, target: str) -> None:
        raise AssertionError("always")

    monkeypatch.setattr("support.run.assert_right", wrong)
    soak._program(case, soak.Work(7, tmp_path), 2)
    assert load(tmp_path / "soak_7_2.tc").options is None
    assert "options" not in (tmp_path / "soak_7_2.tc").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_soak_that_is_stopped_ends_its_children_and_says_what_ran(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, soak.__file__, "--programs", "5000", "--jobs", "2", "--seed", "7", "--keep", str(tmp_path / "kept")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        deadline = time.monotonic() + 60
        while not (busy := _processes_with(str(tmp_path)) - {parent.pid}):
            assert time.monotonic() < deadline and parent.poll() is None
            time.sleep(0.1)
        for _ in range(100):  # a handler is interrupted by the next signal
            parent.send_signal(number)
        out, errors = parent.communicate(timeout=60)
    finally:
        parent.kill()
    assert busy and not _processes_with(str(tmp_path)), "children are left"
    assert parent.returncode == 130 and errors == "", errors
    assert out.splitlines()[-1].endswith(" run, 0 failed, seed 7")
    assert not list(tmp_path.glob("tcjit-soak-*")), "temporary directories are left"


def test_a_stopped_soak_with_failures_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def events(work: soak.Work, first: int, last: int, stopped: soak.Flag) -> Iterator[dict[str, Any]]:
        yield {"kind": "begin", "number": first}
        yield {"kind": "end", "number": first, "what": "mismatch", "drawn": 1, "refused": 0}
        yield {"kind": "begin", "number": first + 1}
        stopped.set()  # Ctrl-C: the child is ended in the middle of a program, which counts for nothing

    monkeypatch.setattr(soak, "_events", events)
    monkeypatch.setattr(soak, "_crash", lambda *_: pytest.fail("no program took its process down"))
    assert soak.Soak(WORK, first=0, programs=500, jobs=1, seconds=None).run() == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3] == "number 0: mismatch" and lines[-1] == "1 run, 1 failed, seed 7"


def _processes_with(word: str) -> set[int]:
    """The processes whose command line or environment holds a word."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                told = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
                state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if word.encode() in told and state != "Z" and int(folder.name) != os.getpid():
                found.add(int(folder.name))
    return found


OURS = """==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x6080
    #0 launcher_call kernel.c:475 (/private/v1/blobs/x.so+0x1)
"""
THEIRS = """==================
WARNING: ThreadSanitizer: data race (pid=7)
    #0 at::something torch.cpp:1 (/site-packages/torch/lib/libtorch.so+0x1)
"""


def test_what_a_sanitizer_reports_of_kernels_and_launcher_counts() -> None:
    def judged(log: str, status: int, out: str) -> tuple[int, list[str]]:
        return threads._judged("address", subprocess.CompletedProcess(["python"], status, out, "last words"), log, Path("/private"))

    end = '{"calls": 5, "wrong": []}'
    assert judged(THEIRS, 0, end) == (5, [])
    calls, (report,) = judged(THEIRS + OURS, 0, end)
    assert calls == 5 and "launcher_call" in report and "torch.cpp" not in report
    assert len(judged(OURS, 66, "")[1]) == 1
    assert "status -11" in judged("", -11, "")[1][0] and "last words" in judged("", -11, "")[1][0]
    assert judged("", 0, '{"calls": 5, "wrong": ["AssertionError: "]}')[1] == ["address: AssertionError: "]


def test_a_missing_sanitizer_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(threads, "_runtime", lambda sanitizer: "")
    assert threads.soak_threads(1, 7) == 1
    out = capsys.readouterr().out
    assert "no libasan.so" in out and "no libtsan.so" in out and out.splitlines()[-1] == "0 calls, 2 reports, seed 7"
