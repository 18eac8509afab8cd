"""Candidates made and timed in other processes: several that compile at once, and one that runs them, alone on its device.

The processes answer by a module that knows the programs (``jit.candidates``); here they are JSON.
"""
from __future__ import annotations

import fcntl
import math
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from tcjit import scratch
from tcjit.cache import CacheWarning, store
from tcjit.errors import TuneError
from tcjit.mapping.options import Options
from tcjit.tuner.worker_pool import START, SearchTimeOver, Worker, WorkerDied, spare_memory

COMPILE = 60.0  # seconds that making one candidate may take
FINAL_PROCESSES = 3  # processes of the final
WAIT = 60.0  # seconds for other searches to let go of the device: they hold it for one candidate, or a process of their final
SLACK = 3.0  # seconds that a search may take longer than it should, beside the time for one candidate
RUNS_PER_PROCESS = 150  # candidates after which the process that runs them is replaced: what it loaded stays loaded


@dataclass(frozen=True)
class Failure:
    """Why a candidate is not valid: ``pruned`` before compiling, because its options do not suit, or failed."""

    reason: str
    pruned: bool = False


@dataclass(frozen=True)
class Candidate:
    """Generated code of a candidate: its hash, and its features for the model."""

    code: str
    features: Mapping[str, float] = field(default_factory=dict)


class Evaluator:
    """Processes for one search; a context manager.

    ``module`` answers; ``opening`` tells each process the problems; ``device`` names what the candidates run on, of which only one search
    at a time makes use; ``timeout`` is for one run. When ``time.monotonic()`` is ``until``, candidates are no longer made, once one has a
    time; whatever is going on ends ``timeout`` and some seconds later. What cannot end in time is SearchTimeOver.
    """

    def __init__(
        self, module: str, opening: Mapping[str, Any], device: str, compilers: int, timeout: float, until: float = math.inf
    ) -> None:
        self.device = device
        self.timeout = timeout
        self.until = until
        self._scratch = scratch.LockedFolder("tune")
        self.folder = self._scratch.path
        memory = spare_memory()
        requests = [{"do": "open", **opening, "folder": self.folder, "memory": memory // (compilers + 1)}]
        self._compilers = [Worker(module, requests) for _ in range(compilers)]
        begin, self._ready = {**requests[0], "memory": memory}, {"do": "ready", "threads": opening["threads"]}
        self._patience = START + COMPILE + 20 * timeout
        self._runner = Worker(module, [begin, self._ready, {"do": "expect"}], self._patience)
        # for further sittings of the final, whose candidates were checked; they start together, and hold tensors one at a time
        self._final_workers = [Worker(module, [begin, {"do": "load"}], self._patience) for _ in range(FINAL_PROCESSES - 1)]
        for worker in self._workers:
            worker.until = until + timeout + SLACK
        self._wait = WAIT
        self._idle: SimpleQueue[int] = SimpleQueue()
        self._threads = ThreadPoolExecutor(compilers + 1, thread_name_prefix="tcjit-tune")
        self._begun: Future[dict[str, Any]] = Future()  # of the process that runs candidates
        self._runs = 0

    def __enter__(self) -> Evaluator:
        """Start every process, beside one another and beside what is done meanwhile."""
        self._begun = self._threads.submit(self._runner.ask, {"do": "time", "code": "default", "best": None}, self.timeout)
        for number in range(len(self._compilers)):
            self._threads.submit(self._open_compiler, number)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.stop()  # whoever waits for an answer sees that none will come
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in self._workers:
            worker.close()
        self._scratch.remove()

    @property
    def _workers(self) -> list[Worker]:
        return [*self._compilers, self._runner, *self._final_workers]

    def _open_compiler(self, number: int) -> None:
        try:
            _open(self._compilers[number])
        finally:
            self._idle.put(number)

    def seeds(self) -> list[Options]:
        """Starting points of the search from the mapping's cost model; none where the process dies over it."""
        try:
            with self._compiler() as number:
                reply = self._compilers[number].ask({"do": "seeds"}, COMPILE)
        except SearchTimeOver:
            raise
        except WorkerDied:
            return []
        if "failed" in reply:
            raise TuneError(f"the model has no seeds: {reply['failed']}: {reply['reason']}", hint="please report it with the program")
        return [Options.from_dict(options) for options in reply["options"]]

    @contextmanager
    def _compiler(self) -> Iterator[int]:
        """The number of an idle compiling process, reserved until the end of the block."""
        number = self._idle.get()
        try:
            yield number
        finally:
            self._idle.put(number)

    # ------------------------------------------------------------ making

    def make(self, batch: Sequence[Options], known: Callable[[str], bool]) -> list[Candidate | Failure]:
        """Print each candidate, and compile those whose code is not ``known``; in order."""
        return list(self._threads.map(lambda options: self._emitted(options, known), batch))

    def _emitted(self, options: Options, known: Callable[[str], bool]) -> Candidate | Failure:
        try:
            with self._compiler() as number:
                worker = self._compilers[number]
                reply = worker.ask({"do": "print", "options": options.to_dict()}, COMPILE)
                if "failed" in reply:
                    return Failure(reply["reason"], reply["failed"] == "MappingError")
                printed = Candidate(reply["code"], reply["features"])
                if not known(printed.code):
                    reply = worker.ask({"do": "build", "code": printed.code}, COMPILE)
                    if "failed" in reply:
                        return Failure(f"{reply['failed']}: {reply['reason']}")
                return printed
        except SearchTimeOver:
            raise
        except WorkerDied as lost:
            return Failure(f"compiling: {lost}")

    # ------------------------------------------------------------ running

    def timed(self, code: str, best: float | None) -> float | Failure:
        """Seconds of a run; of one that starts far behind the ``best``, the time of its first runs.

        A TuneError where not even the untuned kernel runs, because arguments or the kernel as written fail.
        """
        try:
            self._begun.result()
        except SearchTimeOver:
            raise
        except WorkerDied as lost:
            raise TuneError(f"the kernel cannot be run untuned: {lost}", hint="call it once without tuning") from None
        self._runs += 1
        if self._runs % RUNS_PER_PROCESS == 0:
            self._runner.close()
        with self.lock():
            try:
                reply = self._runner.ask({"do": "time", "code": code, "best": best}, self.timeout)
            except SearchTimeOver:
                raise
            except WorkerDied as lost:
                return Failure(f"running: {lost}")
        if "failed" in reply:
            return Failure(f"{reply['failed']}: {reply['reason']}")
        for worker in self._compilers:  # there is something to end with
            worker.until = self.until
        return float(reply["seconds"])

    def final(
        self, codes: Sequence[str], rounds: int, decided: Callable[[list[list[list[float]]]], bool] = lambda times: False
    ) -> list[list[list[float]]] | Failure:
        """Of each of several processes the seconds of each code in each of its share of the rounds, in which they take turns.

        Several, since where tensors come to lie in memory can make one kernel faster than another; no more once it is ``decided``.
        """
        times: list[list[list[float]]] = []
        for number, worker in enumerate((self._runner, *self._final_workers)):
            share = rounds * (number + 1) // FINAL_PROCESSES - rounds * number // FINAL_PROCESSES
            if number == 1:
                list(self._threads.map(_open, self._final_workers))
            with self.lock():
                try:
                    self._begun.result()
                    reply = worker.ask(self._ready, self._patience) if number else {}
                    if "failed" not in reply:
                        reply = worker.ask({"do": "final", "codes": list(codes), "rounds": share}, self.timeout * (len(codes) + share))
                except SearchTimeOver:
                    return times or Failure("the search's time is over")
                except WorkerDied as lost:
                    return Failure(f"running: {lost}")
                finally:
                    worker.close()
            if "failed" in reply:
                return Failure(f"{reply['failed']}: {reply['reason']}")
            times.append(reply["seconds"])
            if decided(times):
                break
        return times

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Exclusive use of the device among the user's searches that share a cache.

        Where another search, perhaps a stopped one, holds it for long, there is a warning, and this one goes on beside it.
        """
        name = re.sub(r"[^A-Za-z0-9]+", "-", f"{os.uname().nodename[:40]}-{self.device}").strip("-")
        try:
            handle = store().lock_file(name)
        except OSError:  # the times may be disturbed, no more
            yield
            return
        try:
            if scratch.lock(handle, fcntl.LOCK_EX, min(self._wait, max(0.0, self._runner.until - time.monotonic()))):
                self._wait = WAIT
            elif self._wait:
                self._wait = 0.0
                what = f"{scratch.holder(handle)} has been tuning on {self.device} for more than {WAIT:.0f} s: times may be disturbed by it"
                warnings.warn(what, CacheWarning, stacklevel=2)
            yield
        finally:
            os.close(handle)


def _open(worker: Worker) -> None:
    with suppress(WorkerDied, OSError):  # which shows again when it is asked
        worker.open()
