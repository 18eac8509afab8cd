"""Small products in one block for each thread, which packs what it needs by itself: which blocks, and the results.

Modules: mapping.passes.block_panels mapping.nest.stage_operands mapping.nest.strip_mine
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from support.mapping import AVX512, program

import tcjit
from tcjit.errors import MappingError
from tcjit.mapping.extract import extract
from tcjit.mapping.nest.strip_mine import split_divisions
from tcjit.mapping.options import Options
from tcjit.mapping.passes.block_panels import block_panels
from tcjit.mapping.passes.fuse_outer_loops import under_loops
from tcjit.mapping.scop import OuterLoops

PRODUCT = "def f(float(M,K) A, float(N,K) B) -> (C) { C(m,n) +=! A(m,k) * B(n,k) }"


def outer(shapes: dict[str, tuple[int, ...]], threads: int = 2) -> OuterLoops | None:
    machine = replace(AVX512, threads=threads)
    return block_panels(extract(program(PRODUCT, shapes)), Options(), machine).assignments[0].outer


def test_blocks_of_columns_or_rows() -> None:
    """Rows where threads would write parts of the same lines otherwise, nothing where the packing is little beside the rest."""
    found = outer({"A": (128, 32), "B": (256, 32)})
    assert found is not None and found.private and found.dims == ("n_block",)
    found = outer({"A": (153, 22), "B": (246, 22)})
    assert found is not None and found.private and found.dims == ("m_block",)
    assert outer({"A": (8, 8), "B": (64, 8)}) is None, "not worth threads"
    assert outer({"A": (4096, 64), "B": (64, 64)}) is None


def test_each_thread_packs_the_other_operand(threads: int) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(153, 22), torch.randn(246, 22)
    kernel = tcjit.define(PRODUCT, target="cpu").f.compile(a, b)
    assert kernel.resources["reductions"][0] == "outer loops m_block shared by B_staged C"
    assert "tc_slice" in kernel.source and kernel.resources["workspace"] < (threads + 1) * 256 * 22 * 4
    torch.testing.assert_close(kernel(a, b).double(), a.double() @ b.double().t(), rtol=1e-5, atol=1e-5)


def test_matrices_of_a_batch(threads: int) -> None:
    """Each is packed where it is used, in as much memory as one takes, where nothing of them is shared."""
    text = "def f(float(B,M,K) X, float(B,N,K) Y) -> (C) { C(b,m,n) +=! X(b,m,k) * Y(b,n,k) }"
    torch.manual_seed(0)
    x, y = torch.randn(52, 133, 73), torch.randn(52, 61, 73)
    kernel = tcjit.define(text, target="cpu").f.compile(x, y)
    assert kernel.resources["reductions"][0] == "outer loops b shared by Y_staged C"
    assert kernel.resources["workspace"] < (threads + 1) * 128 * 73 * 4
    torch.testing.assert_close(kernel(x, y).double(), x.double() @ y.double().mT, rtol=1e-5, atol=1e-5)


def test_random_products(threads: int) -> None:
    """Layouts, sizes, types, and what follows a product."""
    private = 0
    for seed in range(24):
        draw = random.Random(seed)
        m, n, k = draw.randint(8, 120), draw.randint(20, 160), draw.randint(4, 60)
        dtype = draw.choice(["float", "double", "bfloat16"])
        left, right = draw.choice([("M,K", "m,k"), ("K,M", "k,m")]), draw.choice([("N,K", "n,k"), ("N,K", "n,k"), ("K,N", "k,n")])
        rest = draw.choice(["", "Y(i,j) = C(i,j) * C(i,j)", "C(m,n) = fmax(C(m,n), 0.0)"])
        text = f"def f({dtype}({left[0]}) A, {dtype}({right[0]}) B) -> ({'Y' if 'Y' in rest else 'C'}) "
        text += f"{{ C(m,n) +=! A({left[1]}) * B({right[1]})  {rest} }}"
        sizes = {"M": m, "N": n, "K": k}
        torch.manual_seed(seed)
        kind = getattr(torch, {"float": "float32", "double": "float64"}.get(dtype, dtype))
        a, b = (torch.randn([sizes[one] for one in names.split(",")]).to(kind) for names, _ in (left, right))
        kernel = tcjit.define(text, target="cpu").f.compile(a, b)
        product = (a if left[0] == "M,K" else a.t()).double() @ (b if right[0] == "K,N" else b.t()).double()
        wanted = product * product if "Y" in rest else torch.relu(product) if rest else product
        tolerance = {"float": 1e-5, "double": 1e-12, "bfloat16": 2e-2}[dtype]
        torch.testing.assert_close(kernel(a, b).double(), wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max()))
        private += any(line.startswith("outer") for line in kernel.resources["reductions"])
    assert private > 4, "some of them run in blocks"


def test_the_last_block_in_digits() -> None:
    """Filters in groups: a thread has two groups, the last one has one; where that cuts a group, there are no blocks of digits."""
    text = """def f(float(N,C,H,W) X, float(F,D,3,3) K) -> (O) {
        O(n,f,h,w) +=! X(n,f/5*5 + c,h+kh,w+kw) * K(f,c,kh,kw) where h in 0:H-2, w in 0:W-2, f in 0:F
    }"""
    a = extract(program(text, {"X": (1, 15, 10, 13), "K": (15, 5, 3, 3)})).assignments[0]
    for points, rest in ((5, ("f_block1", 1)), (10, ("f_block1", 2)), (7, None)):
        blocks = under_loops(a, 0, [("f", 10)], private=True)
        assert blocks.outer is not None and blocks.outer.rest == ("f", 5)
        shared = replace(blocks, outer=replace(blocks.outer, rest=("f", points)))
        if rest is None:
            with pytest.raises(MappingError, match="does not have all values of a digit"):
                split_divisions(shared, {})
        else:
            divided = split_divisions(shared, {})[0]
            assert divided.outer is not None and divided.outer.rest == rest
