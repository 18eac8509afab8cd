"""``tcjit.runtime.timing`` out of its file: a peer's environment need not have tcjit, and must not import it before it is timed."""
from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

_FILE = Path(__file__).resolve().parents[2] / "tcjit" / "runtime" / "timing.py"
_spec = importlib.util.spec_from_file_location("timing", _FILE)
assert _spec is not None and _spec.loader is not None
timing = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(timing)


def median(call: Callable[[], object], seconds: float) -> float:
    """Seconds of a call, the median of as many as take so long."""
    return statistics.median(timing.sampled(partial(timing.reading, call), 3, 100_000, seconds))
