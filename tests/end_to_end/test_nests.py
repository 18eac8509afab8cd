"""Programs whose reductions become register tiles, against the reference: guarded, windowed and plain ones, small and at odd sizes."""

from __future__ import annotations

import faulthandler
import math
import os
import zlib
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import torch
from support.compare import assert_agree
from support.mapping import program
from support.memory import beside_a_guard
from support.run import array, tensor

import tcjit
from tcjit.mapping.nest import operand_use, plan_nest
from tcjit.mapping.passes import parallelise
from tcjit.runtime import host, reference
from tcjit.runtime.numerics import Array

Shapes = Mapping[str, tuple[int, ...]]
LANES = host.compiler().vector_bytes // 4
PLAIN = "float(M,K) A, float(K,N) B"
INSIDE = "h + i >= 1 && h + i <= H && w + j >= 1 && w + j <= W"
FROM = "(h + 1 - i) % 2 == 0 && h + 1 - i >= 0 && (h + 1 - i) / 2 < H"
PAIR = {"A": (17, 9), "B": (9, 33)}
ROWS = {"A": (17, 9), "B": (33, 9)}
IMAGE = {"X": (2, 3, 9, 19), "G": (5, 3, 3, 3)}

PROGRAMS: dict[str, tuple[str, Shapes]] = {
    "matmul": (f"def f({PLAIN}) -> (C) {{ C(m,n) +=! A(m,k) * B(k,n) }}", PAIR),
    "smaller than a vector": (f"def f({PLAIN}) -> (C) {{ C(m,n) +=! A(m,k) * B(k,n) }}", {"A": (2, 3), "B": (3, 5)}),
    "transposed operands": ("def f(float(K,M) A, float(N,K) B) -> (C) { C(m,n) +=! A(k,m) * B(n,k) }", {"A": (40, 35), "B": (49, 40)}),
    "transposed result": (f"def f({PLAIN}) -> (C) {{ C(n,m) +=! A(m,k) * B(k,n) }}", PAIR),
    "transposed and used": (
        f"def f({PLAIN}) -> (T, U) {{ C(m,n) +=! A(m,k) * B(k,n)  T(n,m) = tanh(C(m,n))  U(n,m) = T(n,m) * T(n,m) + exp(C(m,n)) }}",
        {"A": (23, 9), "B": (9, 37)},
    ),
    "transposed arithmetic": (
        f"""def f({PLAIN}, float(N) b) -> (T, U) {{
            C(m,n) +=! A(m,k) * B(k,n)
            T(n,m) = fmax(C(m,n), b(n))
            U(n,m) = fmin(0.5, T(n,m)) * b(n)
        }}""",
        {"A": (23, 9), "B": (9, 37), "b": (37,)},
    ),
    "images of a batch": (
        "def f(float(N,G,C,H,W) X, float(G,F,C,KH,KW) K) -> (O) { O(n,g,f,h,w) +=! X(n,g,c,h+kh,w+kw) * K(g,f,c,kh,kw) }",
        {"X": (3, 2, 3, 9, 15), "K": (2, 16, 3, 3, 3)},
    ),
    "backward": (f"def f({PLAIN}) -> (C) {{ C(m,n) +=! A(m,K-1-k) * B(k,N-1-n) }}", PAIR),
    "batched": ("def f(float(B,M,K) X, float(B,K,N) Y) -> (C) { C(b,m,n) +=! X(b,m,k) * Y(b,k,n) }", {"X": (3, 5, 7), "Y": (3, 7, 17)}),
    "a call for each term": (f"def f({PLAIN}) -> (C) {{ C(m,n) +=! exp(fmin(A(m,k), B(k,n))) }}", PAIR),
    "calls of a column": ("def f(float(B,I) X, float(I) c) -> (S) { S(i) max=! tanh(X(b,i) - c(i)) }", {"X": (53, 21), "c": (21,)}),
    "calls of a row": ("def f(float(B,I) X) -> (S) { S(b) +=! log(1.0 + exp(X(b,i))) }", {"X": (53, 21)}),
    "calls of a part of a row": ("def f(float(B,I) X) -> (S) { S(b) +=! (i <= b ? log(1.0 + exp(X(b,i))) : 0.0) }", {"X": (23, 37)}),
    "vector": ("def f(float(M,K) A, float(K) x) -> (y) { y(m) +=! A(m,k) * x(k) }", {"A": (37, 99), "x": (99,)}),
    "in double": (
        "def f(double(M,M) A, double(M,N) B) -> (C) { C(m,n) +=! (k <= m ? A(m,k) * B(k,n) : 0.0) }",
        {"A": (19, 19), "B": (19, 9)},
    ),
    "accumulated": (f"def f({PLAIN}, float(M,N) Z) -> (C) {{ C(m,n) = Z(m,n)  C(m,n) += A(m,k) * B(k,n) }}", {**PAIR, "Z": (17, 33)}),
    "accumulated and transposed": (
        f"def f({PLAIN}, float(M,N) Z) -> (C) {{ C(n,m) = Z(m,n)  C(n,m) += A(m,k) * B(k,n) }}",
        {**PAIR, "Z": (17, 33)},
    ),
    # conditions on indices
    "triangular": (
        "def f(float(M,M) A, float(M,N) B) -> (C) { C(m,n) +=! (k <= m ? A(m,k) * B(k,n) : 0.0) }",
        {"A": (33, 33), "B": (33, 17)},
    ),
    "causal": (
        "def f(float(H,T,D) Q, float(H,T,D) K) -> (S) { S(h,i,j) +=! (j <= i ? Q(h,i,d) * K(h,j,d) : 0.0) }",
        {"Q": (2, 19, 8), "K": (2, 19, 8)},
    ),
    "banded": (
        "def f(float(M,M) A, float(M,N) B) -> (C) { C(m,n) +=! (k <= m + 2 && k >= m - 2 ? A(m,k) * B(k,n) : 0.0) }",
        {"A": (35, 35), "B": (35, 17)},
    ),
    "half a vector": ("def f(float(M,M) A, float(M) x) -> (y) { y(m) +=! (k <= m ? A(m,k) * x(k) : 0.0) }", {"A": (37, 37), "x": (37,)}),
    "lanes of terms, bounded twice": (  # gcc 12 broke down over its masks
        "def f(float(D,D) X, float(L) Y, float(D,L) Z) -> (O) { O(d) +=! (l <= d + 1 ? X(32-d,d) - Y(l) - Z(d,l) : 0.0) where d in 0:33 }",
        {"X": (33, 33), "Y": (9,), "Z": (33, 9)},
    ),
    "pool of stride 3, padded": (
        "def f(float(C,H) X) -> (O) { O(c,h) max=! (y >= 0 && y < H ? X(c,y) : -infinity()) where h in 0:26, i in 0:7, y = 3*h + i - 2 }",
        {"X": (5, 77)},
    ),
    "pool of stride 4, backward": (
        "def f(float(C,H) X) -> (O) { O(c,h) min=! (y >= 0 && y < H ? X(c,y) : infinity()) where h in 0:26, i in 0:5, y = H - 4*h - i }",
        {"X": (5, 99)},
    ),
    "every fifth, bounded": (
        "def f(float(H) X, float(K) w) -> (O) { O(h) +=! (2*h + 3*k < H ? X(5*h + k) * w(k) : 0.0) where h in 0:17 }",
        {"X": (90,), "w": (6,)},
    ),
    "groups by division": (
        "def f(float(N,C,H) X, float(F,D,K) G, float(F) b) -> (O)"
        " { O(n,f,h) +=! (h + k >= 1 && h + k <= H ? X(n,f/3*2 + c,h+k-1) : 0.0) * G(f,c,k) where h in 0:H"
        "   O(n,f,h) = fmax(O(n,f,h) + b(f), 0.0) }",
        {"X": (2, 8, 21), "G": (12, 2, 3), "b": (12,)},
    ),
    "quotient and rest": (
        "def f(float(A,K) X, float(B,K,N) Y) -> (O) { O(i,n) +=! X(i/4,k) * Y(i%4,k,n) where i in 0:20 }",
        {"X": (5, 9), "Y": (4, 9, 33)},
    ),
    "lower result": (
        "def f(float(M,K) A, float(N,K) B) -> (C) { C(m,n) +=! (n <= m ? A(m,k) * B(n,k) : 0.0) }",
        {"A": (64, 20), "B": (64, 20)},
    ),
    "upper result with bias": (
        "def f(float(M,K) A, float(N,K) B, float(N) b) -> (C) { C(m,n) +=! (n > m ? A(m,k) * B(n,k) : 0.0)  C(m,n) = C(m,n) + b(n) }",
        {"A": (33, 20), "B": (65, 20), "b": (65,)},
    ),
    "greatest of a lower triangle": (
        "def f(float(M,K) A, float(N,K) B) -> (C) { C(m,n) max=! (n <= m ? A(m,k) * B(n,k) : -infinity()) }",
        {"A": (35, 20), "B": (33, 20)},
    ),
    "functions behind a product": (
        "def f(float(M,K) A, float(N,K) B, float(M,N) R, float(N) b) -> (C, D) { C(m,n) +=! A(m,k) * B(n,k)"
        "   C(m,n) = tanh(C(m,n) + b(n)) * R(m,n)   D(n,m) = exp(C(m,n)) }",
        {"A": (35, 20), "B": (53, 20), "R": (35, 53), "b": (53,)},
    ),
    # windows
    "padded": (
        f"def f(float(N,C,H,W) X, float(F,C,I,J) G) -> (O)"
        f" {{ O(n,f,h,w) +=! ({INSIDE} ? X(n,c,h+i-1,w+j-1) * G(f,c,i,j) : 0.0) where h in 0:H, w in 0:W }}",
        IMAGE,
    ),
    "strided and dilated": (
        "def f(float(N,C,H,W) X, float(F,C,I,J) G) -> (O) { O(n,f,h,w) +=! X(n,c,2*h+2*i,3*w+2*j) * G(f,c,i,j) where h in 0:2, w in 0:5 }",
        IMAGE,
    ),
    "transposed": (
        f"def f(float(C,H) X, float(C,F,I) G) -> (O) {{ O(f,h) +=! ({FROM} ? X(c,(h+1-i)/2) * G(c,f,i) : 0.0) where h in 0:2*H }}",
        {"X": (3, 17), "G": (3, 5, 4)},
    ),
    "grouped": (
        "def f(float(N,G,C,H) X, float(G,F,C,I) V) -> (O) { O(n,g,f,h) +=! X(n,g,c,h+i) * V(g,f,c,i) }",
        {"X": (2, 3, 4, 21), "V": (3, 5, 4, 3)},
    ),
    "depthwise": (
        f"def f(float(N,C,H,W) X, float(C,I,J) G) -> (O)"
        f" {{ O(n,c,h,w) +=! ({INSIDE} ? X(n,c,h+i-1,w+j-1) * G(c,i,j) : 0.0) where h in 0:H, w in 0:W }}",
        {"X": (2, 3, 9, 19), "G": (3, 3, 3)},
    ),
    "in three dimensions": (
        "def f(float(C,D,H,W) X, float(F,C,I,J,L) G) -> (O) { O(f,d,h,w) +=! X(c,d+i,h+j,w+l) * G(f,c,i,j,l) }",
        {"X": (2, 4, 5, 9), "G": (3, 2, 2, 2, 2)},
    ),
    "maxima": (
        "def f(float(N,H,W) X) -> (O) { O(n,h,w) max=! X(n,2*h+i,2*w+j) where h in 0:4, w in 0:9, i in 0:3, j in 0:3 }",
        {"X": (3, 10, 20)},
    ),
    "padded mean": (
        f"def f(float(N,H,W) X) -> (O) {{ O(n,h,w) +=! ({INSIDE} ? X(n,h+i-1,w+j-1) : 0.0) where h in 0:H, w in 0:W, i in 0:3, j in 0:3 }}",
        {"X": (3, 7, 18)},
    ),
    # other operators and bodies
    "min-plus": (f"def f({PLAIN}) -> (C) {{ C(m,n) min=! A(m,k) + B(k,n) }}", PAIR),
    "products of sums": (f"def f({PLAIN}) -> (C) {{ C(m,n) *=! A(m,k) + B(k,n) }}", PAIR),
    "distances": ("def f(float(M,K) A, float(N,K) B) -> (C) { C(m,n) +=! fabs(A(m,k) - B(n,k)) }", ROWS),
    "selected": (
        "def f(float(M,K) A, float(N,K) B) -> (C) { C(m,n) +=! (A(m,k) < B(n,k) && B(n,k) > 0.0 ? relu(A(m,k)) : -B(n,k)) }",
        ROWS,
    ),
    # what follows
    "bias and relu": (
        f"def f({PLAIN}, float(N) b) -> (Y) {{ C(m,n) +=! A(m,k) * B(k,n)  Y(m,n) = relu(C(m,n) + b(n)) }}",
        {**PAIR, "b": (33,)},
    ),
    "several results": (
        "def f(float(M,K) A, float(N,K) B, float(M,N) Z) -> (T, U, C)"
        " { C(m,n) +=! A(m,k) * B(n,k)  T(n,m) = tanh(C(m,n))  U(m,n) = T(n,m) * Z(m,n) + C(m,n) }",
        {"A": (35, 40), "B": (49, 40), "Z": (35, 49)},
    ),
    "other types behind": (
        "def f(float(M,K) A, float(K) x) -> (Q, D) { C(m) +=! A(m,k) * x(k)  Q(m) = C(m) > 0.0  D(m) = double(C(m)) * 2.0 }",
        {"A": (19, 70), "x": (70,)},
    ),
}  # fmt: skip
ALSO_WITHOUT = ("triangular", "padded", "maxima", "several results")
GUARDED = ("transposed operands", "backward", "half a vector", "padded", "strided and dilated", "maxima", "several results")
WIDTHS = {"lanes of terms, bounded twice": 8, "triangular": 2, "strided and dilated": 4, "bias and relu": 8}


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads share even small nests."""
    before = torch.get_num_threads()
    monkeypatch.setattr(parallelise, "WORTH_THREADS", 1)
    yield
    torch.set_num_threads(before)


def inputs(text: str, shapes: Shapes) -> dict[str, Array]:
    random = np.random.default_rng(zlib.crc32(text.encode()))
    return {name: random.standard_normal(shape).astype(np.float32).astype(np.float64) for name, shape in shapes.items()}


def assert_agrees(text: str, given: Mapping[str, Array], options: tcjit.Options | None = None) -> str:
    """The source of a kernel that agrees with the reference, with one thread as with two."""
    made = program(text, {name: array.shape for name, array in given.items()})
    expected = reference.run(made, dict(given), {})
    arguments = [tensor(given[param.name], param.dtype) for param in made.definition.params]
    kernel = tcjit.define(text).f.compile(*arguments, options=options)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results = kernel(*arguments)
        found.append(results if isinstance(results, tuple) else (results,))
    for name, one, two in zip(made.definition.returns, *found):
        assert one.numpy().tobytes() == two.numpy().tobytes(), "the same bits whatever the threads"
        assert_agree(array(one), expected, name)
    return str(kernel.source)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    text, shapes = PROGRAMS[name]
    assert "tc_a0_0" in assert_agrees(text, inputs(text, shapes)), "a register tile"


@pytest.mark.parametrize("dtype", ["half", "bfloat16"])
@pytest.mark.parametrize("rows", [2, 17])  # operands are converted as they are loaded, or copied before
def test_calls_of_halves(dtype: str, rows: int) -> None:
    function = tcjit.define(f"def f({dtype}(M,K) A, {dtype}(K,N) B) -> (C) {{ C(m,n) +=! tanh(float(A(m,k)) * float(B(k,n))) }}").f
    of = torch.half if dtype == "half" else torch.bfloat16
    a, b = torch.randn(rows, 40).to(of), torch.randn(40, 33).to(of)
    expected = torch.tanh(a.double()[:, :, None] * b.double()).sum(1).float()
    torch.testing.assert_close(function(a, b), expected, rtol=1e-5, atol=1e-5)
    assert function.compile(a, b).nests == 1


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums in blocks of few terms, and of streams of few rows, with parts for threads; such kernels stay in this process."""
    for name, value in {"BLOCK_TERMS": 3, "STREAMED_ROWS": 2, "STREAMED_PAGES": 0, "BLOCK_EDGES": 0, "BLOCK_STARTS": 0}.items():
        monkeypatch.setattr(plan_nest, name, value)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("name", PROGRAMS)
def test_sums_in_blocks(name: str) -> None:
    text, shapes = PROGRAMS[name]
    assert_agrees(text, inputs(text, shapes))


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("sizes", [(3, 37, 70), (9, 20, 33), (1, 50, 100)], ids=str)
@pytest.mark.parametrize("ending", ["", "C(m,n) = fmax(C(m,n) + b(n), 0.0)", "D(m,n) = C(m,n) * b(n)"])
def test_blocks_of_streams(monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int, int], ending: str) -> None:
    """Rows of a matrix that few tiles read, block by block of the terms; what follows a result follows its last block."""
    monkeypatch.setattr(operand_use.OperandUse, "streams", lambda use, shape: use.moves)
    m, k, n = sizes
    results = "(C, D)" if "D" in ending else "(C)"
    text = f"def f({PLAIN}, float(N) b) -> {results} {{ C(m,n) +=! A(m,k) * B(k,n) {ending or 'C(m,n) += b(n)'} }}"
    source = assert_agrees(text, inputs(text, {"A": (m, k), "B": (k, n), "b": (n,)}))
    assert " > 0) {" in source and "tc_o_k" in source


@pytest.mark.parametrize("name", ALSO_WITHOUT)
def test_without_nests(name: str) -> None:
    text, shapes = PROGRAMS[name]
    assert "tc_a0_0" not in assert_agrees(text, inputs(text, shapes), tcjit.Options(vector_width=1))


@pytest.mark.parametrize("name", WIDTHS)
def test_widths_of_vectors(name: str) -> None:
    text, shapes = PROGRAMS[name]
    source = assert_agrees(text, inputs(text, shapes), tcjit.Options(vector_width=WIDTHS[name]))
    assert f"tc_float{WIDTHS[name]} tc_a0_0" in source


def test_what_is_outside_the_domain_reaches_no_result() -> None:
    """Not even NaN or infinity, in lanes and rows of partial tiles or beside the elements that a vector reads."""
    text, shapes = PROGRAMS["triangular"]
    given = inputs(text, shapes)
    outside = np.triu(np.ones((33, 33), dtype=bool), 1)
    for bad in (math.nan, math.inf):
        given["A"][outside] = bad
        assert_agrees(text, given)
    text, shapes = PROGRAMS["banded"]
    given = inputs(text, shapes)
    far = np.abs(np.subtract.outer(np.arange(35), np.arange(35))) > 2
    given["A"][far] = math.nan
    assert_agrees(text, given)


@pytest.mark.parametrize("name", ["matmul", "maxima", "min-plus", "half a vector", "padded mean"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinities(name: str, bad: float) -> None:
    """They reach the results that read them, and no others."""
    text, shapes = PROGRAMS[name]
    given = inputs(text, shapes)
    for number, given_array in enumerate(given.values()):
        flat = given_array.reshape(-1)
        flat[[number, len(flat) // 2, -1]] = bad
    assert_agrees(text, given)


TWICE = "(k + l) % 2 == 0 ? A(m,k,l) * B(k,l,n) : 0.0"
WRONG: dict[str, tuple[str, Shapes, str]] = {
    "every second term": (
        f"def f(float(M,K,L) A, float(K,L,N) B) -> (C) {{ C(m,n) +=! ({TWICE}) }}",
        {"A": (17, 6, 7), "B": (6, 7, 33)},
        "residue classes of terms alone each start and store the same results",
    ),
    "lanes at twice the pace": (
        f"def f({PLAIN}) -> (C) {{ C(m,n) +=! (2*n <= k + 1 ? A(m,k) * B(k,n) : 0.0) }}",
        {"A": (17, 33), "B": (33, 40)},
        "a mask takes every coefficient of the lanes for 1 or -1",
    ),
    "an equality of lanes": (
        f"def f({PLAIN}) -> (C) {{ C(m,n) +=! (k == n + 1 ? A(m,k) * B(k,n) : 0.0) }}",
        {"A": (17, 33), "B": (33, 40)},
        "a mask takes an equality for a bound from one side",
    ),
    "results without terms": (
        f"def f({PLAIN}) -> (C) {{ C(m,n) +=! (m < 1 ? A(m,k) * B(k,n) : 0.0) }}",
        {"A": (17, 9), "B": (9, 33)},
        "the write's form is simplified by the domain, but is used for all results",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_more_conditions(name: str) -> None:
    text, shapes, _ = WRONG[name]
    assert_agrees(text, inputs(text, shapes))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a child process may crash")
@pytest.mark.parametrize("end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("name", GUARDED)
def test_reads_stay_inside(name: str, end: bool) -> None:
    """Arguments at the end, or the start, of memory that ends where they do."""
    text, shapes = PROGRAMS[name]
    arguments = [torch.from_numpy(array.astype(np.float32)) for array in inputs(text, shapes).values()]
    kernel = tcjit.define(text).f.compile(*arguments)
    torch.set_num_threads(1)  # a child has no threads
    child = os.fork()
    if not child:
        faulthandler.disable()
        kernel(*(beside_a_guard(argument, end) for argument in arguments))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_results_of_no_residue_class() -> None:
    """A transposed convolution whose kernel reaches every third row alone: the other rows have no terms, and are started all the same."""
    text = """def f(float(N,C,H,W) X, float(C,F,KH,KW) K) -> (O) {
        O(n,f,h,w) +=! (y >= 0 && y < 3*H && y % 3 == 0 && x >= 0 && x < 2*W && x % 2 == 0) ? X(n,c,y/3,x/2) * K(c,f,kh,kw) : 0.0
            where h in 0:17, w in 0:9, y = h + 4 - 3*kh, x = w - 2*kw }"""
    assert "tc_a0_0" in assert_agrees(text, inputs(text, {"X": (2, 3, 6, 5), "K": (3, 20, 4, 1)}))


@pytest.mark.parametrize("turned", ["a", "b", "ab"])
def test_strides_that_only_the_call_knows(turned: str) -> None:
    """They are read where they are, or from panels."""
    product, running = tcjit.define(PROGRAMS["matmul"][0]).f, tcjit.define(SCANS["prefix sums"][0]).f
    lower = tcjit.define(f"def f({PLAIN}) -> (C) {{ C(m,n) +=! (k <= m ? A(m,k) * B(k,n) : 0.0) }}").f
    a = torch.randn(40, 36)[:, 1:].T if "a" in turned else torch.randn(35, 40)
    b = torch.randn(33, 41)[:, :40].T if "b" in turned else torch.randn(40, 33)
    torch.testing.assert_close(product(a, b), a @ b)
    torch.testing.assert_close(running(a), a.cumsum(1))
    torch.testing.assert_close(lower(a, b), a.tril() @ b)
    for kernel in (product.compile(a, b), lower.compile(a, b)):
        assert kernel.nests == 1
        assert [name for name in "AB" if f"{name}_stride" in kernel.source] == list(turned.upper())


@pytest.mark.parametrize("turned", ["a", "b", "ab"])
def test_strides_of_dense_tensors_are_known(turned: str) -> None:
    """Of a tensor that fills its memory in another order a nest knows where every element is."""
    product = tcjit.define(PROGRAMS["matmul"][0]).f
    a = torch.randn(40, 35).T if "a" in turned else torch.randn(35, 40)
    b = torch.randn(33, 40).T if "b" in turned else torch.randn(40, 33)
    torch.testing.assert_close(product(a, b), a @ b)
    kernel = product.compile(a, b)
    assert "loops" in kernel.resources["reductions"][0] and "dense" not in kernel.source
    torch.testing.assert_close(kernel(a.contiguous(), b.contiguous()), a @ b)  # copied into the order of the kernel
    images, one = torch.randn(2, 5, 9, 7).to(memory_format=torch.channels_last), torch.randn(1, 4, 1, 3).permute(3, 2, 1, 0)
    shifted = tcjit.define("def f(float(N,C,H,W) X) -> (O) { O(n,c,h) +=! X(n,c,h,w) }").f
    torch.testing.assert_close(shifted(images), images.sum(3))
    torch.testing.assert_close(shifted(one), one.sum(3))


SCANS = {
    "prefix sums": ("def f(float(M,N) X) -> (Y) { Y(i,j) +=! (k <= j ? X(i,k) : 0.0) where k in 0:N, j in 0:N }", {"X": (5, 33)}),
    "prefix sums of columns": (
        "def f(float(M,N) X) -> (Y) { Y(i,j) +=! (k <= i ? X(k,j) : 0.0) where k in 0:M, i in 0:M }",
        {"X": (9, 300)},
    ),
    "suffix maxima": ("def f(float(N) X) -> (Y) { Y(j) max=! (k >= j ? X(k) : -infinity()) where k in 0:N, j in 0:N }", {"X": (70,)}),
    "exclusive": ("def f(float(M,N) X) -> (Y) { Y(i,j) +=! (k < j ? X(i,k) * X(i,k) : 0.0) where k in 0:N, j in 0:N }", {"X": (3, 40)}),
    "products": ("def f(double(M,N) X) -> (Y) { Y(i,j) *=! (k <= j ? X(i,k) : 1.0) where k in 0:N, j in 0:N }", {"X": (4, 12)}),
    "of a scan": (
        "def f(float(N) X) -> (Y, Z) { Y(j) +=! (k <= j ? X(k) : 0.0) where k in 0:N, j in 0:N\n"
        " Z(j) +=! (k <= j ? Y(k) : 0.0) where k in 0:N, j in 0:N }",
        {"X": (50,)},
    ),
}


@pytest.mark.parametrize("name", SCANS)
def test_scans(name: str) -> None:
    text, shapes = SCANS[name]
    assert "tc_running" in assert_agrees(text, inputs(text, shapes)) or name == "prefix sums of columns"


def test_many_residues_few_classes() -> None:
    """Of 36 combinations of residues six have terms: those of a result decide on those of the kernel."""
    text = """def f(float(N,C,H,W) X, float(C,F,KH,KW) K) -> (O) {
        O(n,f,h,w) +=! (y >= 0 && y < 3*H && y % 3 == 0 && x >= 0 && x < 2*W && x % 2 == 0) ? X(n,c,y/3,x/2) * K(c,f,kh,kw) : 0.0
            where h in 0:16, w in 0:12, y = h + 3 - 2*kh, x = w + 2 - 3*kw }"""
    given = inputs(text, {"X": (2, 3, 6, 5), "K": (3, 20, 4, 4)})
    assert_agrees(text, given)
    kernel = tcjit.define(text).f.compile(*(torch.from_numpy(array.astype(np.float32)) for array in given.values()))
    assert len(kernel.resources["reductions"]) == 6 and not any("no nest" in line for line in kernel.resources["reductions"])


@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize("sizes", [(37, 53, 41), (5, 7, 3), (70, 33, 1300), (3, 600, 1100)])
@pytest.mark.parametrize(
    "update",
    [
        "+= (j <= i) ? 1.5 * A(i,k) * B(j,k) : 0.0",  # some results have all terms, others none
        "+= (k > i) ? A(i,k) * B(j,k) : 0.0",
        "+= (k > i && k < j) ? A(i,k) * B(j,k) : 0.0",
        "*= (k < 3 && k >= i) ? A(i,k) + B(j,k) : 1.0",
        "+= (j % 2 == 0) ? A(i,k) * B(j,k) : 0.0",  # some are in no residue class
        "+= ((j + k) % 2 == 0) ? A(i,k) * B(j,k) : 0.0",
    ],
)
def test_guarded_updates_go_on_with_what_results_hold(update: str, sizes: tuple[int, int, int], dtype: str) -> None:
    n, m, k = sizes
    text = f"""def f({dtype}(N,K) A, {dtype}(M,K) B, {dtype}(N,M) C) -> (O) {{
        O(i,j) = 0.5 * C(i,j)
        O(i,j) {update} where i in 0:N, j in 0:M, k in 0:K }}"""
    kind = {"float": torch.float32, "double": torch.float64}[dtype]
    generator = torch.Generator().manual_seed(n)
    given = [torch.randn(shape, dtype=kind, generator=generator) for shape in ((n, k), (m, k), (n, m))]
    given[2][0] = -0.0  # which a term of 0.0 makes 0.0
    found, expected = (tcjit.define(text, target=target).f(*given) for target in ("cpu", "reference"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    zeros = (found == 0) & (expected == 0)
    assert torch.equal(found[zeros].signbit(), expected[zeros].signbit())


def test_a_guarded_update_has_a_nest() -> None:
    text = "def f(float(N,K) A, float(N,N) C) -> (O) { O(i,j) = C(i,j)  O(i,j) += j <= i ? A(i,k) * A(j,k) : 0.0 }"
    found = tcjit.define(text).f.compile(torch.empty(90, 70), torch.empty(90, 90)).resources["reductions"]
    assert len(found) == 1 and "register tile" in found[0]


@pytest.mark.parametrize("operator", ["min=", "max="])
@pytest.mark.parametrize(
    ("right", "at", "shape", "lane"),
    [
        ("K,N", "k,n", (40, 33, 50), "n"), ("N,K", "n,k", (20, 3, 300), "k"), ("N,K", "n,k", (30, 2, 500), "k"),
        ("K,N", "k,n", (4, 64, 9), "n"),
    ],
)
def test_extremes_go_on_with_results(operator: str, right: str, at: str, shape: tuple[int, int, int], lane: str) -> None:
    """Also where lanes hold parts of them, and where conditions leave results without a term; NaN stays."""
    m, n, k = shape
    text = f"""def f(float(M,K) A, float({right}) B, float(M,N) D) -> (C, T) {{
        C(m,n) = D(m,n)
        C(m,n) {operator} A(m,k) * B({at})
        T(m,n) = D(m,n)
        T(m,n) {operator} k < m ? A(m,k) * B({at}) : {"" if operator == "min=" else "-"}infinity() }}"""
    torch.manual_seed(3)
    a, b, d = torch.randn(m, k), torch.randn(k, n), torch.randn(m, n) * 3
    a[0, -1] = torch.nan
    f = tcjit.define(text, target="cpu").f
    given = (a, b if right == "K,N" else b.t().contiguous(), d)
    terms = a[:, :, None] * b
    below = torch.where((torch.arange(k) < torch.arange(m)[:, None])[:, :, None], terms, torch.inf if operator == "min=" else -torch.inf)
    for result, some in zip(f(*given), (terms, below), strict=True):
        expected = torch.minimum(some.amin(1), d) if operator == "min=" else torch.maximum(some.amax(1), d)
        assert torch.equal(result.nan_to_num(1e9), expected.nan_to_num(1e9))
    plan = f.compile(*given).resources["reductions"]
    assert any(line.startswith("C: loops") and f"{LANES} {lane}" in line for line in plan), plan
