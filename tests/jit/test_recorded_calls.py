"""Calls that autograd records, once they are prepared for: all that a first one does, without the longer way.

Modules: jit.autograd jit.fast jit.recording
"""
from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from support.calls import assert_refused, child
from support.gradients import EXPRESSIONS, arguments, derived
from support.gradients import defs as users
from support.rings.targets import everywhere
from torch.autograd import grad
from torch.utils.checkpoint import checkpoint

import tcjit
from tcjit.jit import autograd, call, fast

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.sample(2, over="targets")]
CUDA = "tests/cuda/test_cuda_gradients.py has gradients on a GPU"
TEXT = """
def mul(double(N) A, double(N) B) -> (C) { C(i) = A(i) * B(i) }
def scale(double(N) X, double a, int32 k) -> (Y) { Y(i) = a * X(i) * X(i) * k }
def both(double(N) X) -> (S, K) { S(i) = sin(X(i)) K(i) = X(i) > 0.0 ? 1 : 0 }
def two(double(N) X) -> (Y, Z) { Y(i) = 2.0 * X(i) Z(i) = X(i) * X(i) }
def total(double(N) X) -> (s) { s +=! X(i) }
def pick(double(N) X, int64(M) J) -> (Y) { Y(m) = X(J(m)) * X(J(m)) }
def gammas(double(N) X) -> (Y) { Y(i) = polygamma(X(i), 1.0) }
"""


FORKS = """
import os, torch, tcjit
mul = tcjit.define("def mul(double(N) A, double(N) B) -> (C) { C(i) = A(i) * B(i) }", target="cpu").mul
x, y = torch.rand(100, dtype=torch.float64, requires_grad=True), torch.rand(100, dtype=torch.float64)
for _ in range(4):
    mul(x, y)
assert len(mul._table._launcher or (1, 2)) == 2
pid = os.fork()
if pid == 0:
    (gradient,) = torch.autograd.grad(mul(x, y), x, torch.ones_like(y))
    os._exit(0 if torch.equal(gradient, y) else 1)
assert os.waitpid(pid, 0)[1] == 0
print("the same")
"""


@pytest.fixture(params=everywhere(cuda=CUDA))
def target(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def tc(target: str) -> Any:
    return tcjit.define(TEXT, target=target)


def drawn(*shape: int, grad: bool = True) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64).requires_grad_(grad)


@contextmanager
def all_prepared(*functions: Any) -> Iterator[None]:
    """Within, calls of these functions must be prepared ones."""

    def longer(*args: Any, **named: Any) -> Any:
        raise AssertionError("a call went the longer way")

    for function in functions:
        function._slow = longer
    try:
        yield
    finally:
        for function in functions:
            del function._slow


def prepare(function: Any, *args: Any) -> Any:
    """The result of a prepared call."""
    for _ in range(3):
        function(*args)
    with all_prepared(function):
        return function(*args)


@pytest.mark.parametrize("make", [users, derived])
@pytest.mark.parametrize("name", [name for name in EXPRESSIONS if name != "norm"])
def test_gradients_and_their_gradients(target: str, name: str, make: Any) -> None:
    function, args = make(target)[name], arguments(name)
    first, made = function(*args), prepare(function, *args)
    assert made.dtype == first.dtype and torch.equal(made, first)
    assert type(made.grad_fn).__name__ == type(first.grad_fn).__name__ == f"{name}Backward"
    count = len(args)
    assert made.grad_fn.needs_input_grad[-count:] == first.grad_fn.needs_input_grad[-count:]
    for one, other in zip(made.grad_fn.saved_tensors, first.grad_fn.saved_tensors, strict=True):
        assert torch.equal(one, other) and one.requires_grad == other.requires_grad
    expected, inputs = EXPRESSIONS[name](*args), [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    for _ in range(3):
        with all_prepared(function):
            made = function(*args)
        found = grad(made.sin().sum(), inputs, create_graph=True)
        wanted = grad(expected.sin().sum(), inputs, create_graph=True)
        torch.testing.assert_close(found, wanted)
        again = [grad(sum(g.square().sum() for g in gradients), inputs, retain_graph=True) for gradients in (found, wanted)]
        torch.testing.assert_close(*again)


def test_the_backward_is_prepared_as_well(tc: Any) -> None:
    x, y = drawn(5), drawn(5)
    prepare(tc.mul, x, y)
    with all_prepared(tc.mul):
        recording, scalars = tc.mul(x, y).grad_fn.recorded
        assert scalars == () and recording is tc.mul(x, y).grad_fn.recorded[0]
    for _ in range(3):
        grad(tc.mul(x, y), (x, y), torch.ones(5).double())
    (plan,) = recording._plans.values()
    with all_prepared(tc.mul, plan.adjoint.function):
        g = drawn(5, grad=False)
        torch.testing.assert_close(grad(tc.mul(x, y), (x, y), g), (g * y, g * x))
        torch.testing.assert_close(grad(tc.mul(x, y).sum(), (x, y)), (y.detach(), x.detach()))  # a cotangent of one element for all


def test_each_pattern_of_arguments_has_its_own(tc: Any) -> None:
    x, y = drawn(4), drawn(4)
    for a, b in ((x, y), (x.detach(), y), (x, y.detach()), (x.detach(), y.detach())):
        made = prepare(tc.mul, a, b)
        assert made.requires_grad == (a.requires_grad or b.requires_grad)
        if made.requires_grad:
            assert made.grad_fn.needs_input_grad[-2:] == (a.requires_grad, b.requires_grad)
            assert len(made.grad_fn.saved_tensors) == a.requires_grad + b.requires_grad
    with all_prepared(tc.mul), torch.no_grad():
        assert not tc.mul(x.detach(), y.detach()).requires_grad and not tc.mul(x, y).requires_grad
    with all_prepared(tc.mul), torch.inference_mode():
        assert tc.mul(x, y).is_inference()
    with torch.inference_mode():
        constant = torch.ones(4, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        tc.mul(x, constant)


def test_scalars(tc: Any) -> None:
    """Floats are those of each call; an integer is part of the adjoint's text, whether it is part of the kernel's or not."""
    x = drawn(4)
    prepare(tc.scale, x, 2.0, 3)
    for a, k in ((2.0, 3), (0.5, 3), (7, 3)):
        with all_prepared(tc.scale):
            made = tc.scale(x, a, k)
        torch.testing.assert_close(grad(made.sum(), x)[0], 2 * a * k * x.detach())
    for a, k in ((2.0, 4), (torch.tensor(1.5), 3), (2.0, 3.0), (2.0, torch.tensor(4))):
        for _ in range(3):
            torch.testing.assert_close(grad(tc.scale(x, a, k).sum(), x)[0], (2 * a * k * x.detach()).double())
    a = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    for _ in range(4):
        torch.testing.assert_close(grad(tc.scale(x, a, 3).sum(), (a, x)), (3 * x.detach().square().sum(), 3 * x.detach()))


def test_several_results(tc: Any) -> None:
    x = drawn(5)
    s, k = prepare(tc.both, x)
    assert s.requires_grad and not k.requires_grad and k.grad_fn is None and torch.equal(k, (x > 0).to(k.dtype))
    torch.testing.assert_close(grad(s.sum(), x)[0], x.cos().detach())
    prepare(tc.two, x)
    for used, expected in ((slice(0, 1), torch.full_like(x, 2)), (slice(1, 2), 2 * x), (slice(0, 2), 2 + 2 * x)):
        for _ in range(2):
            with all_prepared(tc.two):
                results = tc.two(x)
            torch.testing.assert_close(grad(sum(one.sum() for one in results[used]), x)[0], expected.detach())


def test_what_is_kept(tc: Any) -> None:
    x = drawn(6)
    inner = x * 2
    made, gone = prepare(tc.total, inner), weakref.ref(inner)
    assert made.grad_fn.saved_tensors == ()
    del inner
    gc.collect()
    assert gone() is None
    made.backward()
    assert torch.equal(x.grad, torch.full_like(x, 2))
    a, b = drawn(4), drawn(4)
    made, node = prepare(tc.mul, a, b), None
    counts = [weakref.ref(one) for one in (a, b)]
    del a, b
    gc.collect()
    assert all(one() is not None for one in counts)
    del made, node
    gc.collect()
    assert not any(one() is not None for one in counts), "a prepared call keeps nothing"


def test_versions_hooks_and_freed_buffers(tc: Any) -> None:
    x, y = drawn(4), drawn(4)
    inner = x * 1
    made = prepare(tc.mul, inner, y)
    inner.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        made.sum().backward()
    packed: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or len(packed) - 1, packed.__getitem__), all_prepared(tc.mul):
        made = tc.mul(x, y)
    seen: list[torch.Tensor] = []
    made.register_hook(seen.append)
    made.sum().backward(retain_graph=True)
    made.sum().backward()
    assert len(packed) == 2 and len(seen) == 2 and torch.equal(x.grad, 2 * y)
    with pytest.raises(RuntimeError, match="second time"):
        made.sum().backward()


def test_checkpoints_threads_and_autocast(tc: Any) -> None:
    x, y = drawn(8), drawn(8)
    prepare(tc.mul, x, y)
    found: list[torch.Tensor] = []

    def work() -> None:
        for _ in range(50):
            found.append(grad(tc.mul(x, y).sum(), x)[0])

    workers = [threading.Thread(target=work) for _ in range(4)]
    with all_prepared(tc.mul):
        torch.testing.assert_close(grad(checkpoint(tc.mul, x, y, use_reentrant=False).sum(), x)[0], y.detach())
        checkpoint(tc.mul, x, y, use_reentrant=True).sum().backward()
        with torch.autocast("cpu"):
            assert tc.mul(x, y).dtype == torch.float64
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert torch.equal(x.grad, y) and len(found) == 200 and all(torch.equal(one, y) for one in found)


def test_views_and_layouts(tc: Any) -> None:
    whole, y = drawn(4, 2), drawn(4)
    prepare(tc.mul, whole[:, 1], y)
    with all_prepared(tc.mul):
        made = tc.mul(whole[:, 1], y)
    made.sum().backward()
    assert torch.equal(whole.grad, torch.stack([torch.zeros_like(y), y.detach()], 1))
    assert torch.equal(tc.mul(whole[:, 0].contiguous(), y), whole[:, 0] * y)
    for size in (3, 5, 3):
        x, y = drawn(size), drawn(size)
        torch.testing.assert_close(grad(prepare(tc.mul, x, y).sum(), x)[0], y.detach())


def test_what_goes_the_longer_way(tc: Any) -> None:
    x, y = drawn(4), drawn(4)
    prepare(tc.mul, x, y)
    torch.testing.assert_close(torch.func.grad(lambda x: tc.mul(x, y).sum())(x), y)
    torch.testing.assert_close(torch.vmap(tc.mul)(x[None], y[None]), (x * y)[None])
    torch.testing.assert_close(torch.func.jvp(tc.mul, (x, y), (x, y))[1], 2 * x * y)
    torch.testing.assert_close(grad(tc.mul(torch._neg_view(x), y).sum(), x)[0], -y.detach())
    torch.testing.assert_close(grad(tc.mul._overload(x, y).sum(), x)[0], y.detach())
    with torch._C._AutoDispatchBelowAutograd():
        assert not tc.mul._overload(x, y).requires_grad, "whoever dispatches below autograd records nothing"
    assert_refused(lambda: tc.mul(x, y, out=torch.empty(4, dtype=torch.float64)), tcjit.ArgumentError, "out=")
    assert_refused(lambda: tc.mul(x, y.float()), tcjit.ArgumentError, "float64")
    assert_refused(lambda: tc.mul(x, y[:3]), tcjit.ShapeError)

    class Own(torch.Tensor):
        pass

    assert type(tc.mul(x.as_subclass(Own), y)) is not None and tc.mul(x.as_subclass(Own), y).requires_grad


def test_errors_of_kernels_and_of_adjoints(tc: Any) -> None:
    x, index = drawn(4), torch.tensor([3, 1])
    prepare(tc.pick, x, index)
    for _ in range(2):
        assert_refused(lambda: tc.pick(x, index + 3), tcjit.GatherError)
        with all_prepared(tc.pick):
            expected = torch.zeros(4, dtype=torch.float64).index_add(0, index, 2 * x[index].detach())
            torch.testing.assert_close(grad(tc.pick(x, index).sum(), x)[0], expected)
    for _ in range(4):
        inner = tc.gammas.apply((x,), False)  # as derivatives call it
        assert_refused(inner.sum().backward, tcjit.CheckError, "polygamma")
        assert_refused(lambda: tc.gammas(x), tcjit.CheckError, "polygamma")


def test_temporaries_are_saved(target: str) -> None:
    softmax, x = derived(target).softmax, drawn(3, 5)
    made = prepare(softmax, x)
    assert sorted(tuple(kept.shape) for kept in made.grad_fn.saved_tensors) == [(3,), (3,), (3, 5), (3, 5)]
    g = drawn(3, 5, grad=False)
    expected = grad(torch.softmax(x, 1), x, g)
    torch.testing.assert_close(grad(made, x, g), expected)
    saving = made.grad_fn.recorded[0].adjoint.saving
    with all_prepared(softmax):
        softmax(x)
    call.forget(saving.forward.signature)  # as its autotuning does
    with pytest.raises(AssertionError, match="longer way"), all_prepared(softmax):
        softmax(x)
    torch.testing.assert_close(grad(prepare(softmax, x), x, g), expected)


def test_profiles_name_the_def() -> None:
    mul, x, y = tcjit.define(TEXT, target="cpu").mul, drawn(4), drawn(4)
    prepare(mul, x, y)
    with torch.profiler.profile() as profile, all_prepared(mul):
        mul(x, y).sum().backward()
    assert {"mul", "mulBackward"} <= {event.name for event in profile.events()}


def test_forked_children() -> None:
    assert child(FORKS) == "the same"


def test_an_adjoint_that_leaves_parameters_out(target: str) -> None:
    text = """
def scale(float(N) X, float(N) W) -> (Y) { Y(i) = X(i) * W(i) }
def scale_back(float(N) d_Y, float(N) W) -> (d_X) { d_X(i) = d_Y(i) * W(i) }
"""
    scale = tcjit.define(text, target=target, backward={"scale": "scale_back"}).scale
    x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    prepare(scale, x, w).sum().backward()
    assert torch.equal(x.grad, w.detach()) and w.grad is None
    for _ in range(4):
        assert not scale(x.detach(), w).requires_grad


def test_batches(tc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call in vmap finds the prepared call of its batch before anything is checked."""
    rows, y = torch.randn(64, 8, dtype=torch.float64), drawn(8)
    over_rows = torch.vmap(tc.mul, in_dims=(0, None))
    for _ in range(4):
        over_rows(rows, y), over_rows(rows, y.detach()), torch.vmap(tc.both)(rows)
    whole = tc.mul.batched(frozenset({"A"}))
    monkeypatch.setattr(autograd, "_over_batch", None)
    with all_prepared(whole):
        assert torch.equal(over_rows(rows, y.detach()), rows * y.detach())
        torch.testing.assert_close(grad(over_rows(rows, y).sum(), y)[0], rows.sum(0))
        torch.testing.assert_close(torch.vmap(tc.both)(rows)[0], rows.sin())
        assert torch.equal(torch.vmap(tc.mul, in_dims=(1, None))(rows.t(), y.detach()), rows * y.detach())
    monkeypatch.undo()
    assert_refused(lambda: over_rows(rows, y[:3]), tcjit.ShapeError, "`A` (8,)")
    torch.testing.assert_close(torch.vmap(tc.mul, in_dims=(1, None))(rows, torch.ones(64).double()), rows.t())


def test_forward_needs_a_call() -> None:
    module = fast.extension.load()
    if module is None:
        pytest.skip("this machine cannot build the launcher")
    with pytest.raises(RuntimeError, match="no recorded call"):
        module.forward(None, torch.ones(2))
