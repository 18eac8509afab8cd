"""Threads that share defs while the launcher's tables overflow, under AddressSanitizer and ThreadSanitizer.

Launcher and kernels are built with the sanitizer in a cache of their own, and a process that has its runtime preloaded calls them: defs
with dynamic sizes over more shapes than a table has entries, defs with fixed ones, views, ``out=``, and calls that raise, while entries
are replaced. A report that names the launcher or a kernel counts, and so does a process that dies; torch, libgomp and Python, which are not
instrumented, have reports of their own. ThreadSanitizer does not see the barriers of libgomp: kernels run on one thread there.
"""
from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support import PYTHONPATH

# runtime, variable for settings, OpenMP's threads
SANITIZERS = {"address": ("libasan.so", "ASAN_OPTIONS", 2), "thread": ("libtsan.so", "TSAN_OPTIONS", 1)}
THREADS = 5
SIZES = 3000  # of the dynamic def; a table has 256 entries
MOST = 600.0  # seconds beside those asked for: compiling, importing torch
TEXT = """
def grow(float(N) X) -> (Y) { Y(n) = X(n) + 1.0 }
def many(float(N) A, float(N) B, float(N) C, float(N) D, float(N) E, float(N) F) -> (Y) { Y(n) = A(n) + B(n) + C(n) + D(n) + E(n) + F(n) }
def pick(float(V, D) T, int64(B) I, float a) -> (O) { O(b, d) = a * T(I(b), d) }
def both(float(M, K) A, float(K) B) -> (S, P) {
    S(m) +=! A(m, k) * B(k)
    P(m, k) = A(m, k) - B(k)
}
def rows(float(N, M) X) -> (R) { R(n) max=! X(n, m) }
"""
BEGIN = ("ERROR: AddressSanitizer", "WARNING: ThreadSanitizer", "ERROR: ThreadSanitizer", "FATAL: ThreadSanitizer")


def soak_threads(seconds: float, seed: int, sanitizers: tuple[str, ...] = tuple(SANITIZERS)) -> int:
    """Run both, print what was found and ``N calls, M reports, seed S``; 1 where there was a report, a crash, or a runtime is missing."""
    calls, wrong = 0, []
    for sanitizer in sanitizers:
        made, found = _sanitized(sanitizer, seconds, seed)
        print(f"{sanitizer}: {made} calls, {len(found)} reports", flush=True)
        calls, wrong = calls + made, [*wrong, *found]
    print("".join(f"{text}\n" for text in wrong) + f"{calls} calls, {len(wrong)} reports, seed {seed}", flush=True)
    return 1 if wrong else 0


def missing(sanitizer: str) -> str:
    """Why a sanitizer cannot be used here; empty if it can."""
    return "" if _runtime(sanitizer) else f"{sanitizer}: gcc has no {SANITIZERS[sanitizer][0]}; apt install libgcc-12-dev, or its version"


def _runtime(sanitizer: str) -> str:
    if not shutil.which("gcc"):
        return ""
    asked = ["gcc", f"-print-file-name={SANITIZERS[sanitizer][0]}"]
    path = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    return os.path.realpath(path) if os.path.isabs(path) else ""


def _sanitized(sanitizer: str, seconds: float, seed: int) -> tuple[int, list[str]]:
    """How many calls a process made under a sanitizer, and what was wrong."""
    absent = missing(sanitizer)
    if absent:
        return 0, [absent]
    _, settings, threads = SANITIZERS[sanitizer]
    with tempfile.TemporaryDirectory(prefix="tcjit-soak-") as folder:
        cache, log = Path(folder, "cache"), Path(folder, "log")
        told = f"log_path={log}:detect_leaks=0:halt_on_error={int(sanitizer == 'address')}:exitcode=66:history_size=5"
        environment = {
            **os.environ,
            "CC": f"gcc -g -fno-omit-frame-pointer -fsanitize={sanitizer}",
            "LD_PRELOAD": _runtime(sanitizer),
            settings: f'{told}:stack_trace_format="    #%n %f %S (%m+%o)"',
            "TCJIT_CACHE_DIR": str(cache),
            "TCJIT_VERIFY": "0",
            "PYTHONPATH": PYTHONPATH,
            "PYTHONMALLOC": "malloc",
            "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "passive",
        }
        command = [sys.executable, "-m", "support.threads", str(seconds), str(seed), str(threads)]
        fixed = shutil.which("setarch")  # ThreadSanitizer wants its shadow memory where the system may have put something else
        if fixed:
            command = [fixed, os.uname().machine, "-R", *command]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds + MOST, check=False)
        except subprocess.TimeoutExpired:
            return 0, [f"{sanitizer}: no end after {seconds + MOST:.0f} s"]
        return _judged(sanitizer, done, "".join(path.read_text(errors="replace") for path in sorted(Path(folder).glob("log.*"))), cache)


def _judged(sanitizer: str, done: subprocess.CompletedProcess[str], log: str, cache: Path) -> tuple[int, list[str]]:
    found = [f"{sanitizer}: {report}" for report in reports(log) if str(cache) in report or "FATAL" in report]
    last = done.stdout.strip().splitlines()[-1:]
    end = json.loads(last[0]) if last and last[0].startswith("{") else None
    if end is None:
        words = f"{shlex.join(done.args)}: {done.stderr[-3000:]}{log[:3000]}"
        return 0, found or [f"{sanitizer}: the process ended with status {done.returncode}: {words}"]
    return end["calls"], found + [f"{sanitizer}: {what}" for what in end["wrong"]]


def reports(log: str) -> list[str]:
    """The reports in what a sanitizer wrote."""
    found: list[list[str]] = []
    for line in log.splitlines():
        if any(begin in line for begin in BEGIN):
            found.append([])
        if found:
            found[-1].append(line)
    return ["\n".join(lines[:80]) for lines in found]


# ---------------------------------------------------------------- in the process


def main(seconds: float, seed: int, threads: int) -> None:
    import torch

    import tcjit
    from tcjit.jit import fast

    torch.set_num_threads(threads)
    tc = tcjit.define(TEXT, dynamic=["N"])
    added = _recorded(fast)
    for calls in (_kinds(tc, random.Random(0), added), _kinds(tc, random.Random(0), added)):  # compiled, and the extension loaded
        for call in calls:
            call()
    assert fast.extension.module is not None, "the launcher is not used"
    sys.setswitchinterval(1e-5)
    end, counts, wrong = time.monotonic() + seconds, [0] * THREADS, list[str]()

    def work(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        while time.monotonic() < end and not wrong:
            try:
                rng.choices(_kinds(tc, rng, added), (4, 8, 2, 1, 1, 1, 1, 1))[0]()
            except Exception as error:
                wrong.append(f"{type(error).__name__}: {error}")
            counts[number] += 1

    workers = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    full = len(tc.many._table._launcher or ()) == fast.extension.module.ENTRIES
    if not wrong and seconds >= 5 and not full:
        wrong.append("too few shapes to fill a table")
    print(json.dumps({"calls": sum(counts), "wrong": wrong}), flush=True)


def _recorded(fast: Any) -> list[tuple[Any, ...]]:
    """The launchers to which entries were added from now on, and those entries; the last ones."""
    found: list[tuple[Any, ...]] = []
    add = fast._add

    class Recorder:
        def __init__(self, to: Any) -> None:
            self.to = to

        def add(self, *entry: Any) -> Any:
            found.append((self.to, entry))
            del found[:-200]
            return self.to.add(*entry)

    def recording(to: Any, *facts: Any) -> Any:
        return add(Recorder(to), *facts)

    fast._add = recording
    return found


def _kinds(tc: Any, rng: random.Random, added: list[tuple[Any, ...]]) -> list[Callable[[], None]]:
    """Calls of each kind, with checks of what they return."""
    import torch

    from tcjit.errors import GatherError, ShapeError

    def grow() -> None:
        x = torch.full((rng.randint(1, SIZES),), 2.0)
        assert float(tc.grow(x)[-1]) == 3

    def many() -> None:
        x = torch.ones(rng.randint(1, SIZES))
        y = tc.many(x, x, x, x, x, x)
        assert len(y) == len(x) and float(y[-1]) == 6

    def into() -> None:
        size = rng.randint(1, SIZES)
        out = torch.zeros(size)
        assert tc.grow(torch.ones(size), out=out) is out and bool((out == 2).all()) and out._version == 1

    def views() -> None:
        size = rng.randint(1, SIZES // 2)
        assert bool((tc.grow(torch.ones(2 * size)[::2]) == 2).all())
        assert bool((tc.rows(torch.ones(4, size).t()) == 1).all())

    def fixed() -> None:
        size = rng.choice((3, 8, 16))
        sums, differences = tc.both(torch.ones(size, 8), torch.ones(8))
        assert bool((sums == 8).all()) and not differences.any()

    def gathered() -> None:
        index = torch.tensor([0, 1, 5 if rng.random() < 0.5 else 2])
        try:
            assert bool((tc.pick(torch.ones(3, 4), index, 2.0) == 2).all()) and int(index[2]) == 2
        except GatherError:
            assert int(index[2]) == 5

    def refused() -> None:
        try:
            tc.both(torch.ones(3, 8), torch.ones(7))
        except ShapeError:
            return
        raise AssertionError("shapes that do not fit were taken")

    def again() -> None:
        """New entries in quick succession, as from many threads with new shapes."""
        to, entry = rng.choice(added)
        for _ in range(1000):
            assert to.add(*entry)

    return [grow, many, into, views, fixed, gathered, refused, again]


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
