"""Programs under oclgrind, which sees data races, accesses out of bounds, uninitialised values and barriers that not all threads reach.

It runs as an OpenCL device in a worker of its own, and writes what it finds to a file. It does not see an overrun inside a private array.
"""
from __future__ import annotations

import functools
import json
import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.cases import Case
from support.rings.opencl import Worker

MOST = 200  # findings that one context of oclgrind reports before it falls silent
_NUMBERS = re.compile(r"\b0x[0-9a-f]+\b")
_PLACE = re.compile(r"At line (\d+) ")
# memory that was written once counts as initialised for as long as its context lives, also when it is handed out again
_FRESH = """
from tcjit.runtime import opencl
opencl._devices_in_use.clear()
"""
_EDIT = """
really = opencl.build
def edited(text, symbol):
    parts = text.split({old!r})
    assert len(parts) > {number} + 1, "nothing to change"
    return really({old!r}.join(parts[: {number} + 1]) + {new!r} + {old!r}.join(parts[{number} + 1 :]), symbol)
opencl.build = edited
"""


@dataclass(frozen=True)
class Finding:
    """One kind of complaint at one place: ``what`` without addresses, the kernel, the lines of its text involved, how often."""

    what: str
    kernel: str
    lines: tuple[int, ...]
    times: int


@dataclass(frozen=True)
class Edit:
    """A change of the generated text: the occurrence ``number`` (from 0) of ``old`` becomes ``new``."""

    old: str
    new: str = ""
    number: int = 0


def parse(log: str) -> list[Finding]:
    """What a log of oclgrind says, equal complaints counted, in the order in which they first appear."""
    found: Counter[tuple[str, str, tuple[int, ...]]] = Counter()
    for block in re.split(r"\n(?=\S)", log.strip("\n")):
        head, *rest = block.splitlines() or [""]
        if not head.strip() or head.startswith("Oclgrind:"):  # which only says that there is more
            continue
        kernel = next((line.split(":", 1)[1].strip() for line in rest if line.strip().startswith("Kernel:")), "")
        lines = tuple(int(match[1]) for line in rest if (match := _PLACE.search(line)))
        found[_NUMBERS.sub("", head).strip(), kernel, tuple(sorted(lines))] += 1
    return [Finding(*key, times) for key, times in found.items()]


class Inspector:
    """A worker on oclgrind and the file that it reports to."""

    def __init__(self, **variables: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tcjit-oclgrind-")
        self._log = Path(self._folder.name, "log")
        checks = {"OCLGRIND_DATA_RACES": "1", "OCLGRIND_UNINITIALIZED": "1", "OCLGRIND_UNIFORM_WRITES": "1"}
        self._worker = Worker("oclgrind", **checks, OCLGRIND_MAX_ERRORS=str(MOST), OCLGRIND_LOG=str(self._log), **variables)

    def ask(self, code: str = "", **request: Any) -> tuple[Any, list[Finding]]:
        """The worker's answer to a request, in a context of its own, and what oclgrind found meanwhile."""
        before = self._log.stat().st_size if self._log.exists() else 0
        answer = self._worker.ask(code=_FRESH + code, **request)
        written = self._log.read_bytes()[before:].decode("utf-8", "replace") if self._log.exists() else ""
        found = parse(written)
        if found:
            self._worker.restart()  # a context that has complained too often says nothing more
            self._log.unlink()  # the next process begins a log of its own
        return answer, found

    def inspect(self, case: Case, edit: Edit | None = None) -> tuple[str, list[Finding]]:
        """What is wrong with the results of a case, as ``support.run.failure`` says it, and what oclgrind found."""
        code = _EDIT.format(**vars(edit)) if edit else ""
        answer, found = self.ask(kind="case", file=self._worker.saved(case), target="opencl", code=code)
        return str(answer), found

    def close(self) -> None:
        self._worker.close()
        self._folder.cleanup()


@functools.cache
def inspector() -> Inspector:
    """One per test process."""
    return Inspector()


def inspect(case: Case, edit: Edit | None = None) -> tuple[str, list[Finding]]:
    """As ``Inspector.inspect``; an edited kernel gets a process and a cache of its own, so that nobody else meets it."""
    if edit is None:
        return inspector().inspect(case)
    with tempfile.TemporaryDirectory(prefix="tcjit-cache-") as cache:
        alone = Inspector(TCJIT_CACHE_DIR=cache)
        try:
            return alone.inspect(case, edit)
        finally:
            alone.close()


def assert_clean(case: Case) -> None:
    """AssertionError unless the results are right and oclgrind has nothing to say."""
    wrong, found = inspect(case)
    assert not wrong and not found, f"{wrong}\n{json.dumps([vars(f) for f in found], indent=1)}\n{case.text}"
