"""Calls on a GPU: devices, streams, memory, flags, graphs, autograd's threads, torch's dispatcher."""
from __future__ import annotations

import threading

import pytest
import torch
from support.calls import assert_fast, assert_refused, defs, knows

import tcjit

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no NVIDIA GPU")]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).cuda()


def test_the_device_of_the_arguments_is_the_target() -> None:
    tc = defs()
    a, b = normal(40, 30), normal(30, 50, seed=1)
    found = assert_fast(tc.mm, a, b)
    assert found.device == a.device and torch.allclose(found, a @ b, atol=1e-4) and knows(tc.mm, a, b)
    assert torch.allclose(tc.mm(a.cpu(), b.cpu()), (a @ b).cpu(), atol=1e-4) and torch.allclose(tc.mm(a, b), a @ b, atol=1e-4)
    k = tc.mm.compile(a, b)
    major, minor = torch.cuda.get_device_capability()
    assert k.target == "cuda" and k.record["target"] == f"cuda:sm_{major}{minor}" and k.resources["registers"] > 0
    assert k.check(a, b).used["C"] <= 1 and torch.equal(k(a, b), found)
    assert defs("cuda").mm.compile(torch.empty(4, 5, device="meta"), torch.empty(5, 6, device="meta")).target == "cuda"


def test_places_do_not_mix() -> None:
    x, tc = normal(9), defs()
    assert_refused(lambda: tc.add(x, x.cpu()), tcjit.ArgumentError, "different devices")
    assert_refused(lambda: tc.add(x, x, out=torch.empty(9)), tcjit.ArgumentError, "out=")
    for target in ("cpu", "opencl", "reference"):
        assert_refused(lambda target=target: defs(target).add(x, x), tcjit.ArgumentError, "works on cpu tensors")
    assert_refused(lambda: defs("cuda").add(x.cpu(), x.cpu()), tcjit.ArgumentError, "works on cuda tensors")
    assert_refused(lambda: tc.add.compile(x, x)(x.cpu(), x.cpu()), tcjit.ArgumentError)


def test_strides_alignment_and_outputs() -> None:
    tc, base = defs(), normal(101)
    x, y = base[1:41], base[43:83]
    out, holder = torch.zeros(80, device="cuda")[::2], torch.zeros(41, device="cuda")
    for _ in range(3):
        assert torch.equal(tc.add(x, y), x + y) and torch.equal(tc.add(base[:80:2], y), base[:80:2] + y)
        assert tc.add(x, y, out=out) is out and torch.equal(out, x + y)
        assert tc.add(x, y, out=holder[1:]).data_ptr() == holder[1:].data_ptr() and torch.equal(holder[1:], x + y) and holder[0] == 0
    total = torch.ones(3, device="cuda")
    assert torch.equal(tc.onto(torch.ones(3, 2, device="cuda"), out=total), torch.full((3,), 3.0, device="cuda"))
    assert_refused(lambda: tc.add(x, y, out=base[2:42]), tcjit.ArgumentError, "overlaps")
    assert torch.equal(tc.add(torch._neg_view(x), y), y - x)


def test_streams() -> None:
    """Work goes to torch's current stream, behind what is there already."""
    tc, side = defs(), torch.cuda.Stream()
    x, y = normal(1 << 20), normal(1 << 20, seed=1)
    tc.add(x, y)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        late = x * 2
        found = tc.add(late, y)
        assert not side.query()
    side.synchronize()
    assert torch.equal(found, 2 * x + y)


def test_flags_are_raised_by_synchronize() -> None:
    tc = defs()
    table, index = normal(4, 3), torch.tensor([0, 9], device="cuda")
    tc.pick(table, index)
    assert_refused(tcjit.synchronize, tcjit.GatherError, "an index into T")
    tcjit.synchronize()
    assert torch.equal(tc.pick(table, index.clamp(max=3)), table[index.clamp(max=3)])
    tc.pick(table, index)
    torch.cuda.synchronize()
    assert_refused(lambda: tc.pick(table, index.clamp(max=3)), tcjit.GatherError)
    tcjit.synchronize()
    assert_refused(lambda: tc.pick.compile(table, index).check(table, index), tcjit.GatherError)


def test_graphs() -> None:
    """Captured after one call, with temporaries in the graph's own memory; a replay raises flags as a call does."""
    tc = tcjit.define("""def f(float(M, N) X, int64(M) I) -> (Y) {
        T(m) max=! X(m, n)
        S +=! T(m)
        Y(m, n) = X(I(m), n) - T(m) + S
    }""")
    x, index = normal(300, 70), torch.arange(300, device="cuda").flip(0)
    tc.f(x, index)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = tc.f(x, index)
    for seed in range(3):
        x.copy_(normal(300, 70, seed=seed))
        graph.replay()
        top = x.max(1, keepdim=True).values
        assert torch.allclose(y, x.flip(0) - top + top.sum(), atol=1e-3)
    index[7] = 300
    graph.replay()
    assert_refused(tcjit.synchronize, tcjit.GatherError)
    fresh = tcjit.define("def g(float(N) X) -> (Y) { Y(i) = 5.0 * X(i) }").g
    with pytest.raises(tcjit.LaunchError, match="before the capture"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        fresh(x[0])


def test_autograds_threads() -> None:
    tc, x = defs(), normal(64)

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, given: torch.Tensor) -> torch.Tensor:
            return tc.add(given.detach(), given.detach())

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            return tc.add(gradient, gradient)

    leaf = x.clone().requires_grad_()
    Twice.apply(leaf).sum().backward()
    assert torch.equal(leaf.grad, torch.full_like(x, 2.0))


def test_several_threads() -> None:
    tc, wrong = defs(), []
    inputs = [normal(100 + n, seed=n) for n in range(4)]

    def work(offset: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for turn in range(50):
                x = inputs[(turn + offset) % 4]
                if not torch.equal(tc.add(x, x), x + x):
                    wrong.append((offset, turn))

    torch.cuda.synchronize()
    workers = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_operators() -> None:
    tc = defs()
    x, a, b = normal(6), normal(3, 4), normal(4, 5)
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    for function, args in ((tc.add, (x, x)), (tc.both, (x,)), (tc.mm, (a, b)), (tc.step, (0.5, x, 2)), (tc.onto, (a, normal(3)))):
        assert set(torch.library.opcheck(function._overload, args, test_utils=checks).values()) == {"SUCCESS"}
    assert torch.equal(torch.vmap(tc.add)(torch.stack([x, x]), torch.stack([x, -x])), torch.stack([2 * x, 0 * x]))
    assert torch.allclose(torch.compile(lambda p, q: tc.mm(p, q) + 1)(a, b), a @ b + 1, atol=1e-4)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU only")
def test_several_devices() -> None:
    tc = defs()
    x = normal(50)
    for place in ("cuda:0", "cuda:1", "cuda:0"):
        here = x.to(place)
        found = tc.add(here, here)
        assert found.device == here.device and torch.equal(found.cpu(), 2 * x.cpu())
    assert_refused(lambda: tc.add(x.to("cuda:0"), x.to("cuda:1")), tcjit.ArgumentError, "different devices")
    k = tc.add.compile(x.to("cuda:0"), x.to("cuda:0"))
    assert_refused(lambda: k(x.to("cuda:1"), x.to("cuda:1")), tcjit.ArgumentError, "cuda:0")
