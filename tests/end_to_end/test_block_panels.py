"""Products whose packed operand is that of one block of columns: which loops, the last block, what follows a product, and the results.

Modules: mapping.passes.block_panels
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
import torch
from support.caches import small_caches
from support.mapping import AVX512, program

import tcjit
from tcjit.errors import VerifyError
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.options import Options
from tcjit.mapping.passes import block_panels, fuse_outer_loops, parallelise
from tcjit.mapping.verify_assignments import verify_assignments

CACHE = 8192  # bytes
PRODUCT = "def f(float(M,K) A, float(N,K) B) -> (C) { C(m,n) +=! A(m,k) * B(n,k) }"
LAYER = """def f(float(M,K) A, float(N,K) B, float(N) b) -> (Y) {
    C(m,n) +=! A(m,k) * B(n,k)
    Y(r,c) = fmax(C(r,c) + b(c), 0.0) }"""
BATCH = "def f(float(B,M,K) X, float(B,N,K) Y) -> (C) { C(b,m,n) +=! X(b,m,k) * Y(b,n,k) }"
LINES = "def f(float(M,K,C,B) X, float(N,K) Y) -> (O) { O(b,c,n,m) +=! X(m,k,c,b) * Y(n,k) }"
IN_PLACE = PRODUCT.replace(" }", "  C(i,j) = 2.0 * C(i,j) }")
# text, shapes, the loops that are shared, and what runs under them
PROGRAMS: Mapping[str, tuple[str, tuple[tuple[int, ...], ...], str, str]] = {
    "whole blocks": (PRODUCT, ((300, 20), (256, 20)), "n_block", "B_staged C"),
    "the last block has fewer tiles": (PRODUCT, ((300, 20), (352, 20)), "n_block", "B_staged C"),
    "the last tile is not whole": (PRODUCT, ((300, 20), (337, 20)), "n_block", "B_staged C"),
    "epilogue": (LAYER, ((300, 20), (352, 20), (352,)), "c_block", "B_staged C Y"),
    "epilogue of a last tile": (LAYER, ((300, 20), (337, 20), (337,)), "c_block", "B_staged C Y"),
    "in place": (IN_PLACE, ((300, 20), (337, 20)), "j_block", "B_staged C"),
    "batch": (BATCH, ((12, 40, 10), (12, 33, 10)), "b", "Y_staged C"),
    "matrices in the same lines": (LINES, ((40, 10, 3, 20), (33, 10)), "c b_block", "X_staged O"),
    "all matrices in the same lines": (LINES, ((40, 10, 3, 2), (97, 10)), "b c", "X_staged O"),
    "blocks of each of a batch": (BATCH, ((3, 300, 20), (3, 337, 20)), "b n_block", "Y_staged C"),
}


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    threads = torch.get_num_threads()
    with small_caches(CACHE), pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuse_outer_loops, "MOVES", 0)  # what passes between statements is worth no loops: panels are
        yield
    torch.set_num_threads(threads)


def expected(text: str, given: list[torch.Tensor]) -> torch.Tensor:
    a, b, *bias = (one.double() for one in given)
    if text == LINES:
        return torch.einsum("mkcb,nk->bcnm", a, b)
    product = a @ b.transpose(-1, -2)
    return torch.relu(product + bias[0]) if bias else 2.0 * product if text == IN_PLACE else product


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    text, shapes, loops, tensors = PROGRAMS[name]
    torch.manual_seed(0)
    given = [torch.randn(shape) for shape in shapes]
    kernel = tcjit.define(text, target="cpu").f.compile(*given)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(kernel(*given))
    assert all(torch.equal(one, results[0]) for one in results)
    torch.testing.assert_close(results[0].double(), expected(text, given), rtol=1e-5, atol=1e-5)
    assert [line for line in kernel.resources["reductions"] if line.startswith("outer")] == [f"outer loops {loops} shared by {tensors}"]
    whole = given[tensors.startswith("Y") or tensors.startswith("B")].numel() * 4  # of what is packed
    assert "tc_slice" in kernel.source and kernel.resources["workspace"] < whole


def test_no_copy_under_the_loops_of_a_product_without_blocks() -> None:
    one = tcjit.define(PRODUCT, target="cpu").f.compile(torch.ones(300, 20), torch.ones(64, 20))
    assert not any(line.startswith("outer") for line in one.resources["reductions"])  # the cache holds it all
    alone = tcjit.define(PRODUCT, target="cpu").f.compile(torch.ones(300, 20), torch.ones(256, 20), options=Options(parallel=False))
    assert not any(line.startswith("outer") for line in alone.resources["reductions"])


@pytest.mark.parametrize("shard", range(2))
def test_random_products(shard: int) -> None:
    """Layouts, sizes and types; what the caches are too small for has no blocks, and the same results."""
    blocks = 0
    for seed in range(shard, 40, 2):
        draw = random.Random(seed)
        m, n, k = draw.randint(8, 300), draw.randint(60, 400), draw.randint(4, 40)
        left, right = draw.choice([("M,K", "m,k"), ("K,M", "k,m")]), draw.choice([("N,K", "n,k"), ("K,N", "k,n")])
        dtype = draw.choice(["float", "double", "bfloat16"])
        start = draw.choice(["", "C(m,n) = C(m,n) + 1.0", "Y(i,j) = C(i,j) * C(i,j)"])
        text = f"def f({dtype}({left[0]}) A, {dtype}({right[0]}) B) -> ({'Y' if 'Y' in start else 'C'}) "
        text += f"{{ C(m,n) +=! A({left[1]}) * B({right[1]})  {start} }}"
        sizes = {"M": m, "N": n, "K": k}
        torch.manual_seed(seed)
        kind = getattr(torch, {"float": "float32", "double": "float64"}.get(dtype, dtype))
        a, b = (torch.randn([sizes[one] for one in names.split(",")]).to(kind) for names, _ in (left, right))
        kernel = tcjit.define(text, target="cpu").f.compile(a, b)
        product = (a if left[0] == "M,K" else a.t()).double() @ (b if right[0] == "K,N" else b.t()).double()
        wanted = product * product if "Y" in start else product + 1.0 if start else product
        tolerance = {"float": 1e-5, "double": 1e-12, "bfloat16": 2e-2}[dtype]
        torch.testing.assert_close(kernel(a, b).double(), wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max()))
        blocks += any(line.startswith("outer") for line in kernel.resources["reductions"])
    assert blocks, "some of them run in blocks"


def blocked(text: str, shapes: dict[str, tuple[int, ...]]) -> tuple[Assignments, Assignments]:
    before = extract(program(text, shapes))
    return before, block_panels.block_panels(before, Options(), replace(AVX512, cache_bytes=CACHE))


def test_the_proof_finds_faults_in_blocks() -> None:
    before, after = blocked(LAYER, {"A": (300, 20), "B": (337, 20), "b": (337,)})
    verify_assignments("block_panels", before, after)
    product, layer = after.assignments
    assert product.outer is not None and layer.outer is not None and product.outer.rest and layer.outer.rest
    for wrong in (
        [replace(product, constraints=()), layer],  # points beyond the last one
        [replace(product, outer=None), layer],
        [product, replace(layer, constraints=())],
        [product, replace(layer, bounds=layer.bounds[:1] + layer.bounds[2:])],
    ):
        faulty = replace(after, assignments=tuple(wrong), replaced=tuple((one,) for one in wrong))
        with pytest.raises(VerifyError):
            verify_assignments("block_panels", before, faulty)


def test_an_epilogue_has_its_own_names_for_the_dimensions() -> None:
    text = BATCH.replace("(C)", "(Y2)").replace(" }", "  Y2(n,b,m) = 2.0 * C(n,b,m) }")
    before, after = blocked(text, {"X": (3, 300, 20), "Y": (3, 337, 20)})
    assert [a.outer and a.outer.dims for a in after.assignments] == [("b", "n_block"), ("n", "m_block")]
    verify_assignments("block_panels", before, after)


def test_it_is_for_large_products(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {"A": (300, 20), "B": (256, 20)}
    assert blocked(PRODUCT, shapes)[1].assignments[0].outer is not None
    monkeypatch.setattr(block_panels, "WORK", 1 << 22)
    monkeypatch.setattr(parallelise, "REGIONS", 1000)
    assert blocked(PRODUCT, shapes)[1].assignments[0].outer is None


@pytest.mark.parametrize(("extent", "blocks"), [(1024, True), (5184, False)])
def test_no_blocks_where_the_other_operand_comes_from_memory_for_each(extent: int, blocks: bool) -> None:
    before = extract(program(PRODUCT, {"A": (extent, extent), "B": (extent, extent)}))
    machine = replace(AVX512, cache_bytes=1 << 21)
    assert (block_panels.block_panels(before, Options(), machine).assignments[0].outer is not None) == blocks
