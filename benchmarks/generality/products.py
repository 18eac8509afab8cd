"""Products of matrices drawn at random, stored either way, beside PyTorch: ``python benchmarks/generality/products.py [--seed S]``;
with ``--batched`` several of each size at once, as ``torch.bmm`` has them.

Extents are log-uniform, so that long and thin matrices are as frequent as square ones: gradients of weights sum over many rows. The ratio
is PyTorch's time over tcjit's, the median of rounds in turns, with as many threads.
"""
from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE.parent), str(HERE.parent / "peers"), str(HERE.parents[1])]

LAYOUTS = ("NN", "NT", "TN", "TT")  # of both operands: as they are multiplied, or transposed
EXTENTS = (3, 12.5)  # powers of two between which extents are drawn
OF_BATCHES = (2, 8.5)  # the same of matrices of which there are several,
BATCHES = (1, 8)  # and of how many
WORK = (2e6, 3e9)  # multiply-adds
MOST = 3e7  # elements of a matrix
ALIGNED = 16  # some extents are multiples of
TOLERANCE = {"float": 1e-5, "double": 1e-12}  # largest error over largest magnitude


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="of the products; a fresh one by default, which is printed")
    parser.add_argument("--count", type=int, default=14, help="products of each of the four layouts")
    parser.add_argument("--batched", action="store_true", help="products of several matrices of the same size")
    parser.add_argument("--only", default="", help="products with commas between them, as they are printed: TN:256x256x4000:float")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="of all rounds of a product together")
    options = parser.parse_args(argv)
    import machine
    import torch

    torch.set_num_threads(options.threads)
    from generality.measure import Settings

    settings = Settings(("torch",), options.rounds, options.seconds)
    seed = random.SystemRandom().randrange(1 << 30) if options.seed is None else options.seed
    print(f"seed {seed}, {machine.name()}, {options.threads} threads")
    print(f"{'product [b x] m x n x k':28s} {'tcjit us':>9s} {'torch us':>9s} ratio  plan")
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="tcjit-products-") as folder:
        os.environ["TCJIT_CACHE_DIR"] = folder
        for name in options.only.split(",") if options.only else drawn(seed, options.count, options.batched):
            ratios[name] = timed(name, settings)
    mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
    print(f"{len(ratios)} products: geometric mean {mean:.3f}, least {min(ratios.values()):.2f} ({min(ratios, key=ratios.__getitem__)})")
    return 0


def drawn(seed: int, count: int, batched: bool = False) -> Iterator[str]:
    """Names of ``count`` products of each layout."""
    draw = random.Random(seed)
    for layout in LAYOUTS:
        for _ in range(count):
            while True:
                b = round(2 ** draw.uniform(*BATCHES)) if batched else 1
                m, n, k = (round(2 ** draw.uniform(*(OF_BATCHES if batched else EXTENTS))) for _ in range(3))
                if WORK[0] < b * m * n * k < WORK[1] and b * max(m * k, n * k, m * n) < MOST:
                    break
            if draw.random() < 0.4:
                m, n, k = (-(-extent // ALIGNED) * ALIGNED for extent in (m, n, k))
            batch = f"{b}x" if batched else ""
            yield f"{layout}:{batch}{m}x{n}x{k}:{draw.choice(('float', 'float', 'double'))}"


def timed(name: str, settings: Any) -> float:
    """How much longer PyTorch takes for a product; its results are compared in double."""
    import torch

    import tcjit
    from generality.measure import in_turns

    layout, extents, dtype = name.split(":")
    *batch, m, n, k = map(int, extents.split("x"))
    shapes = [(*batch, m, k) if layout[0] == "N" else (*batch, k, m), (*batch, k, n) if layout[1] == "N" else (*batch, n, k)]
    of_each = "b," if batch else ""
    dims = [of_each + ("m,k" if layout[0] == "N" else "k,m"), of_each + ("k,n" if layout[1] == "N" else "n,k")]
    a, b = (torch.randn(shape, dtype=torch.float32 if dtype == "float" else torch.float64) for shape in shapes)
    parameters = ", ".join(f"{dtype}({own.upper()}) {tensor}" for tensor, own in zip("XY", dims, strict=True))
    kernel = f"product_{extents}"  # one def for all would become dynamic: a kernel for many sizes
    function = tcjit.define(f"def {kernel}({parameters}) -> (C) {{ C({of_each}m,n) +=! X({dims[0]}) * Y({dims[1]}) }}")[kernel]
    left, right = a if layout[0] == "N" else a.mT, b if layout[1] == "N" else b.mT
    expected = left.double() @ right.double()
    error = float((function(a, b) - expected).abs().max() / expected.abs().max())
    assert error <= TOLERANCE[dtype], f"{name}: an error of {error:.1e}"
    calls: dict[str, Callable[[], Any]] = {"tcjit": partial(function, a, b), "torch": partial(torch.matmul, left, right)}
    record = in_turns(calls, settings)
    plan = "; ".join(line for line in function.compile(a, b).resources["reductions"] if ": loops " in line)
    print(f"{name:28s} {record['tcjit_us']:9.1f} {record['torch_us']:9.1f} {record['ratio']:5.2f}  {plan}", flush=True)
    return float(record["ratio"])


if __name__ == "__main__":
    sys.exit(main())
