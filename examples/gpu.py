"""The same program on a GPU: on an NVIDIA one where there is one, else through OpenCL, which PoCL brings to a CPU.

Prints the schedule tree and the source of a normalisation of rows. docs/gpu.md tells how to read them.
"""

from __future__ import annotations

import torch

import tcjit

tc = tcjit.define("""
def rms_norm(float(N,D) X, float(D) G, float eps) -> (Y) {
    S(n)  +=! X(n, d) * X(n, d)
    Y(n, d) = X(n, d) * rsqrt(S(n) / D + eps) * G(d)
}
""")

on_cuda = torch.cuda.is_available()
place, target = ("cuda", "cuda") if on_cuda else ("cpu", "opencl")
generator = torch.Generator().manual_seed(0)
X, G = (torch.randn(*shape, generator=generator).to(place) for shape in ((64, 1000), (1000,)))

kernel = tc.rms_norm.compile(X, G, 1e-5, target=target)
print(kernel.tree)
print(kernel.source)

Y = kernel(X, G, 1e-5)
tcjit.synchronize()  # a kernel on a GPU may still run, and raises here what it flagged
expected = X * torch.rsqrt((X * X).mean(1, keepdim=True) + 1e-5) * G
print("close to PyTorch:", torch.allclose(Y, expected, rtol=1e-4, atol=1e-4))
kernel.check(X, G, 1e-5)  # against the reference interpreter; raises if they differ
print(f"agrees with the reference on {kernel.target}, proved: {kernel.resources['verified']}")
