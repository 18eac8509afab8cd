"""The full numbers: fresh random programs on every ring against the reference, and fresh mutated texts, until told to stop.

    python tests/soak.py --programs 20000 --jobs 2 [--seed S] [--seconds T] [--first N] [--target cpu|cuda_host|opencl]
    python tests/soak.py --library 20 --jobs 2 [--seed S] [--seconds T] [--target cuda_host|opencl]
    python tests/soak.py --poison --programs 1000 --target cpu; python tests/soak.py --poison --library 1 --target cpu
    python tests/soak.py --kills 200 [--seed S]
    python tests/soak.py --threads 60 [--seed S]
    python tests/soak.py --derivatives 20000 --jobs 2 [--seed S] [--seconds T]

Each number of a seed stands for one program, with mapping options of its own for every second one, and one mutated text, drawn in a
child process that a crash or a hang can take down. Of ten numbers, eight run on the CPU, one as CUDA text on the host, one through
PoCL; ``--target`` runs all of them on one. Half of the programs, and more on a GPU, are kernels of a kind that the mapping distinguishes,
perhaps with a type of its own for each tensor. What is drawn for a GPU has options nine times out of ten, and perhaps a device with few
processors. One program of five has dynamic sizes, and runs at several values of them. Without g++ or PoCL its share is left out.

With ``--library`` the numbers are those of the named operators instead: each on both GPU rings, once with default options and so many
times with options, case, type and device of its own. With ``--kills`` so many processes are killed while they write to a cache and
so many searches while they tune; the cache must then be sound, and nothing lost. With ``--threads`` several threads call defs for so many
seconds under AddressSanitizer, then under ThreadSanitizer: see ``support.threads``. With ``--derivatives`` the adjoints of so many
programs are compared with autograd, in float64.

With ``--poison`` what reads memory that nothing has written gets other results than the reference.

A failing program is shrunk and written with its options to ``tests/regressions`` (or ``--keep``), where the suite picks it up. The last
line is ``N run, M failed, seed S``, also after Ctrl-C, which ends the children; the exit status is then 130, or 1 where something failed.
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
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from support.cases import Case

HOME = Path(__file__).resolve().parent
sys.path[:0] = [str(HOME.parent), str(HOME)]
CHUNK = 100  # programs of one child
RINGS = ("cpu", "cuda_host", "opencl")
KINDS = {"cpu": "cpu", "cuda_host": "cuda", "opencl": "opencl"}  # whose options they heed
TRIES = 40  # of options that a device cannot serve
PATIENCE = 300.0  # seconds without a word from a child


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=20_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=None, help="a fresh one by default")
    parser.add_argument("--seconds", type=float, default=None, help="stop after this time")
    parser.add_argument("--keep", type=Path, default=HOME / "regressions", help="where failing programs and texts are written")
    parser.add_argument("--first", type=int, default=0, help="the number to start from")
    parser.add_argument("--target", choices=RINGS, help="run everything there")
    parser.add_argument("--library", type=int, metavar="N", help="named operators, each with N random option sets, instead of programs")
    parser.add_argument("--child", type=int, nargs=2, metavar=("FIRST", "LAST"), help=argparse.SUPPRESS)
    parser.add_argument("--check", type=Path, help="run one saved program and say what is wrong with it")
    parser.add_argument("--kills", type=int, metavar="N", help="kill N processes that write to a cache and N searches, instead of programs")
    parser.add_argument("--threads", type=float, metavar="SECONDS", help="threads that share defs, under each sanitizer, instead")
    parser.add_argument("--derivatives", type=int, metavar="N", help="adjoints of N programs against autograd, instead")
    parser.add_argument("--poison", action="store_true", help="memory that holds no value, allocated or on the stack, holds a pattern")
    options = parser.parse_args()
    if options.poison:
        os.environ.update(poisoned())
    seed = random.SystemRandom().getrandbits(32) if options.seed is None else options.seed
    if options.check:
        return _check(options.check, options.target or "cpu")
    if options.kills:
        return _kills(options.kills, seed)
    if options.threads:
        from support.threads import soak_threads

        return soak_threads(options.threads, seed)
    if options.derivatives:
        from support.derivatives import soak_derivatives

        return soak_derivatives(options.derivatives, seed, options.jobs, options.seconds)
    work = Work(seed, options.keep, options.target, options.library)
    if options.child:
        _child(work, *options.child)
        return 0
    soak = Soak(work, options.first, max(0, work.size() - options.first) or options.programs, options.jobs, options.seconds)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: soak.stopped.set())
    return soak.run()


def poisoned() -> dict[str, str]:
    """Variables with which what is read before it is written is far from what it should be: tensors and workspaces, from malloc and of
    no value, are full of 0x5A, and the C compiler fills every variable and array of a kernel with 0xFE where it comes to life."""
    compiler = os.environ.get("CC") or "cc"
    return {"MALLOC_PERTURB_": "165", "CC": f"{compiler} -ftrivial-auto-var-init=pattern"}


def _kills(count: int, seed: int) -> int:
    from support.cache import kill_writers
    from support.tuner.search_kills import kill_searches

    with tempfile.TemporaryDirectory() as folder:
        wrong = kill_writers(Path(folder) / "cache", count, seed) + kill_searches(Path(folder) / "searches", count, seed)
    print("".join(f"{line}\n" for line in wrong) + f"{2 * count} run, {len(wrong)} failed, seed {seed}")
    return 1 if wrong else 0


@dataclass(frozen=True)
class Work:
    """What the numbers of a seed stand for."""

    seed: int
    keep: Path
    target: str | None = None
    library: int | None = None

    def arguments(self) -> list[str]:
        """The same for a child."""
        named = {"--seed": self.seed, "--keep": self.keep, "--target": self.target, "--library": self.library}
        return [text for name, value in named.items() if value is not None for text in (name, str(value))]

    def ring(self, number: int) -> str:
        """Where a number runs."""
        if self.target:
            return self.target
        if self.library is not None:
            return RINGS[1 + number % 2]
        return RINGS[1] if number % 10 == 4 else RINGS[2] if number % 10 == 9 else RINGS[0]

    def size(self) -> int:
        """How many numbers the library has; 0 for programs."""
        from tcjit.library import names

        return 0 if self.library is None else len(names()) * (self.library + 1) * (1 if self.target else 2)


# ---------------------------------------------------------------- the parent


class Flag:
    """A flag that signal handlers set: the lock of a ``threading.Event`` is not reentrant, so that a second signal within the handler of
    the first would wait for ever."""

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set


@dataclass
class Soak:
    """Children run in parallel over pieces of the numbers; ``failed`` holds a line for each failure."""

    work: Work
    first: int
    programs: int
    jobs: int
    seconds: float | None
    ran: int = 0
    drawn: int = 0
    refused: int = 0
    failed: list[str] = field(default_factory=list)
    absent: set[str] = field(default_factory=set)
    started: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopped: Flag = field(default_factory=Flag)  # set by Ctrl-C: the children are ended

    def run(self) -> int:
        print(f"seed {self.work.seed}: {self.programs} programs, {self.jobs} jobs", flush=True)
        pieces = [(n, min(n + CHUNK, self.first + self.programs)) for n in range(self.first, self.first + self.programs, CHUNK)]
        with ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(lambda piece: self._piece(*piece), pieces))
        for line in (*self.failed, *sorted(self.absent)):
            print(line)
        print(f"{self.refused} of {self.drawn} drawn programs were refused and drawn again, {time.monotonic() - self.started:.0f} s")
        print(f"{self.ran} run, {len(self.failed)} failed, seed {self.work.seed}", flush=True)
        return 1 if self.failed else 130 if self.stopped.is_set() else 0

    def _piece(self, first: int, last: int) -> None:
        """Numbers from ``first`` to before ``last``; one that takes its child down is counted, and the next child goes on after it."""
        while first < last and not self._late():
            running: int | None = None
            before, ended = first, ""
            for event in _events(self.work, first, last, self.stopped):
                if event["kind"] == "ended":
                    ended = event["how"]
                    continue
                running = event["number"] if event["kind"] == "begin" else None
                if running is None:
                    self._note(event)
                    first = event["number"] + 1
                    if self._late():
                        break
            if self.stopped.is_set():
                return
            if running is not None:
                self._note({"number": running, "what": _crash(self.work, running, ended, self.stopped), "drawn": 1, "refused": 0})
                first = running + 1
            elif first == before:
                raise RuntimeError("a child ended before its first program: see its message above")

    def _late(self) -> bool:
        return self.stopped.is_set() or self.seconds is not None and time.monotonic() - self.started > self.seconds

    def _note(self, event: dict[str, Any]) -> None:
        with self.lock:
            if event.get("absent"):
                self.absent.add(f"left out: {event['absent']}")
                return
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

    def __init__(self, arguments: Sequence[str], folder: str, stopped: Flag) -> None:
        own = {"TCJIT_CACHE_DIR": os.path.join(folder, "cache"), "TMPDIR": folder, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
        own |= {"TCJIT_OPENCL_DEVICE": "pocl", "POCL_CACHE_DIR": folder, "POCL_MAX_PTHREAD_COUNT": "2", "TCJIT_VERIFY": "1"}
        command = [sys.executable, str(HOME / "soak.py"), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **own}, start_new_session=True)
        self._quiet = 0.0  # seconds without a word, as far as this process ran: one that is suspended hears nothing
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
            self._quiet = 0.0
            yield line

    def how_it_ended(self) -> str:
        """After the ``with`` block: the exit status of the process, the signal that ended it, or its silence."""
        status = self.process.returncode
        return f"silent for {PATIENCE:.0f} s" if self._quiet > PATIENCE else f"signal {-status}" if status < 0 else f"exit status {status}"

    def _watch(self, stopped: Flag) -> None:
        last = time.monotonic()
        while not self._done.wait(0.2):
            now = time.monotonic()
            self._quiet += min(now - last, 1.0)
            last = now
            if stopped.is_set() or self._quiet > PATIENCE:
                self._end()
                return

    def _end(self) -> None:
        if self.process.returncode is None:  # its number cannot be another process's yet
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


def _events(work: Work, first: int, last: int, stopped: Flag) -> Iterator[dict[str, Any]]:
    """What a child says, a JSON object a line; the child is ended when the caller stops listening."""
    arguments = [*work.arguments(), "--child", str(first), str(last)]
    with tempfile.TemporaryDirectory(prefix="tcjit-soak-") as folder, Watched(arguments, folder, stopped) as child:
        for line in child.lines():
            if line.startswith("{"):
                yield json.loads(line)
    yield {"kind": "ended", "how": child.how_it_ended()}


def _crash(work: Work, number: int, ended: str, stopped: Flag) -> str:
    """Shrink a program that takes its process down, a process for each try; ``ended`` says how the first one did."""
    from support.fuzz.shrink import shrink

    if work.library is not None:
        return f"{_operator(work, number)}: its process died, {ended}"
    case, ring = _case(work, number)[0], work.ring(number)
    with tempfile.TemporaryDirectory(prefix="tcjit-soak-") as folder:
        path = Path(folder) / "case.tc"

        def crashes(smaller: Case) -> bool:
            _save(smaller, path)
            with Watched(["--check", str(path), "--target", ring], folder, stopped) as child:
                for _ in child.lines():
                    pass
                return child.process.wait() not in (0, 1) and not stopped.is_set()

        if not crashes(case):
            return f"its process died ({ended}), which a second run of the program alone does not"
        return f"its process died ({ended}): " + _keep(shrink(case, crashes, tries=60), work, number, "takes the process down")


# ---------------------------------------------------------------- a child


def _child(work: Work, first: int, last: int) -> None:
    for number in range(first, last):
        print(json.dumps({"kind": "begin", "number": number}), flush=True)
        drawn, refused, what = 1, 0, ""
        absent = _absent(work.ring(number))
        if absent and work.target:
            raise SystemExit(absent)
        if work.library is not None:
            what = "" if absent else _named(work, number)
        elif not absent:
            case, drawn, refused = _case(work, number)
            what = _program(case, work, number) or _text(work, number)
        told = {"kind": "end", "number": number, "what": what, "drawn": drawn, "refused": refused, "absent": absent}
        print(json.dumps(told), flush=True)


@cache
def _absent(ring: str) -> str:
    """Why a ring cannot run here; empty if it can, and then it is a target."""
    from tcjit.errors import TCError
    from tcjit.runtime import opencl

    if ring == "cuda_host":
        from support.rings import cuda_target  # noqa: F401, registers it
        from support.rings.cuda_host import COMPILER

        return "" if COMPILER else "cuda_host, there is no g++"
    if ring == "opencl":
        try:
            opencl.choose()
        except TCError as missing:
            return f"opencl, {str(missing).splitlines()[0]}"
    return ""


def _case(work: Work, number: int) -> tuple[Case, int, int]:
    """A program, how many were drawn for it, and how many of them refused. Half of the programs have options of their own."""
    from support.fuzz import kernels
    from support.fuzz.dynamic import opened
    from support.fuzz.options import drawn
    from support.fuzz.programs import Statistics, draw

    counts, ring = Statistics(), work.ring(number)
    programs, rng = random.Random(f"{work.seed} {number}"), random.Random(f"{work.seed} options {number}")
    kind = random.Random(f"{work.seed} kind {number}")
    if kind.random() < (0.5 if ring == "cpu" else 0.65):
        small = [kernels.layers, kernels.sweeps, kernels.strided] if ring == "cpu" else []
        counts.drawn, case = 1, kind.choice((kernels.draw, kernels.mixed, *small))(programs)
    else:
        case = draw(programs, counts)
    if rng.random() < (0.5 if ring == "cpu" else 0.9):
        case = replace(case, options=drawn(rng, KINDS[ring]))
    sizes = random.Random(f"{work.seed} dynamic {number}")
    if sizes.random() < 0.2:
        case = opened(case, sizes)
    return case if ring == "cpu" else replace(case, device=kernels.device(rng)), counts.drawn, counts.refused


def _program(case: Case, work: Work, number: int) -> str:
    from support.fuzz.dynamic import resized
    from support.fuzz.options import drawn, refused
    from support.fuzz.shrink import shrink
    from support.run import failure

    ring = work.ring(number)
    what = failure(case, ring)
    for other in resized(case, random.Random(f"{work.seed} sizes {number}"), 2 if case.dynamic and not what else 0):
        if what := failure(other, ring):
            case = other
            break
    for again in range(TRIES):
        if not refused(what):
            break
        case = replace(case, options=drawn(random.Random(f"{work.seed} options {number} {again}"), KINDS[ring]))
        what = failure(case, ring)
    if not what or refused(what):
        return ""
    kind = what[:24]  # shrinking must not slide from one failure to another
    small = shrink(case, lambda smaller: failure(smaller, ring)[:24] == kind, tries=400)
    return f"{ring}: {_keep(small, work, number, failure(small, ring) or what)}"


def _operator(work: Work, number: int) -> str:
    """Which of the library's operators a number stands for."""
    from tcjit.library import names

    listed = names()
    return listed[number // (1 if work.target else 2) % len(listed)]


def _named(work: Work, number: int) -> str:
    """What is wrong with an operator: with default options the first time, with others later on."""
    from support.library import assert_agrees, assert_agrees_drawn, listed

    name, ring = _operator(work, number), work.ring(number)
    try:
        if number // (1 if work.target else 2) < len(listed()):
            assert_agrees(listed()[name][0], "float32", ring)
        else:
            assert_agrees_drawn(name, ring, random.Random(f"{work.seed} {number}"))
    except Exception as error:
        return f"{name} on {ring}: {type(error).__name__}: {error}"
    return ""


def _text(work: Work, number: int) -> str:
    from support.fuzz.mutated_texts import mutated, reading_failure

    text = mutated(random.Random(f"{work.seed} text {number}"))
    what = reading_failure(text)
    if what:
        path = work.keep / f"soak_{work.seed}_{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        what = f"{what}, kept in {path}"
    return what


def _keep(case: Case, work: Work, number: int, what: str) -> str:
    path = work.keep / f"soak_{work.seed}_{number}.tc"
    _save(case, path, f"seed {work.seed}, number {number}: {what.splitlines()[0]}")
    return f"{what}\nkept in {path}"


def _save(case: Case, path: Path, comment: str = "") -> None:
    from support.cases import save

    save(case, path, comment)


def _check(path: Path, ring: str) -> int:
    from support.cases import load
    from support.run import failure

    _absent(ring)
    what = failure(load(path), ring)
    print(what or "right")
    return 1 if what else 0


if __name__ == "__main__":
    sys.exit(main())
