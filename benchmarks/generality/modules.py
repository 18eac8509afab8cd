"""Small modules drawn at random, partitioned by estimate, beside eager PyTorch, and pointwise chains beside ``torch.compile`` as well:
``python benchmarks/generality/modules.py [--kind chain] [--count 100] [--seed 7]``.

A module is a product or a convolution and two to six pointwise operations, reductions or normalisations, whose first result has 1e4 to 1e7
elements; a chain is one to eight pointwise operations. Both are float32. Results are compared with the module in float64.
"""
from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE.parent), str(HERE.parent / "peers"), str(HERE.parents[1])]

LEAST, MOST = 1e4, 1e7  # elements of the first result
FLOPS = 2e10  # of the product or convolution, at most
TOLERANCE = 1e-3  # largest error over largest magnitude; or ALLOWED times that of PyTorch
ALLOWED = 4
TAKES_AWAY = ("mean", "sum 0", "logsumexp")  # a dimension: once, and last
COMPILE_S = 60.0  # the longest that torch.compile may take

POINTWISE: dict[str, Callable[[Any], Any]] = {}
ROWS: dict[str, Callable[[Any], Any]] = {}


def operations() -> None:
    """Fill the tables; torch is imported after the number of threads is set."""
    import torch
    import torch.nn.functional as F

    POINTWISE.update(
        {
            "relu": F.relu, "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "mish": F.mish,
            "hardswish": F.hardswish, "leaky_relu": F.leaky_relu, "elu": F.elu, "softplus": F.softplus, "square": torch.square,
            "abs": torch.abs, "clamp": lambda x: x.clamp(-2.0, 2.0), "scale": lambda x: x * 0.7, "shift": lambda x: x + 0.5,
            "exp": lambda x: torch.exp(-x.abs()), "rsqrt": lambda x: torch.rsqrt(x * x + 1.0),
            "gate": lambda x: x * torch.sigmoid(1.702 * x),
            "where": lambda x: torch.where(x > 0, x, 0.1 * x),
        }
    )  # fmt: skip
    ROWS.update(
        {
            "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]), "softmax": lambda x: F.softmax(x, -1),
            "softmax 1": lambda x: F.softmax(x, 1), "log_softmax": lambda x: F.log_softmax(x, -1),
            "rms": lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5), "centred": lambda x: x - x.mean(-1, keepdim=True),
            "normalize": lambda x: F.normalize(x, dim=1), "amax": lambda x: x - x.amax(1, keepdim=True), "mean": lambda x: x.mean(-1),
            "sum 0": lambda x: x.sum(0), "logsumexp": lambda x: torch.logsumexp(x, -1),
        }
    )  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """``product`` and its extents, "" for a chain; ``steps``: names of operations; add, mul and bias have an input of their own."""

    product: str
    extents: tuple[int, ...]
    steps: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.product or 'chain'} {'x'.join(map(str, self.extents))}: {', '.join(self.steps)}"


def log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def rounded(rng: random.Random, size: float) -> int:
    """An odd number or a multiple of a power of two, one as likely as the other."""
    unit = rng.choice([u for u in (1, 2, 4, 8, 16, 32, 64) if u <= max(size, 1)])
    return max(1, round(size / unit) * unit) if rng.random() < 0.5 else max(1, int(size) | 1)


def chain(rng: random.Random) -> Drawn:
    elements, rank = log_uniform(rng, LEAST, MOST), rng.choice([2, 2, 3, 4])
    shares = [rng.uniform(0.3, 1.0) for _ in range(rank)]
    extents = tuple(rounded(rng, elements ** (share / sum(shares))) for share in shares)
    length = rng.randint(1, 8)
    return Drawn("", extents, tuple(rng.choice([*POINTWISE, "add", "mul", "bias"]) for _ in range(length)))


def module(rng: random.Random) -> Drawn:
    """A product ``(B) T C F`` or a convolution ``N C H W F K S G``, and what follows."""
    elements = log_uniform(rng, LEAST, MOST)
    product = rng.choice(["linear", "linear", "linear 3d", "matmul", "conv2d", "conv2d", "conv1d"])
    if product.startswith("conv"):
        n, size = rng.choice([1, 2, 4, 8]), log_uniform(rng, 8, 64) if product == "conv2d" else log_uniform(rng, 32, 1024)
        area = size * size if product == "conv2d" else size
        out = min(512, max(4, rounded(rng, elements / n / area)))
        kernel, stride = rng.choice([1, 3, 3, 5]), rng.choice([1, 1, 2])
        taps = kernel**2 if product == "conv2d" else kernel
        most = FLOPS / (2 * n * area * out * taps)
        into = max(1, rounded(rng, min(most, log_uniform(rng, 3, 256))))
        extents: tuple[int, ...] = (n, into, rounded(rng, size * stride), out, kernel, stride)
    else:
        columns = rounded(rng, min(elements / 8, log_uniform(rng, 16, 2048)))
        rows = max(1, rounded(rng, elements / columns))
        terms = rounded(rng, min(FLOPS / (2 * rows * columns), log_uniform(rng, 16, 2048)))
        batch = rng.choice([2, 4, 8]) if product == "linear 3d" else 1
        extents = (batch, max(1, rows // batch), terms, columns)
    names = (list(ROWS), [*POINTWISE, "add", "mul", "bias"])
    steps = [rng.choice(names[rng.random() >= 0.3]) for _ in range(rng.randint(2, 6))]
    last = [name for name in steps if name in TAKES_AWAY][:1]
    steps = [name for name in steps if name not in TAKES_AWAY] + last
    return Drawn(product, extents, tuple(steps))


def built(drawn: Drawn, seed: int) -> tuple[Any, tuple[Any, ...]]:
    """The module and its inputs."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    first: Any = None
    second: tuple[int, ...] | None = None
    if drawn.product.startswith("conv"):
        n, into, size, out, kernel, stride = drawn.extents
        kind = nn.Conv2d if drawn.product == "conv2d" else nn.Conv1d
        first = kind(into, out, kernel, stride=stride, padding=kernel // 2)
        shape: tuple[int, ...] = (n, into, *[size] * (2 if drawn.product == "conv2d" else 1))
    elif drawn.product:
        batch, rows, terms, columns = drawn.extents
        shape = (batch, rows, terms) if drawn.product == "linear 3d" else (rows, terms)
        if drawn.product == "matmul":
            second = (terms, columns)
        else:
            first = nn.Linear(terms, columns)
    else:
        shape = drawn.extents
    x = torch.randn(shape)
    inputs = [x]
    if second:
        inputs.append(torch.randn(second) / math.sqrt(second[0]))
    with torch.no_grad():
        value = first(x) if first is not None else x @ inputs[1] if second else x
    where = value.shape
    positions: list[int | str] = []
    for name in drawn.steps:
        if name in ("add", "mul", "bias"):
            own = where if name != "bias" else ((where[1],) + (1,) * (len(where) - 2) if drawn.product.startswith("conv") else where[-1:])
            positions.append(len(inputs))
            inputs.append(torch.randn(own))
        else:
            positions.append(name)

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = first

        def forward(self, *given: Any) -> Any:
            value = given[0] @ given[1] if second else self.first(given[0]) if self.first is not None else given[0]
            for name, position in zip(drawn.steps, positions):
                if isinstance(position, int):
                    value = value * given[position] if name == "mul" else value + given[position]
                else:
                    value = (POINTWISE | ROWS)[position](value)
            return value

    return Steps().eval().requires_grad_(False), tuple(inputs)


def measure(drawn: Drawn, seed: int, peers: Sequence[str], settings: Any) -> dict[str, Any]:
    import copy

    import torch

    import tcjit
    from generality.measure import in_turns, largest_error, limited

    made, inputs = built(drawn, seed)
    record: dict[str, Any] = {"name": str(drawn)}
    with torch.no_grad():
        start = time.perf_counter()
        fast = tcjit.partition(made, inputs)
        result = fast(*inputs)
        record |= {"first_s": time.perf_counter() - start, "summary": fast.summary(), "regions": len(fast.regions)}
        expected = copy.deepcopy(made).double()(*(tensor.double() for tensor in inputs))
        scale = max(float(expected.abs().max()), 1e-30)
        error, own = largest_error(result, expected) / scale, largest_error(made(*inputs), expected) / scale
        if not error <= max(TOLERANCE, ALLOWED * own):
            return record | {"kind": "wrong", "error": f"{error:.2g} of the largest magnitude, PyTorch's own error {own:.2g}"}
        calls: dict[str, Callable[[], Any]] = {"tcjit": partial(fast, *inputs), "eager": partial(made, *inputs)}
        if "compile" in peers:
            torch._dynamo.reset()
            calls["compile"] = partial(torch.compile(made, dynamic=False, fullgraph=True), *inputs)
            with limited(COMPILE_S):
                calls["compile"]()
        return record | {"kind": "timed"} | in_turns(calls, settings)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=["module", "chain"], default="module")
    parser.add_argument("--seed", type=int, help="a fresh one by default, which is printed")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--only", type=lambda text: [int(n) for n in text.split(",")], help="numbers of the seed")
    parser.add_argument("--peers", help="of eager, compile: for modules eager, for chains both", type=lambda text: text.split(","))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    given.peers = given.peers or (["eager"] if given.kind == "module" else ["eager", "compile"])
    given.seed = random.SystemRandom().randrange(1 << 31) if given.seed is None else given.seed
    return given


def main() -> int:
    given = arguments()
    import machine

    with tempfile.TemporaryDirectory(prefix="tcjit-modules-") as folder:
        caches = {"TCJIT_CACHE_DIR": f"{folder}/tcjit", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        os.environ |= {"OMP_NUM_THREADS": str(given.threads), **caches}
        operations()
        from generality.measure import Settings

        settings, draw = Settings(tuple(given.peers), given.rounds), chain if given.kind == "chain" else module
        print(f"{given.kind}s of seed {given.seed}, {machine.name()}, {given.threads} threads, beside {', '.join(given.peers)}")
        print("  n  ratio " + " ".join(f"{one + ' us':>10}" for one in ("tcjit", *given.peers)) + " first s regions", flush=True)
        records = []
        for number in given.only or range(given.count):
            drawn = draw(random.Random(f"{given.seed}/{given.kind}/{number}"))
            try:
                record = measure(drawn, given.seed ^ number, given.peers, settings)
            except Exception as error:  # one that fails is a row of its own, and the exit status says it
                record = {"name": str(drawn), "kind": "failed", "error": f"{type(error).__name__}: {error}"[:500]}
            records.append(record | {"number": number})
            print(line(records[-1]), flush=True)
    print(summary(records))
    if given.json:
        facts = {"seed": given.seed, "kind": given.kind, "machine": machine.describe(), "threads": given.threads}
        given.json.write_text(json.dumps({**facts, "rows": records}, indent=1) + "\n")
    return 1 if any(r["kind"] in ("wrong", "failed") for r in records) else 0


def line(record: dict[str, Any]) -> str:
    if record["kind"] != "timed":
        return f"{record['number']:3} {record['kind'].upper()} {record['name']}: {record['error']}"
    times = " ".join(f"{record[f'{one}_us']:10.1f}" for one in ("tcjit", "eager", "compile") if f"{one}_us" in record)
    disturbed = "~" if record["foreign"] > 0.12 else " "
    return f"{record['number']:3} {record['ratio']:6.2f}{disturbed}{times} {record['first_s']:7.2f} {record['regions']:7} {record['name']}"


def summary(records: Sequence[dict[str, Any]]) -> str:
    from tcjit.runtime import timing

    ratios = sorted(r["ratio"] for r in records if r["kind"] == "timed")
    counts = f"{len(ratios)} timed, {len(records) - len(ratios)} not"
    if not ratios:
        return counts
    below = f"{sum(r < 0.93 for r in ratios)} below 0.93, {sum(r < 1 for r in ratios)} below 1, least {ratios[0]:.2f}"
    return f"{counts}; geometric mean {timing.geometric_mean(ratios):.2f}, {below}"


if __name__ == "__main__":
    sys.exit(main())
