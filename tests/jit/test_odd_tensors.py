"""Tensors that are not what they seem, modes, transforms: the right result or a TCError, also when the fast path knows the shapes."""
# ruff: noqa: B023  (every lambda here is called at once)
from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward
from support.calls import assert_fast, assert_refused, defs, knows
from support.rings.targets import everywhere
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import tcjit

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.sample(2, over="targets")]

N = 37


@pytest.fixture(params=["reference", *everywhere(cuda="tests/cuda/test_cuda_calls.py has calls on tensors of a GPU")])
def tc(request: pytest.FixtureRequest) -> Any:
    return defs(request.param)


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(N)


@pytest.fixture
def y() -> torch.Tensor:
    return torch.randn(N)


@pytest.fixture
def add(tc: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    """``add``, the fast path of which knows two vectors of N."""
    assert_fast(tc.add, x, y)
    assert knows(tc.add, x, y) == (tc.add.target != "reference")
    return tc.add


class Wrapper(torch.Tensor):
    """A tensor that holds another one."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        self = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        self.inner = inner
        return self

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*[a.inner if isinstance(a, Wrapper) else a for a in args])


class Sub(torch.Tensor):
    pass


class Log(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def test_lazy_bits(add: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    z = torch.randn(N, dtype=torch.complex64)
    assert torch.equal(add(torch._neg_view(x), y), y - x)
    assert torch.equal(add(z.conj().imag, y), y - z.imag)
    assert torch.equal(add(torch._efficientzerotensor(N), y), y)
    assert torch.equal(add(torch._lazy_clone(x), y), x + y)
    out = torch.zeros(N)
    add(x, y, out=torch._neg_view(out))
    assert torch.equal(out, -(x + y))


def test_zero_tensor_alone(tc: Any) -> None:
    y, z = tc.both(torch._efficientzerotensor(N))
    assert torch.equal(y, torch.ones(N)) and torch.equal(z, 2 * torch.ones(N))


def test_subclasses(add: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    sub = add(x.as_subclass(Sub), y)
    assert type(sub) is Sub and torch.equal(sub.as_subclass(torch.Tensor), x + y)
    assert torch.equal(add(Wrapper(x), y), x + y)
    assert torch.equal(add(torch.nn.Buffer(x), y), x + y)


def test_grad_mode(add: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    parameter = torch.nn.Parameter(x.clone())
    for argument in (parameter, x.clone().requires_grad_(), parameter * 2):
        assert torch.equal(torch.autograd.grad(add(argument, y), argument, y, retain_graph=True)[0], y)
        with torch.no_grad():
            assert torch.equal(assert_fast(add, argument, y), argument.detach() + y)
        assert torch.equal(add(argument.detach(), y), argument.detach() + y)
    assert_refused(lambda: add(x, y, out=torch.empty(N, requires_grad=True)), tcjit.ArgumentError, "torch.no_grad()")


def test_a_scalar_that_requires_grad(tc: Any, x: torch.Tensor) -> None:
    scale = torch.tensor(2.0, requires_grad=True)
    for _ in range(3):
        torch.testing.assert_close(torch.autograd.grad(tc.step(scale, x, 1).sum(), scale)[0], x.sum())
        with torch.no_grad():
            assert torch.equal(tc.step(scale, x, 1), 2 * x)


def test_inference_mode(add: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    with torch.inference_mode():
        inside = x.clone()
        made = add(inside, y)
        assert made.is_inference() and torch.equal(made, x + y)
        assert torch.equal(add(x, y, out=inside.clone()), x + y)
    assert torch.equal(add(inside, y), x + y)
    assert_refused(lambda: add(x, y, out=inside), tcjit.ArgumentError, "inference")
    assert not add(x, y).is_inference()


def test_fake_tensors(tc: Any, add: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    with FakeTensorMode():
        fake = torch.randn(N)
        made = add(fake, fake)
        assert type(made) is type(fake) and made.shape == (N,) and made.device.type == "cpu"
        assert [t.shape for t in tc.both(fake)] == [(N,), (N,)]
        assert tc.step(2.0, fake, 3).shape == (N // 3,)
        assert tc.mm(torch.randn(3, 4), torch.randn(4, 5)).shape == (3, 5)
        assert tc.onto(torch.randn(3, 4), out=torch.randn(3)).shape == (3,)
        assert_refused(lambda: add(x, y))  # as torch's own operators: convert them first
        assert_refused(lambda: add(fake, fake[:3]), tcjit.ShapeError)
    assert type(add(fake, fake)) is type(fake)
    assert_refused(lambda: add(fake, y))


def test_meta_tensors(tc: Any, add: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    made = add(x.to("meta"), y.to("meta"))
    assert made.shape == (N,) and made.device.type == "meta" and made.dtype == torch.float32
    assert_refused(lambda: add(x.to("meta"), y), tcjit.ArgumentError, "devices")
    assert_refused(lambda: tc.step(torch.empty((), device="meta"), x, 1), tcjit.ArgumentError)


def test_functional_tensors(add: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    def changed(a: torch.Tensor) -> torch.Tensor:
        b = a.clone()
        b.add_(1)
        return add(b, y, out=torch.empty(N))

    assert torch.equal(torch.func.functionalize(changed)(x), x + 1 + y)
    assert torch.equal(torch._from_functional_tensor(add(torch._to_functional_tensor(x), y)), x + y)


def test_vmap(tc: Any, add: Any, y: torch.Tensor) -> None:
    batch = torch.randn(4, N)
    assert torch.equal(torch.vmap(lambda a: add(a, y))(batch), batch + y)
    assert torch.equal(torch.vmap(lambda a: tc.both(a)[1])(batch), (batch + 1) * 2)
    assert torch.equal(torch.vmap(lambda a: add(y, y) + a)(batch), y + y + batch)
    assert_refused(lambda: torch.vmap(lambda a: add(a, y, out=torch.empty(N)))(batch))
    assert torch.equal(torch.vmap(lambda s: tc.step(s, y, 1))(batch[:, 0]), batch[:, :1] * y)
    assert torch.equal(torch.vmap(lambda s: tc.step(2.0, y, s))(torch.tensor([3, 3])), (2 * y[: N // 3 * 3 : 3]).expand(2, -1))
    assert_refused(lambda: torch.vmap(lambda s: tc.step(2.0, y, s))(torch.tensor([1, 2])), tcjit.ShapeError, "elements of a batch")


def test_transforms_that_differentiate(add: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    assert torch.equal(torch.func.grad(lambda a: add(a, y).sum())(x), torch.ones(N))
    assert torch.equal(torch.func.jvp(lambda a: add(a, y), (x,), (y,))[1], y)
    assert torch.equal(torch.func.jacrev(lambda a: add(a, y))(x), torch.eye(N))
    assert torch.equal(torch.func.jacfwd(lambda a: add(a, y))(x), torch.eye(N))
    assert torch.equal(torch.vmap(torch.func.grad(lambda a: add(a, y).sum()))(torch.randn(3, N)), torch.ones(3, N))
    assert torch.equal(torch.func.grad(lambda a: (add(x, y) * a).sum())(x), x + y)


def test_forward_mode(add: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    with forward.dual_level():
        dual = forward.make_dual(x, y)
        assert torch.equal(forward.unpack_dual(add(dual, y)).tangent, y)
        assert torch.equal(add(x, y), x + y)
    assert torch.equal(add(dual, y), x + y)


def test_wrappers_that_escaped(add: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    escaped: list[torch.Tensor] = []

    def keep(a: torch.Tensor) -> torch.Tensor:
        escaped.append(a)
        return a * 2

    torch.vmap(keep)(torch.randn(3, N))
    torch.func.grad(lambda a: keep(a).sum())(x)
    torch.func.functionalize(keep)(x)
    torch.func.jvp(keep, (x,), (y,))
    for wrapper in escaped:
        assert not knows(add, wrapper, y)
        try:
            result = add(wrapper, y)
        except tcjit.TCError:
            continue
        assert torch.equal(result, x + y)


def test_other_layouts(tc: Any, add: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    nested = torch.nested.nested_tensor([x, y])
    jagged = torch.nested.nested_tensor([x, y], layout=torch.jagged)
    for odd in (x.to_sparse(), nested, jagged, torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), x.to(torch.complex64)):
        assert_refused(lambda: add(odd, y), tcjit.ArgumentError)
        assert_refused(lambda: add(x, y, out=odd), tcjit.TCError)
    for matrix in (torch.eye(3).to_sparse_csr(), torch.eye(3).to_sparse_bsr((1, 1))):
        assert_refused(lambda: tc.onto(matrix, out=torch.zeros(3)), tcjit.ArgumentError, "strided")
    if torch.backends.mkldnn.is_available():
        assert_refused(lambda: add(x.to_mkldnn(), y), tcjit.ArgumentError, "strided")
    assert_refused(lambda: add(torch.nn.parameter.UninitializedParameter(), y), tcjit.ArgumentError)


def test_memory_that_was_freed(add: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    gone = torch.empty(N)
    gone.untyped_storage().resize_(0)
    assert_refused(lambda: add(gone, y), tcjit.ArgumentError, "memory")
    assert_refused(lambda: add(x, y, out=gone), tcjit.ArgumentError, "memory")


def test_modes(add: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    with Log() as log:
        assert torch.equal(add(x, y), x + y)
    assert any(name.startswith("tcjit.add_") for name in log.seen)
    for device in ("cpu", "meta"):
        with torch.device(device):
            made = add(x, y)
        assert made.device.type == "cpu" and torch.equal(made, x + y)
    with torch.autocast("cpu"):
        assert torch.equal(add(x, y), x + y)


def test_jit_trace(add: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    traced = torch.jit.trace(lambda a: add(a, y), x)
    assert "tcjit::add_" in str(traced.graph)
    assert torch.equal(traced(2 * x), 2 * x + y)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic", "pre_dispatch"])
def test_make_fx(add: Any, x: torch.Tensor, mode: str) -> None:
    if mode == "pre_dispatch":
        graph = make_fx(lambda a: add(a, a * 2), pre_dispatch=True)(x)
    else:
        graph = make_fx(lambda a: add(a, a * 2), tracing_mode=mode)(x)
    assert "torch.ops.tcjit.add_" in graph.code
    assert torch.equal(graph(3 * x), 3 * x + 6 * x)


def test_torch_compile(tc: Any, add: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    def body(a: torch.Tensor) -> torch.Tensor:
        first, _ = tc.both(add(a * 2, a))
        return first + tc.step(2, a, 1)

    compiled = torch.compile(body, backend="aot_eager", fullgraph=True, dynamic=True)
    for argument in (x, torch.randn(N + 5)):
        assert torch.equal(compiled(argument), body(argument))
    into = torch.compile(lambda a: add(a, y, out=torch.empty(N)) + 1, backend="aot_eager", fullgraph=True)
    assert torch.equal(into(x), x + y + 1)
    torch._dynamo.reset()


def test_export(add: Any, x: torch.Tensor) -> None:
    class Module(torch.nn.Module):
        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return add(a, a)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Module(), (x,))
    assert torch.equal(program.module()(x), 2 * x)


def test_deepcopy(tc: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    assert copy.deepcopy(tc).add is tc.add
    assert torch.equal(copy.deepcopy(tc.add)(x, y), x + y)


def test_profiler_and_anomaly(add: Any, x: torch.Tensor, y: torch.Tensor) -> None:
    with torch.autograd.detect_anomaly(check_nan=True):
        assert torch.equal(add(x, y), x + y)
