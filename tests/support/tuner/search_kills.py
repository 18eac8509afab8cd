"""Searches killed at random moments: what they had written is still there, and the next one goes on from it."""
from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tcjit.cache.storage import Store

SEARCH = """
import sys, torch, tcjit
tc = tcjit.define("def sums(float(N,M) X) -> (Y, Z) { Y(i) +=! X(i, j)\\n Z(i, j) = X(i, j) - Y(i) }")
x = torch.arange(2000.0).reshape(40, 50) / 7
print("ready", flush=True)
result = tc.sums.autotune(x, config=tcjit.TunerConfig(trials=int(sys.argv[1]), workers=1))
kernel = tc.sums.compile(x)
kernel.check(x)
print(len(result.history), kernel.options == result.options.normalised("cpu", ("reduction", "several", "temporary"), 3))
"""
LOGS = ("measured-", "study-")


def kill_searches(home: Path, count: int, seed: int) -> list[str]:
    """Kill so many searches, one after another; what was then found to be wrong, and what a last one, left alone, does not do."""
    rng, store, wrong = random.Random(seed), Store(home), []
    before: dict[str, list[Any]] = {}
    for number in range(count):
        process = _start(home, 1_000_000)
        assert process.stdout
        if process.stdout.readline() != "ready\n":
            return [*wrong, f"search {number} did not start: {process.communicate()[1]}"]
        time.sleep(rng.uniform(0.0, 6.0))  # a search measures after 2 or 3 seconds
        process.kill()
        process.communicate()
        now = _written(store)
        lost = [name for name, records in before.items() if now.get(name, [])[: len(records)] != records]
        damaged = [name for name in store.verify() if not name.startswith("logs/")]
        if lost or damaged:
            wrong.append(f"after kill {number}: lost of {lost}, damaged {damaged}")
        before = now
    told = sum(len(records) for name, records in before.items() if name.startswith("measured-"))
    if count >= 5 and not told:
        wrong.append("no search lived long enough to measure anything")
    process = _start(home, 4)  # trials made before count: it goes to the final at once, or after four
    out, errors = process.communicate(timeout=300)
    last = out.split()[1:]
    if process.returncode or last[1:] != ["True"]:
        wrong.append(f"the last search: {out} {errors}")
    elif int(last[0]) < min(4, told):
        wrong.append(f"the last search knows of {last[0]} trials")
    return wrong


def _start(home: Path, trials: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "TCJIT_CACHE_DIR": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", SEARCH, str(trials)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _written(store: Store) -> dict[str, list[Any]]:
    """The whole records of every log of searches; what a killed process was writing is no record."""
    found = {name: log for start in LOGS for name, log in store.logs(start)}
    return {name: [record for record in log.read() if record is not None] for name, log in found.items()}
