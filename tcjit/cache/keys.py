"""The names under which things are stored: hashes of all that the stored thing depends on."""
from __future__ import annotations

import functools
import hashlib
import json
import marshal
import os
from typing import Any

from tcjit.cache.storage import store

_SOURCES = (".py", ".lark", ".c", ".h")
ABOVE = ("library", "byoc", "cli")  # packages that use kernels; none of what makes them may import these, or share their names
_PROGRAM = 16  # hexadecimal digits


@functools.lru_cache(maxsize=1)
def code_version() -> str:
    """A hash of the source files that make kernels; another version of them shares nothing that depends on tcjit's code.

    The files are hashed when one of them has changed, otherwise only looked at.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    looks = _looks(root)
    look = hashlib.sha256(marshal.dumps(looks, 2)).hexdigest()  # by version 2 equal values have equal bytes
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
    store().put_note(name, {"look": look, "version": version.hexdigest(), "root": root})
    return version.hexdigest()


def live_versions() -> set[str]:
    """This version of tcjit's code, and those that were last seen in the directories that are still there."""
    noted = (note for _, note in store().notes("code-") if os.path.isdir(str(note.get("root", ""))))
    return {code_version(), *(str(note.get("version")) for note in noted)}


def text_key(text: str) -> str:
    """The key of a program's text, for ``Store.signatures``."""
    return _hash({"text": text, "code": code_version()})


def call_key(target: str, tools: str = "", **facts: Any) -> str:
    """The key of a kernel, for ``Store.get``: of ``facts`` (JSON values), tcjit's code, and what compiles and runs it, ``tools``."""
    return _hash({"target": target, "facts": facts, "code": code_version(), "tools": tools})


def made_by(tools: str) -> list[str]:
    """The versions of tcjit's code and of ``tools`` in a kernel's record, which tell whether it can ever be asked for again."""
    return [code_version(), _hash({"tools": tools})]


def options_key(target: str, program: str, **facts: Any) -> str:
    """The family of tuned options, for ``Store.choice``: of ``facts`` alone, since options outlive compilers and versions.

    ``program`` is the canonical hash of a def; the family starts like it.
    """
    return program[:_PROGRAM] + _hash({"target": target, "program": program, "facts": facts})[: 64 - _PROGRAM]


def is_of_program(family: str, program: str) -> bool:
    """Whether a family of options is of the def with this canonical hash."""
    return family[:_PROGRAM] == program[:_PROGRAM]


def _hash(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _looks(root: str) -> list[tuple[str, int, int, int]]:
    """Path, time of change, of the inode's change, and size of those files: a loop made for speed, every process runs it."""
    looks, folders = [], [root]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith("."):
                    continue
                if name.endswith(_SOURCES):
                    status = entry.stat()
                    looks.append((entry.path, status.st_mtime_ns, status.st_ctime_ns, status.st_size))
                elif name != "__pycache__" and name not in ABOVE and entry.is_dir():
                    folders.append(entry.path)
    return sorted(looks)
