"""A store of one's own, kernels made of numbers, and a program that writes them from another process."""
from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from support import PYTHONPATH
from tcjit.cache import Entry, Store, options_key


def kernel(key: str, number: int) -> tuple[dict[str, Any], bytes, dict[str, str]]:
    """Record, library and texts that belong together: whoever reads a mixture can tell."""
    library = hashlib.sha256(f"{key}{number}".encode()).digest() * 700
    return {"format": 1, "symbol": key, "number": number}, library, {"source": f"{key} {number}\n" * 200, "tree": "band\n"}


def put(store: Store, key: str, number: int = 0) -> Entry:
    return store.put(key, *kernel(key, number))


def whole(entry: Entry, key: str) -> bool:
    """Whether an entry is one of those that ``kernel`` makes, every part of it from the same one."""
    record, library, texts = kernel(key, entry.record["number"])
    return entry.record == record and entry.library.read_bytes() == library and entry.artifacts() == texts


def family(key: str) -> str:
    """A family of tuned options."""
    return options_key("cpu", hashlib.sha256(key.encode()).hexdigest(), device="a processor")


WRITER = """
import os, sys, warnings
from pathlib import Path
from tcjit.cache import Choice, Store
from support.cache import family, put, whole
warnings.simplefilter("error")
home, count, number = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
store = Store(home)
print("ready", flush=True)
sys.stdin.readline()
for round in range(count):
    for key in sys.argv[4:]:
        put(store, key, number + round)
        store.put_signatures(key, [{"name": key}])
        store.put_choice(family(key), Choice({"tile": [round] * 9}, {"seconds": float(round)}, key, ((4, 4),)))
        store.log("written").append([{"who": number, "round": round, "key": key}])
        found = store.get(key)
        try:
            assert found is None or whole(found, key), key
        except FileNotFoundError:  # thrown out since it was found
            assert "THROWN_OUT" in os.environ
        assert store.signatures(key) in (None, [{"name": key}])
        choice = store.nearest(family(key), ((4, 4),))
        assert choice is None or choice.options["tile"] == [choice.numbers["seconds"]] * 9, key
"""


def python(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Another Python that sees the package and these helpers."""
    pipe, variables = subprocess.PIPE, {**os.environ, "PYTHONPATH": PYTHONPATH, **environment}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=variables, cwd=os.sep)


def printed(code: str, *arguments: str, **environment: str) -> Any:
    """What a program prints, as JSON; it must end well."""
    process = python(code, *arguments, **environment)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return json.loads(out)


def kill_writers(home: Path, count: int, seed: int) -> list[str]:
    """Kill so many processes, one after another, in the middle of writing to a cache; what was then found to be wrong with it."""
    rng, store, wrong, before = random.Random(seed), Store(home), [], 0
    for number in range(count):
        process = python(WRITER, str(home), "1000000", str(number), "a", "b")
        assert process.stdin and process.stdout
        if process.stdout.readline() != "ready\n":
            return [*wrong, f"writer {number} did not start: {process.communicate()[1]}"]
        process.stdin.write("\n")
        process.stdin.flush()
        time.sleep(rng.uniform(0.001, 0.08))
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            records = store.log("written").read()
            torn = records[before:].count(None)
            broken = [key for key in "ab" if (entry := store.get(key)) is not None and not whole(entry, key)]
            damaged = [name for name in store.verify() if name != "logs/written"]
        if errors or caught or broken or damaged or torn > 1:
            said = [str(warning.message) for warning in caught]
            wrong.append(f"after kill {number}: {errors} {said} broken {broken} damaged {damaged} torn lines {torn}".strip())
        before = len(records)
    return wrong


def files(home: Path) -> list[Path]:
    return sorted(path for path in home.rglob("*") if path.is_file())
