"""Results that are stored past the caches: loops of every length and alignment, types, threads, and what is worth it.

Modules: codegen.streaming
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.mapping import AVX512, program

import tcjit
from tcjit.codegen import streaming
from tcjit.mapping.options import Options
from tcjit.mapping.passes import parallelise
from tcjit.mapping.pipeline import map_program

STORED = "tc_store_line"
STAR = "(A(i+1,j+1) + A(i,j+1) + A(i+2,j+1) + A(i+1,j) + A(i+1,j+2)) * 0.2"


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Whatever the size is, by several threads; the kernels of these tests have names of their own."""
    if not request.node.originalname.startswith("test_what_is_worth_it"):
        for name in ("BEYOND", "FULL"):
            monkeypatch.setattr(streaming, name, 0.0)
        monkeypatch.setattr(parallelise, "WORTH_THREADS", 1)


@pytest.mark.parametrize("width", [256, 257, 271, 272, 287, 288, 300, 1000, 1023])
@pytest.mark.parametrize("ctype", ["float", "double", "int32", "int64"])
def test_rows(width: int, ctype: str) -> None:
    """Rows that begin anywhere in a line, and end anywhere; what is beside them stays."""
    dtype = {"float": torch.float32, "double": torch.float64, "int32": torch.int32, "int64": torch.int64}[ctype]
    x = (1000 * torch.randn(5, width)).to(dtype)
    u = (1000 * torch.randn(width)).to(dtype)
    text = f"def streamed_rows({ctype}(M,N) X, {ctype}(N) U) -> (O) {{ O(i,j) = X(i,j) + U(j) }}"
    kernel = tcjit.compile(text, "streamed_rows", x, u)
    assert STORED in kernel.source
    for first in range(5):
        whole = torch.full((5 * width + 32,), 7, dtype=dtype)
        out = whole[first : first + 5 * width].view(5, width)
        kernel(x, u, out=out)
        assert torch.equal(out, x + u)
        assert (whole[:first] == 7).all() and (whole[first + 5 * width :] == 7).all()


@pytest.mark.parametrize("rows", [70, 71, 82])
def test_parts_of_a_row(rows: int) -> None:
    """Threads share one long row by parts, of which the last may be shorter than a line."""
    x = torch.rand(rows * 2048 + rows % 4)
    kernel = tcjit.define("def streamed_row(float(N) X) -> (O) { O(i) = X(i) * 2.0 }").streamed_row.compile(x)
    for first in (0, 1, 5):
        out = torch.zeros(len(x) + 16)[first : first + len(x)]
        kernel(x, out=out)
        assert torch.equal(out, x * 2) and STORED in kernel.source


def test_loops_in_a_row() -> None:
    """One team of threads writes what is read next as usual, and the rest past the caches."""
    image = torch.rand(70, 402)
    text = "def streamed_blur(float(H,W) I) -> (X, Y) { X(y,x) = I(y,x) + I(y,x+2)  Y(y,x) = X(y,x) + X(y+1,x) + X(y+2,x) }"
    kernel = tcjit.define(text).streamed_blur.compile(image)
    x, y = kernel(image)
    torch.testing.assert_close(x, image[:, :-2] + image[:, 2:])
    torch.testing.assert_close(y, x[:-2] + x[1:-1] + x[2:])
    assert kernel.source.count(f"{STORED}(&") == 1, "of one result"
    assert "tc_finish_stores();\n  }" in kernel.source, "each thread of the team"


def test_one_parallel_loop() -> None:
    a = torch.rand(61, 402)
    kernel = tcjit.define(f"def streamed_star(float(H,W) A) -> (B) {{ B(i,j) = {STAR} }}").streamed_star.compile(a)
    expected = (a[1:-1, 1:-1] + a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:]) * 0.2
    torch.testing.assert_close(kernel(a), expected)
    assert "nowait" in kernel.source and "tc_finish_stores();\n  }" in kernel.source


def test_other_loops() -> None:
    """What reads its results, writes across rows, or rounds to halves."""
    for text in (
        "def streamed_sums(float(M,N) X) -> (O) { O(i,j) = X(i,j)  O(i,j) += X(i,j) }",
        "def streamed_halves(float(M,N) X) -> (O) { O(i,j) = half(X(i,j)) }",
        "def streamed_short(float(M,N) X) -> (O) { O(i,j) = X(j,i) * 2.0 }",
    ):
        kernel = tcjit.compile(text, text.partition("(")[0].removeprefix("def "), torch.rand(20, 400))
        assert STORED not in kernel.source


def stored(text: str, shape: tuple[int, int], shared_bytes: int = 1 << 24) -> frozenset[str]:
    machine = replace(AVX512, shared_bytes=shared_bytes)
    mapped = map_program(program(text, {text.partition("float(M,N) ")[2][0]: shape}), Options(), machine)
    return streaming.nontemporal(mapped.scop, machine)


@pytest.mark.parametrize(
    ("text", "megabytes", "expected"),
    [
        ("def f(float(M,N) X) -> (O) { O(i,j) = X(i,j) * 2.0 }", 12, False),  # which a later reader finds in the cache
        ("def f(float(M,N) X) -> (O) { O(i,j) = X(i,j) * 2.0 }", 20, True),
        (f"def f(float(M,N) A) -> (O) {{ O(i,j) = {STAR} }}", 12, False),
        (f"def f(float(M,N) A) -> (O) {{ O(i,j) = {STAR} }}", 20, True),
        (f"def f(float(M,N) A) -> (O) {{ T(i,j) = {STAR}  O(i,j) = T(i,j) + T(i+1,j) }}", 6, False),
        (f"def f(float(M,N) A) -> (O) {{ T(i,j) = {STAR}  O(i,j) = T(i,j) + T(i+1,j) }}", 9, True),  # which would drive T out
        ("def f(float(M,N) X) -> (O) { T(i,j) = X(i,j) * 2.0  O(i) +=! T(i,j) }", 64, False),  # reads all that is large
    ],
)
def test_what_is_worth_it(text: str, megabytes: int, expected: bool) -> None:
    assert bool(stored(text, (megabytes << 8, 1 << 10))) == expected


def test_what_is_worth_it_of_a_few_rows_of_a_large_table() -> None:
    text = "def f(float(V,D) X, int64(N) I) -> (O) { O(n,d) = X(I(n),d) }"
    for rows, expected in ((200, set[str]()), (8000, {"S0"})):
        mapped = map_program(program(text, {"X": (25000, 2000), "I": (rows,)}), Options(), AVX512)
        assert streaming.nontemporal(mapped.scop, AVX512) == expected
