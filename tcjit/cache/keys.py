"""The names under which things are stored: hashes of all that the stored thing depends on."""
from __future__ import annotations

import functools
import hashlib
import json
import os
from typing import Any

from tcjit.cache.storage import store
from tcjit.runtime import host

_SOURCES = (".py", ".lark", ".c", ".h")


@functools.lru_cache(maxsize=1)
def code_version() -> str:
    """A hash of tcjit's own source files; another version of tcjit shares nothing that depends on its code.

    The files are hashed when one of them has changed, otherwise only looked at.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    looks = _looks(root)
    look = hashlib.sha256(repr(looks).encode("utf-8", "surrogateescape")).hexdigest()
    name = "code-" + hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
    noted = store().note(name)
    if noted is not None and noted.get("look") == look:
        return str(noted["version"])
    version = hashlib.sha256()
    for path, *_ in looks:
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
    """The key of a kernel, for ``Store.get``: of ``facts`` (JSON values), tcjit's code and, for the CPU, of compiler, CPU and C library."""
    tools = [host.identity(store()), host.c_library()] if target == "cpu" else []
    return _hash({"target": target, "facts": facts, "code": code_version(), "tools": tools})


def options_key(target: str, **facts: Any) -> str:
    """The key of tuned options, for ``Store.choice``: of ``facts`` alone, since options outlive compilers and versions."""
    return _hash({"target": target, "facts": facts})


def _hash(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _looks(root: str) -> list[tuple[str, int, int, int]]:
    """Path, time of change, of the inode's change, and size of every source file: a loop made for speed, every process runs it."""
    found, folders = [], [root]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith("."):
                    continue
                if name.endswith(_SOURCES):
                    status = entry.stat()
                    found.append((entry.path, status.st_mtime_ns, status.st_ctime_ns, status.st_size))
                elif name != "__pycache__" and entry.is_dir():
                    folders.append(entry.path)
    return sorted(found)
