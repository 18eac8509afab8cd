"""Dynamic sizes: one kernel for many shapes, where the caller says so, by itself, and under torch.compile.

Modules: jit.compile
"""
from __future__ import annotations

import json
import pickle
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from operator import floordiv
from typing import Any

import pytest
import torch
from support.calls import child

import tcjit
from tcjit.codegen import c
from tcjit.errors import ArgumentError, GatherError, ShapeError
from tcjit.jit import compile as compiling
from tcjit.jit import dynamic, kernel_cache
from tcjit.mapping.passes import chunk_reductions, pad_operands

TEXT = """
def mlp(float(B,I) X, float(O,I) W, float(O) b) -> (Y) { Y(n,o) +=! X(n,i) * W(o,i)  Y(n,o) = fmax(Y(n,o) + b(o), 0.0) }
def softmax(float(B,N) X) -> (Y) {
    m(b) max=! X(b,n)   e(b,n) = exp(X(b,n) - m(b))   s(b) +=! e(b,n)   Y(b,n) = e(b,n) / s(b)
}
def columns(float(B,N) X) -> (S) { S(n) +=! X(b,n) }
def total(float(B) X) -> (S) { S +=! X(b) }
def turned(float(B,N) X) -> (Y) { Y(n,b) = X(b,n) }
def conv(float(B,C,H,W) I, float(O,C,3,3) F) -> (Y) {
    Y(n,o,h,w) +=! (h + p >= 1 && h + p <= H && w + q >= 1 && w + q <= W) ? I(n, c, h + p - 1, w + q - 1) * F(o,c,p,q) : 0.0
        where h in 0:H, w in 0:W
}
def picked(float(B,D) T, int32(N) I) -> (Y) { Y(n,d) = T(I(n), d) }
def halved(float(B) X) -> (Y) { Y(i) = X(2*i) + float(B) }
def wide(float16(B,N) X) -> (S) { S(b) +=! X(b,n) }
def backwards(float(B) X) -> (Y) { Y(i) = X(B - 1 - i) where i in 0:B }
"""
EDGES = (1, 2, 3, 5, 8, 9, 16, 31, 32, 33, 34, 100, 255)
Expected = Callable[..., torch.Tensor]


def seeded(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


CASES: dict[str, tuple[Callable[[int], tuple[torch.Tensor, ...]], Expected]] = {
    "mlp": (lambda b: (seeded(b, 70), seeded(37, 70), seeded(37)), lambda x, w, b: torch.relu(x @ w.T + b)),
    "softmax": (lambda b: (seeded(b, 50),), lambda x: torch.softmax(x, 1)),
    "columns": (lambda b: (seeded(b, 41),), lambda x: x.sum(0)),
    "total": (lambda b: (seeded(b * 40),), lambda x: x.sum()),
    "turned": (lambda b: (seeded(b, 19),), lambda x: x.T),
    "conv": (lambda b: (seeded(b, 3, 9, 8), seeded(5, 3, 3, 3)), lambda x, f: torch.conv2d(x, f, padding=1)),
    "picked": (lambda b: (seeded(b, 6), torch.arange(11, dtype=torch.int32) % b), lambda t, i: t[i.long()]),
    "halved": (lambda b: (seeded(b),), lambda x: x[::2][: (len(x) + 1) // 2] + len(x)),
    "wide": (lambda b: (seeded(b, 33).half(),), lambda x: x.float().sum(1).half()),
    "backwards": (lambda b: (seeded(b),), lambda x: x.flip(0)),
}


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is compiled or loaded, by its dynamic sizes."""
    made: list[dict[str, Any]] = []
    usual = kernel_cache.binary

    def binary(text: str, signature: Any, key: Any) -> Any:
        made.append({size: limits for size, *limits in key.dynamic})
        return usual(text, signature, key)

    monkeypatch.setattr(kernel_cache, "binary", binary)
    return made


@pytest.mark.parametrize("name", CASES)
def test_one_kernel_serves_many_values(name: str, kernels: list[dict[str, Any]]) -> None:
    args, expected = CASES[name]
    called = tcjit.define(TEXT + "# " + name, target="cpu", dynamic=["B"])[name]
    for value in EDGES:
        given = args(value)
        for _ in range(2):  # the long way, then the fast path
            torch.testing.assert_close(called(*given), expected(*given), rtol=1e-3, atol=1e-3)
    assert kernels.count({}) <= 1 and len(kernels) <= 6, "a size of 1 has a kernel of its own"


@pytest.mark.parametrize("sizes", [["B", "N"], ["N"], ["B", "N", "K"], ["K"]])
def test_any_size_may_be_dynamic(sizes: list[str], kernels: list[dict[str, Any]]) -> None:
    text = "def mm(float(B,K) X, float(K,N) Z) -> (Y) { Y(b,n) +=! X(b,k) * Z(k,n) }"
    mm = tcjit.define(text, target="cpu", dynamic=sizes).mm
    for change in (0, 1, 4, 15):
        b, k, n = (40 + change * (name in sizes) for name in ("B", "K", "N"))
        x, z = seeded(b, k), seeded(k, n)
        torch.testing.assert_close(mm(x, z), x @ z, rtol=1e-3, atol=1e-3)
    assert len(kernels) == 1


def test_a_hundred_batch_sizes_cost_five_compilations(kernels: list[dict[str, Any]]) -> None:
    mlp = tcjit.define(TEXT + "# hundred", target="cpu", dynamic=["B"]).mlp
    w, b = seeded(37, 70), seeded(37)
    for value in range(2, 2000, 20):
        x = seeded(value, 70)
        torch.testing.assert_close(mlp(x, w, b), torch.relu(x @ w.T + b), rtol=1e-3, atol=1e-3)
    assert kernels == [{"B": list(dynamic.limits(value) or ())} for value in (2, 9, 33, 129, 513)]


def test_values_that_share_a_kernel() -> None:
    assert [dynamic.limits(n) for n in (0, 1, 2, 8, 9, 32, 33, 1024, 1 << 40)] == [
        None, None, (2, 8), (2, 8), (9, 32), (9, 32), (33, 128), (513, 2048), None
    ]  # fmt: skip
    assert chunk_reductions.MAX_DYNAMIC_RATIO == dynamic.FACTOR
    for value in range(2, 5000, 7):
        least, greatest = dynamic.limits(value) or (0, 0)
        assert least <= value <= greatest and greatest <= dynamic.FACTOR * least


def test_nothing_of_a_size_zero_is_dynamic() -> None:
    space = tcjit.define(TEXT + "# zero", target="cpu", dynamic=["B"])
    assert space.turned(torch.empty(0, 4)).shape == (4, 0)
    assert space.columns(torch.empty(0, 4)).tolist() == [0.0] * 4


def test_layouts_and_outputs() -> None:
    columns = tcjit.define(TEXT + "# layouts", target="cpu", dynamic=["B"]).columns
    turned = tcjit.define(TEXT + "# layouts", target="cpu", dynamic=["B"]).turned
    for value in (1, 2, 7, 40, 1):
        x = seeded(12, value).T
        torch.testing.assert_close(columns(x), x.sum(0), rtol=1e-4, atol=1e-4)
        wide = seeded(value, 24)[:, ::2]
        torch.testing.assert_close(columns(wide), wide.sum(0), rtol=1e-4, atol=1e-4)
        out = torch.empty(12, value)
        assert turned(x, out=out) is out and torch.equal(out, x.T)
    assert len(columns._dynamic_kernels) == 4, "transposed and strided, up to 8 and beyond"


def test_a_kernel_that_does_not_serve_all_values_is_asked_which(monkeypatch: pytest.MonkeyPatch) -> None:
    text = TEXT + "# which"
    def_ = tcjit.define(text, target="cpu", dynamic=["B"]).columns
    key = def_.compile(seeded(5, 7)).key
    (made,) = [binary for _, binary in def_._dynamic_kernels.items()]
    assert made.record["total"]
    (name,), positions, facts = made.record["context"]
    some = made._replace(record={**made.record, "total": False, "context": [[name], positions, [*facts, f"{name} >= 6"]]})
    serves = [dynamic.instance(text, def_.signature, replace(key, shapes=((size, 7),)), some) is not None for size in (5, 6, 8)]
    assert serves == [False, True, True]


def test_what_a_kernel_says_of_its_shapes() -> None:
    mlp = tcjit.define(TEXT + "# says", target="cpu", dynamic=["B"]).mlp
    k = mlp.compile(seeded(5, 70), seeded(37, 70), seeded(37))
    assert "2 <= B <= 8" in k.source and k.resources["verified"]
    assert k.record["returns"][0]["shape"] == [5, 37] and k.program.value("B") == 5
    assert k.check(seeded(5, 70), seeded(37, 70), seeded(37)).used["Y"] <= 1
    with pytest.raises(ShapeError, match="compiled for X of shape"):
        k(seeded(6, 70), seeded(37, 70), seeded(37))
    softmax = tcjit.define(TEXT + "# says", target="cpu", dynamic=["B", "N"], options=tcjit.Options(private_buffers=False)).softmax
    found = [softmax.compile(seeded(b, 40)).resources["workspace"] for b in (5, 6)]
    assert 5 * 40 * 4 < found[0] < found[1] < 6 * 40 * 4 + 256  # what this call needs, not what the largest would


# ---------------------------------------------------------------- errors


def test_errors_are_those_of_fixed_shapes() -> None:
    space = tcjit.define(
        """def first(float(B) X) -> (Y) { Y(i) = X(i) where i in 0:5 }
        def shorter(float(B) X, float(K) W) -> (Y) { Y(i) +=! X(i + k) * W(k) }""",
        target="cpu",
        dynamic=["B"],
    )
    for value in (9, 5, 20):
        assert torch.equal(space.first(x := seeded(value)), x[:5])
    with pytest.raises(ShapeError, match="outside dimension 0"):
        space.first(seeded(4))
    assert space.shorter(seeded(9), seeded(3)).shape == (7,) and space.shorter(seeded(2), seeded(3)).shape == (0,)
    with pytest.raises(ShapeError):
        space.shorter(seeded(1), seeded(3))
    picked = tcjit.define(TEXT + "# errors", target="cpu", dynamic=["B"]).picked
    index = torch.tensor([3], dtype=torch.int32)
    assert torch.equal(picked(t := seeded(4, 2), index), t[3:])
    for unchecked in (3, 2):  # tensors with room for no index 3
        with pytest.raises(GatherError):
            picked(seeded(unchecked, 2), index)


def test_sizes_that_cannot_be_dynamic() -> None:
    text = "def strided(float(B,N) X) -> (Y) { Y(b,n) = X(b, (n + N) % N) where n in 0:N, b in 0:B }"
    with pytest.raises(ArgumentError, match="N of strided.. cannot be dynamic"):
        tcjit.define(text, dynamic=["N"])
    with pytest.raises(ArgumentError, match="no def has such a size"):
        tcjit.define(text, dynamic=["M"])
    with pytest.raises(ArgumentError, match="names of sizes"):
        tcjit.define(text, dynamic="B")
    product = "def area(float(B,N) X) -> (Y) { Y(i) = float(i) where i in 0:B*N }"
    with pytest.raises((ArgumentError, ShapeError), match="cannot be dynamic"):
        tcjit.define(product, target="cpu", dynamic=["B", "N"]).area(seeded(2, 3))


def test_a_def_that_does_not_survive_gets_fixed_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise tcjit.TCError("not today")

    seven = tcjit.define("def seven(float(B) X) -> (Y) { Y(i) = 7 * X(i) }", target="cpu", dynamic=["B"]).seven
    monkeypatch.setattr(compiling, "generalise", refuse)
    with pytest.warns(UserWarning, match="a kernel for every value of B: not today"):
        assert torch.equal(seven(x := seeded(5)), 7 * x)


def test_a_dynamic_kernel_of_too_many_lines_gives_way_to_fixed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def product(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }"
    product = tcjit.define(text, target="cpu", dynamic=["M"]).product
    monkeypatch.setattr(c, "DYNAMIC_LINES", 50)
    a, b = seeded(40, 24), seeded(24, 32)
    with pytest.warns(UserWarning, match=r"a kernel for every value of M: \d+ lines of C"):
        assert torch.allclose(product(a, b), a @ b, atol=1e-4)


# ---------------------------------------------------------------- by itself


def test_the_ninth_value_makes_a_size_dynamic(kernels: list[dict[str, Any]]) -> None:
    softmax = tcjit.define(TEXT + "# fifth", target="cpu").softmax
    for value in (3, 4, 3, 5, 6, 7, 8, 9, 10, 11, 40, 3):
        x = seeded(value, 70)
        torch.testing.assert_close(softmax(x), x.softmax(1), rtol=1e-4, atol=1e-5)
    assert kernels == [*[{}] * 8, {"B": [9, 32]}, {"B": [33, 128]}]


def test_dynamic_kernels_have_the_nests_of_fixed_ones() -> None:
    mlp, w, b = tcjit.define(TEXT + "# nests", target="cpu", dynamic=["B"]).mlp, seeded(37, 70), seeded(37)
    fixed = tcjit.define(TEXT + "# nests", target="cpu").mlp
    for value in (1, 8, 9, 33, 70):
        x = seeded(value, 70)
        torch.testing.assert_close(mlp(x, w, b), torch.relu(x @ w.T + b), rtol=1e-3, atol=1e-3)
        assert mlp.compile(x, w, b).nests == fixed.compile(x, w, b).nests == 1


PADDED = "def padded(float(N) X, float(K) w) -> (O) { O(n) +=! (n + k >= 1 && n + k <= N ? X(n+k-1) : 0.0) * w(k) where n in 0:N }"


def test_values_keep_kernels_of_their_own_where_a_dynamic_one_lacks_a_nest(
    monkeypatch: pytest.MonkeyPatch, kernels: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(dynamic, "FIXED_VALUES", 4)
    monkeypatch.setattr(dynamic, "FIXED_VALUES_SLOW", 6)
    found = pad_operands.paddings
    monkeypatch.setattr(pad_operands, "paddings", lambda value, *rest: [] if rest[3] else found(value, *rest))  # none for dynamic sizes
    padded, w = tcjit.define(PADDED, target="cpu").padded, seeded(3)
    for value in (400, 401, 402, 403, 404, 405, 406, 407):
        x = seeded(value)
        expected = torch.nn.functional.conv1d(x[None, None], w[None, None], padding=1)[0, 0]
        torch.testing.assert_close(padded(x, w), expected, rtol=1e-4, atol=1e-5)
    assert kernels == [{}, {}, {}, {}, {"N": [129, 512]}, {}, {}]


NESTS: dict[str, tuple[str, list[str], Callable[[int], tuple[torch.Tensor, ...]], Callable[..., torch.Tensor], str]] = {
    "panels in blocks of a dynamic size": (
        "def f(float(T,D) Q, float(S,D) K) -> (Z) { Z(t,s) +=! Q(t,d) * K(s,d) }", ["T", "S"],
        lambda n: (seeded(n, 48), seeded(n + 5, 48)), lambda q, k: q @ k.T, "s_block",
    ),
    "guarded panels": (
        "def f(float(K,M) A, float(K,N) B) -> (C) { C(n,m) +=! (k <= m ? A(k,m) * B(k,n) : 0.0) }", ["M"],
        lambda n: (seeded(60, n), seeded(60, 37)), lambda a, b: (torch.triu(a).T @ b).T, "loops",
    ),
    "words": (
        "def f(uint8(M,K) A, int8(K,N) B) -> (C) { C(m,n) +=! int32(A(m,k)) * int32(B(k,n)) }", ["M"],
        lambda n: (torch.arange(n * 64).reshape(n, 64).to(torch.uint8), (torch.arange(64 * 48) % 17 - 8).reshape(64, 48).to(torch.int8)),
        lambda a, b: (a.int() @ b.int()), "loops",
    ),
    "residue classes": (
        "def f(float(C,H) X, float(C,F,K) W) -> (O) { O(f,h) +=! (h >= k && (h - k) % 2 == 0 && h - k < 2*H ? X(c,(h-k)/2) * W(c,f,k)"
        " : 0.0) where h in 0:2*H+2 }", ["H"], lambda n: (seeded(24, n), seeded(24, 20, 4)),
        lambda x, w: torch.nn.functional.conv_transpose1d(x[None], w, stride=2)[0], "loops",
    ),
    "windows with zeros around": (
        "def f(float(N,C,H,W) X, float(F,C,I,J) K) -> (O) { O(n,f,h,w) +=! (h+i >= 1 && h+i <= H && w+j >= 2 && w+j < W+2"
        " ? X(n,c,h+i-1,w+j-2) : 0.0) * K(f,c,i,j) where h in 0:H, w in 0:W }", ["H", "W"],
        lambda n: (seeded(2, 8, n, n // 2 + 3), seeded(20, 8, 3, 5)),
        lambda x, k: torch.nn.functional.conv2d(x, k, padding=(1, 2)), "window",
    ),
    "windows that skip": (
        "def f(float(C,L) X, float(F,C,K) W) -> (O) { O(f,l) +=! (2*l+3*k >= 4 && 2*l+3*k < L+4 ? X(c,2*l+3*k-4) : 0.0) * W(f,c,k)"
        " where l in 0:L }", ["L"],
        lambda n: (seeded(20, n), seeded(24, 20, 3)),
        lambda x, w: torch.nn.functional.conv1d(
            torch.nn.functional.pad(x[None], (4, x.shape[1] + 9)), w, stride=2, dilation=3
        )[0, :, : x.shape[1]], "window",
    ),
    "depthwise windows": (
        "def f(float(N,C,H,W) X, float(C,I,J) K) -> (O) { O(n,c,h,w) +=! (h+i >= 1 && h+i <= H && w+j >= 1 && w+j <= W"
        " ? X(n,c,h+i-1,w+j-1) : 0.0) * K(c,i,j) where h in 0:H, w in 0:W }", ["N", "H"],
        lambda n: (seeded(n // 20 + 2, 8, n, 40), seeded(8, 3, 3)),
        lambda x, k: torch.nn.functional.conv2d(x, k[:, None], padding=1, groups=8), "window",
    ),
    "chunks of rows": (
        "def f(float(M,N) X) -> (S) { S(n) +=! X(m,n) }", ["N"], lambda n: (seeded(3000, n),), lambda x: x.sum(0), "S_part",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NESTS)
def test_what_nests_do_for_dynamic_sizes(name: str) -> None:
    text, sizes, args, expected, words = NESTS[name]
    called = tcjit.define(text, target="cpu", dynamic=sizes).f
    for value in (2, 3, 17, 31, 33, 50, 127, 130):
        given = args(value)
        torch.testing.assert_close(called(*given), expected(*given), rtol=1e-3, atol=1e-3)
    kernel = called.compile(*given)
    assert kernel.nests and words in kernel.resources["reductions"][0] and " <= " in kernel.source.splitlines()[0]


@pytest.mark.parametrize(("rows", "columns"), [(33, 500), (58, 333), (128, 512)])
def test_the_last_panel_of_a_dynamic_size_is_computed_whole(rows: int, columns: int) -> None:
    """What it reads beyond the size is in the panel: no step asks for its rows and lanes, which only stores leave out."""
    text = "def f(float(M,K) A, float(N,K) B) -> (C) { C(m,n) +=! A(m,k) * B(n,k) }"
    product = tcjit.define(text, target="cpu", dynamic=["M", "N", "K"]).f
    a, b = seeded(rows, 700), seeded(columns, 700)
    torch.testing.assert_close(product(a, b), a @ b.T, rtol=1e-3, atol=1e-3)
    kernel = product.compile(a, b)
    assert "_staged[" in kernel.source and "tc_load_masked" not in kernel.source.partition("int64_t tc_f(")[2]
    if "tc_float16" in kernel.source:
        assert "tc_transpose_4(&" in kernel.source, "strides are those of a call"


def test_running_sums_of_a_dynamic_length() -> None:
    running = tcjit.define("def f(float(M,N) X) -> (S) { S(i,j) +=! k <= j ? X(i,k) : 0.0 where j in 0:N }", target="cpu", dynamic=["N"]).f
    for value in (2, 9, 33, 500):
        x = seeded(7, value)
        torch.testing.assert_close(running(x), x.cumsum(1), rtol=1e-4, atol=1e-4)
    source = running.compile(x).source
    assert "tc_running" in source and "tc_carried" in source, "each result from the one before it, a vector at once"


def test_running_sums_to_a_dynamic_end() -> None:
    text = "def f(float(M,N) X) -> (S) { S(i,j) +=! k >= j ? X(i,k) : 0.0 where j in 0:N, k in 0:N }"
    running = tcjit.define(text, target="cpu", dynamic=["N"]).f
    for value in (3, 9, 33, 500):
        x = seeded(7, value)
        torch.testing.assert_close(running(x), x.flip(1).cumsum(1).flip(1), rtol=1e-4, atol=1e-4)
    source = running.compile(x).source
    assert "tc_running" in source and "tc_carried" in source and " <= N <= " in source.splitlines()[0]


def test_a_tuned_shape_keeps_a_kernel_of_its_own(monkeypatch: pytest.MonkeyPatch, kernels: list[dict[str, Any]]) -> None:
    mlp = tcjit.define(TEXT + "# tuned", target="cpu", dynamic=["B"]).mlp
    monkeypatch.setattr(kernel_cache, "is_tuned", lambda signature, key: key.shapes[0][0] == 6)
    for value in (5, 6, 7):
        mlp(seeded(value, 70), seeded(37, 70), seeded(37))
    assert kernels == [{"B": [2, 8]}, {}]


def test_a_size_that_cannot_be_dynamic_stays_as_it_is_and_says_so_once(kernels: list[dict[str, Any]]) -> None:
    cyclic = tcjit.define("def cyclic(float(B) X) -> (Y) { Y(i) = X((i + 1) % B) where i in 0:B }", target="cpu").cyclic
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for value in range(1, 20):
            assert torch.equal(cyclic(x := seeded(value)), x.roll(-1))
    assert kernels == [{}] * 19
    assert [str(w.message) for w in caught] == ["cyclic() has been compiled for more than 16 shapes; its sizes are part of the code"]
    assert caught[0].filename == __file__


def test_compiling_does_not_count() -> None:
    total = tcjit.define(TEXT + "# compiling", target="cpu").total
    for value in range(1, 8):
        assert "1 <= B" not in total.compile(seeded(value)).source


def test_a_namespace_keeps_its_dynamic_sizes() -> None:
    space = tcjit.define(TEXT + "# pickle", target="cpu", dynamic=["B"])
    again = pickle.loads(pickle.dumps(space))
    assert again.total is space.total and again.total.dynamic == ("B",)
    assert tcjit.define(TEXT + "# pickle", target="cpu").total is not space.total


# ---------------------------------------------------------------- torch.compile, other processes


def test_symbolic_sizes_reach_the_operator(kernels: list[dict[str, Any]]) -> None:
    space = tcjit.define(TEXT + "# symbolic", target="cpu")

    def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return space.mlp(x, w, b) * 2

    compiled = torch.compile(layer, dynamic=True, fullgraph=True, backend="aot_eager")
    for value in (5, 6, 7, 8):
        x, w, b = seeded(value, 70), seeded(37, 70), seeded(37)
        torch.testing.assert_close(compiled(x, w, b), 2 * torch.relu(x @ w.T + b), rtol=1e-3, atol=1e-3)
    assert len(kernels) == 1 and "B" in kernels[0]


def test_shapes_that_follow_from_symbols() -> None:
    text = "def both(float(N) X, float(M) Z) -> (Y, H) { Y(i) = X(i) + Z(i)  H(i) = X(2*i + 1) }"
    both = tcjit.define(text, target="cpu").both
    compiled = torch.compile(lambda x, z: both(x, z), dynamic=True, fullgraph=True, backend="aot_eager")
    for n, m in ((5, 7), (9, 4), (8, 8)):
        x, z = seeded(n), seeded(m)
        least = min(n, m)
        y, h = compiled(x, z)
        assert torch.equal(y, x[:least] + z[:least]) and torch.equal(h, x[1::2])


@pytest.mark.bare
def test_another_process_serves_new_values_without_compiling() -> None:
    code = f"""
import sys, json, torch, tcjit
total = tcjit.define({TEXT!r}, target="cpu", dynamic=["B"]).total
found = [float(total(torch.ones(n))) for n in (9, 17, 30)]
print(json.dumps([found, "lark" in sys.modules, "islpy" in sys.modules]))
"""
    first, second = (json.loads(child(code).strip().splitlines()[-1]) for _ in range(2))
    assert first[0] == second[0] == [9.0, 17.0, 30.0]
    assert first[1:] == [True, True] and second[1:] == [False, False]


def test_a_copy_is_made_by_as_many_threads_as_pay() -> None:
    """The inner loops count though they are cut by a minimum: 2 * 52 * 5 elements of each batch, 32,768 in all make threads worth it."""
    text = "def f(float(B,N,M) X) -> (Y) { Y(b,m,n) = X(b,n,m) + 1.0 }"
    f, given = tcjit.define(text, dynamic=["B"])["f"], torch.randn(63, 5, 100)
    source = f.compile(given).source
    assert source.count("  if (tc_size_B >= 64) {\n#pragma omp parallel for collapse(2)") == 1, source
    assert source.count(" collapse(2)") == 1, "in the other branch there are none"


@pytest.mark.parametrize("threads", [1, 2])
def test_few_iterations_and_many_go_different_ways_to_the_same_results(threads: int) -> None:
    """Around the value from which threads pay; a failed check is seen in both branches."""
    text = "def f(float(B,D) T, int32(B) I) -> (Y, Z) { Y(n,d) = T(I(n), d)  Z(d,n) = 2 * Y(n,d) }"
    f = tcjit.define(text, dynamic=["B"], target="cpu").f
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        table, picks = seeded(120, 150), torch.arange(120, dtype=torch.int32).flip(0)
        source = f.compile(table, picks).source
        tests = re.findall(r"^  if \((.*tc_size_B.* >= \d+)\) \{$", source, re.MULTILINE)
        holds = [[size for size in range(33, 121) if eval(test, {"tc_size_B": size, "tc_fdiv": floordiv})] for test in tests]
        worth = [sizes[0] for sizes in holds if sizes]
        assert worth and all(33 < value < 120 for value in worth), source
        for count in sorted({1, 2, 34, 119, 120, *(value + step for value in worth for step in (-1, 0))}):
            chosen = picks[-count:].contiguous()
            y, z = f(table[:count].contiguous(), chosen)
            expected = table[chosen.long()]
            assert torch.equal(y, expected) and torch.equal(z, 2 * expected.T), count
            wrong = chosen.clone()
            wrong[-1] = count
            with pytest.raises(tcjit.TCError, match="T"):
                f(table[:count].contiguous(), wrong)
    finally:
        torch.set_num_threads(before)
