"""The full numbers: fresh random programs on the CPU against the reference, and fresh mutated texts, until told to stop.

    python tests/soak.py --programs 20000 --jobs 2 [--seed S] [--seconds T] [--first N]

Each number of a seed stands for one program, with mapping options of its own for every second one, and one mutated text, drawn in a
child process that a crash or a hang can take down. A failing program is shrunk and written with its options to ``tests/regressions`` (or
``--keep``), where the suite picks it up. The last line is ``N run, M failed, seed S``, also after Ctrl-C, which ends the children; the
exit status is then 130, or 1 where something failed.
"""
from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from support_cases import Case

HOME = Path(__file__).resolve().parent
sys.path[:0] = [str(HOME.parent), str(HOME)]
CHUNK = 100  # programs of one child
PATIENCE = 300.0  # seconds without a word from a child


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=20_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=None, help="a fresh one by default")
    parser.add_argument("--seconds", type=float, default=None, help="stop after this time")
    parser.add_argument("--keep", type=Path, default=HOME / "regressions", help="where failing programs and texts are written")
    parser.add_argument("--first", type=int, default=0, help="the number to start from")
    parser.add_argument("--child", type=int, nargs=2, metavar=("FIRST", "LAST"), help=argparse.SUPPRESS)
    parser.add_argument("--check", type=Path, help="run one saved program and say what is wrong with it")
    options = parser.parse_args()
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    if options.check:
        return _check(options.check)
    if options.child:
        _child(seed, options.keep, *options.child)
        return 0
    soak = Soak(seed, options.first, options.programs, options.jobs, options.seconds, options.keep)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: soak.stopped.set())
    return soak.run()


# ---------------------------------------------------------------- the parent


@dataclass
class Soak:
    """Children run in parallel over pieces of the numbers; ``failed`` holds a line for each failure."""

    seed: int
    first: int
    programs: int
    jobs: int
    seconds: float | None
    keep: Path
    ran: int = 0
    drawn: int = 0
    refused: int = 0
    failed: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: threading.Event = field(default_factory=threading.Event)  # set by Ctrl-C: the children are ended

    def run(self) -> int:
        print(f"seed {self.seed}: {self.programs} programs, {self.jobs} jobs", flush=True)
        pieces = [(n, min(n + CHUNK, self.first + self.programs)) for n in range(self.first, self.first + self.programs, CHUNK)]
        with ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(lambda piece: self._piece(*piece), pieces))
        for line in self.failed:
            print(line)
        print(f"{self.refused} of {self.drawn} drawn programs were refused and drawn again, {time.monotonic() - self.started:.0f} s")
        print(f"{self.ran} run, {len(self.failed)} failed, seed {self.seed}", flush=True)
        return 1 if self.failed else 130 if self.stopped.is_set() else 0

    def _piece(self, first: int, last: int) -> None:
        """Numbers from ``first`` to before ``last``; one that takes its child down is counted, and the next child goes on after it."""
        while first < last and not self._late():
            running: int | None = None
            before = first
            for event in _events(self.seed, self.keep, first, last, self.stopped):
                running = event["number"] if event["kind"] == "begin" else None
                if running is None:
                    self._note(event)
                    first = event["number"] + 1
                    if self._late():
                        break
            if self.stopped.is_set():
                return
            if running is not None:
                self._note({"number": running, "what": _crash(self.seed, self.keep, running, self.stopped), "drawn": 1, "refused": 0})
                first = running + 1
            elif first == before:
                raise RuntimeError("a child ended before its first program: see its message above")

    def _late(self) -> bool:
        return self.stopped.is_set() or self.seconds is not None and time.monotonic() - self.started > self.seconds

    def _note(self, event: dict[str, Any]) -> None:
        with self.lock:
            self.ran += 1
            self.drawn += event["drawn"]
            self.refused += event["refused"]
            if event["what"]:
                self.failed.append(f"number {event['number']}: {event['what']}")
                print(self.failed[-1], flush=True)
            if self.ran % 200 == 0:
                rate = self.ran / (time.monotonic() - self.started)
                print(f"{self.ran} run, {len(self.failed)} failed, {rate:.1f} a second", flush=True)


class Watched:
    """A run of this file in a session of its own, out of reach of the terminal's Ctrl-C; it and all that it started are ended when
    ``stopped`` is set, when it is silent for too long, and at the end of the ``with`` block."""

    def __init__(self, arguments: Sequence[str], folder: str, stopped: threading.Event) -> None:
        own = {"TCJIT_CACHE_DIR": os.path.join(folder, "cache"), "TMPDIR": folder, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
        command = [sys.executable, str(HOME / "soak.py"), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **own}, start_new_session=True)
        self._spoken = time.monotonic()
        self._done = threading.Event()
        self._watcher = threading.Thread(target=self._watch, args=(stopped,), daemon=True)

    def __enter__(self) -> Watched:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watcher.join()
        self._end()
        self.process.communicate()

    def lines(self) -> Iterator[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._spoken = time.monotonic()
            yield line

    def _watch(self, stopped: threading.Event) -> None:
        while not self._done.wait(0.2):
            if stopped.is_set() or time.monotonic() - self._spoken > PATIENCE:
                self._end()
                return

    def _end(self) -> None:
        if self.process.returncode is None:  # its number cannot be another process's yet
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


def _events(seed: int, keep: Path, first: int, last: int, stopped: threading.Event) -> Iterator[dict[str, Any]]:
    """What a child says, a JSON object a line; the child is ended when the caller stops listening."""
    arguments = ["--seed", str(seed), "--keep", str(keep), "--child", str(first), str(last)]
    with tempfile.TemporaryDirectory(prefix="tcjit-soak-") as folder, Watched(arguments, folder, stopped) as child:
        for line in child.lines():
            if line.startswith("{"):
                yield json.loads(line)


def _crash(seed: int, keep: Path, number: int, stopped: threading.Event) -> str:
    """Shrink a program that takes its process down, a process for each try."""
    from support_shrink import shrink

    case = _case(seed, number)[0]
    with tempfile.TemporaryDirectory(prefix="tcjit-soak-") as folder:
        path = Path(folder) / "case.tc"

        def crashes(smaller: Case) -> bool:
            _save(smaller, path)
            with Watched(["--check", str(path)], folder, stopped) as child:
                for _ in child.lines():
                    pass
                return child.process.wait() not in (0, 1) and not stopped.is_set()

        if not crashes(case):
            return "its process died, which a second run of the program alone does not"
        return "its process died: " + _keep(shrink(case, crashes, tries=60), keep, seed, number, "takes the process down")


# ---------------------------------------------------------------- a child


def _child(seed: int, keep: Path, first: int, last: int) -> None:
    for number in range(first, last):
        print(json.dumps({"kind": "begin", "number": number}), flush=True)
        case, drawn, refused = _case(seed, number)
        what = _program(case, keep, seed, number) or _text(keep, seed, number)
        print(json.dumps({"kind": "end", "number": number, "what": what, "drawn": drawn, "refused": refused}), flush=True)


def _case(seed: int, number: int) -> tuple[Case, int, int]:
    """A program, how many were drawn for it, and how many of them refused. Half of the programs have options of their own."""
    from support_options import drawn
    from support_programs import Statistics, draw

    counts = Statistics()
    case = draw(random.Random(f"{seed} {number}"), counts)
    rng = random.Random(f"{seed} options {number}")
    if rng.random() < 0.5:
        case = replace(case, options=drawn(rng))
    return case, counts.drawn, counts.refused


def _program(case: Case, keep: Path, seed: int, number: int) -> str:
    from support_run import failure
    from support_shrink import shrink

    what = failure(case, "cpu")
    if not what:
        return ""
    kind = what[:24]  # shrinking must not slide from one failure to another
    small = shrink(case, lambda smaller: failure(smaller, "cpu")[:24] == kind, tries=400)
    return _keep(small, keep, seed, number, failure(small, "cpu") or what)


def _text(keep: Path, seed: int, number: int) -> str:
    from support_mutations import mutated, reading_failure

    text = mutated(random.Random(f"{seed} text {number}"))
    what = reading_failure(text)
    if what:
        path = keep / f"soak_{seed}_{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        what = f"{what}, kept in {path}"
    return what


def _keep(case: Case, keep: Path, seed: int, number: int, what: str) -> str:
    path = keep / f"soak_{seed}_{number}.tc"
    _save(case, path, f"seed {seed}, number {number}: {what.splitlines()[0]}")
    return f"{what}\nkept in {path}"


def _save(case: Case, path: Path, comment: str = "") -> None:
    from support_cases import save

    save(case, path, comment)


def _check(path: Path) -> int:
    from support_cases import load
    from support_run import failure

    what = failure(load(path), "cpu")
    print(what or "right")
    return 1 if what else 0


if __name__ == "__main__":
    sys.exit(main())
