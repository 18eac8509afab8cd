"""Sums of products of bfloat16 and of bytes in tiles of a matrix unit, on processors that have one and, by loops in its place, on others.

Modules: codegen.matrix_tile mapping.nest.matrix_unit
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tcjit
from tcjit.jit.targets import cpu
from tcjit.mapping.machine import Machine
from tcjit.runtime import host

Shapes = tuple[tuple[int, ...], ...]
LAYOUTS = {"nn": ("M,K", "K,N", "A(m,k) * B(k,n)"), "nt": ("M,K", "N,K", "A(m,k) * B(n,k)"), "tn": ("K,M", "K,N", "A(k,m) * B(k,n)")}


@pytest.fixture(autouse=True)
def _matrix_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine at hand, with a matrix unit that is worth it for small products."""
    own = cpu.machine_of

    def machine_of(tool: host.Compiler) -> Machine:
        found, types = own(tool), frozenset({"bfloat16", "int8"})
        costs = replace(found.costs, fma_rate=0.02, parallel_region=3e-6)
        return replace(found, vector_bytes=64, vector_registers=32, dot_ways=4, bfloat16_dots=True, matrix_types=types, costs=costs)

    monkeypatch.setattr(cpu, "machine_of", machine_of)


def drawn(shapes: Shapes, dtype: torch.dtype, seed: int = 3) -> list[torch.Tensor]:
    """Small integers: sums of their products are exact, whatever the order."""
    generator = torch.Generator().manual_seed(seed)
    least = 0 if dtype == torch.uint8 else -3
    return [torch.randint(least, 4, shape, generator=generator).to(dtype) for shape in shapes]


def run(text: str, arguments: list[torch.Tensor], *, uses: bool = True) -> torch.Tensor:
    """The result of a def ``f``, whose sums ``uses`` a matrix unit or not."""
    f = tcjit.define(text)["f"]
    found = f.compile(*arguments).resources["reductions"]
    assert any("matrix unit" in line for line in found) == uses, found
    result = f(*arguments)
    assert isinstance(result, torch.Tensor)
    return result


def product_of(layout: str, dtype: str) -> str:
    a, b, value = LAYOUTS[layout]
    return f"def f({dtype}({a}) A, {dtype}({b}) B) -> (O) {{ O(m,n) +=! {value} }}"


def expected(layout: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, b = a.double(), b.double()
    return {"nn": lambda: a @ b, "nt": lambda: a @ b.T, "tn": lambda: a.T @ b}[layout]()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", [(64, 64, 64), (100, 70, 90), (33, 333, 49), (10, 512, 300), (300, 96, 20), (77, 96, 336)])
def test_products_of_bfloat16(layout: str, sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    shapes = {"nn": ((m, k), (k, n)), "nt": ((m, k), (n, k)), "tn": ((k, m), (k, n))}[layout]
    a, b = drawn(shapes, torch.bfloat16)
    assert torch.equal(run(product_of(layout, "bfloat16"), [a, b]), expected(layout, a, b).bfloat16())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("left", ["int8", "uint8"])
@pytest.mark.parametrize("right", ["int8", "uint8"])
@pytest.mark.parametrize("sizes", [(64, 128, 64), (50, 203, 70)])
def test_products_of_bytes(layout: str, left: str, right: str, sizes: tuple[int, int, int]) -> None:
    """All values of both, with zero points that are added."""
    m, k, n = sizes
    a_dims, b_dims, value = LAYOUTS[layout]
    value = value.replace("A(", "int32(A(", 1).replace(" * B(", ") - 3) * (int32(B(") + ") + 7)"
    text = f"def f({left}({a_dims}) A, {right}({b_dims}) B) -> (O) {{ O(m,n) +=! ({value} }}"
    shapes = {"nn": ((m, k), (k, n)), "nt": ((m, k), (n, k)), "tn": ((k, m), (k, n))}[layout]
    generator = torch.Generator().manual_seed(5)
    a, b = (
        torch.randint(0, 256, shape, generator=generator).to(torch.uint8).view(getattr(torch, dtype))
        for shape, dtype in zip(shapes, (left, right), strict=True)
    )
    wide = expected(layout, a.long() - 3, b.long() + 7)
    assert torch.equal(run(text, [a, b]).double(), wide)


def test_what_follows_a_product() -> None:
    """In float32, from vectors of the sums, and in bfloat16, from memory."""
    a, b, bias = drawn(((70, 96), (130, 96), (130,)), torch.bfloat16)
    linear = "O(m,n) +=! A(m,k) * B(n,k)  O(m,n) = relu(O(m,n) + D(n))"
    narrow = f"def f(bfloat16(M,K) A, bfloat16(N,K) B, bfloat16(N) D) -> (O) {{ {linear} }}"
    sums = expected("nt", a, b)
    assert torch.equal(run(narrow, [a, b, bias]), torch.relu(sums.bfloat16() + bias))
    wide = "def f(bfloat16(M,K) A, bfloat16(N,K) B, float(N) D) -> (O) { S(m,n) +=! float(A(m,k)) * float(B(n,k))  O(m,n) = S(m,n) + D(n) }"
    assert torch.equal(run(wide, [a, b, bias.float()]), (sums + bias.double()).float())


@pytest.mark.parametrize("update", ["+=!", "+="])
def test_long_sums_run_in_blocks(update: str) -> None:
    a, b = drawn(((40, 4800), (4800, 40)), torch.bfloat16)
    first = "O(m,n) = 1.0 where m in 0:40, n in 0:40"
    text = f"def f(bfloat16(M,K) A, bfloat16(K,N) B) -> (O) {{ {first}  O(m,n) {update} float(A(m,k)) * float(B(k,n)) }}"
    start = 1.0 if update == "+=" else 0.0
    assert torch.equal(run(text, [a, b]), (expected("nn", a, b) + start).float())


@pytest.mark.parametrize(
    ("stride", "padding", "size", "channels"), [(1, 0, 40, 64), (2, 0, 41, 64), (1, 1, 30, 33), (2, 1, 35, 96), (1, 0, 9, 64)]
)
def test_convolutions(stride: int, padding: int, size: int, channels: int) -> None:
    x, w = drawn(((2, channels, size, size), (48, channels, 3, 3)), torch.bfloat16)
    result = F.conv2d(x.double(), w.double(), stride=stride, padding=padding).bfloat16()
    place = f"y >= 0 && y < {size} && x >= 0 && x < {size} ? I(n,c,y,x) : 0.0"
    text = f"""def f(bfloat16(N,C,H,W) I, bfloat16(F,C,KH,KW) K) -> (O) {{
        O(n,f,h,w) +=! ({place}) * K(f,c,kh,kw)
            where h in 0:{result.shape[2]}, w in 0:{result.shape[3]}, y = {stride}*h + kh - {padding}, x = {stride}*w + kw - {padding} }}"""
    uses = size > 9  # a register has 16 rows
    assert torch.equal(run(text, [x, w], uses=uses), result)


def test_batches_and_several_terms() -> None:
    a, b = drawn(((3, 50, 64), (3, 64, 40)), torch.bfloat16)
    text = "def f(bfloat16(B,M,K) A, bfloat16(B,K,N) X) -> (O) { O(b,m,n) +=! A(b,m,k) * X(b,k,n) }"
    assert torch.equal(run(text, [a, b]), torch.bmm(a.double(), b.double()).bfloat16())
    a, b = drawn(((40, 5, 64), (5, 64, 48)), torch.bfloat16)
    text = "def f(bfloat16(M,I,K) A, bfloat16(I,K,N) X) -> (O) { O(m,n) +=! A(m,i,k) * X(i,k,n) }"
    assert torch.equal(run(text, [a, b]), torch.einsum("mik,ikn->mn", a.double(), b.double()).bfloat16())


def test_attention() -> None:
    """A product whose results rows are computed from, inside loops that both share."""
    q, k, v = ((torch.randn(2, 96, 64, generator=torch.Generator().manual_seed(n))).bfloat16() for n in range(3))
    text = """def f(bfloat16(B,M,D) Q, bfloat16(B,N,D) K, bfloat16(B,N,D) V) -> (O) {
        S(b,i,j) +=! float(Q(b,i,d)) * float(K(b,j,d))
        T(b,i) max=! S(b,i,j)
        E(b,i,j) = exp((S(b,i,j) - T(b,i)) * 0.125)
        Z(b,i) +=! E(b,i,j)
        O(b,i,d) +=! E(b,i,j) / Z(b,i) * float(V(b,j,d)) }"""
    torch.testing.assert_close(run(text, [q, k, v]), F.scaled_dot_product_attention(q.float(), k.float(), v.float()), atol=1e-5, rtol=1e-4)


def test_conditions_on_terms_stay_with_vectors() -> None:
    a, b = drawn(((64, 64), (64, 64)), torch.bfloat16)
    text = "def f(bfloat16(M,K) A, bfloat16(K,N) B) -> (O) { O(m,n) +=! k <= m ? float(A(m,k)) * float(B(k,n)) : 0.0 }"
    assert torch.equal(run(text, [a, b], uses=False), (a.double().tril() @ b.double()).float())


@pytest.mark.parametrize("scale", [1.0, float("inf"), float("nan")])
def test_what_is_no_number_stays_in_its_row(scale: float) -> None:
    """Rows and lanes beyond the extents have no part in results."""
    a, b = drawn(((33, 65), (65, 35)), torch.bfloat16)
    a[4, 3] = scale
    b[3, :] = 1
    result = run(product_of("nn", "bfloat16"), [a, b])
    assert torch.equal(result.isfinite().all(1), torch.arange(33) != 4 if scale != 1.0 else torch.ones(33, dtype=torch.bool))


@pytest.mark.parametrize("call", [lambda f, a, b: f(a, b), lambda f, a, b: [f(a, b) for _ in range(3)][-1]])
def test_one_thread_and_many(call: Callable[..., Any]) -> None:
    """Threads configure a unit each, and the caller of a team its own again: results are the same bit for bit."""
    a, b = (torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16() for shape in ((200, 300), (300, 260)))
    f, before = tcjit.define(product_of("nn", "bfloat16"))["f"], torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(call(f, a, b))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(results[0], other) for other in results)


def test_beside_the_libraries_that_use_it_too() -> None:
    """Calls take turns with PyTorch's, in several threads: each finds the unit configured for its own tiles."""
    f, wrong = tcjit.define(product_of("nn", "bfloat16"))["f"], list[int]()
    given = [drawn(((m, k), (k, n)), torch.bfloat16) for m, k, n in ((64, 64, 64), (100, 70, 90), (33, 129, 57), (17, 64, 40))]
    cases = [(a, b, (a.double() @ b.double()).bfloat16()) for a, b in given]
    for a, b, _ in cases:
        f(a, b)

    def calls(first: int) -> None:
        for number in range(first, first + 200):
            a, b, sums = cases[number * 7 % len(cases)]
            if not torch.equal(a @ b if number % 3 == 0 else f(a, b), sums):
                wrong.append(number)

    threads = [Thread(target=calls, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


ALONE = """
import ctypes, sys
function = ctypes.CDLL(sys.argv[1])[sys.argv[2]]
one = 0x3F80  # the bits of 1 in bfloat16
results, a, b = ((ctypes.c_uint16 * 4096)(*[value] * 4096) for value in (0, one, one))
tensors = (ctypes.c_void_p * 3)(*map(ctypes.addressof, (results, a, b)))
workspace = ctypes.create_string_buffer(int(sys.argv[3]) + 64)
place = ctypes.c_void_p((ctypes.addressof(workspace) + 63) & -64)
assert function(tensors, None, place, 2) == 0
assert set(results) == {0x4280}, set(results)  # 64
"""


def test_a_library_alone_in_its_process_asks_the_system_itself(tmp_path: Path) -> None:
    """As an exported one is, where nobody has imported tcjit."""
    kernel = tcjit.define(product_of("nn", "bfloat16"))["f"].compile(*drawn(((64, 64), (64, 64)), torch.bfloat16))
    assert any("matrix unit" in line for line in kernel.resources["reductions"])
    path = tmp_path / "alone.so"
    path.write_bytes(host.build(kernel.source, "tc_f"))
    command = [sys.executable, "-c", ALONE, str(path), "tc_f", str(kernel.resources["workspace"])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
