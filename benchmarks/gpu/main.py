"""The command ``benchmarks/gpu.py``."""
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from gpu.contenders import CONTENDERS, DEFAULT
from gpu.device import missing
from gpu.measure import Settings
from gpu.run import BENCHMARKS, Run, starter, temporary, write
from gpu.suites import SUITES, choose

ABOUT = """tcjit's kernels on an NVIDIA GPU beside eager PyTorch, torch.compile and Triton: interleaved, checked, as parts of the ceilings.

    gpu.py --quick                    a choice of operators, about five minutes
    gpu.py                            all of them
    gpu.py --only tc,softmax_4096     suites and operators by name; --update keeps the file's other rows
    gpu.py --dry-run --only mlp3      tiny sizes on the CPU: tries the benchmark, measures nothing

README.md beside this file tells how a measurement is made."""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--quick", action="store_true", help="fewer operators, fewer samples")
    top.add_argument("--only", default="", metavar="NAME,...", help="operators, or whole suites: " + ", ".join(SUITES))
    top.add_argument("--peers", default=",".join(DEFAULT), metavar="NAME,...", help="of " + ", ".join(CONTENDERS) + " (%(default)s)")
    top.add_argument("--max-autotune", action="store_true", help="torch.compile's max-autotune as well")
    top.add_argument("--seconds", type=float, help="begin no operator after so long; the rest is named in the page")
    top.add_argument("--patience", type=float, default=120.0, help="seconds that one contender may take (%(default)s)")
    top.add_argument("--out", type=Path, help="the results' file (benchmarks/results/gpu-<machine>.json)")
    top.add_argument("--update", action="store_true", help="keep the rows of the file that are not measured now")
    top.add_argument("--resume", action="store_true", help="as --update, without what this version of the code has measured")
    top.add_argument("--dry-run", action="store_true", help="on the CPU, at tiny sizes")
    top.add_argument("--list", action="store_true", help="print the operators and their sizes")
    return top


def peers(text: str, tuned: bool) -> tuple[str, ...]:
    """The contenders named; SystemExit for one that does not exist."""
    chosen = tuple(dict.fromkeys([*text.split(","), *(["max-autotune"] if tuned else [])]))
    if unknown := [name for name in chosen if name not in CONTENDERS]:
        raise SystemExit(f"no contender {', '.join(unknown)}; there are {', '.join(CONTENDERS)}")
    return tuple(name for name in CONTENDERS if name in chosen)


def main(given: list[str] | None = None) -> int:
    options = parser().parse_args(given)
    entries = choose(tuple(filter(None, options.only.split(","))), options.quick)
    if options.list:
        for entry in entries:
            dims = " ".join(f"{name}={extent}" for name, extent in entry.dims.items())
            print(f"{entry.name:20s} {entry.suite:12s} {'quick' if entry.quick else '':6s} {dims}")
        return 0
    if not options.dry_run and (reason := missing()):
        print(f"{reason}; --dry-run tries the benchmark on the CPU", file=sys.stderr)
        return 1
    budget = 10.0 if options.dry_run else 100.0 if options.quick else 300.0
    settings = Settings(peers(options.peers, options.max_autotune), options.quick, options.dry_run, budget)
    log = (options.out or BENCHMARKS / "results" / "gpu").with_suffix(".log")
    with temporary() as folder:
        run = Run(settings, starter(settings, log, Path(folder)), options.patience)
        try:
            name = run.begin()
            out = options.out or BENCHMARKS / "results" / f"gpu-{name}.json"
            if (options.update or options.resume) and out.exists():
                run.results["rows"] = json.loads(out.read_text())["rows"]
            if options.resume:
                entries = [entry for entry in entries if entry.name not in run.measured()]
            write(run.results, out)
            run.all(entries, out, options.seconds)
        finally:
            run.close()
    print(f"{out}\n{out.with_suffix('.md')}")
    return 0
