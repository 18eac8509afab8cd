"""TVM MetaSchedule with TVM_TRIALS trials an op (64); a tuning log under $BENCH_CACHE/tvm is used again."""
from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tvm
from ops import Op
from tvm.s_tir import meta_schedule

from peers._tvm import TARGET, compiled, module, prepare, to_numpy

__all__ = ["build", "prepare", "to_numpy", "versions"]

TRIALS = int(os.environ.get("TVM_TRIALS", "64"))


def versions() -> dict[str, str]:
    return {"tvm": tvm.__version__, "trials": str(TRIALS)}


def build(op: Op, arguments: Sequence[Any]) -> Callable[..., Any]:
    if op.name == "tiny":
        raise NotImplementedError("nothing to tune")
    unscheduled, target = module(op), tvm.target.Target(TARGET)
    folder = Path(os.environ["BENCH_CACHE"], "tvm", op.name)
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / "done"
    start, stored = time.perf_counter(), done.exists()
    if stored:
        database = meta_schedule.database.JSONDatabase(
            str(folder / "database_workload.json"), str(folder / "database_tuning_record.json")
        )
    else:
        database = meta_schedule.tir_integration.tune_tir(
            unscheduled,
            target,
            str(folder),
            max_trials_global=TRIALS,
            num_trials_per_iter=32,
            cost_model=os.environ.get("TVM_COST", "xgb"),
            num_tuning_cores=int(os.environ["BENCH_THREADS"]),
            seed=1,
        )
        done.touch()
    tuning_s = time.perf_counter() - start
    schedule = meta_schedule.tir_integration.compile_tir(database, unscheduled, target)
    if schedule is None:
        raise RuntimeError("no valid schedule found")
    call = compiled(schedule.mod, target, op)
    call.info = {"tuning_s": tuning_s, "trials": TRIALS, "stored": stored}  # type: ignore[attr-defined]
    return call
