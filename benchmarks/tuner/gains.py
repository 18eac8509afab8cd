"""What tuning brings on a CPU: ``python benchmarks/tuner/gains.py [--trials 128] [--rounds 30] [OPS...]``.

Each operator of the peers' suite (by default its ten key ones) is tuned; then, in fresh processes, the tuned kernel takes turns with
the untuned default, with the default once more, and with every preset, over so many rounds. Where tensors come to lie in memory can make
one kernel faster than another, hence several processes and, for the default once more, tensors of its own. Ratios are taken within a round;
the noise is what the default differs from itself there. Writes ``benchmarks/results/tuner-<machine>.json`` and ``.md``.
"""
from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))

import machine  # noqa: E402
from ops import OPS  # noqa: E402

PROCESSES = 6  # processes that compare
READING = 2e-3  # seconds that one reading covers at least


def tune(name: str, trials: int, seed: int) -> dict[str, Any]:
    """Tune an operator; numbers of the search."""
    import torch

    import tcjit

    op = OPS[name]
    arguments = [torch.from_numpy(array).clone() for array in op.make_inputs().values()]  # aligned as torch aligns
    function = getattr(tcjit.define(op.source), op.entry)
    start = time.perf_counter()
    result = function.autotune(*arguments, config=tcjit.TunerConfig(trials=trials, seed=seed))
    seconds = time.perf_counter() - start
    counts = result.trials
    options = {k: v for k, v in result.options.to_dict().items() if v != tcjit.Options().to_dict()[k]}
    return {"options": options, "seconds": seconds, **counts, "a_second": (counts["measured"] + counts["same"]) / seconds}


def compare(name: str, rounds: int) -> dict[str, Any]:
    """Median seconds of the tuned kernel, of the default twice, and of each preset, in turns."""
    import torch

    import tcjit
    from tcjit.mapping.options import PRESETS
    from tcjit.runtime import timing

    op = OPS[name]
    arguments = [torch.from_numpy(array).clone() for array in op.make_inputs().values()]  # aligned as torch aligns
    function = getattr(tcjit.define(op.source), op.entry)
    kernels = {"tuned": function.compile(*arguments)}
    kernels["default"] = kernels["again"] = function.compile(*arguments, options=tcjit.Options())
    plain = kernels["default"].source
    for preset, options in PRESETS.items():
        kernel = function.compile(*arguments, options=options)
        if preset != "naive" and kernel.source != plain:
            kernels[preset] = kernel
    kernels["tuned"].check(*arguments) if op.flops < 1e7 else None
    tensors = [*arguments, kernels["default"](*arguments)]
    places = dict.fromkeys(kernels, tensors) | {"again": copy.deepcopy(tensors)}
    calls = {label: partial(kernel, *places[label][:-1], out=places[label][-1]) for label, kernel in kernels.items()}
    counts = {label: timing.calls_for(READING, min(timing.reading(call) for _ in range(3))) for label, call in calls.items()}

    def read(label: str) -> float:
        timing.reading(calls[label])  # in the caches is what this kernel leaves there, not what another one did
        return timing.reading(calls[label], counts[label])

    def settle() -> None:
        machine.wait_until_quiet(1.0)
        timing.reading(calls["default"], counts["default"])  # wakes the threads up, which would cost the first one

    # in a fixed order each would suffer from the same one before it
    times = timing.interleaved({label: partial(read, label) for label in kernels}, rounds, timing.shuffled(), before=settle)
    return {"same_code": kernels["tuned"].source == plain, "origin": str(kernels["tuned"].record.get("origin")), "times": times}


def row(name: str, tuned: dict[str, Any], compared: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of ratios within rounds, in which machine noise cancels out."""
    from tcjit.runtime.timing import ratios

    every = {label: [seconds for each in compared for seconds in each["times"][label]] for label in compared[0]["times"]}
    times = {label: statistics.median(values) for label, values in every.items()}
    presets = {label: value for label, value in times.items() if label not in ("tuned", "default", "again")}
    default = [math.sqrt(one * two) for one, two in zip(every["default"], every["again"], strict=True)]
    noise = statistics.median(abs(ratio - 1) for ratio in ratios(every["default"], every["again"]))
    gain = statistics.median(ratios(default, every["tuned"]))
    best = min(presets, key=lambda label: presets[label], default="")
    over = statistics.median(ratios(every[best], every["tuned"])) if best else gain
    return {
        "op": name,
        "tuned_ms": 1e3 * times["tuned"],
        "default_ms": 1e3 * statistics.median(default),
        "gain": gain,
        "noise": noise,
        "best_preset": best,
        "over_preset": over,
        "same_code": compared[0]["same_code"],
        "search": tuned,
    }


def page(rows: list[dict[str, Any]], facts: dict[str, Any], rounds: int) -> str:
    gain = math.exp(statistics.mean(math.log(r["gain"]) for r in rows))
    lines = [
        f"# Tuned against untuned on {facts['cpu']}, {facts['cores']} cores", "",
        f"`python benchmarks/tuner/gains.py`: {rounds} interleaved rounds in {PROCESSES} fresh processes; the gain is the median of the",
        "ratios within a round, the noise the median of how far two readings of the default in one round are apart.",
        "",
        "| op | tuned ms | untuned ms | gain | noise | over the best preset | trials, s | options |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for r in rows:
        options = ", ".join(f"{k}={v}" for k, v in r["search"]["options"].items()) or "the defaults"
        count = sum(r["search"][state] for state in ("measured", "same", "pruned", "failed"))
        lines.append(
            f"| {r['op']} | {r['tuned_ms']:.4g} | {r['default_ms']:.4g} | {r['gain']:.2f} | {100 * r['noise']:.1f} % | "
            f"{r['over_preset']:.2f} ({r['best_preset'] or 'same code'}) | {count}, {r['search']['seconds']:.0f} | {options} |"
        )
    slower = [r["op"] for r in rows if r["gain"] < 1 - r["noise"]]
    rate = sum(r["search"]["a_second"] * r["search"]["seconds"] for r in rows) / sum(r["search"]["seconds"] for r in rows)
    lines += [
        "",
        f"Geometric mean of the gains: {gain:.2f}. Slower than untuned beyond noise: {', '.join(slower) or 'none'}. "
        f"The untuned default reaches {min(1 / r['gain'] for r in rows):.2f} of tuned at least. {rate:.1f} candidates a second.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops", nargs="*", default=[name for name, op in OPS.items() if op.key])
    parser.add_argument("--trials", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE.parent / "results")
    parser.add_argument("--only", choices=["tune", "compare"], help=argparse.SUPPRESS)  # one step, in a process of its own
    given = parser.parse_args()
    if given.only:
        rounds = math.ceil(given.rounds / PROCESSES)
        step = tune(given.ops[0], given.trials, given.seed) if given.only == "tune" else compare(given.ops[0], rounds)
        print(json.dumps(step))
        return

    def child(name: str, step: str) -> dict[str, Any]:
        settings = ["--trials", str(given.trials), "--rounds", str(given.rounds), "--seed", str(given.seed)]
        run = subprocess.run(
            [sys.executable, __file__, name, "--only", step, *settings], stdout=subprocess.PIPE, text=True, check=True
        )  # fmt: skip
        found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
        return found

    rows = []
    with machine.alone():
        for name in given.ops:
            tuned = child(name, "tune")
            rows.append(row(name, tuned, [child(name, "compare") for _ in range(PROCESSES)]))
            print(f"{name}: gain {rows[-1]['gain']:.2f}, noise {rows[-1]['noise']:.3f}, {tuned}", flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    stem = given.out / f"tuner-{machine.name()}"
    stem.with_suffix(".json").write_text(json.dumps({"machine": machine.describe(), "rows": rows}, indent=1) + "\n")
    text = page(rows, machine.describe(), given.rounds)
    stem.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
