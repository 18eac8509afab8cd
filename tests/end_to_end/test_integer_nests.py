"""Reductions of integers as register tiles, bit for bit against numpy: plain ones, and products of narrow types by groups of terms.

Modules: mapping.nest.form_dot_products mapping.nest.narrow_factors
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import tcjit
from tcjit.jit.targets import cpu
from tcjit.jit.targets.cpu import machine_of
from tcjit.runtime import host

WAYS = machine_of(host.compiler()).dot_ways
Reference = Callable[..., Any]
WIDE = np.int64
INSIDE = "h + i >= 1 && h + i <= H"


@pytest.fixture(autouse=True)
def _vectors_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix unit has tests of its own."""
    monkeypatch.setattr(cpu, "matrix_types", frozenset)


def product(x: Any, y: Any) -> Any:
    return x @ y


def windows(x: Any, size: int) -> Any:
    """Rows of a (..., H, W), padded by one row, and columns in windows: (..., H, W - size + 1, size, size)."""
    padded = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(1, 1), (0, 0)])
    return np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(-2, -1))


# the text, dtype and shape of each input, the result in int64, how many terms an instruction sums at most
PROGRAMS: dict[str, tuple[str, Sequence[tuple[str, tuple[int, ...]]], Reference, int]] = {
    "nn": (
        "def f(int8(M,K) X, int8(K,N) Y) -> (O) { O(m,n) +=! int32(X(m,k)) * int32(Y(k,n)) }",
        [("int8", (19, 40)), ("int8", (40, 37))],
        product,
        4,
    ),
    "odd terms": (
        "def f(int8(M,K) X, int8(N,K) Y) -> (O) { O(m,n) +=! int32(X(m,k)) * int32(Y(n,k)) }",
        [("int8", (19, 41)), ("int8", (37, 41))],
        lambda x, y: x @ y.T,
        4,
    ),
    "unsigned, with a zero point": (
        "def f(uint8(K,M) X, int8(K,N) Y) -> (O) { O(m,n) +=! (int32(X(k,m)) - 128) * (int32(Y(k,n)) + 3) }",
        [("uint8", (41, 19)), ("int8", (41, 37))],
        lambda x, y: (x.T - 128) @ (y + 3),
        4,
    ),
    "sums that wrap": (
        "def f(int16(M,K) X, int16(K,N) Y) -> (O) { O(m,n) +=! int32(X(m,k)) * int32(Y(k,n)) }",
        [("int16", (9, 64)), ("int16", (64, 20))],
        product,
        2,
    ),
    "beyond 16 bits": (
        "def f(int16(M,K) X, int16(K,N) Y) -> (O) { O(m,n) +=! (int32(X(m,k)) + 1) * int32(Y(k,n)) }",
        [("int16", (9, 64)), ("int16", (64, 20))],
        lambda x, y: (x + 1) @ y,
        2,
    ),
    "padded convolution": (
        f"def f(int8(N,C,H,W) X, int8(F,C,I,J) G) -> (O)"
        f" {{ O(n,f,h,w) +=! ({INSIDE} ? int32(X(n,c,h+i-1,w+j)) : 0) * int32(G(f,c,i,j)) where h in 0:H }}",
        [("int8", (2, 5, 9, 19)), ("int8", (7, 5, 3, 3))],
        lambda x, g: np.einsum("nchwij,fcij->nfhw", windows(x, 3), g),
        4,
    ),
    "padded with a zero point": (
        f"def f(uint8(N,C,H,W) X, int8(F,C,I,J) G) -> (O)"
        f" {{ O(n,f,h,w) +=! ({INSIDE} ? int32(X(n,c,h+i-1,w+j)) - 9 : 0) * int32(G(f,c,i,j)) where h in 0:H }}",
        [("uint8", (2, 5, 9, 19)), ("int8", (7, 5, 3, 3))],
        lambda x, g: np.einsum("nchwij,fcij->nfhw", windows(x - 9, 3), g),
        4,
    ),
    "padded beyond a byte": (
        f"def f(uint8(N,C,H,W) X, int8(F,C,I,J) G) -> (O)"
        f" {{ O(n,f,h,w) +=! ({INSIDE} ? int32(X(n,c,h+i-1,w+j)) + 1 : 0) * int32(G(f,c,i,j)) where h in 0:H }}",
        [("uint8", (2, 5, 9, 19)), ("int8", (7, 5, 3, 3))],
        lambda x, g: np.einsum("nchwij,fcij->nfhw", windows(x + 1, 3), g),
        2,
    ),
    "a window alone": (
        "def f(int8(N,W) X, int8(F,J) G) -> (O) { O(n,f,w) +=! int32(X(n,w+j)) * int32(G(f,j)) }",
        [("int8", (9, 40)), ("int8", (7, 3))],
        lambda x, g: np.einsum("nwj,fj->nfw", np.lib.stride_tricks.sliding_window_view(x, 3, axis=1), g),
        2,
    ),
    "batched": (
        "def f(int8(B,M,K) X, uint8(B,K,N) Y) -> (O) { O(b,m,n) +=! int32(X(b,m,k)) * int32(Y(b,k,n)) }",
        [("int8", (3, 9, 16)), ("uint8", (3, 16, 33))],
        product,
        4,
    ),
    "two dimensions of terms": (
        "def f(int8(M,K,L) X, int8(L,K,N) Y) -> (O) { O(m,n) +=! int32(X(m,k,l)) * int32(Y(l,k,n)) }",
        [("int8", (19, 4, 7)), ("int8", (7, 4, 33))],
        lambda x, y: np.einsum("mkl,lkn->mn", x, y),
        4,
    ),
    "triangular": (
        "def f(int8(M,M) X, int8(M,N) Y) -> (O) { O(m,n) +=! (k <= m ? int32(X(m,k)) * int32(Y(k,n)) : 0) }",
        [("int8", (33, 33)), ("int8", (33, 20))],
        lambda x, y: np.tril(x) @ y,
        2,
    ),
    "int32": (
        "def f(int32(M,K) X, int32(K,N) Y) -> (O) { O(m,n) +=! X(m,k) * Y(k,n) }",
        [("int32", (19, 23)), ("int32", (23, 37))],
        product,
        0,
    ),
    "narrow maxima": (
        "def f(int8(M,K) X, uint8(K,N) Y) -> (O) { O(m,n) max=! int32(X(m,k)) - (X(m,k) < 5 ? int32(Y(k,n)) : 1) }",
        [("int8", (19, 23)), ("uint8", (23, 37))],
        lambda x, y: (x[:, :, None] - np.where(x[:, :, None] < 5, y[None], 1)).max(1),
        0,
    ),
    "sums in int8": (
        "def f(int8(M,K) X, int8(K,N) Y) -> (O) { O(m,n) max=! int32(X(m,k) + Y(k,n)) }",
        [("int8", (19, 23)), ("int8", (23, 37))],
        lambda x, y: (x[:, :, None] + y[None]).astype(np.int8).max(1),
        0,
    ),
    "maxima": (
        "def f(int32(M,K) X, int32(K,N) Y) -> (O) { O(m,n) max=! min(X(m,k), -Y(k,n)) }",
        [("int32", (19, 23)), ("int32", (23, 37))],
        lambda x, y: np.minimum(x[:, :, None], (-y).astype(np.int32)[None]).max(1),
        0,
    ),
    "minima in windows": (
        "def f(int32(N,W) X) -> (O) { O(n,w) min=! X(n,2*w+j) where j in 0:3, w in 0:19 }",
        [("int32", (5, 40))],
        lambda x: np.lib.stride_tricks.sliding_window_view(x, 3, axis=1)[:, :38:2].min(-1),
        0,
    ),
}  # fmt: skip


def inputs(kinds: Sequence[tuple[str, tuple[int, ...]]]) -> list[np.ndarray]:
    """Over the whole range of each type, its ends among them."""
    random = np.random.default_rng(len(kinds) + sum(kinds[0][1]))
    found = []
    for dtype, shape in kinds:
        info = np.iinfo(dtype)
        array = random.integers(info.min, info.max + 1, shape).astype(dtype)
        array.reshape(-1)[:2] = info.min
        array.reshape(-1)[-2:] = info.min
        found.append(array)
    return found


def assert_right(name: str, options: tcjit.Options | None = None) -> Any:
    """The kernel, whose results are those of numpy for any number of threads."""
    text, kinds, reference, _ = PROGRAMS[name]
    given = inputs(kinds)
    expected = reference(*(array.astype(WIDE) for array in given)).astype(np.uint64).astype(np.uint32).view(np.int32)
    arguments = [torch.from_numpy(array) for array in given]
    kernel = tcjit.define(text).f.compile(*arguments, options=options)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        np.testing.assert_array_equal(kernel(*arguments).numpy(), expected)
    return kernel


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    kernel, ways = assert_right(name), min(PROGRAMS[name][3], WAYS)
    called = re.split(r"void tc_outlined0\(|int64_t tc_f\(", kernel.source, maxsplit=1)[1]
    for some in (2, 4):
        assert (f"tc_dot{some}_" in called) == (ways == some)
    assert ("tc_a0_0" in called) == (name != "sums in int8")


@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("name", ["odd terms", "padded convolution", "maxima"])
def test_narrower_vectors(name: str, width: int) -> None:
    assert f"tc_int32x{width} tc_a0_0" in assert_right(name, tcjit.Options(vector_width=width)).source


@pytest.mark.parametrize("name", ["odd terms", "padded convolution"])
@pytest.mark.parametrize("options", [{"nest": False}, {"pack": False}, {"register_tile": (3, 1)}], ids=str)
def test_options(name: str, options: Mapping[str, Any]) -> None:
    assert_right(name, tcjit.Options(**options))


def test_a_scaled_product_is_one_nest() -> None:
    text = """def f(int8(M,K) X, int8(K,N) Y, float(N) S) -> (O) {
        P(m,n) +=! int32(X(m,k)) * int32(Y(k,n))
        O(m,n) = float(P(m,n)) * S(n) }"""
    x, y = (torch.from_numpy(array) for array in inputs(PROGRAMS["nn"][1]))
    scale = torch.rand(y.shape[1])
    kernel = tcjit.define(text).f.compile(x, y, scale)
    torch.testing.assert_close(kernel(x, y, scale), (x.double() @ y.double()).float() * scale)
    assert [line.partition(":")[0] for line in kernel.resources["reductions"]] == ["X_sums", "P"][2 - WAYS // 2 :]
    assert "no nest" not in " ".join(kernel.resources["reductions"])


def test_strides_of_the_call() -> None:
    """Pairs are made from a copy."""
    x, y = (torch.from_numpy(array) for array in inputs(PROGRAMS["nn"][1]))
    x, y = x.T.contiguous().T, y.T.contiguous().T
    assert torch.equal(tcjit.define(PROGRAMS["nn"][0]).f(x, y), (x.double() @ y.double()).int())


@pytest.mark.parametrize(
    ("image", "filters"),
    [((2, 28, 20, 24), (16, 28, 4, 4)), ((16, 35, 16, 11), (43, 35, 2, 2)), ((2, 32, 9, 9), (16, 32, 4, 4))],
)
def test_bytes_of_strided_convolutions(image: tuple[int, ...], filters: tuple[int, ...]) -> None:
    """Words of filters are packed from four places of one tensor, which stay rows of that tensor."""
    text = "def f(int8(N,C,H,W) X, int8(F,C,KH,KW) K) -> (O) { O(n,f,h,w) +=! int32(X(n,c,2*h + kh,2*w + kw)) * int32(K(f,c,kh,kw)) }"
    generator = torch.Generator().manual_seed(5)
    x, k = (torch.randint(-128, 128, shape, dtype=torch.int8, generator=generator) for shape in (image, filters))
    expected = torch.nn.functional.conv2d(x.double(), k.double(), stride=2)
    assert torch.equal(tcjit.define(text).f(x, k).double(), expected)


BODIES = {
    "bool": ["A(i,k) && B(k,j)", "!A(i,k) || B(k,j)", "A(i,k) != B(k,j)", "(i < k ? A(i,k) : B(k,j))"],
    "int8": ["min(A(i,k), B(k,j))", "A(i,k) * B(k,j)", "(A(i,k) < B(k,j) ? A(i,k) : B(k,j))"],
    "uint8": ["max(A(i,k), B(k,j))", "A(i,k) - B(k,j)", "(i < k ? A(i,k) : B(k,j))"],
    "int16": ["min(A(i,k), B(k,j))", "A(i,k) + B(k,j)"],
}


@pytest.mark.parametrize(("dtype", "body"), [(dtype, body) for dtype, bodies in BODIES.items() for body in bodies])
@pytest.mark.parametrize(("operator", "result"), [("max=!", "O(i,j)"), ("min=!", "O(j,i)"), ("max=!", "O(j)"), ("+=!", "O(i,j)")])
def test_narrow_types_have_lanes_of_their_own(dtype: str, body: str, operator: str, result: str) -> None:
    """Also where bytes of truth values are any but 0, and where sums wrap."""
    generator = torch.Generator().manual_seed(0)
    shapes = (33, 17), (17, 70)
    if dtype == "bool":
        a, b = (torch.randint(0, 3, shape, generator=generator).to(torch.uint8).view(torch.bool) for shape in shapes)
        operator = operator.replace("+=!", "max=!")
    else:
        least, greatest = torch.iinfo(getattr(torch, dtype)).min, torch.iinfo(getattr(torch, dtype)).max
        a, b = (torch.randint(least, greatest + 1, shape, generator=generator).to(getattr(torch, dtype)) for shape in shapes)
    text = f"def f({dtype}(I,K) A, {dtype}(K,J) B) -> (O) {{ {result} {operator} {body} }}"
    kernel = tcjit.compile(text, "f", a, b)
    assert "i < k" in body or any("register tile" in line for line in kernel.resources["reductions"])  # conditions on indices stay
    assert torch.equal(kernel(a, b), tcjit.compile(text, "f", a, b, target="reference")(a, b))


@pytest.mark.parametrize("layout", ["n,i", "i,n"])
@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_products_under_conditions_on_data(dtype: str, layout: str) -> None:
    """Which are no part of a domain: an instruction that sums products cannot leave some out."""
    other = layout.replace("i", "j")
    text = f"""def f({dtype}({layout.upper()}) A, {dtype}({other.upper()}) B) -> (S) {{
        S(i,j) +=! (A({layout}) != 3 && B({other}) != 3) ? int32(A({layout})) * int32(B({other})) : 0 }}"""
    rng = np.random.default_rng(5)
    a, b = (rng.integers(0, 5, (250, size)).astype(dtype) for size in (96, 64))
    wanted = np.where(a == 3, 0, a).astype(WIDE).T @ np.where(b == 3, 0, b).astype(WIDE)
    args = [torch.from_numpy(x if layout == "n,i" else np.ascontiguousarray(x.T)) for x in (a, b)]
    assert np.array_equal(tcjit.define(text).f(*args).numpy(), wanted)


@pytest.mark.parametrize("zero", [113, -5, 1 << 30])
def test_zero_points_of_a_call(zero: int) -> None:
    """Of all, and of each row, modulo 2^32 as int32 are."""
    text = """def f(uint8(N,K) X, int8(O,K) W, int8(O) Z, int32 z) -> (A) {
        A(n,o) +=! (int32(X(n,k)) - z) * (int32(W(o,k)) - int32(Z(o))) }"""
    rng = np.random.default_rng(7)
    x, w, z = rng.integers(0, 256, (37, 90)), rng.integers(-128, 128, (50, 90)), rng.integers(-128, 128, 50)
    wanted = ((x - zero) @ (w - z[:, None]).T).astype(np.int32)
    args = [torch.from_numpy(value.astype(dtype)) for value, dtype in ((x, "uint8"), (w, "int8"), (z, "int8"))]
    kernel = tcjit.define(text).f.compile(*args, zero)
    assert any("A_products" in line for line in kernel.resources["reductions"])
    assert np.array_equal(kernel(*args, zero).numpy(), wanted)
