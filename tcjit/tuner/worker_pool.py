"""Worker processes: started, asked over pipes, timed out, and started again. Nothing here forks or pickles."""
from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tcjit.errors import TCError

START = 60.0  # seconds that a process may take to start and open its problems, beside what these take
MEMORY = 0.75  # the part of the memory that is free when it starts which a worker may take


class WorkerDied(TCError):
    """A worker ended, or did not answer in time."""


class SearchTimeOver(WorkerDied):
    """The search's time was over before a worker answered."""


class StartFailed(WorkerDied):
    """A worker failed at its opening requests."""


class Worker:
    """A process that answers requests by ``module.answer``; it is started on the first request and again when it was lost.

    ``opening`` are requests that a new process gets first.
    """

    def __init__(self, module: str, opening: list[dict[str, Any]], limit: float = START) -> None:
        self.module = module
        self.opening = opening
        self.limit = limit
        self.until = math.inf  # time.monotonic() at which the search's time is over, whatever the limits
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the worker

    def ask(self, request: dict[str, Any], limit: float) -> dict[str, Any]:
        """The answer, which may be a failure.

        WorkerDied where none came in ``limit`` seconds or the process ended, SearchTimeOver where none came until ``until``.
        """
        self.open()
        return self._ask(request, limit)

    def open(self) -> None:
        """Start the process, unless it runs."""
        if self._process is None or self._process.poll() is not None:
            self._start()

    def kill(self) -> None:
        """End the process, if need be under the hands of another thread."""
        process = self._process
        if process is not None and process.poll() is None:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """End the process, also one that another thread is just starting, and start no other."""
        self._stopped.set()
        self.kill()

    def close(self) -> None:
        """End the process and forget it."""
        self.kill()
        process, self._process = self._process, None
        if process is not None:
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()

    def _start(self) -> None:
        self.close()
        if self._stopped.is_set():
            raise WorkerDied("the search is over")
        if time.monotonic() >= self.until:
            raise SearchTimeOver("the search's time is over")
        self._words.seek(0)
        self._words.truncate()
        package = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(p for p in (package, *sys.path) if p)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tcjit.tuner.worker", self.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the search, and its children go with it
            bufsize=0,
        )
        if self._stopped.is_set():  # while it was started
            self.kill()
        for request in self.opening:
            reply = self._ask(request, self.limit)
            if "failed" in reply:
                self.close()
                raise StartFailed(f"{reply['failed']}: {reply['reason']}")

    def _ask(self, request: dict[str, Any], limit: float) -> dict[str, Any]:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        deadline = min(time.monotonic() + limit, self.until)
        try:
            process.stdin.write(json.dumps({**request, "limit": limit}).encode() + b"\n")
        except OSError:
            raise self._ended() from None
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.close()
                raise SearchTimeOver("the search's time is over") if deadline == self.until else WorkerDied(f"no answer in {limit:g} s")
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                raise self._ended()
            line += part
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _ended(self) -> WorkerDied:
        """Why the process is gone: its signal or status, and its last words."""
        process = self._process
        assert process is not None
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        status = process.returncode
        self.close()
        if status is not None and status < 0:
            how = f"killed by {signal.Signals(-status).name}"
        else:
            how = f"ended with status {status}"
        self._words.seek(0)
        words = self._words.read().decode("utf-8", "replace").strip().splitlines()[-1:]
        return WorkerDied(": ".join([how, *words]))


def spare_memory() -> int:
    """Bytes that a worker may take."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            facts = dict(line.split(":", 1) for line in file)
        return int(int(facts["MemAvailable"].split()[0]) * 1024 * MEMORY)
    except (OSError, KeyError, ValueError):
        return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * MEMORY)
