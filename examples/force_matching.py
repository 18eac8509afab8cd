"""Potentials learned from forces, which are derivatives of an energy inside of what is compiled; the loss is differentiated through them.

The energy is one def over all pairs of atoms, a sum of Gaussians of their distances; the Gaussians of all pairs are never stored.
"""
from __future__ import annotations

import torch

import tcjit

tc = tcjit.define("""
def energy(double(N,D) X, double(K) w, double(K) centre, double width) -> (E) {
    R(i, j) +=! (X(i, d) - X(j, d)) * (X(i, d) - X(j, d))
    E       +=! i < j ? w(k) * exp(-(sqrt(R(i, j)) - centre(k)) * (sqrt(R(i, j)) - centre(k)) / width) : 0.0 where j in 0:N
}
""")
torch._dynamo.config.trace_autograd_ops = True
generator = torch.Generator().manual_seed(0)
centre = torch.linspace(0.5, 3, 6, dtype=torch.float64)
truth = torch.randn(6, generator=generator, dtype=torch.float64)
places = [torch.randn(8, 3, generator=generator, dtype=torch.float64) * 1.5 for _ in range(4)]


def forces(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return -torch.autograd.grad(tc.energy(x, w, centre, 0.3), x, create_graph=True)[0]


def mismatch(x: torch.Tensor, w: torch.Tensor, measured: torch.Tensor) -> torch.Tensor:
    return (forces(x, w) - measured).square().sum()


def pairs(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The same energy in PyTorch."""
    i, j = torch.triu_indices(len(x), len(x), 1)
    r = (x[i] - x[j]).norm(dim=1)
    return (w * torch.exp(-(r[:, None] - centre).square() / 0.3)).sum()


x = places[0].clone().requires_grad_()
wanted = -torch.autograd.grad(pairs(x, truth), x)[0]
print("forces are PyTorch's:", torch.allclose(forces(x, truth), wanted))

compiled = torch.compile(mismatch, fullgraph=True, backend="tcjit")
w = torch.zeros(6, dtype=torch.float64, requires_grad=True)
data = [(each.requires_grad_(), forces(each, truth).detach()) for each in places]
found, eager = (torch.autograd.grad(run(*data[0][:1], w, data[0][1]), w)[0] for run in (compiled, mismatch))
print("compiled gradients are those of eager:", torch.allclose(found, eager))
step = torch.optim.LBFGS([w], max_iter=60, line_search_fn="strong_wolfe")


def closure() -> torch.Tensor:
    step.zero_grad()
    loss = torch.stack([compiled(x, w, measured) for x, measured in data]).sum()
    loss.backward()
    return loss


step.step(closure)
print("the potential is found:", torch.allclose(w.detach(), truth, atol=1e-3))
