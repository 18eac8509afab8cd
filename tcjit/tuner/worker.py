"""A process that a search may lose: ``python -m tcjit.tuner.worker MODULE`` answers requests, one line of JSON each, by ``MODULE.answer``.

An exception is an answer; a crash, a hang or memory without end costs this process only. Requests that take longer than they say
end it by the system's alarm clock, whatever the code that runs is doing.
"""
from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

GRACE = 5.0  # seconds more than the other side waits: it should be the first to notice


def main(module: str) -> None:
    """Answer until there are no more requests."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what kernels and libraries print is not an answer
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answer: Callable[[dict[str, Any]], dict[str, Any]] = importlib.import_module(module).answer
    for line in sys.stdin:
        request = json.loads(line)
        if "memory" in request:
            _limit_memory(int(request.pop("memory")))
        signal.setitimer(signal.ITIMER_REAL, float(request.pop("limit")) + GRACE)
        reply = _answered(answer, request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _answered(answer: Callable[[dict[str, Any]], dict[str, Any]], request: dict[str, Any]) -> dict[str, Any]:
    try:
        return answer(request)
    except MemoryError:
        return {"failed": "MemoryError", "reason": "not enough memory"}
    except Exception as error:  # whatever a candidate does, the next one is asked for
        return {"failed": type(error).__name__, "reason": str(error)}


def _limit_memory(most: int) -> None:
    """Let this process have at most so many bytes more than it has now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = now + most if hard == resource.RLIM_INFINITY else min(now + most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


if __name__ == "__main__":
    main(sys.argv[1])
