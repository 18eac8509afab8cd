"""OpenCL in another process: PoCL may crash, and a crash is then the failure of one case.

A worker takes cases one after another, each as a file, and answers with what is wrong with it. As a program, this file is the worker.
"""
from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from support import PYTHONPATH, ROOT
from support.cases import Case, load, save
from support.rings import opencl_header

INSTALL = {vendor: f"pip install pyopencl {vendor}-binary-distribution" for vendor in ("pocl", "oclgrind")}
PATIENCE = 300.0  # seconds for one case: compiled without optimisation, on a busy machine
HEADING = "OpenCL worker: "


class Worker:
    """A process that runs cases; it is started with the first one, and again after a crash."""

    def __init__(self, vendor: str = "pocl", **variables: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tcjit-opencl-"))
        (self._folder / "pocl").mkdir()
        # with a work group's size in its text, a kernel is compiled well enough before the first launch: PoCL need not do so again
        pocl = {"POCL_CACHE_DIR": str(self._folder / "pocl"), "POCL_WORK_GROUP_SPECIALIZATION": "0"}
        pocl |= opencl_header.variables() if vendor == "pocl" else {}
        own = {"TCJIT_OPENCL_DEVICE": vendor, "PYTHONPATH": PYTHONPATH, **pocl}
        self._environment = {**os.environ, **own, **variables}
        self._process: subprocess.Popen[bytes] | None = None
        self.started = 0
        atexit.register(self.close)

    def failure(self, case: Case, target: str = "opencl") -> str:
        """What is wrong with a target on a case, as ``support.run.failure`` says it; a crash and a hang are failures as well."""
        return str(self.ask(kind="case", file=self.saved(case), target=target))

    def saved(self, case: Case) -> str:
        """The path of a file that holds the case until the next one."""
        file = self._folder / "case.tc"
        save(case, file)
        return str(file)

    def ask(self, **request: Any) -> Any:
        """The answer to a request, or the line that says how the worker ended."""
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return self._ended()
        until = time.monotonic() + PATIENCE
        while (left := until - time.monotonic()) > 0:
            if not select.select([process.stdout], [], [], left)[0]:
                break
            line = process.stdout.readline()
            if not line:
                return self._ended()
            if line.startswith(HEADING.encode()):
                return json.loads(line[len(HEADING) :])
        self.restart()
        return f"hang: no answer within {PATIENCE:.0f} s"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            command, pipe = [sys.executable, "-m", "support.rings.opencl"], subprocess.PIPE
            with self._log("wb") as log:
                self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, env=self._environment, cwd=ROOT, bufsize=0)
            self.started += 1
        return self._process

    def _log(self, mode: str) -> IO[bytes]:
        return open(self._folder / "stderr", mode)  # noqa: SIM115

    def _ended(self) -> str:
        assert self._process is not None
        status = self._process.wait()
        self._process = None
        with self._log("rb") as log:
            last = log.read().decode("utf-8", "replace").strip().splitlines()[-3:]
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        return " | ".join([f"crash: the worker ended with {how}", *last])

    def tested(self, test: str, target: str = "opencl") -> str:
        """What is wrong with a test, named as pytest names it, that the worker runs for a target; empty where it passes."""
        return str(self.ask(kind="test", test=test, target=target))

    def restart(self) -> None:
        """Let the next request have a new process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End the process and remove its files."""
        self.restart()
        shutil.rmtree(self._folder, ignore_errors=True)


@functools.cache
def worker(vendor: str = "pocl") -> Worker:
    """One per test process and vendor."""
    return Worker(vendor)


@functools.cache
def missing(vendor: str = "pocl") -> str:
    """Why tests on ``pocl`` or ``oclgrind`` cannot run here; empty if they can."""
    answer = worker(vendor).ask(kind="code", code="from tcjit.runtime import opencl\nanswer = [str(opencl.choose())]")
    return "" if isinstance(answer, list) else f"{answer.splitlines()[0]}; {INSTALL[vendor]}"


def require(vendor: str = "pocl") -> None:
    """Skip the test, with the reason, where the vendor's OpenCL is missing."""
    if reason := missing(vendor):
        pytest.skip(reason)


def assert_agrees(case: Case, target: str = "opencl") -> None:
    """AssertionError unless OpenCL computes what the reference does."""
    wrong = worker().failure(case, target)
    assert not wrong, f"{wrong}\n{case}\n{case.text}"


def tested(test: str) -> str:
    """What is wrong with a test, named as pytest does, in the worker of PoCL; empty where it passes."""
    return worker().tested(test)


# ---------------------------------------------------------------- the worker


def _answer(request: dict[str, Any]) -> Any:
    if request["kind"] == "case":
        from support.run import failure

        exec(compile(request.get("code", ""), "an edit", "exec"), {})
        return failure(load(Path(request["file"])), request["target"])
    if request["kind"] == "code":
        names: dict[str, Any] = {}
        exec(compile(request["code"], "a test's code", "exec"), names)
        return names.get("answer")
    raise ValueError(request["kind"])


def _reply(answer: Any) -> None:
    print(f"\n{HEADING}{json.dumps(answer)}", flush=True)


class _Session:
    """As a plugin of pytest: runs the tests of one file as they are asked for, until a request is not for one of them."""

    def __init__(self, request: dict[str, Any], requests: Iterator[dict[str, Any]]) -> None:
        self.file, self.target = request["test"].partition("::")[0], request["target"]
        self.request: dict[str, Any] | None = request  # the first of those that have no answer
        self._requests = requests
        self._wrong: list[str] = []

    def run(self) -> None:
        """Collect the file, and answer."""
        from support.rings.cuda import on_device

        options = ["-q", "-s", "--here", "--whole", "-p", "no:cacheprovider", f"--rootdir={ROOT}"]
        with on_device() if self.target == "cuda" else contextlib.nullcontext():
            pytest.main([f"{ROOT}/{self.file}", *options], plugins=[self])

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        while (request := self.request) and request["kind"] == "test" and request["target"] == self.target and request["test"] in items:
            self._wrong = []
            item = items[request["test"]]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            self.request = None
            _reply("\n".join(self._wrong))
            self.request = next(self._requests, None)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._wrong.append(f"{report.outcome} in {report.when}\n{report.longreprtext or report.longrepr}")


def main() -> None:
    """Answer requests until there are none."""
    opencl_header.install()
    requests = (json.loads(line) for line in sys.stdin)
    request = next(requests, None)
    while request:
        if request["kind"] == "test":
            session = _Session(request, requests)
            session.run()
            if session.request is request:
                _reply(f"pytest finds no test {request['test']}")
                request = next(requests, None)
            else:
                request = session.request
            continue
        try:
            answer = _answer(request)
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        _reply(answer)
        request = next(requests, None)


if __name__ == "__main__":
    main()
