"""A store of one's own, kernels made of numbers, and a program that writes them from another process."""
from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tcjit.cache import Entry, Store

ROOT = Path(__file__).resolve().parent.parent


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


WRITER = """
import sys, warnings
from pathlib import Path
from tcjit.cache import Store
from support_cache import put, whole
warnings.simplefilter("error")
home, count, number = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
store = Store(home)
print("ready", flush=True)
sys.stdin.readline()
for round in range(count):
    for key in sys.argv[4:]:
        put(store, key, number + round)
        store.put_signatures(key, [{"name": key}])
        found = store.get(key)
        assert found is None or whole(found, key), key
        assert store.signatures(key) in (None, [{"name": key}])
"""


def python(code: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Another Python that sees the package and these helpers."""
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    pipe, variables = subprocess.PIPE, {**os.environ, "PYTHONPATH": path, **environment}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=variables, cwd=os.sep)


def printed(code: str, *arguments: str, **environment: str) -> Any:
    """What a program prints, as JSON; it must end well."""
    process = python(code, *arguments, **environment)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return json.loads(out)


def files(home: Path) -> list[Path]:
    return sorted(path for path in home.rglob("*") if path.is_file())
