"""One model in a process of its own: partitioned in several ways, compared with eager, saved, loaded in a new process, timed in turns."""
from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import machine
import torch
from torch import Tensor, nn

import tcjit
from models import MODELS
from models.compare import results
from tcjit.runtime import timing

HERE = Path(__file__).resolve().parent
READING = 2e-2  # seconds that one reading covers at least
LONG = 5e-2  # seconds of a call that needs no other one before it to be warm
Run = Callable[..., Any]
# how a model is partitioned: without the cost step, with it, by measuring, and not at all
WAYS: dict[str, tuple[dict[str, Any], bool]] = {
    "all": ({"cost": False}, False),
    "cost": ({}, False),
    "measured": ({}, True),
    "wrapped": ({"backends": (), "opt_level": 0}, False),
}
LABELS = ("compiled", *WAYS)


def first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:160] or type(error).__name__


def one(name: str, small: bool, rounds: int, labels: Sequence[str], folder: Path) -> dict[str, Any]:
    """All that is to be known of a model: what became of it in each way, and seconds per call in ``rounds`` rounds."""
    chosen = MODELS[name]
    model, inputs = chosen.make(small), chosen.inputs(small)
    runs: dict[str, Run] = {"eager": model, "again": model}
    made: dict[str, dict[str, Any]] = {}
    with torch.no_grad():
        expected = results(model(*inputs))
        for label in labels:
            try:
                run, made[label] = compiled(model) if label == "compiled" else partitioned(name, label, model, inputs, folder, small)
                began = time.perf_counter()
                found = results(run(*inputs))
                made[label] |= {"first_s": time.perf_counter() - began, "error": chosen.error(expected, found)}
                runs[label] = run
            except Exception as error:  # a way that fails is a row of the table that says so
                made[label] = {"failed": f"{type(error).__name__}: {first_line(error)}"}
        times = turns(runs, inputs, rounds)
    shapes = [list(value.shape) for value in inputs]
    return {"model": name, "inputs": shapes, "parameters": sum(each.numel() for each in model.parameters()), "made": made, "times": times}


def compiled(model: nn.Module) -> tuple[Run, dict[str, Any]]:
    torch._dynamo.reset()
    return torch.compile(model), {}


def partitioned(
    name: str, label: str, model: nn.Module, inputs: tuple[Tensor, ...], folder: Path, small: bool
) -> tuple[Run, dict[str, Any]]:
    """A model partitioned in one way, and what a file of it does in a new process."""
    settings, measure = WAYS[label]
    start = time.perf_counter()
    done = tcjit.partition(model, inputs, tcjit.PartitionConfig(**settings), measure=measure)
    seconds = time.perf_counter() - start
    covered = done.coverage
    regions: dict[str, int] = {}
    for row in {row["region"]: row for row in done.rows if row["region"]}.values():
        regions[row["backend"]] = regions.get(row["backend"], 0) + 1
    file = folder / f"{name}-{label}.pt"
    done.save(file)
    command = [sys.executable, str(HERE / "run.py"), name, "--reload", str(file), *(["--small"] if small else [])]
    again = subprocess.run(command, capture_output=True, text=True)
    file.unlink()
    facts = {"partition_s": seconds, "regions": regions, "nodes": covered.nodes, "flops": covered.flops, "bytes": covered.bytes}
    if again.returncode:
        return done, facts | {"reloaded": None, "why": (again.stderr.strip().splitlines() or [f"status {again.returncode}"])[-1][:160]}
    return done, facts | {"reloaded": float(again.stdout.split()[-1])}


def reloaded(name: str, small: bool, file: Path) -> float:
    """The error of a model from a file."""
    chosen = MODELS[name]
    inputs = chosen.inputs(small)
    with torch.no_grad():
        return chosen.error(results(chosen.make(small)(*inputs)), results(tcjit.load(file)(*inputs)))


def turns(runs: dict[str, Run], inputs: tuple[Tensor, ...], rounds: int) -> dict[str, list[float]]:
    """Seconds per call of each contender, in turns; a reading is of as many calls as take 20 ms, after one that warms up."""
    if not rounds:
        return {label: [] for label in runs}
    calls = {label: partial(run, *inputs) for label, run in runs.items()}
    least = {label: min(timing.reading(call) for _ in range(3)) for label, call in calls.items()}

    def read(label: str) -> float:
        if least[label] < LONG:
            timing.reading(calls[label])
        return timing.reading(calls[label], timing.calls_for(READING, least[label]))

    readers = {label: partial(read, label) for label in runs}
    return timing.interleaved(readers, rounds, timing.rotated, before=lambda: machine.wait_until_quiet(1.0))
