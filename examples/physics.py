"""A network that solves u'' = -pi^2 sin(pi x) with u = 0 at both ends: second derivatives of defs, compiled as one graph and trained.

The loss holds derivatives by the network's input, and its gradients are third derivatives: adjoints of adjoints of adjoints.
"""
from __future__ import annotations

import math

import torch

import tcjit

tc = tcjit.define("""
def hidden(float(N,K) X, float(M,K) W, float(M) b) -> (Y) {
    Z(n, m) +=! X(n, k) * W(m, k)
    Y(n, m)   = tanh(Z(n, m) + b(m))
}
def linear(float(N,K) X, float(M,K) W, float(M) b) -> (Y) {
    Y(n, m) +=! X(n, k) * W(m, k)
    Y(n, m)   = Y(n, m) + b(m)
}
""")
torch._dynamo.config.trace_autograd_ops = True  # so that torch.autograd.grad may stand inside of what is compiled
torch.manual_seed(0)
network = torch.nn.Sequential(
    tcjit.nn.layer(tc.hidden, {"W": (16, 1), "b": (16,)}, initialisers={"W": torch.nn.init.normal_, "b": torch.nn.init.normal_}),
    tcjit.nn.layer(tc.hidden, {"W": (16, 16), "b": (16,)}),
    tcjit.nn.layer(tc.linear, {"W": (1, 16), "b": (1,)}),
)


def residual(x: torch.Tensor) -> torch.Tensor:
    """The mean square of u'' + pi^2 sin(pi x), and that of u at both ends."""
    u = network(x)
    (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (curve,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
    ends = network(torch.tensor([[0.0], [1.0]]))
    return (curve + math.pi**2 * torch.sin(math.pi * x)).square().mean() + 100 * ends.square().mean()


x = torch.linspace(0, 1, 32)[:, None].requires_grad_()
compiled = torch.compile(residual, fullgraph=True, backend="tcjit")
found = torch.autograd.grad(compiled(x), list(network.parameters()))
wanted = torch.autograd.grad(residual(x), list(network.parameters()))
print("compiled gradients are those of eager:", all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(found, wanted)))

step = torch.optim.LBFGS(network.parameters(), max_iter=300, line_search_fn="strong_wolfe")


def closure() -> torch.Tensor:
    step.zero_grad()
    loss = compiled(x)
    loss.backward()
    return loss


step.step(closure)
with torch.no_grad():
    error = float((network(x) - torch.sin(math.pi * x)).abs().max())
print(f"greatest error of the solution: {error:.1e}, below 0.01: {error < 1e-2}")
