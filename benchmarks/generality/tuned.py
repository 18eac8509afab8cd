"""What tuning adds to operators drawn at random: ``python benchmarks/generality/tuned.py [--count 60] [--trials 48] [--seed S]``.

Each operator that takes at most ``--most`` milliseconds is tuned; then the untuned kernel and the tuned one take turns. The ratio is the
median of the tuned kernel's time over the untuned one's: 1 where tuning finds nothing better.
"""
from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE.parent), str(HERE.parent / "peers"), str(HERE.parents[1])]

import machine  # noqa: E402 - the path above comes first
from clock import median  # noqa: E402

from generality.families import FAMILIES, numbered  # noqa: E402
from generality.operators import Operator  # noqa: E402

READING_S = 0.05
ROUNDS = 9
LOW = 0.85  # ratios below it are counted


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="of the operators; a fresh one by default, which is printed")
    parser.add_argument("--count", type=int, default=60, help="operators, the same number of each family")
    parser.add_argument("--family", type=lambda text: text.split(","), default=list(FAMILIES), help="of " + ", ".join(FAMILIES))
    parser.add_argument("--trials", type=int, default=48)
    parser.add_argument("--most", type=float, default=8.0, help="milliseconds of an operator; longer ones are passed over")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no operator after so long")
    given = parser.parse_args(argv)
    seed = random.SystemRandom().randrange(1 << 31) if given.seed is None else given.seed
    print(f"seed {seed}, {machine.name()}, {machine.cores()} threads, {given.trials} trials each", flush=True)
    print(f"{'operator':28} {'untuned us':>12} {'tuned us':>12} {'ratio':>6} {'s':>6}  options", flush=True)
    ratios: list[float] = []
    number, end = 0, time.monotonic() + given.seconds
    while len(ratios) < given.count and time.monotonic() < end:
        label = f"{given.family[number % len(given.family)]}/{number // len(given.family)}"
        family, _, place = label.partition("/")
        if (ratio := _compare(numbered(seed, family, int(place)), label, seed, given.trials, given.most)) is not None:
            ratios.append(ratio)
        number += 1
    if not ratios:
        print("nothing was timed")
        return 1
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    print(f"\n{len(ratios)} tuned: untuned at {mean:.3f} of tuned in the geometric mean, {sum(r < LOW for r in ratios)} below {LOW}")
    return 0


def _compare(op: Operator, label: str, seed: int, trials: int, most: float) -> float | None:
    """Tune an operator and print its row; None where it takes too long."""
    import tcjit

    tensors = op.tensors(zlib.crc32(label.encode()) ^ seed)
    function = tcjit.define(op.text)[op.entry]
    untuned = function.compile(*tensors, options=tcjit.Options())
    if median(lambda: untuned(*tensors), READING_S) > most * 1e-3:
        return None
    begin = time.perf_counter()
    options = function.autotune(*tensors, config=tcjit.TunerConfig(trials=trials, seed=seed)).options
    seconds = time.perf_counter() - begin
    tuned = function.compile(*tensors, options=options)
    readings = [(median(lambda: untuned(*tensors), READING_S), median(lambda: tuned(*tensors), READING_S)) for _ in range(ROUNDS)]
    before, after = (statistics.median(column) for column in zip(*readings, strict=True))
    ratio = 1.0 if tuned.source == untuned.source else statistics.median(b / a for a, b in readings)
    plain = tcjit.Options().to_dict()
    changes = {name: value for name, value in options.to_dict().items() if value != plain[name]}
    print(f"{label:28} {before * 1e6:12.1f} {after * 1e6:12.1f} {ratio:6.2f} {seconds:6.1f}  {changes or 'the defaults'}", flush=True)
    return ratio


if __name__ == "__main__":
    import os

    import torch

    torch.set_num_threads(machine.cores())
    with tempfile.TemporaryDirectory(prefix="tcjit-tuned-") as folder:
        os.environ["TCJIT_CACHE_DIR"] = folder
        sys.exit(main())
