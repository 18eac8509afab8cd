"""Operators drawn at random on an NVIDIA GPU, beside eager PyTorch: ``python benchmarks/generality/on_gpu.py [--count 84] [--seed N]``.

Several processes compile and check the operators first, each result against PyTorch in float64; then one times those that are right, alone:
what is short in CUDA graphs of 20 calls, all in turns between two events after writes that empty the L2 cache; tf32 is off. The exit status
is 1 where a result was wrong, or an operator ended in an error. ``--dry-run`` tries all that on a CPU at its sizes. ``--family
written,gradient`` means the operators of ``written_operators``, all of them, and their gradients.
"""
from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE.parent), str(HERE.parent / "peers"), str(HERE.parents[1])]

from gpu.device import Cuda, Device, Host, tf32  # noqa: E402

import tcjit  # noqa: E402 - the path above comes first
from generality.backward import NoGradients, backwards, checked_gradients  # noqa: E402
from generality.families import FAMILIES, numbered  # noqa: E402
from generality.measure import difference  # noqa: E402
from generality.operators import draw_for  # noqa: E402
from generality.written_operators import OPERATORS, WrittenOperator  # noqa: E402
from tcjit.runtime import timing  # noqa: E402

RESULT = "result: "
GRAPH_BELOW_US, GRAPH_CALLS = 60.0, 20
SAMPLES, BUDGET_US = (3, 9), 1e5
FLUSHES = 2  # before a sample, which hide the host's work
GRADIENT_FLUSHES = 8  # autograd's graph is not captured, and its host's work is longer
SAID = ("wrong", "refused", "error", "none", "eager_error", "no_graph")
WRITTEN = ("written", "gradient")
WORST = 10

Record = dict[str, Any]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="of the operators; a fresh one by default, which is printed")
    parser.add_argument("--count", type=int, default=84, help="operators, by turns of the families (%(default)s)")
    names = ", ".join([*FAMILIES, *WRITTEN])
    parser.add_argument("--family", type=lambda text: text.split(","), default=list(FAMILIES), help=f"of {names}")
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of written operators; all by default")
    parser.add_argument("--jobs", type=int, default=min(12, os.cpu_count() or 1), help="processes that compile (%(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="check no operator after half of that, and time none after it")
    parser.add_argument("--json", type=Path, help="a file for all rows")
    parser.add_argument("--page", type=Path, help="a page of those that were timed")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU")
    parser.add_argument("--child", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=float("inf"), help=argparse.SUPPRESS)
    return parser.parse_args(argv)


@dataclass(frozen=True)
class Subject:
    """A def, its tensors on a device, PyTorch's form, and how a result differs from what it should be (empty where it does not)."""

    text: str
    tensors: Callable[[str], Sequence[torch.Tensor]]
    reference: Callable[..., Any]
    difference: Callable[[Sequence[torch.Tensor], Any], str]
    gradients: bool = False  # are timed, not the results

    def function(self) -> Callable[..., Any]:
        function: Callable[..., Any] = tcjit.define(self.text)[re.findall(r"def (\w+)", self.text)[-1]]
        return function

    def wrong(self, place: str, record: Record) -> str:
        """How the result of a first call differs; what it took goes into the record."""
        tensors, function = self.tensors(place), self.function()
        start = time.perf_counter()
        with torch.set_grad_enabled(self.gradients):
            result = function(*tensors)
            tcjit.synchronize()
        record["first_s"] = time.perf_counter() - start
        record["resources"] = json.loads(json.dumps(dict(function.compile(*tensors).resources), default=str))  # type: ignore[attr-defined]
        return self.difference(tensors, result)

    def call(self, name: str, place: str) -> Callable[[], Any]:
        """What is timed: of ``tcjit`` or of ``eager``."""
        tensors, form = self.tensors(place), self.function() if name == "tcjit" else self.reference
        if not self.gradients:
            return partial(form, *tensors)
        return backwards({name: (form, tensors)})[name]


def subject(seed: int, label: str) -> Subject:
    """What a label means: ``family/number``, ``written/name``, or ``gradient/name`` of a written operator."""
    family, _, number = label.partition("/")
    if family in WRITTEN:
        return written(OPERATORS[number], gradients=family == "gradient")
    op, own = numbered(seed, family, int(number)), zlib.crc32(label.encode()) ^ seed

    def different(tensors: Sequence[torch.Tensor], result: Any) -> str:
        try:
            with torch.device(tensors[0].device), tf32(allowed=False):
                return difference(op, tensors, result)
        except RuntimeError:  # PyTorch's form is not for this device
            return difference(op, [t.cpu() for t in tensors], result.cpu())

    return Subject(op.text, partial(op.tensors, own), there(op.reference), different)


def there(form: Callable[..., Any]) -> Callable[..., Any]:
    """A form of PyTorch that makes its constants on the device of its arguments."""

    def called(*tensors: torch.Tensor) -> Any:
        with torch.device(tensors[0].device):
            return form(*tensors)

    return called


def written(one: WrittenOperator, *, gradients: bool) -> Subject:
    """Compared with PyTorch's form on the host."""

    def different(tensors: Sequence[torch.Tensor], result: Any) -> str:
        if gradients:
            error, limit = checked_gradients(one, tensors)
        else:
            own = tuple(r.cpu() for r in result) if isinstance(result, tuple) else result.cpu()
            error, limit = one.error(own, one.reference(*one.tensors())), one.tolerance
        return "" if error <= limit else f"the largest error is {error:.1e} of the largest magnitude, {limit:.1e} is allowed"

    return Subject(one.text, lambda place: [t.to(place) for t in one.tensors()], there(one.reference), different, gradients)


# ---------------------------------------------------------------- in several processes: compiled and checked


def check(seed: int, labels: Sequence[str], device: Device, until: float) -> None:
    """A line for each operator that begins in time: what is wrong with it, and what its kernels take."""
    for label in labels:
        record: Record = {"id": label}
        if time.time() > until:
            print(RESULT + json.dumps(record | {"none": "no time was left"}), flush=True)
            continue
        try:
            one = subject(seed, label)
            record |= {"text": one.text, "arguments": [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in one.tensors("cpu")]}
            record["wrong"] = one.wrong(device.place, record)
        except NoGradients as error:
            record["none"] = str(error)
        except tcjit.TCError as error:
            record["refused"] = str(error)
        except Exception as error:
            record["error"] = f"{type(error).__name__}: {error}"[:500]
        if device.place == "cuda":
            torch.cuda.empty_cache()  # the device's memory is shared with other processes
        print(RESULT + json.dumps(record), flush=True)


def checked(given: argparse.Namespace, labels: Sequence[str]) -> list[Record]:
    """The records of all operators; of one that ended its process, that it did."""
    until = ["--until", str(time.time() + given.seconds / 2)]
    common = [sys.executable, __file__, "--seed", str(given.seed), *until, *(["--dry-run"] if given.dry_run else [])]
    parts = [labels[job :: given.jobs] for job in range(min(given.jobs, len(labels)))]
    pipe = subprocess.PIPE
    running = [subprocess.Popen([*common, "--child", *part], stdout=pipe, stderr=subprocess.DEVNULL, text=True) for part in parts]
    with ThreadPoolExecutor(len(running)) as threads:  # each pipe is read, so that none stops its process
        texts = list(threads.map(lambda process: process.communicate()[0], running))
    lines = (line for text in texts for line in text.splitlines() if line.startswith(RESULT))
    found = {record["id"]: record for record in (json.loads(line.removeprefix(RESULT)) for line in lines)}
    return [found.get(label) or {"id": label, "error": "its process, or one before it, ended"} for label in labels]


# ---------------------------------------------------------------- in one process: timed


def timed(one: Subject, device: Device) -> Record:
    """Microseconds of tcjit and of eager PyTorch, and the ratio of these; what PyTorch cannot do on the device has no time."""
    record: Record = {}
    calls = {"tcjit": one.call("tcjit", device.place)}
    try:
        calls["eager"] = one.call("eager", device.place)
        calls["eager"]()
    except Exception as error:
        record["eager_error"] = f"{type(error).__name__}: {error}"[:200]
        calls.pop("eager", None)
    for call in calls.values():
        for _ in range(3):
            call()
    device.warm_up()
    flushes = GRADIENT_FLUSHES if one.gradients else FLUSHES
    once = {name: min(times) for name, times in device.interleaved(calls, SAMPLES[0], flushes).items()}
    repeats = 1
    if min(once.values()) < GRAPH_BELOW_US and device.place == "cuda" and not one.gradients:
        try:
            calls = {name: device.captured(partial(_several, call, GRAPH_CALLS)) for name, call in calls.items()}
            repeats = GRAPH_CALLS
        except RuntimeError as error:  # PyTorch's form waits for the device
            record["no_graph"] = f"{error}"[:200]
            torch.cuda.synchronize()
    samples = int(max(SAMPLES[0], min(SAMPLES[1], BUDGET_US / sum(once.values()))))
    times = device.interleaved(calls, samples, flushes)
    record |= {f"{name}_us": statistics.median(taken) / repeats for name, taken in times.items()}
    return record | ({"ratio": statistics.median(timing.ratios(times["eager"], times["tcjit"]))} if "eager" in times else {})


def _several(call: Callable[[], Any], count: int) -> list[Any]:
    return [call() for _ in range(count)]


# ---------------------------------------------------------------- the whole run


def line(record: Mapping[str, Any]) -> str:
    times = "".join(f"{record[name]:12.1f}" if name in record else " " * 12 for name in ("tcjit_us", "eager_us"))
    ratio = f"{record['ratio']:7.2f}" if "ratio" in record else " " * 7
    said = next((f"{name}: {record[name]}" for name in SAID if record.get(name)), "")
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


def page(seed: int, facts: Mapping[str, Any], records: Sequence[Record]) -> str:
    """The operators that were timed, the slowest beside eager PyTorch first."""
    ranked = sorted((record for record in records if "ratio" in record), key=lambda record: float(record["ratio"]))
    ratios = [record["ratio"] for record in ranked]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    mean, fifth = statistics.geometric_mean(ratios), timing.percentile(ratios, 0.05)
    said = f"{len(ratios)} timed: geometric mean {mean:.2f}, 5th percentile {fifth:.2f}"
    rows = [f"| {r['id']} | {r['tcjit_us']:.1f} | {r['eager_us']:.1f} | {r['ratio']:.2f} | {', '.join(r['arguments'])} |" for r in ranked]
    head = ["| operator | tcjit, us | eager, us | ratio | arguments |", "| --- | --- | --- | --- | --- |"]
    title = [f"# {facts['device']}", "", f"Operators of seed {seed}, untuned, by `on_gpu.py`; {versions};", f"{said}.", ""]
    return "\n".join([*title, *head, *rows, ""])


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(argv)
    if not given.dry_run:
        draw_for("cuda")
    given.seed = random.SystemRandom().randrange(1 << 31) if given.seed is None else given.seed
    if not given.dry_run and not torch.cuda.is_available():
        raise SystemExit(f"no CUDA device: torch {torch.__version__} sees none; --dry-run tries the benchmark on a CPU")
    if given.child is not None:
        check(given.seed, given.child, Host() if given.dry_run else Cuda(), given.until)
        return 0
    drawn = [family for family in given.family if family not in WRITTEN]
    labels = [f"{drawn[n % len(drawn)]}/{n // len(drawn)}" for n in range(given.count if drawn else 0)]
    labels += [f"{kind}/{name}" for kind in WRITTEN if kind in given.family for name in given.only or OPERATORS]
    end = time.monotonic() + given.seconds
    records = checked(given, labels)
    device: Device = Host() if given.dry_run else Cuda()
    print(f"seed {given.seed}, {device.facts()['device']}\n{'operator':26}{'tcjit us':>12}{'eager us':>12}{'ratio':>7}", flush=True)
    for record in records:
        if not any(record.get(name) for name in SAID[:4]) and time.monotonic() < end:
            one = subject(given.seed, record["id"])
            try:
                with torch.set_grad_enabled(one.gradients), tf32(allowed=False):
                    record |= timed(one, device)
            except Exception as error:
                record["error"] = f"timed: {type(error).__name__}: {error}"[:500]
        print(line(record), flush=True)
    print("\n" + summary(records))
    if given.json:
        given.json.write_text(json.dumps({"seed": given.seed, "machine": device.facts(), "rows": records}, indent=1) + "\n")
    if given.page:
        given.page.write_text(page(given.seed, device.facts(), records))
    return 1 if any(record.get("wrong") or record.get("error") for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
