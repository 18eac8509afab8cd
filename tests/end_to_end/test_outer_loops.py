"""Programs whose statements share their outer loops, against the reference, with one thread and with several.

Modules: mapping.passes.contract_slices
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.caches import small_caches
from support.cases import Case
from support.compare import assert_agree
from support.fuzz.kernels import layers
from support.mapping import AVX512, program
from support.run import array, right_cases, tensor

import tcjit
from tcjit.jit.kernel import Kernel
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.extract import extract
from tcjit.mapping.passes import fuse_outer_loops
from tcjit.runtime import reference

Shapes = Mapping[str, tuple[int, ...]]
HEAD = "def f(float(B,H,Q,D) q, float(B,H,K,D) k, float(B,H,K,D) v)"
SOFTMAX = "M(b,h,i) max=! S(b,h,i,j)  E(b,h,i,j) = exp(0.5 * (S(b,h,i,j) - M(b,h,i)))  Z(b,h,i) +=! E(b,h,i,j)"
VALUES = "O(b,h,i,d) +=! E(b,h,i,j) * v(b,h,j,d)"
QKV = {"q": (2, 3, 13, 9), "k": (2, 3, 21, 9), "v": (2, 3, 21, 9)}
SQUARE = {"q": (2, 3, 19, 9), "k": (2, 3, 19, 9), "v": (2, 3, 19, 9)}

# text, shapes, the loops that are shared (of dimensions that all walk as one, the first), temporaries that have slices
PROGRAMS: dict[str, tuple[str, Shapes, str, set[str]]] = {
    "attention": (
        f"{HEAD} -> (O) {{ S(b,h,i,j) +=! q(b,h,i,d) * k(b,h,j,d)  {SOFTMAX}  {VALUES}  O(b,h,i,d) = O(b,h,i,d) / Z(b,h,i) }}",
        QKV,
        "b",
        {"S", "E"},
    ),
    "causal attention": (
        f"""{HEAD} -> (O) {{ S(b,h,i,j) +=! q(b,h,i,d) * k(b,h,j,d)
        M(b,h,i) max=! (j <= i ? S(b,h,i,j) : -1e30)  E(b,h,i,j) = (j <= i ? exp(S(b,h,i,j) - M(b,h,i)) : 0.0)  Z(b,h,i) +=! E(b,h,i,j)
        O(b,h,i,d) +=! (j <= i ? E(b,h,i,j) * v(b,h,j,d) : 0.0)  O(b,h,i,d) = O(b,h,i,d) / Z(b,h,i) }}""",
        SQUARE,
        "b",
        {"S", "E"},
    ),
    "heads inside": (
        """def f(float(B,Q,H,D) q, float(B,K,H,D) k, float(B,K,H,D) v) -> (O) { S(b,h,i,j) +=! q(b,i,h,d) * k(b,j,h,d)
        M(b,h,i) max=! S(b,h,i,j)  E(b,h,i,j) = exp(S(b,h,i,j) - M(b,h,i))  Z(b,h,i) +=! E(b,h,i,j)
        O(b,i,h,d) +=! E(b,h,i,j) * v(b,j,h,d)  O(b,i,h,d) = O(b,i,h,d) / Z(b,h,i) }""",
        {"q": (2, 13, 3, 9), "k": (2, 21, 3, 9), "v": (2, 21, 3, 9)},
        "b h",
        {"S", "E"},
    ),
    "scores are a result": (
        f"{HEAD} -> (O, S) {{ S(b,h,i,j) +=! q(b,h,i,d) * k(b,h,j,d)  E(b,h,i,j) = exp(S(b,h,i,j))  {VALUES} }}",
        QKV,
        "b",
        {"E"},
    ),
    "chain of products": (
        "def f(float(B,N,N) A, float(B,N,N) C) -> (Y) { T(b,i,k) +=! A(b,i,j) * C(b,j,k)  Y(b,i,l) +=! T(b,i,k) * A(b,l,k) }",
        {"A": (9, 11, 11), "C": (9, 11, 11)},
        "b",
        {"T"},
    ),
    "batch is no outer axis": (
        "def f(float(N,B,N) A, float(N,B,N) C) -> (Y) { T(i,b,k) +=! A(i,b,j) * C(j,b,k)  Y(i,b,l) +=! T(i,b,k) * A(l,b,k) }",
        {"A": (9, 10, 9), "C": (9, 10, 9)},
        "b",
        set(),  # what an iteration uses lies all over the tensor
    ),
    "padded": (
        """def f(float(N,C,H) X, float(F,C,3) W, float(G,F,3) V) -> (Y) {
        T(n,f,h) +=! (h + i >= 1 && h + i <= H ? X(n,c,h+i-1) : 0.0) * W(f,c,i) where h in 0:H, i in 0:3
        T(n,f,h) = fmax(T(n,f,h), 0.0)
        Y(n,g,h) +=! (h + i >= 1 && h + i <= H ? T(n,f,h+i-1) : 0.0) * V(g,f,i) where h in 0:H, i in 0:3 }""",
        {"X": (6, 5, 37), "W": (18, 5, 3), "V": (7, 18, 3)},
        "n",
        {"T"},
    ),
    "windows of single channels": (
        """def f(float(N,C,H) X, float(C,3) W) -> (Y) {
        Y(n,c,h) +=! (h + i >= 1 && h + i <= H ? X(n,c,h+i-1) : 0.0) * W(c,i) where h in 0:H, i in 0:3
        Y(n,c,h) = fmax(Y(n,c,h), 0.0) }""",
        {"X": (6, 5, 37), "W": (5, 3)},
        "n c",
        set(),
    ),
    "shared weights": (
        "def f(float(T,B,I) X, float(H,I) W, float(O,H) V) -> (Y) { A(b,t,h) +=! X(t,b,i) * W(h,i)  A(b,t,h) = tanh(A(b,t,h))"
        "  Y(b,t,o) +=! A(b,t,h) * V(o,h) }",
        {"X": (33, 8, 9), "W": (40, 9), "V": (6, 40)},
        "b",
        {"A"},
    ),
    "sums over the rows": (
        """def f(float(B,Q,D) q, float(B,K,D) k, float(B,Q,D) u, float(B,K,D) v) -> (G, H) { S(b,i,j) +=! q(b,i,d) * k(b,j,d)
        P(b,i,j) +=! u(b,i,d) * v(b,j,d)  E(b,i,j) = S(b,i,j) * P(b,i,j)
        G(b,i,d) +=! E(b,i,j) * k(b,j,d)  H(b,j,d) +=! E(b,i,j) * q(b,i,d) }""",
        {"q": (4, 28, 9), "k": (4, 7, 9), "u": (4, 28, 9), "v": (4, 7, 9)},
        "b chunk",
        {"S", "E"},
    ),
    "sums over rows that do not divide": (
        """def f(float(B,Q,D) q, float(B,K,D) k) -> (G, H) { S(b,i,j) +=! q(b,i,d) * k(b,j,d)  E(b,i,j) = exp(0.1 * S(b,i,j))
        G(b,i,d) +=! E(b,i,j) * k(b,j,d)  H(b,j,d) max=! E(b,i,j) * q(b,i,d) }""",
        {"q": (4, 29, 9), "k": (4, 7, 9)},
        "b chunk",
        {"E"},
    ),
    "rows in blocks": (
        """def f(float(B,D) X, float(E,D) W, float(E) c) -> (Y) { T(b,e) +=! X(b,d) * W(e,d)  T(b,e) = T(b,e) + c(e)
        M(b) max=! T(b,e)  Z(b) +=! exp(T(b,e) - M(b))  Y(b,e) = exp(T(b,e) - M(b)) / Z(b) }""",
        {"X": (48, 7), "W": (13, 7), "c": (13,)},
        "b_block",
        {"T"},
    ),
    "gathered from a slice": (
        """def f(float(B,D) X, float(E,D) W, int64(B) I) -> (L) { T(b,e) +=! X(b,d) * W(e,d)  Z(b) +=! exp(T(b,e))
        L(b) = log(Z(b)) - T(b,I(b)) }""",
        {"X": (48, 7), "W": (13, 7), "I": (48,)},
        "b_block",
        {"T"},
    ),
}


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    """Small programs are fused, and threads share them."""
    before = torch.get_num_threads()
    with small_caches(512):
        yield
    torch.set_num_threads(before)


def compiled(text: str, shapes: Shapes, options: tcjit.Options | None = None) -> Kernel:
    """A kernel that agrees with the reference, with the same bits whatever the threads."""
    generator = np.random.default_rng(zlib.crc32(text.encode()))
    given = {name: generator.standard_normal(shape).astype(np.float32).astype(np.float64) for name, shape in shapes.items()}
    given |= {name: generator.integers(0, 13, shapes[name]) for name in shapes.keys() & {"I"}}
    made = program(text, shapes)
    expected = reference.run(made, dict(given), {})
    arguments = [tensor(given[param.name], param.dtype) for param in made.definition.params]
    kernel = tcjit.define(text).f.compile(*arguments, options=options)
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results = kernel(*arguments)
        found.append(results if isinstance(results, tuple) else (results,))
    for number, name in enumerate(made.definition.returns):
        assert len({results[number].numpy().tobytes() for results in found}) == 1
        assert_agree(array(found[0][number]), expected, name)
    return kernel


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    text, shapes, loops, slices = PROGRAMS[name]
    kernel = compiled(text, shapes)
    (shared,) = (line for line in kernel.resources["reductions"] if line.startswith("outer loops"))
    assert shared.startswith(f"outer loops {loops} shared by ")
    source = str(kernel.source)
    assert all(f"float *restrict {tensor} = (float *)(tc_slice" in source for tensor in slices)
    temporaries = {"S", "E", "T", "A"} - slices
    assert not any(f"float *restrict {tensor} = (float *)(tc_slice" in source for tensor in temporaries)


def test_a_band_that_the_middle_of_the_shared_loops_has_no_terms_of() -> None:
    """Plans are made at one iteration, which has some."""
    text = """def f(float(M,K) A, float(K,N) B, float(N,P) C) -> (Y) {
        S(m,n) +=! A(m,k) * B(k,n)
        E(m,n) = n <= m && m - n < 5 ? exp(S(m,n)) : 0.0
        Y(p,m) +=! n <= m && m - n < 5 ? E(m,n) * C(n,p) : 0.0 }"""
    kernel = compiled(text, {"A": (128, 8), "B": (8, 6), "C": (6, 13)})
    assert any(line.startswith("outer loops m_block shared by S E") for line in kernel.resources["reductions"])


@pytest.mark.parametrize("shard", range(4))
def test_random_layers(shard: int) -> None:
    """Products in chains, whose tensors have the batch in any place; the soak draws fresh ones."""
    fused = 0
    for case in right_cases(layers, range(shard, 40, 4)):
        fused += any(assignment.outer for assignment in fused_program(case))
    assert fused, "some of them share loops"


def fused_program(case: Case) -> tuple[Assignment, ...]:
    machine = replace(AVX512, cache_bytes=case.device["cache_bytes"])
    return fuse_outer_loops.fuse_outer_loops(extract(case.program()), tcjit.Options(), machine).assignments


def test_less_memory() -> None:
    """A slice for each thread in the place of a whole temporary."""
    text, shapes, _, _ = PROGRAMS["attention"]
    fused, apart = compiled(text, shapes), compiled(text, shapes, tcjit.Options(fusion="minimal"))
    assert not any(line.startswith("outer loops") for line in apart.resources["reductions"])
    assert fused.resources["workspace"] * 2 < apart.resources["workspace"]


def test_one_thread_alone() -> None:
    """Loops that no threads share use the slice of the first."""
    text, shapes, _, slices = PROGRAMS["chain of products"]
    source = str(compiled(text, shapes, tcjit.Options(parallel=False)).source)
    assert slices and "tc_slice" in source and "TC_THREAD" not in source


def test_copies_without_the_shared_loop_are_none_in_it() -> None:
    source = """
    def f(double(E,Q) w, double(E,Q,A,I) B, double(A,A) D, double(E,I,I) K) -> (R) {
        R(e, q, c, j) +=! K(e, i, j) * w(e, q) * B(e, q, a, i) * D(a, c)
    }"""
    w, b, d, k = (torch.randn(shape, dtype=torch.float64) for shape in ((31, 8), (31, 8, 6, 24), (6, 6), (31, 24, 24)))
    expected = torch.einsum("eij,eq,eqai,ac->eqcj", k, w, b, d)
    torch.testing.assert_close(tcjit.define(source).f(w, b, d, k), expected)


def test_residues_that_a_quotient_leaves() -> None:
    """``(w - 2 * kw) % 2`` is ``w - 2 * (w / 2)`` for passes: loops over the residue classes of ``w`` are shared with nothing."""
    text = """def f(float(N,C,H,W,Z) X, float(C,F,KH,KW,KZ) K) -> (O) {
        O(n,f,h,w,z) +=! (y >= 0 && y < 2*H && y % 2 == 0 && x >= 0 && x < 2*W && x % 2 == 0 && t >= 0 && t < 2*Z && t % 2 == 0)
            ? X(n,c,y/2,x/2,t/2) * K(c,f,kh,kw,kz) : 0.0
            where h in 0:41, w in 0:169, z in 0:47, y = h - kh, x = w - 2*kw, t = z + 1 - kz }"""
    torch.manual_seed(0)
    x, k = torch.randn(3, 16, 20, 85, 24), torch.randn(16, 4, 3, 1, 3)
    expected = torch.nn.functional.conv_transpose3d(x, k, stride=2, padding=(0, 0, 1), dilation=(1, 2, 1))
    torch.testing.assert_close(tcjit.define(text, target="cpu").f(x, k), expected, rtol=1e-4, atol=1e-4)
