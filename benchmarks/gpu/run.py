"""A run: a worker process for the device, started again when an operator takes it down, and the results' file, written after every row."""
from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu import report
from gpu.case import Entry
from gpu.measure import Settings
from gpu.worker import HEADING
from tcjit.cache.keys import code_version

BENCHMARKS = Path(__file__).resolve().parents[1]


class Gone(Exception):
    """A worker ended, or was ended for its silence. ``stage`` is what it last said it was at."""

    def __init__(self, what: str, stage: str) -> None:
        super().__init__(what)
        self.stage = stage


class Worker:
    """One process, by the command that starts it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        pipe = subprocess.PIPE
        with log.open("ab") as errors:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, env=dict(environment), bufsize=0)
        self._rest = b""
        self._stage = ""

    def ask(self, patience_s: float, **request: Any) -> dict[str, Any]:
        """The answer; Gone where the process ends first, or does not say in time which contender comes next."""
        assert self._process.stdin is not None
        self._stage = ""
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            raise Gone(self._ended(), "") from None
        for said in self._answers(patience_s):
            if "stage" not in said:
                return said
            self._stage = said["stage"]
        raise Gone(self._ended(), self._stage)

    def _answers(self, patience_s: float) -> Iterator[dict[str, Any]]:
        assert self._process.stdout is not None
        until = time.monotonic() + patience_s
        while True:
            *lines, self._rest = self._rest.split(b"\n")
            for line in lines:
                if line.startswith(HEADING.encode()):
                    yield json.loads(line[len(HEADING) :])
                    until = time.monotonic() + patience_s
            left = until - time.monotonic()
            if left <= 0:
                self.close()
                raise Gone(f"no answer within {patience_s:.0f} s", self._stage)
            if not select.select([self._process.stdout], [], [], min(left, 1.0))[0]:
                if self._process.poll() is not None:  # a compiler that it started may still hold the pipe
                    return
                continue
            read = os.read(self._process.stdout.fileno(), 1 << 16)
            if not read:
                return
            self._rest += read

    def _ended(self) -> str:
        status = self._process.wait()
        return f"the process ended with {signal.Signals(-status).name if status < 0 else f'status {status}'}"

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


class Run:
    """``results`` is what the file holds. ``start`` makes a worker."""

    def __init__(self, settings: Settings, start: Callable[[], Worker], patience_s: float, say: Callable[[str], None] = print) -> None:
        self.settings, self._start, self._patience_s, self._say = settings, start, patience_s, say
        self._worker: Worker | None = None
        self.results: dict[str, Any] = {
            "meta": {"time": time.strftime("%F %T"), "tf32": False, **asdict(settings)}, "ceilings": {}, "rows": [],
        }  # fmt: skip

    def begin(self) -> str:
        """Measure the ceilings; the machine's name. SystemExit with the worker's last words where there is no working device."""
        try:
            said = self._ask(kind="ceilings")
        except Gone as gone:
            raise SystemExit(f"the device cannot be used: {gone}; the log beside the results says more") from None
        self.results["meta"]["machine"] = said["facts"]
        self.results["ceilings"] = said["ceilings"]
        name: str = said["facts"]["name"]
        return name

    def row(self, entry: Entry) -> dict[str, Any]:
        """Measure an entry; a contender that takes the process down is left out of a second attempt."""
        excluded: dict[str, str] = {}
        while True:
            try:
                said = self._ask(kind="row", name=entry.name, ceilings=self.results["ceilings"], excluded=excluded)
            except Gone as gone:
                self.close()
                if gone.stage not in self.settings.peers or gone.stage in excluded:
                    return _failed(entry, self.settings, f"{gone.stage or 'start'}: {gone}", excluded)
                excluded[gone.stage] = str(gone)
                continue
            if "lost" in said:
                self.close()
            if "row" in said:
                found: dict[str, Any] = said["row"]
                return found
            if said["lost"] in excluded:
                return _failed(entry, self.settings, said["error"], excluded)
            excluded[said["lost"]] = said["error"]

    def measured(self) -> set[str]:
        """The operators with a row of this version of tcjit's code, and of the same contenders and sizes, in which nothing went wrong."""
        version = code_version()
        return {row["name"] for row in self.results["rows"] if "error" not in row and row.get("run") == self._settled(version)}

    def _settled(self, version: str) -> dict[str, Any]:
        return {"code": version, **json.loads(json.dumps(asdict(self.settings)))}

    def all(self, entries: Sequence[Entry], out: Path, seconds: float | None = None) -> None:
        """Measure entries and write the files after each; those that ``seconds`` leave no time for are named in the results."""
        start, version = time.monotonic(), code_version()
        self.results["meta"]["not_reached"] = []
        for entry in entries:
            if seconds is not None and time.monotonic() - start > seconds:
                self.results["meta"]["not_reached"].append(entry.name)
                continue
            began = time.monotonic()
            row = self.row(entry)
            row["seconds"] = time.monotonic() - began
            row["run"] = self._settled(version)
            self.results["rows"] = [old for old in self.results["rows"] if old["name"] != entry.name] + [row]
            self._say(report.line(row))
            write(self.results, out)
        write(self.results, out)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _ask(self, **request: Any) -> dict[str, Any]:
        if self._worker is None:
            self._worker = self._start()
        return self._worker.ask(self._patience_s, **request)


def _failed(entry: Entry, settings: Settings, what: str, excluded: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": entry.name, "suite": entry.suite, "dims": entry.sizes(settings.small), "error": what,
        "contenders": {name: {"error": why} for name, why in excluded.items()},
    }  # fmt: skip


def write(results: Mapping[str, Any], out: Path) -> None:
    """The JSON file, and the page beside it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    out.with_suffix(".md").write_text(report.page(results))


def starter(settings: Settings, log: Path, caches: Path) -> Callable[[], Worker]:
    """How workers are started: all compilers with empty caches of their own, which later workers of the run share."""
    path = os.pathsep.join((str(BENCHMARKS), str(BENCHMARKS.parent), os.environ.get("PYTHONPATH", "")))
    own = {
        "TCJIT_CACHE_DIR": str(caches / "tcjit"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "PYTHONPATH": path.rstrip(os.pathsep),
    }
    command = [sys.executable, "-m", "gpu.worker", json.dumps(asdict(settings))]
    return lambda: Worker(command, {**os.environ, **own}, log)


def temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tcjit-gpu-bench-", ignore_cleanup_errors=True)
