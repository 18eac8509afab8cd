"""Training steps beside eager's: ``python benchmarks/training.py [NAMES...] [--quick]``.

A step is forward, backward and the optimiser's (SGD), in float32 on the CPU. Eager, torch.compile with inductor and with the backend tcjit,
and tcjit.partition take turns, each with a copy of the model; a ratio is eager's time by that one's, so more is faster. ``error`` is the
greatest difference of a gradient in the first step from eager's, relative to the greatest of that gradient, and ``first s`` that step with
all compilation. Dropout is left out. ``--quick`` takes small models and few rounds, to see that all of it runs.
"""
from __future__ import annotations

import argparse
import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE), str(HERE / "peers"), str(HERE.parent)]

import machine  # noqa: E402 - the path above comes first
from clock import timing  # noqa: E402
from models import MODELS  # noqa: E402
from models.gpt2 import Block  # noqa: E402

ROUNDS, READING_S = 7, 0.3
QUICK_ROUNDS, QUICK_READING_S = 2, 1e-3


@dataclass(frozen=True)
class Trained:
    """``build(quick)`` gives the module, ``draw(quick)`` its arguments."""

    build: Callable[[bool], nn.Module]
    draw: Callable[[bool], tuple[Tensor, ...]]


def _mlp(quick: bool) -> nn.Module:
    width = 32 if quick else 1024
    first, second, last = nn.Linear(width, 2 * width), nn.Linear(2 * width, 2 * width), nn.Linear(2 * width, 10)
    return nn.Sequential(first, nn.GELU(), nn.LayerNorm(2 * width), second, nn.SiLU(), last)


def _transformer(quick: bool) -> nn.Module:
    width, heads = (16, 2) if quick else (256, 8)
    return nn.Sequential(*(Block(width, heads) for _ in range(1 if quick else 4)))


def _of_benchmarks(name: str, batch: int) -> Trained:
    return Trained(lambda quick: MODELS[name].make(quick), lambda quick: MODELS[name].inputs(quick, None if quick else batch))


TRAINED = {
    "mlp": Trained(_mlp, lambda quick: (torch.randn(*((8, 32) if quick else (256, 1024))),)),
    "transformer": Trained(_transformer, lambda quick: (torch.randn(*((2, 8, 16) if quick else (8, 128, 256))),)),
    "resnet18": _of_benchmarks("resnet18", 4),
    "mobilenet_v2": _of_benchmarks("mobilenet_v2", 4),
    "gpt2_small": _of_benchmarks("gpt2_small", 1),
    "bert_base": _of_benchmarks("bert_base", 1),
    "dlrm": _of_benchmarks("dlrm", 128),
}


def _partitioned(model: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[..., Any]:
    import tcjit

    return tcjit.partition(model, inputs)


WAYS: dict[str, Callable[[nn.Module, tuple[Tensor, ...]], Callable[..., Any]]] = {
    "eager": lambda model, inputs: model,
    "inductor": lambda model, inputs: torch.compile(model),
    "tcjit": lambda model, inputs: torch.compile(model, backend="tcjit"),
    "partition": _partitioned,
}


class Step:
    """A training step of a copy of a model."""

    def __init__(self, way: str, model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.model, self.inputs = copy.deepcopy(model), inputs
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=1e-6)
        torch._dynamo.reset()
        begin = time.perf_counter()
        self.run = WAYS[way](self.model, inputs)
        self()
        self.first_s = time.perf_counter() - begin
        self.gradients = {name: each.grad.clone() for name, each in self.model.named_parameters() if each.grad is not None}

    def __call__(self) -> None:
        self.optimiser.zero_grad()
        found = self.run(*self.inputs)
        results = [each for each in torch.utils._pytree.tree_leaves(found) if isinstance(each, Tensor) and each.requires_grad]
        torch.stack([each.square().mean() for each in results]).sum().backward()
        self.optimiser.step()

    def error(self, other: Step) -> float:
        """How far gradients are from those of another one; infinite where some are missing."""
        if self.gradients.keys() != other.gradients.keys():
            return float("inf")
        pairs = ((self.gradients[name], each) for name, each in other.gradients.items())
        return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-30)) for a, b in pairs)


def compared(name: str, quick: bool, ways: Sequence[str]) -> dict[str, float]:
    """Prints a line for each way; the ratios."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, inputs = TRAINED[name].build(quick), TRAINED[name].draw(quick)
    model.train().requires_grad_(True)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    steps: dict[str, Step] = {}
    for way in ("eager", *ways):
        try:
            steps[way] = Step(way, model, inputs)
        except Exception as error:  # a way that fails is a line of the table that says so
            said = (str(error).strip().splitlines() or [""])[0][:100]
            print(f"{name:14} {way:10} failed: {type(error).__name__}: {said}", flush=True)
    seconds = QUICK_READING_S if quick else READING_S
    counts = {way: timing.calls_for(seconds, timing.reading(step)) for way, step in steps.items()}
    readers = {way: partial(timing.reading, step, counts[way]) for way, step in steps.items()}
    times = timing.interleaved(readers, QUICK_ROUNDS if quick else ROUNDS, timing.shuffled(0))
    medians = {way: statistics.median(readings) for way, readings in times.items()}
    for way, step in steps.items():
        ratio, error = medians["eager"] / medians[way], step.error(steps["eager"])
        print(f"{name:14} {way:10} {medians[way] * 1e3:9.2f} {ratio:6.2f} {step.first_s:8.2f} {error:8.1e}", flush=True)
    return {way: medians["eager"] / medians[way] for way in steps}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="models, all by default: " + ", ".join(TRAINED))
    parser.add_argument("--ways", default="inductor,tcjit,partition", help="who takes part beside eager, by commas")
    parser.add_argument("--quick", action="store_true", help="small models and few rounds")
    given = parser.parse_args(argv)
    names, ways = given.names or list(TRAINED), [way for way in given.ways.split(",") if way]
    for known, asked in ((TRAINED, names), (WAYS, ways)):
        if unknown := [name for name in asked if name not in known]:
            parser.error(f"no {', '.join(unknown)}; there are {', '.join(known)}")
    print(f"{machine.name()}, {machine.cores()} threads, torch {torch.__version__}", flush=True)
    print(f"{'model':14} {'way':10} {'step ms':>9} {'ratio':>6} {'first s':>8} {'error':>8}", flush=True)
    ratios = [compared(name, given.quick, [way for way in ways if way != "eager"]) for name in names]
    for way in ways:
        found = [each[way] for each in ratios if way in each]
        if found:
            print(f"eager's time to that of {way}: geometric mean {statistics.geometric_mean(found):.2f}, least {min(found):.2f}")
    return 0


if __name__ == "__main__":
    import os

    torch.set_num_threads(machine.cores())
    with tempfile.TemporaryDirectory(prefix="tcjit-training-") as folder:
        os.environ["TCJIT_CACHE_DIR"] = folder
        sys.exit(main())
