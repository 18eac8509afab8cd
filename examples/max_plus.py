"""A layer that PyTorch has no fused operator for: the greatest of sums, where a linear layer has the sum of products.

In PyTorch the sums are a tensor of batch x outputs x inputs, kept for the gradient. Here they are never stored, and the adjoint finds
the winners again: memory is that of inputs, weights and results.
"""
from __future__ import annotations

import torch

import tcjit

tc = tcjit.define("""
def max_plus(float(N,K) X, float(M,K) W) -> (Y) {
    Y(n, m) max=! X(n, k) + W(m, k)
}
""")


def reference(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x[:, None] + w).amax(2)


torch.manual_seed(0)
x, w = torch.randn(64, 20, requires_grad=True), torch.randn(8, 20, requires_grad=True)
cotangent = torch.randn(64, 8)
found = torch.autograd.grad(tc.max_plus(x, w), (x, w), cotangent)
wanted = torch.autograd.grad(reference(x, w), (x, w), cotangent)
print("gradients are PyTorch's:", all(torch.allclose(a, b, atol=1e-5) for a, b in zip(found, wanted)))
result = tc.max_plus(x, w)  # older versions of PyTorch free what is saved with it
kept = sum(each.numel() for each in result.grad_fn.saved_tensors)
print(f"kept for the gradient: {kept} numbers, fewer than {64 * 8 * 20}: {kept < 64 * 8 * 20}")

target = torch.randn(8, 20).sort(1).values
data = torch.randn(512, 20)
wanted_results = reference(data, target)
layer = tcjit.nn.layer(tc.max_plus, {"W": (8, 20)}, initialisers={"W": torch.nn.init.zeros_})
compiled = torch.compile(layer, fullgraph=True, backend="tcjit")
step = torch.optim.Adam(layer.parameters(), lr=0.05)
losses = []
for _ in range(200):
    step.zero_grad()
    loss = (compiled(data) - wanted_results).square().mean()
    loss.backward()
    step.step()
    losses.append(float(loss))
print(f"the loss falls from {losses[0]:.2f} to {losses[-1]:.1e}, below 0.001: {losses[-1] < 1e-3}")
