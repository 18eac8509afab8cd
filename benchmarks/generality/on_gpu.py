"""Operators drawn at random on an NVIDIA GPU, beside eager PyTorch: ``python benchmarks/generality/on_gpu.py [--count 84] [--seed N]``.

Several processes compile and check the operators first, each result against PyTorch in float64; then one times those that are right, alone:
what is short in CUDA graphs of 20 calls, all in turns between two events after writes that empty the L2 cache. The exit status is 1 where
a result was wrong, or an operator ended in an error. ``--dry-run`` tries all that on a CPU at its sizes.
"""
from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE.parent), str(HERE.parent / "peers"), str(HERE.parents[1])]

from gpu.device import Cuda, Device, Host  # noqa: E402

import tcjit  # noqa: E402 - the path above comes first
from generality.families import FAMILIES, numbered  # noqa: E402
from generality.measure import difference  # noqa: E402
from generality.operators import Operator, draw_for  # noqa: E402
from tcjit.runtime import timing  # noqa: E402

RESULT = "result: "
GRAPH_BELOW_US, GRAPH_CALLS = 60.0, 20
SAMPLES, BUDGET_US = (3, 9), 1e5
FLUSHES = 2  # before a sample, which hide the host's work
WORST = 10

Record = dict[str, Any]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="of the operators; a fresh one by default, which is printed")
    parser.add_argument("--count", type=int, default=84, help="operators, by turns of the families (%(default)s)")
    parser.add_argument("--family", type=lambda text: text.split(","), default=list(FAMILIES), help="of " + ", ".join(FAMILIES))
    parser.add_argument("--jobs", type=int, default=min(12, os.cpu_count() or 1), help="processes that compile (%(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time no operator after so long")
    parser.add_argument("--json", type=Path, help="a file for all rows")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU")
    parser.add_argument("--child", nargs="*", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def operator(seed: int, label: str) -> tuple[Operator, int]:
    family, _, number = label.partition("/")
    return numbered(seed, family, int(number)), zlib.crc32(label.encode()) ^ seed


def called(op: Operator) -> Callable[..., Any]:
    function: Callable[..., Any] = tcjit.define(op.text)[op.entry]
    return function


# ---------------------------------------------------------------- in several processes: compiled and checked


def check(seed: int, labels: Sequence[str], device: Device) -> None:
    """A line for each operator: what is wrong with it, and what its kernels take."""
    for label in labels:
        op, own = operator(seed, label)
        record: Record = {"id": label, "name": op.name, "text": op.text, "arguments": [str(one) for one in op.arguments]}
        try:
            with torch.no_grad():
                tensors, function = op.tensors(own, device.place), called(op)
                start = time.perf_counter()
                result = function(*tensors)
                tcjit.synchronize()
                record["first_s"] = time.perf_counter() - start
                record["resources"] = json.loads(json.dumps(dict(function.compile(*tensors).resources), default=str))  # type: ignore[attr-defined]
                record["wrong"] = difference(op, tensors, result)
        except tcjit.TCError as error:
            record["refused"] = str(error)
        except Exception as error:
            record["error"] = f"{type(error).__name__}: {error}"[:500]
        tensors = result = None  # type: ignore[assignment]  # the device's memory is shared with other processes
        if device.place == "cuda":
            torch.cuda.empty_cache()
        print(RESULT + json.dumps(record), flush=True)


def checked(given: argparse.Namespace, labels: Sequence[str]) -> list[Record]:
    """The records of all operators; of one that ended its process, that it did."""
    common = [sys.executable, __file__, "--seed", str(given.seed), *(["--dry-run"] if given.dry_run else [])]
    parts = [labels[job :: given.jobs] for job in range(min(given.jobs, len(labels)))]
    pipe = subprocess.PIPE
    running = [subprocess.Popen([*common, "--child", *part], stdout=pipe, stderr=subprocess.DEVNULL, text=True) for part in parts]
    texts = [process.communicate()[0] for process in running]
    lines = (line for text in texts for line in text.splitlines() if line.startswith(RESULT))
    found = {record["id"]: record for record in (json.loads(line.removeprefix(RESULT)) for line in lines)}
    return [found.get(label) or {"id": label, "error": "its process, or one before it, ended"} for label in labels]


# ---------------------------------------------------------------- in one process: timed


def timed(op: Operator, tensors: Sequence[torch.Tensor], device: Device) -> Record:
    """Microseconds of tcjit and of eager PyTorch, and the ratio of these; what PyTorch cannot do on the device has no time."""
    calls: dict[str, Callable[[], Any]] = {"tcjit": partial(called(op), *tensors), "eager": partial(op.reference, *tensors)}
    record: Record = {}
    try:
        calls["eager"]()
    except Exception as error:
        record["eager_error"] = f"{type(error).__name__}: {error}"[:200]
        del calls["eager"]
    for call in calls.values():
        for _ in range(3):
            call()
    device.warm_up()
    once = {name: min(times) for name, times in device.interleaved(calls, SAMPLES[0], FLUSHES).items()}
    repeats = GRAPH_CALLS if min(once.values()) < GRAPH_BELOW_US and device.place == "cuda" else 1
    if repeats > 1:
        calls = {name: device.captured(partial(_several, call, repeats)) for name, call in calls.items()}
    samples = int(max(SAMPLES[0], min(SAMPLES[1], BUDGET_US / sum(once.values()))))
    times = device.interleaved(calls, samples, FLUSHES)
    record |= {f"{name}_us": statistics.median(taken) / repeats for name, taken in times.items()}
    return record | ({"ratio": statistics.median(timing.ratios(times["eager"], times["tcjit"]))} if "eager" in times else {})


def _several(call: Callable[[], Any], count: int) -> list[Any]:
    return [call() for _ in range(count)]


# ---------------------------------------------------------------- the whole run


def line(record: Mapping[str, Any]) -> str:
    times = "".join(f"{record[name]:12.1f}" if name in record else " " * 12 for name in ("tcjit_us", "eager_us"))
    ratio = f"{record['ratio']:7.2f}" if "ratio" in record else " " * 7
    said = next((f"{name}: {record[name]}" for name in ("wrong", "refused", "error", "eager_error") if record.get(name)), "")
    return f"{record['id']:26}{times}{ratio}  {said}"[:200].rstrip()


def summary(records: Sequence[Record]) -> str:
    ranked = sorted((record for record in records if "ratio" in record), key=lambda record: float(record["ratio"]))
    ratios = [record["ratio"] for record in ranked]
    bad = [record for record in records if any(record.get(name) for name in ("wrong", "refused", "error"))]
    if not ranked:
        return f"nothing timed; {len(bad)} wrong, refused or ended in an error"
    mean, fifth = statistics.geometric_mean(ratios), timing.percentile(ratios, 0.05)
    counted = f"{len(ranked)} timed: geometric mean {mean:.2f}, 5th percentile {fifth:.2f}; {len(bad)} wrong, refused or in an error"
    return "\n".join([counted, "the worst:", *map(line, ranked[:WORST]), *map(line, bad)])


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(argv)
    if not given.dry_run:
        draw_for("cuda")
    given.seed = random.SystemRandom().randrange(1 << 31) if given.seed is None else given.seed
    if not given.dry_run and not torch.cuda.is_available():
        raise SystemExit(f"no CUDA device: torch {torch.__version__} sees none; --dry-run tries the benchmark on a CPU")
    if given.child is not None:
        check(given.seed, given.child, Host() if given.dry_run else Cuda())
        return 0
    labels = [f"{given.family[n % len(given.family)]}/{n // len(given.family)}" for n in range(given.count)]
    records = checked(given, labels)
    device: Device = Host() if given.dry_run else Cuda()
    print(f"seed {given.seed}, {device.facts()['device']}\n{'operator':26}{'tcjit us':>12}{'eager us':>12}{'ratio':>7}", flush=True)
    end = time.monotonic() + given.seconds
    for record in records:
        if not any(record.get(name) for name in ("wrong", "refused", "error")) and time.monotonic() < end:
            op, own = operator(given.seed, record["id"])
            with torch.no_grad():
                record |= timed(op, op.tensors(own, device.place), device)
        print(line(record), flush=True)
    print("\n" + summary(records))
    if given.json:
        given.json.write_text(json.dumps({"seed": given.seed, "machine": device.facts(), "rows": records}, indent=1) + "\n")
    return 1 if any(record.get("wrong") or record.get("error") for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
