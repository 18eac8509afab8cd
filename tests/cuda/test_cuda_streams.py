"""Calls among torch's own work: streams, threads, autograd, graphs, several GPUs, both packages that call the driver."""
from __future__ import annotations

import importlib.util
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from support.calls import child, defs

import tcjit
from tcjit.errors import GatherError, TCError

pytestmark = pytest.mark.cuda

CYCLES = 100_000_000  # some 50 ms
TWICE = "def twice(float(N) X) -> (Y) { Y(i) = 2 * X(i) }"
# a def that needs memory of its own between two kernels or two statements
CENTRED = "def centred(float(M, N) X) -> (Y) { s(m) +=! X(m, n)  t +=! s(m)  Y(m, n) = X(m, n) * N - s(m) + t }"


def twice() -> Any:
    return tcjit.define(TWICE).twice


def centred(x: torch.Tensor) -> torch.Tensor:
    return x * x.shape[1] - x.sum(1, keepdim=True) + x.sum()


# ---------------------------------------------------------------- streams and threads


def test_a_call_keeps_its_place_in_the_stream() -> None:
    f, x = twice(), torch.zeros(5000, device="cuda")
    assert torch.equal(f(x), x)
    torch.cuda.synchronize()
    for stream in (torch.cuda.Stream(), torch.cuda.default_stream()):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(CYCLES)
            x.fill_(3)
            y = f(x)
            z = f(y) + 1
        stream.synchronize()
        assert torch.equal(z, torch.full_like(z, 13.0))
        x.zero_()
        torch.cuda.synchronize()


def test_a_call_does_not_wait() -> None:
    f, x = twice(), torch.ones(5000, device="cuda")
    f(x), f(x)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(CYCLES)
        y = f(x)
        assert not side.query()
    side.synchronize()
    assert torch.equal(y, x * 2)


def test_workspaces_are_not_shared_between_streams() -> None:
    f = tcjit.define(CENTRED).centred
    streams = [torch.cuda.Stream() for _ in range(4)]
    inputs = [torch.randint(-3, 4, (200, 300), device="cuda").float() for _ in streams]
    torch.cuda.synchronize()
    results: list[list[torch.Tensor]] = [[] for _ in streams]
    for _ in range(20):
        for stream, x, found in zip(streams, inputs, results):
            with torch.cuda.stream(stream):
                found.append(f(x))
    torch.cuda.synchronize()
    for x, found in zip(inputs, results):
        assert all(torch.equal(one, centred(x)) for one in found)


def test_threads_with_streams_of_their_own() -> None:
    f = tcjit.define(CENTRED).centred

    def work(number: int) -> bool:
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.full((64, 70 + number % 3), float(number), device="cuda")
            right = all(torch.equal(f(x), centred(x)) for _ in range(10))
            torch.cuda.current_stream().synchronize()
        return right

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(32)))


class Twice(torch.autograd.Function):
    """Both ways by tcjit."""

    threads: list[int] = []

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return twice()(x.detach())

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        Twice.threads.append(threading.get_ident())
        return twice()(gradient.contiguous())


@pytest.mark.parametrize("side", [False, True])
def test_autograd_s_threads(side: bool) -> None:
    Twice.threads.clear()
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    with torch.cuda.stream(stream):
        x = torch.randn(999, device="cuda", requires_grad=True)
        (Twice.apply(Twice.apply(x)) * x.detach()).sum().backward()
        stream.synchronize()
    assert x.grad is not None and torch.equal(x.grad, 4 * x.detach())
    assert len(Twice.threads) == 2 and threading.get_ident() not in Twice.threads


# ---------------------------------------------------------------- graphs


def test_a_graph_replays_what_was_captured() -> None:
    f, g = tcjit.define(CENTRED).centred, twice()
    x = torch.randint(-3, 4, (100, 300), device="cuda").float()
    f(x), g(x.flatten())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = f(x)
        z = g(y.flatten())
    for _ in range(5):
        x.copy_(torch.randint(-3, 4, (100, 300), device="cuda"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, centred(x)) and torch.equal(z, 2 * y.flatten())


def test_a_first_call_while_a_graph_is_captured_says_what_to_do() -> None:
    f = tcjit.define("def unseen(float(N) X) -> (Y) { Y(i) = 7 * X(i) + 11 }").unseen
    x = torch.ones(321, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(TCError, match="capture"), torch.cuda.graph(graph):
        f(x)
    assert torch.equal(f(x), 7 * x + 11)


def test_a_graph_s_wrong_index_is_raised() -> None:
    pick, table = defs().pick, torch.randn(50, 8, device="cuda")
    index = torch.arange(20, device="cuda")
    pick(table, index)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = pick(table, index)
    graph.replay()
    tcjit.synchronize()
    assert torch.equal(y, table[:20])
    index[3] = -1
    graph.replay()
    with pytest.raises(GatherError):
        tcjit.synchronize()


# ---------------------------------------------------------------- devices and drivers


def test_several_gpus() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device, two are needed")
    f = tcjit.define(CENTRED).centred
    for ordinal in (1, 0, 1):
        x = torch.randint(-3, 4, (40, 50), device=f"cuda:{ordinal}").float()
        y = f(x)
        assert y.device == x.device and torch.equal(y, centred(x))
        assert torch.cuda.current_device() == 0
    with torch.cuda.device(1):
        x = torch.ones(7, device="cuda:0")
        assert torch.equal(twice()(x), x * 2)
    with pytest.raises(TCError):
        defs().add(torch.ones(5, device="cuda:0"), torch.ones(5, device="cuda:1"))


CALLS = """
import torch, tcjit
from tcjit.runtime import cuda
add = tcjit.define("def add(float(N) A, float(N) B) -> (C) { C(i) = A(i) + B(i) }").add
pick = tcjit.define("def pick(float(V) T, int64(B) I) -> (O) { O(b) = T(I(b)) }").pick
x, y = torch.randn(1001, device="cuda"), torch.randn(1001, device="cuda")
for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
    stream.wait_stream(torch.cuda.default_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        a = x * 2
        z = add(a, y)
    stream.synchronize()
    assert torch.equal(z, x * 2 + y)
pick(x, torch.tensor([5000], device="cuda"))
try:
    tcjit.synchronize()
except tcjit.GatherError:
    print(cuda.driver().name)
"""


@pytest.mark.parametrize(("package", "wanted"), [("cuda-bindings", "cuda.bindings.driver"), ("pycuda", "pycuda.driver")])
def test_either_package_calls_the_driver(package: str, wanted: str) -> None:
    try:
        importlib.util.find_spec(wanted)
    except ImportError:
        pytest.skip(f"{package} is not installed")
    assert child(CALLS, TCJIT_CUDA_DRIVER=package).splitlines()[-1] == package
