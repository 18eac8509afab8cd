"""Halide, scheduled by Mullapudi2016."""
from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from ops import Op

from peers._halide import autoscheduled, library_version, prepare, to_numpy

__all__ = ["build", "prepare", "to_numpy", "versions"]


def versions() -> dict[str, str]:
    return {"halide": library_version(), "autoscheduler": "Mullapudi2016"}


def build(op: Op, arguments: Sequence[Any]) -> Callable[..., Any]:
    parameters = {"parallelism": os.environ["BENCH_THREADS"], "last_level_cache_size": "2097152", "balance": "40"}
    return autoscheduled(op, "autoschedule_mullapudi2016", "Mullapudi2016", parameters, arguments)
