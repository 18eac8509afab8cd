"""Small assignments in one region of threads: which loops they share, what keeps them apart, and the results.

Modules: mapping.passes.fuse_parallel_regions mapping.fused_run
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.mapping import AVX512, program

import tcjit
from tcjit.errors import VerifyError
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.options import Options
from tcjit.mapping.passes.fuse_parallel_regions import fuse_parallel_regions
from tcjit.mapping.verify_assignments import verify_assignments

Shapes = dict[str, tuple[int, ...]]
LAYERS = """def f(float(B,M) X, float(N,M) V, float(N) a, float(O,N) W) -> (Y) {
    H(b,n) +=! X(b,m) * V(n,m)
    H(b,n) = fmax(H(b,n) + a(n), 0.0)
    Y(b,o) +=! H(b,n) * W(o,n) }"""
SIZES: Shapes = {"X": (128, 64), "V": (48, 64), "a": (48,), "W": (32, 48)}
ATTENTION = """def f(float(H,Q,D) A, float(H,K,D) B, float(H,K,D) V) -> (O) {
    S(h,q,k) +=! A(h,q,d) * B(h,k,d)
    M(h,q) max=! S(h,q,k)
    E(h,q,k) = exp(S(h,q,k) - M(h,q))
    Z(h,q) +=! E(h,q,k)
    U(h,q,d) +=! E(h,q,k) * V(h,k,d)
    O(h,q,d) = U(h,q,d) / Z(h,q) }"""


def shared(text: str, shapes: Shapes, **machine: int) -> list[tuple[str, ...] | None]:
    """The shared loops of each assignment."""
    return [a.outer.dims if a.outer else None for a in fused(text, shapes, **machine)[1].assignments]


def fused(text: str, shapes: Shapes, **machine: int) -> tuple[Assignments, Assignments]:
    before = extract(program(text, shapes))
    return before, fuse_parallel_regions(before, Options(), replace(AVX512, **machine))  # type: ignore[arg-type]


def test_layers_share_blocks_of_rows() -> None:
    assert shared(LAYERS, SIZES) == [("b_block",)] * 3
    assert shared(LAYERS, SIZES, threads=1) == [None] * 3
    assert shared(LAYERS, SIZES, cache_bytes=1 << 12) == [None] * 3, "the caches hold it"
    assert shared(LAYERS, {**SIZES, "X": (4, 64)}) == [None] * 3, "not worth threads"
    assert shared(LAYERS, {**SIZES, "X": (128, 64)}, threads=64) == [None] * 3, "too few rows"


def test_heads_are_better_than_rows() -> None:
    """What threads need of other operands differs."""
    assert set(shared(ATTENTION, {"A": (4, 64, 32), "B": (4, 64, 32), "V": (4, 64, 32)})) == {("h_block",)}
    assert set(shared(ATTENTION, {"A": (1, 64, 32), "B": (1, 64, 32), "V": (1, 64, 32)})) == {("q_block",)}


def test_rows_with_more_terms_than_others_stay() -> None:
    text = LAYERS.replace("X(b,m) * V(n,m)", "(m <= b ? X(b,m) : 0.0) * V(n,m)")
    assert shared(text, SIZES) == [None] * 3


def test_the_proof_finds_faults_in_blocks() -> None:
    before, after = fused(LAYERS, {**SIZES, "X": (127, 64)})
    verify_assignments("fuse_parallel_regions", before, after)
    first, *rest = after.assignments
    assert first.outer is not None and first.outer.rest == ("b", 63) and first.constraints
    for wrong in (replace(first, constraints=()), replace(first, outer=None), replace(first, bounds=first.bounds[1:])):
        faulty = replace(after, assignments=(wrong, *rest), replaced=tuple((one,) for one in (wrong, *rest)))
        with pytest.raises(VerifyError):
            verify_assignments("fuse_parallel_regions", before, faulty)


Program = tuple[str, Callable[[random.Random], list[tuple[int, ...]]], Callable[..., torch.Tensor]]


def layers(draw: random.Random) -> list[tuple[int, ...]]:
    b, m, n, o = (draw.randint(*ends) for ends in ((12, 90), (3, 70), (8, 70), (3, 40)))
    return [(b, m), (n, m), (n,), (o, n)]


def heads(draw: random.Random) -> list[tuple[int, ...]]:
    h, q, k, d = (draw.randint(*ends) for ends in ((1, 5), (8, 50), (8, 50), (4, 33)))
    return [(h, q, d), (h, k, d), (h, k, d)]


def images(draw: random.Random) -> list[tuple[int, ...]]:
    n, c, f, h, w = (draw.randint(*ends) for ends in ((1, 6), (1, 9), (1, 20), (5, 20), (5, 20)))
    return [(n, c, h, w), (f, c, 3, 3)]


def rows(draw: random.Random) -> list[tuple[int, ...]]:
    b, m, n = (draw.randint(*ends) for ends in ((12, 90), (3, 70), (8, 70)))
    return [(b, m), (m, n)]


PROGRAMS: Mapping[str, Program] = {
    "layers": (LAYERS, layers, lambda x, v, a, w: F.relu(x @ v.t() + a) @ w.t()),
    "attention": (ATTENTION, heads, lambda a, b, v: (a @ b.transpose(1, 2)).softmax(2) @ v),
    "padded convolutions": (
        """def f(float(N,C,H,W) X, float(F,C,3,3) G) -> (O) {
            T(n,f,h,w) +=! (h + i >= 1 && h + i <= H && w + j >= 1 && w + j <= W ? X(n,c,h+i-1,w+j-1) : 0.0) * G(f,c,i,j)
                where h in 0:H, w in 0:W
            T(n,f,h,w) = fmax(T(n,f,h,w), 0.0)
            O(n,f) +=! T(n,f,h,w) }""",
        images,
        lambda x, g: F.conv2d(x, g, padding=1).relu().sum((2, 3)),
    ),
    "logits": (
        """def f(float(B,M) X, float(M,N) W) -> (Y, L) {
            L(b,n) +=! X(b,m) * W(m,n)
            M1(b) max=! L(b,n)  Z(b) +=! exp(L(b,n) - M1(b))  Y(b,n) = L(b,n) - M1(b) - log(Z(b)) }""",
        rows,
        lambda x, w: (x @ w).log_softmax(1),
    ),
    "in place": (
        """def f(float(B,M) X, float(M,N) W) -> (Y) {
            Y(b,n) +=! X(b,m) * W(m,n)
            S(b) +=! Y(b,n)
            Y(b,n) = Y(b,n) * S(b) }""",
        rows,
        lambda x, w: (x @ w) * (x @ w).sum(1, keepdim=True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_random_sizes(name: str, threads: int) -> None:
    """Bit by bit the same for any number of threads."""
    text, draw_shapes, expected = PROGRAMS[name]
    regions = 0
    for seed in range(8):
        torch.manual_seed(seed)
        given = [torch.randn(shape) for shape in draw_shapes(random.Random(seed))]
        kernel = tcjit.define(text, target="cpu").f.compile(*given)
        results = []
        for count in (1, 2, threads):
            torch.set_num_threads(count)
            found = kernel(*given)
            results.append(found[0] if isinstance(found, tuple) else found)
        assert all(torch.equal(one, results[0]) for one in results)
        wanted = expected(*(one.double() for one in given))
        torch.testing.assert_close(results[0].double(), wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
        regions += any(line.startswith("outer") for line in kernel.resources["reductions"])
    assert regions > 2, "some of them share loops"


@pytest.mark.parametrize("shape", [(8, 3333, 8), (192, 45, 243), (33, 70, 50)])
def test_sums_of_bytes_read_copies_that_no_thread_has_for_itself(shape: tuple[int, int, int]) -> None:
    """Those of flipped signs, which products of bytes need, are one for all threads."""
    m, n, k = shape
    text = """def f(int8(M,K) X, int8(K,N) U, float(N) S) -> (O) {
        P(m,n) +=! int32(X(m,k)) * int32(U(k,n))
        O(m,n) = float(P(m,n)) * S(n) }"""
    torch.manual_seed(0)
    x, u = (torch.randint(-128, 128, sizes, dtype=torch.int8) for sizes in ((m, k), (k, n)))
    found = tcjit.define(text, target="cpu").f(x, u, torch.full((n,), 0.5))
    assert torch.equal(found.double(), x.double() @ u.double() / 2)
