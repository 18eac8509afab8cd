"""The tests that need a GPU in parts, each in a process of its own, and then the benchmark: a run that can be cut off and goes on later.

    python tests/cuda_ring.py --out DIR [--seconds T] [--jobs N] [--again] [--list] [-- --quick ...]

A part is a test file that has tests of the ring ``cuda``. Its output and report lie in DIR as ``<part>.log`` and ``<part>.xml``, and
``parts.json`` says how each part ended, by the version of the code. A part that ended by this version is not run again; with ``--again``
those that failed are. After ``--seconds`` nothing begins and what is running is ended, without a result. What stands behind ``--`` goes
to ``benchmarks/gpu.py``, which resumes ``DIR/benchmark.json``; with ``--only-tests`` it is left out. The exit status is 0 where all
parts have passed, 1 where one has failed, 3 where some are left.
"""
from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HOME = Path(__file__).resolve().parent
ROOT = HOME.parent
sys.path.insert(0, str(ROOT))
BENCHMARK = "benchmark"
PYTEST = [sys.executable, "-m", "pytest", f"--rootdir={ROOT}", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]
NO_TESTS = 5  # pytest's status
FIRST = ("cuda", "runtime", "jit")  # what says most about a device, before programs by the hundred


def main(given: Sequence[str] | None = None) -> int:
    """Run what is left; the exit status."""
    options = parser().parse_args(given)
    options.out.mkdir(parents=True, exist_ok=True)
    until = None if options.seconds is None else time.monotonic() + options.seconds
    names = parts(options.tests, options.ring)
    if options.list:
        print("\n".join(names))
        return 0
    ended = State(options.out / "parts.json")
    for name in [*names, *([] if options.only_tests else [BENCHMARK])]:
        if ended.passed(name) or (ended.known(name) and not options.again):
            continue
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            break
        command = benchmark(options, left) if name == BENCHMARK else tests(options, name)
        began = time.monotonic()
        status = run(command, options.out / f"{name.replace('/', '.')}.log", left)
        print(f"{name}: {'cut off' if status is None else 'passed' if status in (0, NO_TESTS) else f'FAILED, status {status}'}, "
              f"{time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
        if status is not None:
            ended.note(name, status, time.monotonic() - began)
    every = [*names, *([] if options.only_tests else [BENCHMARK])]
    failed, unknown = [n for n in every if ended.known(n) and not ended.passed(n)], [n for n in every if not ended.known(n)]
    print(f"{len(every) - len(failed) - len(unknown)} parts passed, {len(failed)} failed, {len(unknown)} left")
    return 1 if failed else 3 if unknown else 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--out", type=Path, required=True, help="where all results go")
    top.add_argument("--seconds", type=float, help="the time for this run")
    top.add_argument("--jobs", type=int, default=2, help="processes of one part (%(default)s); each has a context on the GPU")
    top.add_argument("--again", action="store_true", help="run failed parts again")
    top.add_argument("--only-tests", action="store_true", help="without the benchmark")
    top.add_argument("--list", action="store_true", help="print the parts")
    top.add_argument("--tests", type=Path, default=HOME, help="the folder of the tests")
    top.add_argument("--ring", default="cuda", help="the mark of the tests (%(default)s)")
    top.add_argument("benchmark", nargs="*", help="arguments of benchmarks/gpu.py")
    return top


def parts(folder: Path, ring: str) -> list[str]:
    """The files below a folder with tests of a ring, those that say most first. SystemExit with pytest's words where it cannot tell."""
    done = subprocess.run([*PYTEST, "--collect-only", "-q", "-m", ring, str(folder)], capture_output=True, text=True, cwd=ROOT)
    if done.returncode not in (0, NO_TESTS):
        raise SystemExit(done.stdout + done.stderr)
    lines = (line.split("::")[0] for line in done.stdout.splitlines() if "::" in line)
    # pytest names files from its root, those elsewhere from the folder that it was given
    files = dict.fromkeys(os.path.relpath(ROOT / line, folder.resolve()) if (ROOT / line).exists() else line for line in lines)
    return sorted(files, key=lambda name: FIRST.index(top) if (top := name.split("/")[0]) in FIRST else len(FIRST))


def tests(options: argparse.Namespace, part: str) -> list[str]:
    """The command for a part of the tests; without plugins of other projects."""
    report = options.out / f"{part.replace('/', '.')}.xml"
    command = [*PYTEST, "-q", "-rs", "-p", "xdist.plugin", "-n", str(options.jobs), "-m", options.ring, f"--junitxml={report.resolve()}"]
    return [*command, str((options.tests / part).resolve())]


def benchmark(options: argparse.Namespace, left: float | None) -> list[str]:
    """The command for the benchmark: it begins no operator that the time would not let end, and is cut off only well after that."""
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--resume", "--out", str((options.out / "benchmark.json").resolve())]
    return [*command, *([] if left is None else ["--seconds", str(max(0.0, left - 60))]), *options.benchmark]


def run(command: Sequence[str], log: Path, seconds: float | None) -> int | None:
    """The exit status, or None where the time ended first; then all that it started is ended as well."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, cwd=ROOT, start_new_session=True)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


class State:
    """How parts ended, in a file that is replaced whole."""

    def __init__(self, path: Path) -> None:
        from tcjit.cache.keys import code_version

        self.path, self.version = path, code_version()
        self.ended: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def known(self, part: str) -> bool:
        """Whether a part ended by this version of the code."""
        return self.ended.get(part, {}).get("code") == self.version

    def passed(self, part: str) -> bool:
        return self.known(part) and self.ended[part]["status"] in (0, NO_TESTS)

    def note(self, part: str, status: int, seconds: float) -> None:
        self.ended[part] = {"status": status, "seconds": round(seconds, 1), "code": self.version, "time": time.strftime("%F %T")}
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.ended, indent=1) + "\n")
        new.replace(self.path)


if __name__ == "__main__":
    sys.exit(main())
