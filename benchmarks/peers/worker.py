"""Hosts one peer in its own process, and possibly its own environment; bench.py speaks to it in lines of JSON over a pair of pipes.

What the peer prints to standard output goes to standard error, so a chatty peer cannot break the protocol.
"""
from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from clock import timing  # noqa: E402 - the path above comes first
from ops import OPS, Op  # noqa: E402

TINY = 1e-30  # keeps the relative error of an all-zero output finite


class Built(NamedTuple):
    call: Callable[..., Any]
    arguments: list[Any]
    wait: Callable[[Any], Any]

    def run(self) -> Any:
        result = self.call(*self.arguments)
        self.wait(result)
        return result


def set_priority(level: int) -> None:
    """Set the nice level of every thread of this process (root only; elsewhere nothing happens): without it, other processes on a
    shared machine stretch a barrier of two threads by whole scheduler quanta."""
    for task in os.listdir("/proc/self/task"):
        try:
            os.setpriority(os.PRIO_PROCESS, int(task), level)
        except OSError:
            return


def relative_errors(outputs: list[np.ndarray], expected: Any) -> list[float]:
    """Per output, the largest error over the largest magnitude of the reference."""
    errors = []
    for position, output in enumerate(outputs):
        wanted = expected[f"arr_{position}"]
        errors.append(float(np.max(np.abs(output.reshape(wanted.shape) - wanted)) / (np.max(np.abs(wanted)) + TINY)))
    return errors


class Host:
    """Answers one command at a time about one peer."""

    def __init__(self, peer: Any) -> None:
        self.peer = peer
        self.built: dict[str, Built] = {}

    def build(self, op: Op, ref: str, nice_build: bool = False) -> dict[str, Any]:
        """Compile for the op's shapes, call once, compare with the reference stored in the file ``ref``."""
        inputs = {name: np.ascontiguousarray(array) for name, array in op.make_inputs().items()}
        native = self.peer.prepare(inputs) if hasattr(self.peer, "prepare") else inputs
        arguments = [native[given.name] for given in op.inputs]
        wait = getattr(self.peer, "sync", lambda result: None)
        if not nice_build:
            set_priority(-20)
        start = time.perf_counter()
        call = self.peer.build(op, arguments)
        compiled = time.perf_counter()
        built = Built(call, arguments, wait)
        result = built.run()
        finish = time.perf_counter()
        set_priority(0)
        to_numpy = getattr(self.peer, "to_numpy", np.asarray)
        outputs = [to_numpy(x) for x in (result if isinstance(result, (tuple, list)) else [result])]
        self.built[op.name] = built
        return {
            "build_s": compiled - start,
            "first_call_s": finish - compiled,
            "rel_err": max(relative_errors(outputs, np.load(ref))),
            "info": dict(getattr(call, "info", {})),
        }

    def time(self, op: Op, budget_s: float, max_n: int, min_n: int, warm: int) -> dict[str, Any]:
        """Seconds of single calls, for about ``budget_s``."""
        built = self.built[op.name]
        set_priority(-20)
        for _ in range(warm):
            built.run()
        samples = timing.sampled(lambda: timing.reading(built.run), min_n, max_n, budget_s)
        set_priority(0)
        return {"samples": samples}

    def loop(self, op: Op, n: int, repeats: int = 5) -> dict[str, Any]:
        """Seconds per call of ``n`` calls back to back, the best of some repeats: the cost of a call of a tiny op."""
        call, arguments, wait = self.built[op.name]
        best = float("inf")
        set_priority(-20)
        for _ in range(repeats):
            start = time.perf_counter()
            for _ in range(n):  # with no call around it, which would count
                wait(call(*arguments))
            best = min(best, (time.perf_counter() - start) / n)
        set_priority(0)
        return {"best_s": best}

    def drop(self, op: Op) -> dict[str, Any]:
        self.built.pop(op.name, None)
        return {}


def main(name: str) -> None:
    protocol = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**facts: Any) -> None:
        protocol.write(json.dumps(facts) + "\n")
        protocol.flush()

    start = time.perf_counter()
    try:
        peer = importlib.import_module("peers." + name)
        say(ok=True, import_s=time.perf_counter() - start, versions=peer.versions(), pid=os.getpid())
    except Exception as error:
        say(ok=False, kind="import", error=f"{type(error).__name__}: {error}"[:600])
        return
    host = Host(peer)
    for line in sys.stdin:
        request = json.loads(line)
        command = request.pop("command")
        if command == "quit":
            say(ok=True)
            return
        try:
            say(ok=True, **getattr(host, command)(OPS[request.pop("op")], **request))
        except NotImplementedError as error:
            set_priority(0)
            say(ok=False, kind="unsupported", error=str(error))
        except Exception as error:
            set_priority(0)
            traceback.print_exc()
            say(ok=False, kind="error", error=f"{type(error).__name__}: {error}"[:600])


if __name__ == "__main__":
    main(sys.argv[1])
