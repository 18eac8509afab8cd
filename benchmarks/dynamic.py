"""Dynamic kernels beside kernels for one shape: ``python benchmarks/dynamic.py``.

Six operators are called at a hundred batch sizes with the batch dynamic: how many kernels that compiles, and at some of the sizes how its
calls compare with those of a kernel compiled for that size alone. The two take turns, many rounds of short runs; a ratio is that of the
medians.
"""
from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

import tcjit
from tcjit.runtime import timing

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
import machine  # noqa: E402
from ops import OPS, Op  # noqa: E402

# operator -> the size that is the batch, and the greatest value of it
OPERATORS = {
    "mm_1024": ("M", 1024),
    "mlp1": ("B", 2048),
    "softmax": ("M", 1024),
    "conv2d": ("N", 64),
    "layernorm": ("M", 2048),
    "tbmm": ("B", 2000),
}


@dataclass
class Found:
    """What one operator did."""

    name: str
    compiled: int
    seconds: float  # of all compilations of dynamic kernels
    ratios: dict[int, float]  # batch -> time of the dynamic kernel over that of the fixed one

    @property
    def mean(self) -> float:
        return math.exp(statistics.fmean(math.log(ratio) for ratio in self.ratios.values()))


def batches(greatest: int, count: int) -> list[int]:
    """Values from 1 on, evenly spread on a logarithmic scale as far as they are different."""
    found = {max(1, round(greatest ** (n / (count - 1)))) for n in range(count)}
    more = (n for n in range(1, greatest + 1) if n not in found)
    while len(found) < min(count, greatest):
        found.add(next(more))
    return sorted(found)


def arguments(op: Op, size: str, value: int) -> list[torch.Tensor]:
    """Inputs with another batch: extents that are the operator's own batch, in the dimensions of the source that have its name."""
    definition = tcjit.define(op.source, target="reference")[op.entry].signature
    shapes = [
        tuple(value if dim == size else extent for dim, extent in zip(param.dims, given.shape))
        for param, given in zip(definition.params, op.inputs)
    ]
    return [torch.randn(shape) / math.sqrt(shape[-1]) for shape in shapes]


def interleaved(ways: tuple[Callable[[], object], ...], rounds: int, seconds: float) -> list[float]:
    """Median seconds of a call, by way."""
    calls = timing.calls_for(seconds, timing.reading(ways[0]))
    readers = {number: partial(timing.reading, way, calls) for number, way in enumerate(ways)}
    times = timing.interleaved(readers, rounds, timing.rotated)
    return [statistics.median(readings) for readings in times.values()]


def measure(name: str, count: int, sample: int, rounds: int, target: str | None) -> Found:
    op, (size, greatest) = OPS[name], OPERATORS[name]
    called = tcjit.define(op.source, target=target, dynamic=[size])[op.entry]
    values = batches(greatest, count)
    fixed = tcjit.define(op.source, target=target)[op.entry]
    seconds, ratios = 0.0, {}
    wanted = {values[round(n * (len(values) - 1) / (sample - 1))] for n in range(sample)}
    with torch.no_grad():
        for value in values:
            given = arguments(op, size, value)
            before, start = len(called._dynamic_kernels), time.perf_counter()
            result = called(*given)
            seconds += (time.perf_counter() - start) * (len(called._dynamic_kernels) - before)
            if value not in wanted:
                continue
            kernel = fixed.compile(*given)
            expected = kernel(*given)
            for got, right in zip(*((r if isinstance(r, tuple) else (r,)) for r in (result, expected))):
                torch.testing.assert_close(got, right, rtol=1e-3, atol=1e-3)
            for _ in range(3):  # both on the fast path
                called(*given), kernel(*given)
            times = interleaved((partial(called, *given), partial(kernel, *given)), rounds, 0.01)
            ratios[value] = times[0] / times[1]
    return Found(name, len(called._dynamic_kernels), seconds, ratios)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(OPERATORS), choices=list(OPERATORS))
    parser.add_argument("--count", type=int, default=100, help="batch sizes")
    parser.add_argument("--sample", type=int, default=12, help="of these, how many are measured against kernels of their own")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--target", default=None)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    found = []
    print(f"{asked.count} batch sizes; dynamic over fixed at {asked.sample} of them, {asked.rounds} rounds, {machine.name()}")
    print("| operator | batch up to | kernels | seconds to compile | mean | worst |\n|---|---|---|---|---|---|")
    for name in asked.only:
        made = measure(name, asked.count, asked.sample, asked.rounds, asked.target)
        found.append(made)
        worst = max(made.ratios, key=lambda value: made.ratios[value])
        print(
            f"| {name} | {OPERATORS[name][1]} | {made.compiled} | {made.seconds:.1f} | {made.mean:.2f} |"
            f" {made.ratios[worst]:.2f} at {worst} |",
            flush=True,
        )
    if asked.json:
        asked.json.write_text(json.dumps([{**vars(each), "mean": each.mean} for each in found], indent=1))
    return 0 if all(each.compiled <= 3 and each.mean <= 1.3 for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
