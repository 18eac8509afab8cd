"""Halide, scheduled by Adams2019 with its shipped cost model, no autotuning."""
from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from ops import Op

from peers._halide import autoscheduled, library_version, prepare, to_numpy

__all__ = ["build", "prepare", "to_numpy", "versions"]


def versions() -> dict[str, str]:
    return {"halide": library_version(), "autoscheduler": "Adams2019"}


def build(op: Op, arguments: Sequence[Any]) -> Callable[..., Any]:
    return autoscheduled(op, "autoschedule_adams2019", "Adams2019", {"parallelism": os.environ["BENCH_THREADS"]}, arguments)
