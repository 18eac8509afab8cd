#!/usr/bin/env python3
"""Side-by-side CPU benchmark of tcjit and its peers: interleaved, checked against float64, one process per peer.

    bench.py quick                                          all ops, the peers at hand, into benchmarks/results/
    bench.py run --peers torch_eager,jax_jit --ops key      what you name
    bench.py table results/a.json results/b.json            files merged into one page
    bench.py list                                           ops and peers

README.md beside this file tells how a measurement is made and how to add an op or a peer.
"""
from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import machine  # noqa: E402 - the path above comes first
import measure  # noqa: E402
import report  # noqa: E402
from ops import OPS  # noqa: E402

RESULTS = HERE.parent / "results"
QUICK_PEERS = "torch_eager,torch_compile,jax_jit,numba_par,tcjit"


def choose_ops(text: str) -> tuple[str, ...]:
    """``all``, ``key``, or names with commas between; SystemExit names one that does not exist."""
    if text == "all":
        return tuple(OPS)
    if text == "key":
        return tuple(name for name, op in OPS.items() if op.key)
    chosen = tuple(text.split(","))
    if unknown := [name for name in chosen if name not in OPS]:
        raise SystemExit(f"no op {', '.join(unknown)}; there are {', '.join(OPS)}")
    return chosen


def settings(arguments: argparse.Namespace) -> measure.Settings:
    return measure.Settings(
        peers=tuple(arguments.peers.split(",")),
        ops=choose_ops(arguments.ops),
        out=arguments.out,
        threads=arguments.threads,
        rounds=arguments.rounds,
        budget_s=arguments.budget,
        quiet_s=arguments.quiet,
        timed=not arguments.no_time,
        warm_heap=arguments.warm_heap,
        cache=arguments.cache,
        env=tuple(arguments.env),
    )


def run(arguments: argparse.Namespace) -> None:
    """Measure, write the JSON file and its page."""
    measure.run(settings(arguments))
    page = arguments.out.with_suffix(".md")
    page.write_text(report.page([arguments.out], arguments.ceilings))
    print(f"{arguments.out}\n{page}")


def table(arguments: argparse.Namespace) -> None:
    print(report.page(arguments.files, arguments.ceilings), end="")


def listing(arguments: argparse.Namespace) -> None:
    for op in OPS.values():
        dims = " ".join(f"{name}={extent}" for name, extent in op.dims.items())
        print(f"{op.name:10s} {op.group:22s} {op.flops / 1e6:9.1f} MFLOP {op.bytes / 1e6:8.1f} MB  {dims}")
    print("\npeers:")
    for peer in measure.peer_names():
        try:
            print(f"{peer:22s} {measure.interpreter(peer)}")
        except LookupError as error:
            print(f"{peer:22s} skipped: {error}")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(required=True)
    stem = RESULTS / f"cpu-{machine.name()}"
    ceilings = RESULTS / f"ceilings-{machine.name()}.jsonl"
    for name, rounds, text in (("quick", 5, "sane defaults"), ("run", 7, "what you name")):
        command = commands.add_parser(name, help=text)
        command.set_defaults(function=run)
        needed = {"default": QUICK_PEERS} if name == "quick" else {"required": True}
        command.add_argument("--peers", **needed, help="names with commas between")
        command.add_argument("--ops", default="all", help="all, key, or names with commas between")
        command.add_argument("--out", type=Path, default=stem.with_suffix(".json"), help="the results' file (%(default)s)")
        command.add_argument("--rounds", type=int, default=rounds, help="interleaved rounds (%(default)s)")
        command.add_argument("--threads", type=int, default=machine.cores(), help="threads of every peer (%(default)s)")
        command.add_argument("--budget", type=float, default=0.08, help="seconds per op, peer and round (%(default)s)")
        command.add_argument("--quiet", type=float, default=1.0, help="longest wait for an idle machine before a round, s (%(default)s)")
        command.add_argument("--cache", type=Path, help="keep the peers' compile caches here: run twice for a second process's latency")
        command.add_argument("--warm-heap", action="store_true", help="malloc keeps big blocks: no page faults for fresh outputs")
        command.add_argument("--no-time", action="store_true", help="build and first call only")
        command.add_argument("--env", action="append", default=[], metavar="K=V", help="a variable for the workers")
        command.add_argument("--ceilings", type=Path, default=ceilings, help="what micro/ceil printed (%(default)s)")
    merged = commands.add_parser("table", help="files merged into one page")
    merged.set_defaults(function=table)
    merged.add_argument("files", nargs="+", type=Path)
    merged.add_argument("--ceilings", type=Path, default=ceilings, help="what micro/ceil printed (%(default)s)")
    commands.add_parser("list", help="ops and peers").set_defaults(function=listing)
    return top


if __name__ == "__main__":
    given = parser().parse_args()
    given.function(given)
