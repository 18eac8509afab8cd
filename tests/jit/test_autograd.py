"""Gradients through PyTorch's graph: eager, through the dispatcher, compiled; what is kept, what is refused.

Modules: jit.differentiation
"""
from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from support.calls import assert_refused
from support.gradients import BACKWARD, EXPRESSIONS, TEXT, arguments, defs, second_order
from support.rings.targets import everywhere
from torch._dynamo import compiled_autograd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import tcjit
from tcjit.runtime import tensors

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.sample(2, over="targets")]
CUDA = "tests/cuda/test_cuda_calls.py has calls on tensors of a GPU"
TWICE = ["cube", "mm", "norm"]  # those whose adjoints have adjoints


@pytest.fixture(params=["reference", *everywhere(cuda=CUDA)])
def tc(request: pytest.FixtureRequest) -> Any:
    return defs(request.param)


class Nothing(TorchDispatchMode):
    """A mode that changes nothing: calls take the way through the dispatcher."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def gradients(function: Any, args: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    inputs = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    return torch.autograd.grad((function(*args) * torch.pi).sin().sum(), inputs)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_gradients_are_pytorchs(tc: Any, name: str) -> None:
    args = arguments(name)
    expected = gradients(EXPRESSIONS[name], args)
    torch.testing.assert_close(gradients(tc[name], args), expected)
    with Nothing():
        torch.testing.assert_close(gradients(tc[name], args), expected)
    assert torch.autograd.gradcheck(tc[name], args, check_batched_grad=name != "window")


@pytest.mark.parametrize("name", TWICE)
def test_second_order(tc: Any, name: str) -> None:
    assert second_order(tc[name], arguments(name))


def test_the_second_order_of_a_users_adjoint_is_derived(tc: Any) -> None:
    assert second_order(tc.softmax, arguments("softmax"))


def test_nodes_have_names(tc: Any) -> None:
    made = tc.softmax(*arguments("softmax"))
    assert type(made.grad_fn).__name__ == "softmaxBackward" and made.requires_grad
    assert not tc.softmax(*arguments("softmax", grad=False)).requires_grad
    with torch.no_grad():
        assert not tc.softmax(*arguments("softmax")).requires_grad


def test_frozen_inputs(tc: Any) -> None:
    a, b = arguments("mm")
    made = tc.mm(a.detach(), b)
    assert made.grad_fn.needs_input_grad[-2:] == (False, True)
    made.sum().backward()
    assert a.grad is None and b.grad is not None


def test_results_without_cotangents_are_not_differentiable(tc: Any) -> None:
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    y, k = tc.ranks(x)
    assert y.requires_grad and not k.requires_grad and k.dtype == torch.int64
    text = """
def two(float(N) X) -> (Y, Z) { Y(i) = 2.0 * X(i) Z(i) = 3.0 * X(i) }
def two_back(float(N) d_Y) -> (d_X) { d_X(i) = 2.0 * d_Y(i) }
"""
    two = tcjit.define(text, target=tc.cube.target, backward={"two": "two_back"}).two
    y, z = two(torch.ones(3, requires_grad=True))
    assert y.requires_grad and not z.requires_grad


def test_a_result_that_nobody_uses(tc: Any) -> None:
    text = """
def two(float(N) X) -> (Y, Z) { Y(i) = 2.0 * X(i) Z(i) = 3.0 * X(i) }
def two_back(float(N) d_Y, float(N) d_Z) -> (d_X) { d_X(i) = 2.0 * d_Y(i) + 3.0 * d_Z(i) }
"""
    two = tcjit.define(text, target=tc.cube.target, backward={"two": "two_back"}).two
    x = torch.ones(3, requires_grad=True)
    for used, slope in ((slice(0, 1), 2.0), (slice(1, 2), 3.0), (slice(0, 2), 5.0)):
        (gradient,) = torch.autograd.grad(sum(result.sum() for result in two(x)[used]), x)
        assert torch.equal(gradient, torch.full((3,), slope))


def test_an_adjoint_that_leaves_a_parameter_out(tc: Any) -> None:
    text = """
def scale(float(N) X, float(N) W) -> (Y) { Y(i) = X(i) * W(i) }
def scale_back(float(N) d_Y, float(N) W) -> (d_X) { d_X(i) = d_Y(i) * W(i) }
"""
    scale = tcjit.define(text, target=tc.cube.target, backward={"scale": "scale_back"}).scale
    x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    scale(x, w).sum().backward()
    assert torch.equal(x.grad, w.detach()) and w.grad is None
    assert not scale(x.detach(), w).requires_grad


def test_what_is_kept(tc: Any) -> None:
    args = arguments("softmax")
    made = tc.softmax(*args)
    assert [t is None or t.shape for t in made.grad_fn.saved_tensors] == [made.shape]  # the result alone, not the argument
    x = torch.randn(6, dtype=torch.float64, requires_grad=True)
    inner = x * 2
    assert tc.mean(inner).grad_fn.saved_tensors == ()
    made, gone = tc.mean(inner), weakref.ref(inner)
    del inner
    gc.collect()
    assert gone() is None
    made.backward()
    assert torch.equal(x.grad, torch.full_like(x, 2 / 6))


def test_saved_tensors_that_changed(tc: Any) -> None:
    (x,) = arguments("cube")
    inner = x * 1
    made = tc.cube(inner)
    inner.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        made.sum().backward()
    made = tc.softmax(x.expand(2, 4))
    with torch.no_grad():
        tc.softmax(x.detach().expand(2, 4), out=made.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        made.sum().backward()


def test_hooks(tc: Any) -> None:
    (x,) = arguments("cube")
    packed: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> int:
        packed.append(tensor)
        return len(packed) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, packed.__getitem__):
        made = tc.cube(x)
    seen: list[torch.Tensor] = []
    made.register_hook(seen.append)
    made.sum().backward()
    assert len(packed) == 1 and len(seen) == 1 and torch.equal(x.grad, 3 * x * x)


def test_out_with_gradients_is_refused_as_pytorch_does(tc: Any) -> None:
    (x,) = arguments("cube")
    for args, out in (((x,), torch.empty(4, dtype=torch.float64)), ((x.detach(),), torch.empty_like(x, requires_grad=True))):
        message = assert_refused(lambda: tc.cube(*args, out=out), tcjit.ArgumentError)  # noqa: B023
        with pytest.raises(RuntimeError) as torchs:
            torch.sin(*args, out=out)
        assert str(torchs.value).replace("sin", "cube", 1).rstrip(".") in message
    with torch.no_grad():
        out = torch.empty_like(x)
        assert tc.cube(x, out=out) is out and torch.equal(out, x * x * x)


def test_a_scalar_that_requires_grad(tc: Any) -> None:
    x, a = arguments("norm")
    made = tc.norm(x.detach(), a)
    assert torch.equal(torch.autograd.grad(made, a)[0], tc.norm_back(1.0, x.detach(), a.item())[1])
    single = a.detach().float().requires_grad_()
    tc.norm(x.detach(), single).backward()
    assert single.grad.dtype == torch.float32
    offset = torch.tensor(1.0, requires_grad=True)
    assert_refused(lambda: tc.window(x, offset), tcjit.ArgumentError, "there is no gradient by int32")


def test_checks_come_before_gradients(tc: Any) -> None:
    a, b = arguments("mm")
    assert_refused(lambda: tc.mm(a, b.t()), tcjit.ShapeError)
    assert_refused(lambda: tc.mm(a, b.float()), tcjit.ArgumentError, "dtype")
    assert_refused(lambda: tc.pick(arguments("pick")[0], torch.tensor([7])), tcjit.GatherError)


def test_a_gradient_of_another_shape(tc: Any) -> None:
    text = """
def head(float(N) X) -> (Y) { Y(i) = X(i + 1) where i in 0:N - 1 }
def head_back(float(M) d_Y) -> (d_X) { d_X(i) = d_Y(i) }
"""
    head = tcjit.define(text, target=tc.cube.target, backward={"head": "head_back"}).head
    made = head(torch.ones(4, requires_grad=True))
    assert_refused(lambda: made.sum().backward(), tcjit.ShapeError, "d_X of head_back() has shape (3,), and X of head() has (4,)")


def test_a_size_as_a_parameter_of_the_adjoint(tc: Any) -> None:
    text = """
def mean(float(N, M) X) -> (Y) { Y(m) +=! X(n, m)  Y(m) = Y(m) / N }
def mean_back(float(M) d_Y, int32 N) -> (d_X) { d_X(n, m) = d_Y(m) / N where n in 0:N }
"""
    mean = tcjit.define(text, target=tc.cube.target, backward={"mean": "mean_back"}).mean
    x = torch.randn(5, 3, requires_grad=True)
    made = mean(x)
    assert made.grad_fn.saved_tensors == ()
    made.sum().backward()
    torch.testing.assert_close(x.grad, torch.full((5, 3), 0.2))


def test_inference_mode(tc: Any) -> None:
    (x,) = arguments("cube")
    with torch.inference_mode():
        assert not tc.cube(x).requires_grad
        inside = x * 2
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        tc.norm(inside, torch.tensor(1.0, requires_grad=True))


def test_checkpoints(tc: Any) -> None:
    for reentrant in (False, True):
        a, b = arguments("mm")
        checkpoint(lambda p, q: tc.softmax(tc.mm(p, q)).sin().sum(), a, b, use_reentrant=reentrant).backward()
        torch.testing.assert_close((a.grad, b.grad), torch.autograd.grad(torch.softmax(a @ b, 1).sin().sum(), (a, b)))


def test_autocast_changes_nothing(tc: Any) -> None:
    a, b = arguments("mm")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = tc.mm(a, b)
        assert made.dtype == torch.float64
        half = torch.nn.functional.linear(torch.ones(3, 4), torch.ones(4, 4))
        assert half.dtype == torch.bfloat16
        assert_refused(lambda: tc.mm(half, b), tcjit.ArgumentError, "x.to(torch.float64)")
    made.sum().backward()
    assert a.grad.dtype == torch.float64


def test_threads(tc: Any) -> None:
    (x,) = arguments("cube")
    found: list[torch.Tensor] = []

    def work() -> None:
        own = x.detach().clone().requires_grad_()
        for _ in range(5):
            found.append(torch.autograd.grad(tc.cube(own).sum(), own)[0])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20 and all(torch.equal(g, found[0]) for g in found)


def test_views_and_layouts(tc: Any) -> None:
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    tc.softmax(x.t())[:, ::2].sum().backward()
    torch.testing.assert_close(x.grad, torch.autograd.grad(torch.softmax(x.t(), 1)[:, ::2].sum(), x)[0])


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_opcheck(tc: Any, name: str) -> None:
    """Every test that PyTorch has for operators, those of gradients among them."""
    found = torch.library.opcheck(tc[name]._overload, [a.item() if torch.is_tensor(a) and a.dim() == 0 else a for a in arguments(name)])
    assert set(found.values()) == {"SUCCESS"} and len(found) == 4
    if name == "norm":
        assert set(torch.library.opcheck(tc.norm._lifted_operator.overload, arguments(name)).values()) == {"SUCCESS"}


@pytest.mark.sample(2, over="all targets")
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_compiled(tc: Any, name: str) -> None:
    args = arguments(name)
    compiled = torch.compile(lambda *given: tc[name](*given).sin(), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(gradients(compiled, args), gradients(lambda *given: EXPRESSIONS[name](*given).sin(), args))
    torch._dynamo.reset()


def test_dynamic_sizes(tc: Any) -> None:
    """Declared, found by themselves, and symbols of a tracer."""
    dynamic = tcjit.define(TEXT, target=tc.cube.target, backward=BACKWARD, dynamic=["M", "N"])
    assert dynamic.mm.sibling("mm_back").dynamic == ("M", "N")
    compiled = torch.compile(lambda v: tc.softmax(v).sin(), fullgraph=True, backend="aot_eager", dynamic=True)
    for n in range(3, 14):
        x = torch.randn(n, n + 1, dtype=torch.float64, requires_grad=True)
        expected = gradients(lambda v: torch.softmax(v, 1), (x,))
        torch.testing.assert_close(gradients(dynamic.softmax, (x,)), expected)
        torch.testing.assert_close(gradients(tc.softmax, (x,)), expected)
        torch.testing.assert_close(gradients(compiled, (x,)), gradients(lambda v: torch.softmax(v, 1).sin(), (x,)))
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", ["half", "bfloat16", "float"])
def test_types(tc: Any, dtype: str) -> None:
    text = f"""
def act({dtype}(N) X, {dtype} a) -> (Y) {{ Y(i) = a * max(X(i), 0.0) }}
def act_back({dtype}(N) d_Y, {dtype}(N) X, {dtype} a) -> (d_X, d_a) {{
    d_X(i) = X(i) > 0.0 ? a * d_Y(i) : 0.0
    d_a +=! max(X(i), 0.0) * d_Y(i)
}}
"""
    act = tcjit.define(text, target=tc.cube.target, backward={"act": "act_back"}).act
    x = torch.randn(40).to(getattr(torch, dtype)).requires_grad_()
    a = torch.tensor(0.5, dtype=x.dtype, requires_grad=True)
    for found, expected in zip(gradients(act, (x, a)), gradients(lambda v, s: s * torch.relu(v), (x, a))):
        assert found.dtype == x.dtype
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_compiled_second_order(tc: Any) -> None:
    (x,) = arguments("cube")

    def first(v: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(tc.cube(v).sum(), v, create_graph=True)[0].sum()

    with torch._dynamo.config.patch(trace_autograd_ops=True):
        made = torch.compile(first, fullgraph=True, backend="aot_eager")(x)
        torch.testing.assert_close(torch.autograd.grad(made, x)[0], 6 * x)
    torch._dynamo.reset()


def test_compiled_backward(tc: Any) -> None:
    for name in ("softmax", "norm"):
        args = arguments(name)
        with compiled_autograd._enable(torch.compile(backend="aot_eager")):
            tc[name](*args).sin().sum().backward()
        expected = torch.autograd.grad(EXPRESSIONS[name](*args).sin().sum(), args)
        torch.testing.assert_close(tuple(a.grad for a in args), expected)
    torch._dynamo.reset()


def test_compiled_without_an_adjoint(tc: Any) -> None:
    gamma = tcjit.define("def gamma(double(N) X) -> (Y) { Y(i) = polygamma(X(i), 2.0) }", target=tc.cube.target).gamma
    x = torch.rand(3, dtype=torch.float64).requires_grad_()
    compiled = torch.compile(lambda v: gamma(v).sum(), backend="aot_eager")
    with pytest.raises(Exception, match="polygamma"):
        compiled(x).backward()
    torch._dynamo.reset()


def test_exported(tc: Any) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4, 2, dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = tc.softmax(tc.mm(x, self.weight))
            return made

    model = Model()
    x = torch.randn(3, 4, dtype=torch.float64)
    exported = torch.export.export(model, (x,)).module()
    exported(x).sin().sum().backward()
    model(x).sin().sum().backward()
    torch.testing.assert_close(dict(exported.named_parameters())["weight"].grad, model.weight.grad)


def test_kernels_refuse(tc: Any) -> None:
    (x,) = arguments("cube")
    kernel = tc.cube.compile(x.detach())
    assert_refused(lambda: kernel(x), tcjit.ArgumentError, "no gradient passes here")


def test_numbers_on_a_device_are_not_read_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter and the gradient of a loss: to read them would be to wait for the device. Here the CPU stands in for one."""

    def refuse(tensor: torch.Tensor) -> None:
        raise AssertionError("the host waits")

    text = "def loss(float(N) X, float a) -> (L, Y) { L() +=! a * X(n) * X(n)  Y(n) = a * X(n) }"
    function = tcjit.define(text, target="cpu").loss
    x, a = torch.randn(100, requires_grad=True), torch.tensor(0.7, requires_grad=True)
    with monkeypatch.context() as patched:
        patched.setattr(tensors, "QUEUED", ("cpu",))
        patched.setattr(torch.Tensor, "item", refuse)
        for _ in range(2):  # the second call is prepared for
            first, second = function(x, a)
            of_x, of_a = torch.autograd.grad(3 * first + second.sum(), (x, a), create_graph=True)
        again = torch.autograd.grad(of_x.sum(), (x, a))
        with torch.no_grad():
            plain = function(x, a)
            with pytest.raises(tcjit.errors.ArgumentError, match=r"argument 1 of loss\(\), float32\(N\) X"):
                function(x.double(), a)
        out = torch.empty(())
    assert (first.shape, second.shape, of_a.shape) == ((), (100,), ())
    torch.testing.assert_close([first, second, *plain], [a * (x * x).sum(), a * x] * 2)
    torch.testing.assert_close([of_x, of_a], [6 * a * x + a, 3 * (x * x).sum() + x.sum()])
    torch.testing.assert_close([*again], [torch.full_like(x, 6 * 0.7), 6 * x.sum() + 100])
    function(x.detach(), a.detach(), out=(out, torch.empty(100)))  # where the caller gives room, numbers are read
    torch.testing.assert_close(out, first.detach())
