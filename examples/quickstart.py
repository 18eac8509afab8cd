"""A small classifier of handwritten digits, trained with PyTorch and run with its layers written as tensor comprehensions.

make quickstart
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

import tcjit

LAYERS = """
# a 3x3 convolution with zero padding, bias and ReLU
def features(float(N,C,H,W) X, float(O,C,KH,KW) K, float(O) b) -> (Y) {
    Y(n, o, h, w) +=! (inside ? X(n, c, h + kh - 1, w + kw - 1) : 0.0) * K(o, c, kh, kw)
        where h in 0:H, w in 0:W,
              inside = h + kh >= 1 && h + kh <= H && w + kw >= 1 && w + kw <= W
    Y(n, o, h, w)   = fmax(Y(n, o, h, w) + b(o), 0.0)
}
# a dense layer over channels and pixels, bias and ReLU
def hidden(float(N,C,H,W) X, float(O,C,H,W) K, float(O) b) -> (Y) {
    Y(n, o) +=! X(n, c, h, w) * K(o, c, h, w)
    Y(n, o)   = fmax(Y(n, o) + b(o), 0.0)
}
# a dense layer, and a softmax that cannot overflow
def classes(float(N,I) X, float(O,I) K, float(O) b) -> (P) {
    Z(n, o) +=! X(n, i) * K(o, i)
    Z(n, o)   = Z(n, o) + b(o)
    M(n)  max=! Z(n, o)
    E(n, o)   = exp(Z(n, o) - M(n))
    S(n)    +=! E(n, o)
    P(n, o)   = E(n, o) / S(n)
}
"""
TRAIN = 1297  # of 1797 images; the rest measures accuracy


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images (N, 1, 8, 8) in 0..1 and labels, for training and for testing, shuffled with a fixed seed."""
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images = (torch.from_numpy(data.images).float() / 16)[order].unsqueeze(1)
    labels = torch.from_numpy(data.target)[order]
    return images[:TRAIN], labels[:TRAIN], images[TRAIN:], labels[TRAIN:]


def train(images: Tensor, labels: Tensor, epochs: int = 15) -> nn.Sequential:
    """Plain PyTorch, nothing of tcjit."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 8 * 8, 64), nn.ReLU(), nn.Linear(64, 10))
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(128):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimiser.step()
    return model.eval()


def weights(model: nn.Sequential) -> list[Tensor]:
    """Kernel and bias of each layer, in the shapes that LAYERS declares."""
    with torch.no_grad():
        k1, b1, k2, b2, k3, b3 = (p.detach() for p in model.parameters())
        return [k1, b1, k2.view(64, 16, 8, 8), b2, k3, b3]


def predict(tc: Any, images: Tensor, w: list[Tensor]) -> Tensor:
    """Probabilities (N, 10), every layer a comprehension."""
    probabilities: Tensor = tc.classes(tc.hidden(tc.features(images, w[0], w[1]), w[2], w[3]), w[4], w[5])
    return probabilities


def interleaved(calls: dict[str, Callable[[], object]], rounds: int = 30) -> dict[str, float]:
    """The median seconds of each call; taking turns, they meet the same disturbances."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def first_call() -> None:
    """What a child process prints: seconds from the first ``define`` to the first result, everything imported before."""
    shapes = [(16, 1, 3, 3), (16,), (64, 16, 8, 8), (64,), (10, 64), (10,)]
    arguments = torch.zeros(500, 1, 8, 8), [torch.zeros(*shape) for shape in shapes]
    torch.zeros(2) + 1  # torch's own first operator is slow
    start = time.perf_counter()
    predict(tcjit.define(LAYERS), *arguments)
    print(json.dumps(time.perf_counter() - start))


def two_processes() -> tuple[float, float]:
    """Seconds of the first prediction with an empty cache, and then in a new process with what that one left behind."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TCJIT_CACHE_DIR": folder}
        command = [sys.executable, __file__, "--first-call"]
        cold, warm = (float(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout) for _ in range(2))
    return cold, warm


def excerpt(source: str, lines: int = 44) -> str:
    """The last parallel loop of a kernel's C text, cut to some lines."""
    kept = source.rstrip().splitlines()
    start = max((i for i, line in enumerate(kept) if "omp parallel" in line), default=0)
    rest = len(kept) - start - lines
    return "\n".join(kept[start : start + lines] + ([f"/* ... {rest} more lines */"] if rest > 0 else []))


def main() -> None:
    console = Console()
    train_images, train_labels, images, labels = digits()
    start = time.perf_counter()
    model = train(train_images, train_labels)
    console.print(f"Trained on {TRAIN} images of handwritten digits with plain PyTorch in {time.perf_counter() - start:.1f} s.")

    console.rule("The same layers, as strings", align="left")
    console.print(LAYERS.strip(), highlight=False, markup=False, soft_wrap=True)
    w = weights(model)
    tc = tcjit.define(LAYERS)
    ours = predict(tc, images, w)
    with torch.no_grad():
        theirs = torch.softmax(model(images), 1)
    difference = (ours - theirs).abs().max().item()
    same = int((ours.argmax(1) == theirs.argmax(1)).sum())

    console.rule(f"On {len(images)} images never seen in training", align="left")
    with torch.no_grad():
        times = interleaved({"PyTorch, eager": lambda: torch.softmax(model(images), 1), "tcjit": lambda: predict(tc, images, w)})
    table = Table("", "accuracy", "ms for all images", box=None)
    for (name, seconds), result in zip(times.items(), (theirs, ours)):
        table.add_row(name, f"{(result.argmax(1) == labels).float().mean().item():.1%}", f"{seconds * 1e3:.2f}")
    console.print(table)
    console.print(f"Same digit for {same} of {len(images)} images; largest difference of a probability: {difference:.1e}.")

    console.rule("What runs: the generated C of the softmax, its temporaries a row long", align="left")
    kernel = tc.classes.compile(torch.empty(len(images), 64), w[4], w[5])
    console.print(Syntax(excerpt(kernel.source), "c", background_color="default"))

    console.rule("What the cache saves", align="left")
    cold, warm = two_processes()
    console.print(f"First prediction of a process: {cold * 1e3:.0f} ms with an empty cache, {warm * 1e3:.1f} ms in the process after it.")
    if same != len(images) or difference > 1e-4:
        console.print("The predictions differ more than rounding explains: please report this.", style="bold red")
        sys.exit(1)


if __name__ == "__main__":
    first_call() if "--first-call" in sys.argv else main()
