"""The names under which things are stored: hashes of all that the stored thing depends on."""
from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterator
from typing import Any

from tcjit.cache.store import store
from tcjit.runtime import host

_SOURCES = (".py", ".lark", ".c", ".h")


@functools.lru_cache(maxsize=1)
def code_version() -> str:
    """A hash of tcjit's own source files; another version of tcjit shares nothing that depends on its code.

    The files are hashed when one of them has changed, otherwise only looked at.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    files = sorted(_files(root))
    looks = repr([(path, s.st_mtime_ns, s.st_ctime_ns, s.st_size) for path, s in files])
    look = hashlib.sha256(looks.encode("utf-8", "surrogateescape")).hexdigest()
    name = "code-" + hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
    noted = store().note(name)
    if noted is not None and noted.get("look") == look:
        return str(noted["version"])
    version = hashlib.sha256()
    for path, _ in files:
        with open(path, "rb") as file:
            content = file.read()
        version.update(f"{os.path.relpath(path, root)}\0{len(content)}\0".encode("utf-8", "surrogateescape"))
        version.update(content)
    store().put_note(name, {"look": look, "version": version.hexdigest()})
    return version.hexdigest()


def text_key(text: str) -> str:
    """The key of a program's text, for ``Store.signatures``."""
    return _hash({"text": text, "code": code_version()})


def call_key(target: str, **facts: Any) -> str:
    """The key of a kernel, for ``Store.get``: of ``facts`` (JSON values), tcjit's code and, on the CPU, compiler and processor."""
    tools = host.identity(store()) if target == "cpu" else ""
    return _hash({"target": target, "facts": facts, "code": code_version(), "tools": tools})


def options_key(target: str, **facts: Any) -> str:
    """The key of tuned options, for ``Store.choice``: of ``facts`` alone, since options outlive compilers and versions."""
    return _hash({"target": target, "facts": facts})


def _hash(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _files(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith((".", "__pycache__")):
                continue
            if entry.is_dir():
                yield from _files(entry.path)
            elif entry.name.endswith(_SOURCES):
                yield entry.path, entry.stat()
