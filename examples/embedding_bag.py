"""Rows of a table gathered by an integer tensor and summed. An index outside the table is an error, never a wild read."""

from __future__ import annotations

import torch

import tcjit

tc = tcjit.define("""
def bag(float(V,D) T, int64(B,L) Idx) -> (Y) {
    Y(b, d) +=! T(Idx(b, l), d)
}
""")

generator = torch.Generator().manual_seed(0)
T = torch.randn(1000, 32, generator=generator)
Idx = torch.randint(0, 1000, (16, 20), generator=generator)

Y = tc.bag(T, Idx)
print("close to PyTorch:", torch.allclose(Y, torch.nn.functional.embedding_bag(Idx, T, mode="sum"), atol=1e-4))

Idx[3, 7] = 1000
try:
    tc.bag(T, Idx)
except IndexError as error:  # a tcjit.GatherError is one
    print(f"{type(error).__name__}: {error}")
