"""Calls on tensors of a GPU: types, layouts, outputs, errors, the fast path, what a call costs."""
from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from support.calls import assert_fast, assert_refused, defs, knows

import tcjit
from tcjit.errors import ArgumentError, DivisionError, GatherError

pytestmark = pytest.mark.cuda

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
HOST_US = 150.0  # of one call on the host: far above what it takes, far below a compilation


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def small(*shape: int, dtype: torch.dtype = torch.float32, low: int = -3) -> torch.Tensor:
    return torch.randint(low, 4, shape, device="cuda").to(dtype)


# ---------------------------------------------------------------- types and layouts


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=name_of)
def test_elements_and_sums(dtype: torch.dtype) -> None:
    text = f"def f({name_of(dtype)}(M, N) X) -> (Y, R, T) {{ Y(m, n) = X(m, n) * 2 + 1  R(m) +=! X(m, n)  T max=! X(m, n) }}"
    x = small(5, 333, dtype=dtype, low=0)
    y, rows, most = tcjit.define(text).f(x)
    assert {one.device.type for one in (y, rows, most)} == {"cuda"} and {one.dtype for one in (y, rows, most)} == {dtype}
    assert torch.equal(y, x * 2 + 1) and torch.equal(most, x.max())
    assert torch.equal(rows, (x.double() if dtype.is_floating_point else x.long()).sum(1).to(dtype))


def test_booleans() -> None:
    x = small(777) > 0
    y, some = tcjit.define("def f(bool(N) X) -> (Y, S) { Y(i) = !X(i)  S max=! X(i) ? 1 : 0 }").f(x)
    assert torch.equal(y, ~x) and int(some) == 1


@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (64, 64, 64), (130, 70, 33), (128, 256, 512)], ids=str)
def test_products(dtype: torch.dtype, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    text = f"def mm({name_of(dtype)}(M, K) A, {name_of(dtype)}(K, N) B) -> (C) {{ C(m, n) +=! A(m, k) * B(k, n) }}"
    a, b = small(m, k, dtype=dtype), small(k, n, dtype=dtype)
    out = torch.full((m, n), float("nan"), dtype=dtype, device="cuda")
    assert tcjit.define(text).mm(a, b, out=out) is out
    assert torch.equal(out, (a.double() @ b.double()).to(dtype))


def test_views_that_are_not_aligned() -> None:
    """Whatever a tensor's address: vectors of 16 bytes are for those that allow them."""
    add = defs().add
    for offset in (0, 1, 2, 3, 4, 7):
        x, y = torch.randn(1000, device="cuda")[offset : offset + 900], torch.randn(1000, device="cuda")[1 : 1 + 900]
        assert torch.equal(assert_fast(add, x, y), x + y)
        out = torch.empty(1000, device="cuda")[offset : offset + 900]
        add(x, y, out=out)
        assert torch.equal(out, x + y)
    half = torch.randn(4097, device="cuda").half()[1:]
    assert torch.equal(tcjit.define("def f(half(N) X) -> (Y) { Y(i) = X(i) * 2 }").f(half), half * 2)


def test_views_with_other_strides() -> None:
    mm, x, y = defs().mm, small(40, 60), small(60, 50)
    want = x @ y
    for left in (x, x.T.contiguous().T, x.repeat_interleave(2, 1)[:, ::2], torch.cat([x, x], 1)[:, :60]):
        for right in (y, y.T.contiguous().T):
            assert torch.equal(mm(left, right), want)
    out = torch.empty(50, 40, device="cuda").T
    mm(x, y, out=out)
    assert torch.equal(out, want)
    assert torch.equal(mm(x[:1].expand(40, 60), y), want[:1].expand(40, 50))


@pytest.mark.parametrize("extents", [(0, 4, 5), (3, 0, 5), (3, 4, 0), (0, 0, 0)], ids=str)
def test_nothing_to_do(extents: tuple[int, int, int]) -> None:
    m, k, n = extents
    assert torch.equal(defs().mm(small(m, k), small(k, n)), torch.zeros(m, n, device="cuda"))


def test_more_than_two_to_the_31_elements() -> None:
    free, _ = torch.cuda.mem_get_info()
    if free < 8 << 30:
        pytest.skip(f"{free >> 20} MB free on the GPU, not 8 GB")
    extent = (1 << 31) + 1000
    x = torch.zeros(extent, dtype=torch.int8, device="cuda")
    x[-3:] = 5
    y, s = tcjit.define("def f(int8(N) X) -> (Y, S) { Y(i) = X(i) + 1  S +=! int64(X(i)) }").f(x)
    assert y[-3:].tolist() == [6, 6, 6] and int(s) == 15
    assert bool((y[:-3] == 1).all())


def test_the_same_bits_every_time() -> None:
    text = "def f(float(M, N) X) -> (R, C, T) { R(m) +=! X(m, n)  C(n) +=! X(m, n)  T +=! X(m, n) }"
    x = torch.randn(300, 5000, device="cuda")
    first = tcjit.define(text).f(x)
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(tcjit.define(text).f(x), first))


# ---------------------------------------------------------------- errors


def test_wrong_indices_are_raised_later() -> None:
    pick = tcjit.define("def pick(float(V, D) T, int64(B) I) -> (O) { O(b, d) = T(I(b), d) }").pick
    table, index = torch.randn(50, 40, device="cuda"), torch.arange(30, device="cuda")
    assert torch.equal(pick(table, index), table[:30])
    wrong = index.clone()
    wrong[17] = 50
    pick(table, wrong)
    with pytest.raises(GatherError, match="T"):
        tcjit.synchronize()
    tcjit.synchronize()
    pick(table, wrong)
    torch.cuda.synchronize()
    with pytest.raises(GatherError):
        pick(table, index)
    assert torch.equal(pick(table, index), table[:30])
    tcjit.synchronize()
    assert pick(table, index, unchecked=True).shape == (30, 40)


def test_division_by_zero_is_raised_later() -> None:
    rest = defs().rest
    x = torch.full((4000,), 9, dtype=torch.int32, device="cuda")
    d = torch.full_like(x, 2)
    assert rest(x, d)[0] == 4
    d[3999] = 0
    rest(x, d)
    with pytest.raises(DivisionError, match="divided by zero"):
        tcjit.synchronize()


def test_tensors_of_two_places_are_refused() -> None:
    add, here, there = defs().add, torch.ones(5), torch.ones(5, device="cuda")
    assert_refused(lambda: add(here, there), ArgumentError)
    assert_refused(lambda: add(there, here), ArgumentError)
    assert_refused(lambda: defs("cuda").add(here, here), ArgumentError)
    assert_refused(lambda: defs("cpu").add(there, there), ArgumentError)
    assert_refused(lambda: add(there, there, out=here), ArgumentError)
    assert torch.equal(add(here, here), here + here) and torch.equal(add(there, there), there + there)


# ---------------------------------------------------------------- kernels and calls


def test_a_kernel_says_what_it_takes() -> None:
    x, y = torch.randn(256, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    kernel = defs().mm.compile(x, y)
    facts = kernel.resources
    assert kernel.target == "cuda" and "__global__" in kernel.source
    assert 0 < facts["registers"] <= 255 and facts["spill_bytes"] == 0 and 0 < facts["occupancy"] <= 1
    assert torch.allclose(kernel(x, y), x @ y, atol=1e-3)
    assert all(part <= 1 for part in kernel.check(x, y).used.values())


def test_kernels_for_meta_tensors_run() -> None:
    kernel = defs("cuda").add.compile(torch.empty(70, device="meta"), torch.empty(70, device="meta"))
    x, y = torch.randn(70, device="cuda"), torch.randn(70, device="cuda")
    assert torch.equal(kernel(x, y), x + y)


def test_scalars() -> None:
    step, x = defs().step, torch.arange(100.0, device="cuda")
    assert torch.equal(step(2.5, x, 2), 2.5 * x[::2])
    assert torch.equal(step(torch.tensor(0.5), x, 4), 0.5 * x[::4])


def test_accumulating_outputs() -> None:
    x, out = small(30, 40), torch.ones(30, device="cuda")
    for _ in range(3):
        defs().onto(x, out=out)
    assert torch.equal(out, 1 + 3 * x.sum(1))


def test_torch_compile_sees_an_operator() -> None:
    add = defs().add

    def twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(add(x, y)) * 2

    x, y = torch.randn(100, device="cuda"), torch.randn(100, device="cuda")
    compiled: Callable[..., torch.Tensor] = torch.compile(twice, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, y), twice(x, y))


def test_what_a_call_costs(capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]) -> None:
    """Host time of a repeated call, without waiting for the GPU."""
    x, y = torch.randn(32, device="cuda"), torch.randn(32, device="cuda")
    add = defs().add
    assert torch.equal(assert_fast(add, x, y), x + y) and knows(add, x, y)

    def cost(call: Callable[[], object]) -> float:
        runs = []
        for _ in range(7):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(300):
                call()
            runs.append((time.perf_counter() - start) / 300 * 1e6)
        return sorted(runs)[3]

    found = {"torch.add": cost(lambda: torch.add(x, y)), "tcjit": cost(lambda: add(x, y))}
    for name, us in found.items():
        record_property(f"{name} us", round(us, 2))
    with capsys.disabled():
        print("\n" + ", ".join(f"{name} {us:.1f} us" for name, us in found.items()) + " of the host for a call on 32 floats")
    assert found["tcjit"] < HOST_US
