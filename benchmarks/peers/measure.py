"""Interleaved, checked measurement of several peers, each in its own process."""
from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import machine
import numpy as np
from clock import timing
from ops import OPS, Op, reference

HERE = Path(__file__).parent
FOREIGN_LIMIT = 0.12  # of one core: a round in which other processes used more is dirty

# peer prefix: the module that its environment must have, and its environment under $PEER_VENVS
NEEDS = {
    "torch": ("torch", "vmain"),
    "tcjit": ("tcjit", "vmain"),
    "jax": ("jax", "vmain"),
    "numba": ("numba", "vmain"),
    "opt_einsum": ("opt_einsum", "vmain"),
    "halide": ("halide", "vhal"),
    "tvm": ("tvm", "vtvm"),
    "loopy": ("loopy", "vloo"),
    "taichi": ("taichi", "vti"),
}


@dataclass(frozen=True)
class Settings:
    """What one run measures, and how carefully."""

    peers: tuple[str, ...]
    ops: tuple[str, ...]
    out: Path
    threads: int
    rounds: int = 7
    budget_s: float = 0.08  # per op, peer and round
    quiet_s: float = 1.0  # longest wait for an idle machine before a round
    timed: bool = True  # otherwise only build and first call
    warm_heap: bool = False
    cache: Path | None = None
    env: tuple[str, ...] = ()


def peer_names() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in (HERE / "peers").glob("*.py") if not file.stem.startswith("_")))


def interpreter(peer: str) -> str:
    """The Python to run a peer with: $PEER_PY_<peer>, else this one if it has what the peer needs, else the one under $PEER_VENVS.

    LookupError says what is missing where there is none.
    """
    if chosen := os.environ.get("PEER_PY_" + peer):
        return chosen
    if peer not in peer_names():
        raise LookupError("no such peer; there are " + ", ".join(peer_names()))
    module, folder = next(need for prefix, need in NEEDS.items() if peer.startswith(prefix))
    if importlib.util.find_spec(module):
        return sys.executable
    venvs = Path(os.environ.get("PEER_VENVS", Path.home() / ".cache" / "tcjit-peers"))
    python = venvs / folder / "bin" / "python"
    if python.exists():
        return str(python)
    raise LookupError(f"no {module} in this environment and no {python}; install it or set PEER_PY_{peer}")


def environment(settings: Settings, cache: Path) -> dict[str, str]:
    """The workers' variables: threads for every runtime, pinned, and where they may cache."""
    count = str(settings.threads)
    variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "TVM_NUM_THREADS", "HL_NUM_THREADS", "BENCH_THREADS")
    env = {**os.environ, **dict.fromkeys(variables, count), "BENCH_CACHE": str(cache)}
    # one thread per core: otherwise two spinning threads can share a core for a whole quantum when the machine is busy
    env |= {"OMP_PROC_BIND": "true", "OMP_PLACES": "cores"}
    if settings.warm_heap:  # glibc keeps big blocks, so a fresh output costs no page faults
        env |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**34), "MALLOC_TOP_PAD_": str(2**26)}
    return env | dict(pair.split("=", 1) for pair in settings.env)


class Worker:
    """One peer's process."""

    def __init__(self, peer: str, env: dict[str, str], log: IO[str]) -> None:
        start = time.perf_counter()
        command = [interpreter(peer), str(HERE / "worker.py"), peer]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, env=env, text=True, cwd=HERE)
        self.hello = self._answer()
        self.start_s = time.perf_counter() - start

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def ask(self, command: str, **facts: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"command": command, **facts}) + "\n")
            self.process.stdin.flush()
        except OSError:
            return {"ok": False, "kind": "crash", "error": "the worker is gone"}
        return self._answer()

    def quit(self) -> None:
        self.ask("quit")
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            return {"ok": False, "kind": "crash", "error": f"the worker died with status {self.process.wait()}"}
        answer: dict[str, Any] = json.loads(line)
        return answer


class Run:
    """All peers over all ops; ``results`` is what the file holds, written after each op."""

    def __init__(self, settings: Settings, env: dict[str, str], log: IO[str]) -> None:
        self.settings, self.env, self.log = settings, env, log
        self.workers: dict[str, Worker] = {}
        self.results: dict[str, Any] = {
            "meta": {
                "machine": machine.describe(),
                "time": time.strftime("%F %T"),
                **{key: value for key, value in asdict(settings).items() if key not in ("out", "cache")},
            },
            "peers": {},
            "ops": {},
        }
        for peer in settings.peers:
            self.start(peer)

    def start(self, peer: str) -> None:
        """Start a peer's process; one that cannot run is reported once and left out."""
        self.workers.pop(peer, None)
        try:
            worker = Worker(peer, self.env, self.log)
        except (LookupError, OSError) as error:
            hello: dict[str, Any] = {"ok": False, "kind": "skipped", "error": str(error)}
        else:
            hello = {**worker.hello, "start_s": worker.start_s}
            if worker.hello["ok"]:
                self.workers[peer] = worker
            else:
                worker.quit()
        self.results["peers"].setdefault(peer, hello)
        if not hello["ok"]:
            print(f"{peer}: skipped, {hello['error']}", flush=True)

    def measure(self, op: Op, scratch: Path) -> None:
        """Build, check and time one op on every peer."""
        np.savez(scratch, *reference(op, op.make_inputs()))
        records: dict[str, Any] = {}
        self.results["ops"][op.name] = records
        live = []
        for peer in self.settings.peers:
            if peer in self.workers and not self.workers[peer].alive:
                self.start(peer)
            if peer in self.workers:
                records[peer] = self.build(op, peer, scratch)
                if records[peer]["ok"]:
                    live.append(peer)
        if self.settings.timed:
            self.time_rounds(op, live, records)
        for worker in self.workers.values():
            worker.ask("drop", op=op.name)

    def build(self, op: Op, peer: str, scratch: Path) -> dict[str, Any]:
        with machine.alone():
            record = self.workers[peer].ask("build", op=op.name, ref=str(scratch), nice_build="tuned" in peer)
        if not record["ok"]:
            if record["kind"] != "unsupported":
                print(f"  {op.name:10s} {peer:18s} {record['kind']}: {record['error'][:150]}", flush=True)
            return record
        record |= {"correct": record["rel_err"] <= op.tolerance, "rounds": []}
        if not record["correct"]:
            print(f"  {op.name:10s} {peer:18s} WRONG: relative error {record['rel_err']:.2e}", flush=True)
        return record

    def time_rounds(self, op: Op, live: list[str], records: dict[str, Any]) -> None:
        """Interleaved rounds, the peers' order rotated."""
        for number in range(self.settings.rounds):
            for peer in timing.rotated(live, number):
                if records[peer]["ok"]:
                    self.time_round(op, peer, records[peer], number)
        done = [peer for peer in live if records[peer]["ok"]]
        for peer in done:
            records[peer] |= summary(records[peer]["rounds"])
            if op.name == "tiny":
                with machine.alone():
                    answer = self.workers[peer].ask("loop", op=op.name, n=2000)
                if answer["ok"]:
                    records[peer]["percall_us"] = answer["best_s"] * 1e6
        times = (f"{peer}={records[peer]['median_ms']:.3f}" + ("" if records[peer]["correct"] else "!WRONG") for peer in done)
        print(f"{op.name:10s} " + "  ".join(times), flush=True)

    def time_round(self, op: Op, peer: str, record: dict[str, Any], number: int) -> None:
        worker, rounds = self.workers[peer], record["rounds"]
        expected_s = rounds[-1]["med"] if rounds else record["first_call_s"]
        if expected_s > 2 and number >= 3:
            return  # three rounds suffice for something this slow
        machine.wait_until_quiet(self.settings.quiet_s)
        with machine.alone():
            time.sleep(0.02)
            pid = worker.process.pid
            busy, own, start = machine.busy_seconds(), machine.process_seconds(pid), time.perf_counter()
            answer = worker.ask(
                "time",
                op=op.name,
                budget_s=self.settings.budget_s,
                max_n=2000,
                min_n=1 if expected_s > 0.5 else 3,
                warm=0 if expected_s > 1 and number else 1,
            )
            spent = time.perf_counter() - start
            foreign = max(0.0, (machine.busy_seconds() - busy) - (machine.process_seconds(pid) - own)) / spent
        if not answer["ok"]:
            record |= {"ok": False, "kind": answer["kind"], "error": answer["error"]}
            return
        samples = sorted(answer["samples"])
        rounds.append({
            "n": len(samples),
            "med": statistics.median(samples),
            "min": samples[0],
            "p90": samples[int(0.9 * (len(samples) - 1))],
            "foreign": round(foreign, 3),
        })


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Milliseconds over the clean rounds, or over all where too few are clean."""
    clean = [one for one in rounds if one["foreign"] < FOREIGN_LIMIT]
    used = clean if len(clean) >= max(2, len(rounds) // 3) else rounds
    return {
        "median_ms": statistics.median(one["med"] for one in used) * 1e3,
        "min_ms": min(one["min"] for one in rounds) * 1e3,
        "clean_rounds": len(clean),
    }


def run(settings: Settings) -> dict[str, Any]:
    """Measure, and write ``settings.out`` (and beside it a log of what the peers printed)."""
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    scratch = Path(tempfile.mkdtemp(prefix="tcjit-bench-reference", dir=memory))
    own_cache = None if settings.cache else Path(tempfile.mkdtemp(prefix="tcjit-bench-cache"))
    cache = settings.cache or own_cache
    assert cache is not None
    with settings.out.with_suffix(".log").open("w") as log:
        session = Run(settings, environment(settings, cache.absolute()), log)
        try:
            for name in settings.ops:
                session.measure(OPS[name], scratch / "reference.npz")
                settings.out.write_text(json.dumps(session.results, indent=1) + "\n")
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            for worker in session.workers.values():
                worker.quit()
            shutil.rmtree(scratch, ignore_errors=True)
            if own_cache:
                shutil.rmtree(own_cache, ignore_errors=True)
            settings.out.write_text(json.dumps(session.results, indent=1) + "\n")
    return session.results
