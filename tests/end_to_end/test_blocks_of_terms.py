"""Products of operands whose terms lie in lines apart: all tiles sum a block of terms before the next.

Modules: mapping.passes.block_panels mapping.nest.plan_nest
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import tcjit
from tcjit.jit.targets import cpu


@pytest.fixture(autouse=True)
def caches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of 256 KB for each of two cores; kernels depend on more than their keys say."""
    machine_of, threads = cpu.machine_of, torch.get_num_threads()
    monkeypatch.setattr(cpu, "machine_of", lambda *args: replace(machine_of(*args), cache_bytes=1 << 18, threads=2))
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("m", "n", "k"), [(128, 128, 1024), (131, 133, 3000), (160, 67, 1500)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    """Each thread has a block of the results; the order of sums does not depend on threads."""
    name = "float" if dtype is torch.float32 else "double"
    text = f"def f({name}(K,M) A, {name}(K,N) B) -> (C) {{ C(m,n) +=! A(k,m) * B(k,n) }}"
    torch.manual_seed(0)
    a, b = torch.randn(k, m, dtype=dtype), torch.randn(k, n, dtype=dtype)
    kernel = tcjit.define(text, target="cpu").f.compile(a, b)
    (nest,) = (line for line in kernel.resources["reductions"] if ": loops " in line)
    dims = nest.split(": loops ")[1].split(",")[0].split()
    assert dims.index("k") <= 1 and dims[0] in ("k", "m_block", "n_block"), kernel.resources["reductions"]
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(kernel(a, b))
    assert all(torch.equal(one, results[0]) for one in results)
    wide = a.double().T @ b.double()
    assert (results[0] - wide).abs().max() <= 64 * torch.finfo(dtype).eps * wide.abs().max()


def test_statements_behind_a_product() -> None:
    """They follow its last block; results that it adds to are there before the first."""
    text = """def f(float(K,M) A, float(K,N) B, float(N) b, float(M,N) D) -> (C, Y) {
        C(m,n) = D(m,n)
        C(m,n) += A(k,m) * B(k,n)
        Y(m,n) = fmax(C(m,n) + b(n), 0.0) }"""
    torch.manual_seed(0)
    a, b, bias, d = torch.randn(1100, 130), torch.randn(1100, 131), torch.randn(131), torch.randn(130, 131)
    c, y = tcjit.define(text, target="cpu").f(a, b, bias, d)
    wide = a.double().T @ b.double() + d
    assert (c - wide).abs().max() <= 1e-5 * wide.abs().max() and torch.equal(y, torch.relu(c + bias))
