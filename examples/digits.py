"""Handwritten digits: a network of TC layers learns as one of PyTorch's does, in eager mode and compiled.

The digits are those of scikit-learn where that is installed, otherwise drawn here: strokes of seven segments with noise.
"""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import tcjit

tc = tcjit.define("""
def hidden(float(N,K) X, float(M,K) W, float(M) b) -> (Y) {
    Z(n, m) +=! X(n, k) * W(m, k)
    Y(n, m)   = relu(Z(n, m) + b(m))
}
def classes(float(N,K) X, float(M,K) W, float(M) b) -> (Y) {
    Y(n, m) +=! X(n, k) * W(m, k)
    Y(n, m)   = Y(n, m) + b(m)
}
""", saved=["Z"])


def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    """1,797 pictures of 8 x 8, as scikit-learn has them."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        generator, pictures = torch.Generator().manual_seed(0), torch.zeros(10, 8, 8)
        upper, lower, across = slice(0, 4), slice(4, 8), slice(1, 7)
        strokes = [(0, across), (upper, 6), (lower, 6), (7, across), (lower, 1), (upper, 1), (3, across)]
        for digit, lit in enumerate(("012345", "12", "01346", "01236", "1256", "02356", "023456", "012", "0123456", "012356")):
            for stroke in lit:
                pictures[(digit, *strokes[int(stroke)])] = 16.0
        labels = torch.randint(0, 10, (1797,), generator=generator)
        noise = torch.randn(1797, 8, 8, generator=generator) * 6
        return (pictures[labels] + noise).clamp(0, 16).reshape(-1, 64), labels
    found = load_digits()
    return torch.tensor(found.data, dtype=torch.float32), torch.tensor(found.target)


def curve(model: nn.Module, run: Callable[..., Any]) -> list[float]:
    """The accuracy on the last 297 pictures after each of eight rounds over the others."""
    step, accuracy = torch.optim.Adam(model.parameters(), lr=5e-3), []
    for _ in range(8):
        for batch in range(0, 1500, 100):
            step.zero_grad()
            logits = run(pictures[batch : batch + 100])
            nn.functional.cross_entropy(logits, labels[batch : batch + 100]).backward()
            step.step()
        with torch.no_grad():
            right = sum(int((run(pictures[at : at + 99]).argmax(1) == labels[at : at + 99]).sum()) for at in (1500, 1599, 1698))
        accuracy.append(right / 297)
    return accuracy


torch.manual_seed(0)
pictures, labels = drawn()
order = torch.randperm(1797)
pictures, labels = pictures[order] / 16, labels[order]
plain = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
own = nn.Sequential(
    tcjit.nn.layer(tc.hidden, {"W": (32, 64), "b": (32,)}),
    tcjit.nn.layer(tc.classes, {"W": (10, 32), "b": (10,)}),
)
with torch.no_grad():
    for mine, other in zip(own.parameters(), plain.parameters()):
        mine.copy_(other)
other = copy.deepcopy(own)
curves = {
    "PyTorch": curve(plain, plain),
    "TC layers": curve(own, own),
    "compiled": curve(other, torch.compile(other, fullgraph=True, backend="tcjit")),
}
for name, accuracy in curves.items():
    print(f"{name:10}", *(f"{each:.3f}" for each in accuracy))
wanted = curves.pop("PyTorch")
near = all(abs(a - b) < 0.02 for accuracy in curves.values() for a, b in zip(accuracy, wanted))
print(f"the same curve: {near}, above 0.9: {min(wanted[-1], *(accuracy[-1] for accuracy in curves.values())) > 0.9}")
