"""Operators drawn at random, beside eager PyTorch and ``torch.compile``: ``python benchmarks/generality/run.py [--count 200] [--quick]``.

The operators of a seed are numbered within their families, ``softmax/3``. They run in processes of a few operators each: one that dies
costs the operator that it was at, and that is reported. The exit status is 1 where a result was wrong or a process died.
"""
from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE.parent), str(HERE.parent / "peers"), str(HERE.parents[1])]

import machine  # noqa: E402 - the path above comes first
import measure as peers  # noqa: E402

from generality import report  # noqa: E402
from generality.families import FAMILIES, numbered  # noqa: E402

RESULT, BEGIN = "result: ", "begin: "
OPERATOR_S = 240.0  # an operator that takes longer, torch.compile's limit aside, is given up

Record = dict[str, Any]


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="of the operators; a fresh one by default, which is printed")
    parser.add_argument("--count", type=int, default=200, help="operators, the same number of each family")
    parser.add_argument("--family", type=lambda text: text.split(","), default=list(FAMILIES), help="of " + ", ".join(FAMILIES))
    parser.add_argument("--peers", type=lambda text: text.split(","), help="of eager, compile; both by default")
    parser.add_argument("--quick", action="store_true", help="beside eager only")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no operator after so long")
    parser.add_argument("--chunk", type=int, default=16, help="operators that share a process; 1: each has its own")
    parser.add_argument("--threads", type=int, default=machine.cores())
    parser.add_argument("--rounds", type=int, default=15, help="0 only checks results")
    parser.add_argument("--compile-seconds", type=float, default=60.0, help="the longest that torch.compile may take for an operator")
    parser.add_argument("--json", type=Path, help="a file for all rows")
    parser.add_argument("--one", metavar="FAMILY/NUMBER", help="one operator of the seed: its definition, plan, and the file of its C text")
    parser.add_argument("--child", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--ceilings", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    unknown = [name for name in given.family if name not in FAMILIES]
    if unknown:
        parser.error(f"no family {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    given.peers = given.peers or (["eager"] if given.quick else ["eager", "compile"])
    return given


def chosen(families: Sequence[str], count: int) -> list[str]:
    """The numbers of so many operators, by turns of the families.

    >>> chosen(["scan", "pool"], 3)
    ['scan/0', 'pool/0', 'scan/1']
    """
    return [f"{families[n % len(families)]}/{n // len(families)}" for n in range(count)]


def operator(seed: int, label: str) -> Any:
    family, _, number = label.partition("/")
    return numbered(seed, family, int(number))


# ---------------------------------------------------------------- in a process of its own


def child(given: argparse.Namespace) -> None:
    """Measure the operators named, and write a line when one begins and one with its record."""
    from generality.ceilings import Ceilings
    from generality.measure import Settings, compiled, measure

    settings = Settings(tuple(given.peers), given.rounds, compile_s=given.compile_seconds)
    ceilings = Ceilings.from_json(given.ceilings)
    first = operator(0, "broadcast/0")
    compiled(first, first.tensors(0))  # so that none of the others pays for what is done once in a process
    for label in given.child:
        print(BEGIN + label, flush=True)
        record: Record = {"id": label}
        try:
            op = operator(given.seed, label)
            record |= {"family": op.family, "name": op.name, "text": op.text, "arguments": [str(a) for a in op.arguments]}
            record |= measure(op, zlib.crc32(label.encode()) ^ given.seed, settings, ceilings)
        except Exception as error:
            record |= {"kind": "failed", "error": f"{type(error).__name__}: {error}"[:1000]}
        print(RESULT + json.dumps(record), flush=True)


def children(labels: Sequence[str], given: argparse.Namespace, environment: dict[str, str], end: float) -> Iterator[Record]:
    """The records of all operators, from one process after the other."""
    rest = list(labels)
    while rest and time.monotonic() < end:
        for record in process(rest[: given.chunk], given, environment, end):
            rest.remove(record["id"])
            yield record


def process(labels: Sequence[str], given: argparse.Namespace, environment: dict[str, str], end: float) -> Iterator[Record]:
    """The records of one process; the last says how it ended where that was too soon. It is ended when the time is over."""
    command = [sys.executable, __file__, "--child", *labels, "--seed", str(given.seed), "--peers", ",".join(given.peers)]
    command += ["--rounds", str(given.rounds), "--compile-seconds", str(given.compile_seconds), "--ceilings", given.ceilings]
    with tempfile.TemporaryFile("w+") as errors:
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        assert running.stdout is not None
        begun, timer = "", threading.Timer(0, lambda: None)
        try:
            for line in running.stdout:
                if line.startswith(BEGIN):
                    if time.monotonic() > end:
                        return
                    begun = line.removeprefix(BEGIN).strip()
                    timer = threading.Timer(OPERATOR_S + given.compile_seconds, running.kill)
                    timer.start()
                elif line.startswith(RESULT):
                    timer.cancel()
                    begun = ""
                    yield json.loads(line.removeprefix(RESULT))
        finally:
            timer.cancel()
            running.kill()
            status = running.wait()
        if begun:
            errors.seek(0)
            last = (errors.read().strip().splitlines() or ["nothing said"])[-1]
            yield died(given.seed, begun, f"its process ended with status {status}: {last[:300]}")
        elif status > 0:
            raise RuntimeError(f"a process that measures ended with status {status}")


def died(seed: int, label: str, error: str) -> Record:
    op = operator(seed, label)
    sizes = [str(argument) for argument in op.arguments]
    return {"id": label, "family": op.family, "name": op.name, "text": op.text, "arguments": sizes, "kind": "failed", "error": error}


# ---------------------------------------------------------------- the whole run


def environment(threads: int, folder: str) -> dict[str, str]:
    """Threads pinned as for all peers, empty caches, no processes of torch.compile's own."""
    settings = peers.Settings(peers=(), ops=(), out=Path(folder), threads=threads)
    caches = {"TCJIT_CACHE_DIR": f"{folder}/tcjit", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    return peers.environment(settings, Path(folder)) | caches


def one(given: argparse.Namespace) -> int:
    """Build one operator, say how it was made, and leave its C text in a file."""
    from generality.measure import compiled, description, difference

    op = operator(given.seed, given.one)
    tensors = op.tensors(zlib.crc32(given.one.encode()) ^ given.seed)
    _, kernel, result, seconds = compiled(op, tensors)
    with tempfile.NamedTemporaryFile("w", prefix=given.one.replace("/", "-") + "-", suffix=".c", delete=False) as file:
        file.write(kernel.source)
    print(f"{op.family} {op.name}\n{op.text}\n" + "\n".join(map(str, op.arguments)))
    for name, value in description(kernel).items():
        print(f"{name}: " + ("\n  ".join(["", *value]) if isinstance(value, list) else str(value)))
    print(f"first call: {seconds:.2f} s\nC text: {file.name}")
    wrong = difference(op, tensors, result)
    print(f"WRONG: {wrong}" if wrong else "agrees with the reference")
    return 1 if wrong else 0


def main(argv: Sequence[str] | None = None) -> int:
    given = arguments(argv)
    if given.child is not None:
        child(given)
        return 0
    given.seed = random.SystemRandom().randrange(1 << 31) if given.seed is None else given.seed
    if given.one:
        return one(given)
    print(f"seed {given.seed}, {machine.name()}, {given.threads} threads, beside {', '.join(given.peers)}", flush=True)
    from generality.ceilings import measure

    given.ceilings = measure().to_json()
    print(report.HEADER, flush=True)
    records: list[Record] = []
    end = time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory(prefix="tcjit-generality-") as folder:
        try:
            for record in children(chosen(given.family, given.count), given, environment(given.threads, folder), end):
                records.append(record)
                print(report.line(record), flush=True)
        except KeyboardInterrupt:
            print("interrupted")
    print("\n" + report.summary(records))
    if given.json:
        facts = {"seed": given.seed, "machine": machine.describe(), "threads": given.threads, "peers": given.peers}
        given.json.write_text(json.dumps({**facts, "ceilings": json.loads(given.ceilings), "rows": records}, indent=1) + "\n")
    return 1 if any(record["kind"] in ("wrong", "failed") for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
