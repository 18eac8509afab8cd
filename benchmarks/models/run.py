"""Whole models, partitioned: ``python benchmarks/models/run.py [--small] [--rounds 30] [--measure] [NAMES...]``.

Each model, in a process of its own with empty caches, is partitioned without and with the cost step and, with ``--measure``, by measuring;
the results are compared with eager PyTorch's, also those of the model saved and loaded in a new process. Then eager, eager once more,
``torch.compile``, the partitioned models and the model wrapped with every operation left to ATen take turns. Ratios are of medians; the
noise is what eager differs from itself. Writes ``benchmarks/results/models-<machine>.json`` and ``.md``, where a run of some models takes
the place of their rows; ``--rounds 0`` times and writes nothing.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE.parent), str(HERE.parent / "peers"), str(HERE.parents[1])]

import machine  # noqa: E402 - the path above comes first
import torch  # noqa: E402

from models import MODELS  # noqa: E402
from models.one import LABELS, one, reloaded  # noqa: E402

HEADING = "result: "


def row(record: dict[str, Any]) -> dict[str, Any]:
    """A record with medians, in ms, in place of times; the noise is one side's share."""
    middle = {label: 1e3 * statistics.median(values) for label, values in record["times"].items() if values}
    if not middle:
        return record
    pair = middle.pop("eager"), middle.pop("again")
    return {**record, "eager_ms": sum(pair) / 2, "noise": max(pair) / min(pair) - 1, "ms": middle}


def child(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """The record of a model, or one that says how its process ended."""
    with tempfile.TemporaryDirectory(prefix="tcjit-models-") as folder:
        caches = {"TCJIT_CACHE_DIR": f"{folder}/tcjit", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        command = [sys.executable, __file__, name, "--only", folder, "--rounds", str(given.rounds), "--without", given.without]
        command += ["--small"] * given.small + ["--measure"] * given.measure
        run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **caches})
    for line in run.stdout.splitlines():
        if line.startswith(HEADING):
            found: dict[str, Any] = json.loads(line[len(HEADING) :])
            return found
    last = (run.stderr.strip().splitlines() or ["nothing said"])[-1]
    return {"model": name, "inputs": [], "parameters": 0, "made": {}, "times": {}, "failed": f"status {run.returncode}: {last[:160]}"}


def beside(file: Path, record: dict[str, Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with those of other models that a file has from the same machine, asked for in the same way; all in the usual order."""
    try:
        before = json.loads(file.read_text())
        kept = before["rows"] if {key: before[key] for key in record} == record else []
    except (OSError, ValueError, KeyError):
        kept = []
    found = {r["model"]: r for r in (*kept, *rows)}
    return [found[name] for name in MODELS if name in found]


def faults(record: dict[str, Any], tolerance: float) -> list[str]:
    """What is wrong with a model's results; the compiler of PyTorch is not on trial."""
    found = [record["failed"]] if "failed" in record else []
    for label, made in record["made"].items():
        if label == "compiled":
            continue
        if "failed" in made:
            found.append(f"{label}: {made['failed']}")
            continue
        if not made["error"] <= tolerance:
            found.append(f"{label}: off by {made['error']:.2g}")
        if made["reloaded"] is None:
            found.append(f"{label}: not reloaded, {made['why']}")
        elif not made["reloaded"] <= tolerance:
            found.append(f"{label}: off by {made['reloaded']:.2g} once reloaded")
    return found


def page(rows: list[dict[str, Any]], given: argparse.Namespace, facts: dict[str, Any], tolerance: float) -> str:
    size = "the small configurations" if given.small else "full size"
    lines = [
        f"# Models partitioned on {facts['cpu']}, {facts['cores']} cores", "",
        f"`python benchmarks/models/run.py{' --small' * given.small}{' --measure' * given.measure}`: {size}, float32, "
        f"torch {facts['torch']}; medians of {given.rounds} interleaved rounds, milliseconds. Noise: eager against eager, in the same "
        "rounds.", "",
        "## Regions and latency (the cost step, off and on)", "",
        "| model | input | regions | without cost | regions | with cost | covered: operations, FLOPs, bytes | eager | noise |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for r in rows:
        kept = r["made"].get("cost", {})
        covered = ", ".join(f"{100 * kept[part]:.0f} %" for part in ("nodes", "flops", "bytes") if part in kept) or "-"
        inputs = ", ".join("x".join(map(str, shape)) for shape in r["inputs"])
        lines.append(
            f"| {r['model']} | {inputs} | {regions(r, 'all')} | {latency(r, 'all')} | {regions(r, 'cost')} | {latency(r, 'cost')} | "
            f"{covered} | {number(r.get('eager_ms'))} | {percent(r.get('noise'))} |"
        )
    best = "measured" if given.measure else "cost"
    lines += [
        "", f"## Against eager and torch.compile (partitioned: {'by measuring' if given.measure else 'with the cost step'})", "",
        "| model | eager | torch.compile | its first call, s | partitioned | regions | ready after, s | eager / partitioned | "
        "compiled / partitioned | wrapped / eager | error |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for r in rows:
        times, made = r.get("ms", {}), r["made"]
        ours, eager = times.get(best), r.get("eager_ms")
        compiler, chosen = made.get("compiled", {}), made.get(best, {})
        ready = chosen["partition_s"] + chosen["first_s"] if "first_s" in chosen else None
        lines.append(
            f"| {r['model']} | {number(eager)} | {latency(r, 'compiled')} | {number(compiler.get('first_s'), 3)} | {latency(r, best)} | "
            f"{regions(r, best)} | {number(ready, 3)} | {ratio(eager, ours)} | {ratio(times.get('compiled'), ours)} | "
            f"{ratio(times.get('wrapped'), eager)} | {number(chosen.get('error'), 2)} |"
        )
    return "\n".join([*lines, "", *verdicts(rows, best, tolerance), ""])


def verdicts(rows: list[dict[str, Any]], best: str, tolerance: float) -> list[str]:
    """What the tables come to, a line each."""
    timed = [r for r in rows if best in r.get("ms", {})]
    slower = [r["model"] for r in timed if r["ms"][best] > r["eager_ms"] * (1 + max(r["noise"], 0.02))]
    apart = [r["model"] for r in rows if "wrapped" in r.get("ms", {}) and r["ms"]["wrapped"] > r["eager_ms"] * (1.02 + r["noise"])]
    wrong = [f"{r['model']}: {fault}" for r in rows for fault in faults(r, tolerance)]
    said = [f"Slower than eager by more than the noise, 2 % at least: {', '.join(slower) or 'none'}."]
    said.append(f"Slower by more than 2 % and the noise with every operation left to ATen: {', '.join(apart) or 'none'}.")
    if timed:
        mean = statistics.geometric_mean(r["eager_ms"] / r["ms"][best] for r in timed)
        said.append(f"Geometric mean of eager / partitioned: {mean:.2f}.")
    said.append(f"Saved, loaded in a new process and run, all within {tolerance:g} of eager: {'; '.join(wrong) or 'yes'}.")
    return said


def regions(r: dict[str, Any], label: str) -> str:
    """The number of regions, with their backends."""
    counts = r["made"].get(label, {}).get("regions")
    if counts is None:
        return "-"
    return f"{sum(counts.values())}" + (f" ({', '.join(f'{count} {name}' for name, count in counts.items())})" if counts else "")


def latency(r: dict[str, Any], label: str) -> str:
    """Milliseconds, or why there are none."""
    return r["made"].get(label, {}).get("failed", r.get("failed", "")).replace("|", "/") or number(r.get("ms", {}).get(label))


def number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}g}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def ratio(above: float | None, below: float | None) -> str:
    return "-" if above is None or below is None else f"{above / below:.2f}"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODELS)} (all)")
    top.add_argument("--small", action="store_true", help="the small configurations")
    top.add_argument("--rounds", type=int, default=30)
    top.add_argument("--measure", action="store_true", help="partition by measuring as well")
    top.add_argument("--without", default="", metavar="WAY,...", help=f"leave out, of {', '.join(LABELS)}")
    top.add_argument("--tolerance", type=float, default=2e-4, help="largest error that passes, over the largest magnitude (%(default)s)")
    top.add_argument("--out", type=Path, default=HERE.parent / "results")
    top.add_argument("--only", type=Path, help=argparse.SUPPRESS)  # one model, in this process, with this folder for files
    top.add_argument("--reload", type=Path, help=argparse.SUPPRESS)  # one model from this file
    return top


def main() -> int:
    given = parser().parse_args()
    if unknown := set(given.names) - set(MODELS):
        parser().error(f"no model {', '.join(sorted(unknown))}")
    names = given.names or list(MODELS)
    if given.reload:
        print(reloaded(names[0], given.small, given.reload))
        return 0
    if given.only:
        left_out = {*given.without.split(","), *([] if given.measure else ["measured"])}
        labels = [label for label in LABELS if label not in left_out]
        print(HEADING + json.dumps(one(names[0], given.small, given.rounds, labels, given.only)))
        return 0
    rows = []
    facts = machine.describe() | {"torch": torch.__version__}
    with machine.alone():
        for name in names:
            rows.append(row(child(name, given)))
            print(f"{name}: {'; '.join(faults(rows[-1], given.tolerance)) or 'agrees'}; {rows[-1].get('ms', '')}", flush=True)
    failed = any(faults(r, given.tolerance) for r in rows)
    stem = given.out / f"models-{machine.name()}{'-small' * given.small}"
    record = {"machine": facts, "rounds": given.rounds, "measure": given.measure}
    rows = beside(stem.with_suffix(".json"), record, rows) if given.rounds else rows
    text = page(rows, given, facts, given.tolerance)
    if given.rounds:
        given.out.mkdir(parents=True, exist_ok=True)
        stem.with_suffix(".json").write_text(json.dumps({**record, "rows": rows}, indent=1) + "\n")
        stem.with_suffix(".md").write_text(text)
    print(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
