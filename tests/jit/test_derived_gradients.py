"""Gradients by derived adjoints: first and second order, both modes, batches and compiled, as PyTorch's own operators give them.

Modules: jit.derivative
"""
from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from support.calls import assert_refused
from support.gradients import EXPRESSIONS, arguments, derived, second_order
from support.rings.targets import everywhere
from torch.autograd import grad, gradcheck
from torch.func import hessian, jacfwd, jacrev, vmap

import tcjit

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.sample(2, over="targets")]
CUDA = "tests/cuda/test_cuda_gradients.py has gradients on a GPU"
STRIDED = "def conv(double(N,C,H) X, double(F,C,K) W, int32 s) -> (Y) { Y(n,f,h) +=! X(n, c, s*h + k) * W(f, c, k) }"


@pytest.fixture(params=["reference", *everywhere(cuda=CUDA)])
def tc(request: pytest.FixtureRequest) -> Any:
    return derived(request.param)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_both_orders_and_both_modes(tc: Any, name: str) -> None:
    args = arguments(name)
    assert gradcheck(tc[name], args, check_batched_grad=True, check_forward_ad=True)
    assert second_order(tc[name], args, check_fwd_over_rev=True)


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: hessian(lambda x: f(x).sin().sum()),
        lambda f: jacfwd(jacrev(f)),
        lambda f: jacrev(jacfwd(f)),
        lambda f: lambda x: vmap(jacrev(lambda row: f(row[None])))(x),
        lambda f: lambda x: vmap(lambda shift: hessian(lambda x: f(x + shift).sum())(x))(torch.arange(3.0, dtype=torch.float64)),
    ],
    ids=["hessian", "forward over reverse", "reverse over forward", "batch", "batch of hessians"],
)
def test_transforms(tc: Any, transform: Callable[..., Any]) -> None:
    x = drawn(3, 4).detach()
    torch.testing.assert_close(transform(tc.softmax)(x), transform(EXPRESSIONS["softmax"])(x))


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_integer_scalars_are_numbers_of_the_text(tc: Any, stride: int) -> None:
    conv = tcjit.define(STRIDED, target=tc.cube.target).conv
    x, w = drawn(2, 3, 11), drawn(4, 3, 3)
    cotangent = drawn(2, 4, (11 - 3) // stride + 1).detach()
    expected = grad(torch.nn.functional.conv1d(x, w, stride=stride), (x, w), cotangent)
    torch.testing.assert_close(grad(conv(x, w, stride), (x, w), cotangent), expected)
    assert second_order(lambda x, w: conv(x, w, stride), (x, w))


def test_what_is_no_integer_is_refused_as_ever(tc: Any) -> None:
    conv = tcjit.define(STRIDED, target=tc.cube.target).conv
    for wrong in (None, "2", 2.5, drawn(2)):
        assert_refused(partial(conv, drawn(2, 3, 11), drawn(4, 3, 3), wrong), tcjit.ArgumentError, "s")


def test_errors_name_the_def_that_was_called(tc: Any) -> None:
    assert_refused(lambda: tc.softmax(drawn(3, 5).to(torch.complex128)), tcjit.ArgumentError, "argument 1 of softmax()")


def test_statistics_that_no_text_returns_are_computed_again(tc: Any) -> None:
    """Literals alone are float32: a text that returned them as they are here would round them."""
    text = "def f(double(M,N) X) -> (Y) { c(i) +=! double(X(i,j) > 0.0 ? 0.1 : 0.3)  Y(i,j) = X(i,j) * X(i,j) * c(i) }"
    f, x = tcjit.define(text, target=tc.cube.target).f, drawn(3, 5)
    scale = torch.where(x > 0, 0.1, 0.3).double().sum(1, keepdim=True)
    torch.testing.assert_close(grad(f(x).sum(), x)[0], 2 * x * scale, rtol=1e-6, atol=0)
    assert second_order(f, x)


def test_frozen_inputs_cost_nothing(tc: Any) -> None:
    """What nobody asks for is not in the adjoint's text, nor are the tensors that only it reads kept."""
    a, b = drawn(3, 4).detach(), drawn(4, 2)
    product = tc.mm(a, b)
    (kept,) = product.grad_fn.saved_tensors
    assert kept is a
    product.sum().backward()
    assert a.grad is None
    torch.testing.assert_close(b.grad, a.sum(0)[:, None].expand(4, 2))


def test_statistics_of_rows_are_saved(tc: Any) -> None:
    """For gradients that nobody differentiates; others have a graph to what the statistics were computed from."""
    x = drawn(3, 5)
    made = tc.softmax(x)
    assert sorted(tuple(kept.shape) for kept in made.grad_fn.saved_tensors) == [(3,), (3,), (3, 5), (3, 5)]
    cotangent = drawn(3, 5).detach()
    (first,) = grad(made, x, cotangent, retain_graph=True)
    (again,) = grad(made, x, cotangent, create_graph=True)
    expected = grad(torch.softmax(x, 1), x, cotangent, create_graph=True)[0]
    torch.testing.assert_close(first, expected)
    torch.testing.assert_close(again, expected)
    torch.testing.assert_close(grad(again.square().sum(), x)[0], grad(expected.square().sum(), x)[0])


MLP = """
def layer(double(N,K) X, double(M,K) W) -> (Y) {
    Z(n, m) +=! X(n, k) * W(m, k)
    Y(n, m)   = tanh(Z(n, m)) * Z(n, m)
}
"""


@pytest.mark.parametrize(("saved", "shapes"), [(None, []), ((), []), (("Z",), [(3, 2)])])
def test_what_is_saved_is_what_was_asked_for(tc: Any, saved: Any, shapes: list[tuple[int, ...]]) -> None:
    layer, x, w = tcjit.define(MLP, target=tc.cube.target, saved=saved).layer, drawn(3, 5), drawn(2, 5)
    made = layer(x, w)
    kept = [tuple(one.shape) for one in made.grad_fn.saved_tensors]
    assert sorted(kept) == sorted([(3, 5), (2, 5), *shapes])
    z = x @ w.T
    torch.testing.assert_close(grad(made.sum(), (x, w)), grad((z.tanh() * z).sum(), (x, w)))
    assert second_order(layer, (x, w))


def test_saved_names_are_those_of_temporaries(tc: Any) -> None:
    for wrong, said in ((["Y"], "no def has such a temporary"), ("Z", "takes names of temporaries"), ([3], "takes names of temporaries")):
        assert_refused(lambda: tcjit.define(MLP, saved=wrong), tcjit.ArgumentError, said)  # noqa: B023
    assert_refused(lambda: tcjit.define(MLP, ties="last"), tcjit.ArgumentError, "ties= is 'last'")


@pytest.mark.parametrize("ties", ["even", "first"])
def test_ties_of_both_orders_both_modes_and_batches(tc: Any, ties: str) -> None:
    text = "def pool(double(N,W) X) -> (Y) { T(n, w) max=! X(n, 2*w + k) where k in 0:2  Y(n, w) = T(n, w) * T(n, w) }"
    pool, reference = tcjit.define(text, target=tc.cube.target, ties=ties).pool, torch.nn.functional.max_pool1d
    x = torch.tensor([[1.0, 1.0, 3.0, 2.0], [0.0, 5.0, -1.0, -1.0]], dtype=torch.float64)
    shares = torch.tensor([[0.5, 0.5, 1, 0], [0, 1, 0.5, 0.5]] if ties == "even" else [[1.0, 0, 1, 0], [0, 1, 1, 0]], dtype=torch.float64)
    top = reference(x, 2).repeat_interleave(2, 1)
    expected = 2 * top * shares
    torch.testing.assert_close(torch.func.grad(lambda x: pool(x).sum())(x), expected)
    torch.testing.assert_close(vmap(torch.func.grad(lambda row: pool(row[None]).sum()))(x), expected)
    direction = torch.tensor([[1.0, 3.0, 0, 1], [2, 1, 4, 0]], dtype=torch.float64)
    along = torch.func.jvp(pool, (x,), (direction,))[1]
    torch.testing.assert_close(along.sum(), (expected * direction).sum())
    product = torch.func.jvp(torch.func.grad(lambda x: pool(x).sum()), (x,), (direction,))[1]
    moved = (shares * direction).reshape(2, 2, 2).sum(2).repeat_interleave(2, 1)
    torch.testing.assert_close(product, 2 * moved * shares)


def test_options_of_gradients_go_with_a_namespace(tc: Any) -> None:
    made = tcjit.define(MLP, target=tc.cube.target, saved=["Z"], ties="first")
    again = pickle.loads(pickle.dumps(made))
    assert again.layer is made.layer and made.layer is not tcjit.define(MLP, target=tc.cube.target).layer


def test_compiled(tc: Any) -> None:
    x = drawn(3, 5)
    compiled = torch.compile(lambda x: tc.softmax(x).square().sum(), fullgraph=True, backend="aot_eager")
    expected = grad(torch.softmax(x, 1).square().sum(), x)
    torch.testing.assert_close(grad(compiled(x), x), expected)
    torch._dynamo.reset()


def test_what_has_no_gradient(tc: Any) -> None:
    x = drawn(5)
    text = "def f(double(N) X) -> (Y) { Y(i) = polygamma(X(i), 1.0) }  def g(double(N) X) -> (double(N) Y) { Y(i) += X(i) }"
    functions = tcjit.define(text, target=tc.cube.target)
    assert_refused(lambda: functions.f(x), tcjit.CheckError, "polygamma")
    assert_refused(lambda: functions.g(x, out=torch.zeros(5, dtype=torch.float64)), tcjit.CheckError, "torch.no_grad()")
    with torch.no_grad():
        torch.testing.assert_close(functions.f(torch.full_like(x, 2.0))[0], torch.special.polygamma(2, x.new_ones(())))


@pytest.mark.parametrize("rows", [0, 3])
def test_quotients_of_sums_without_terms(rows: int) -> None:
    """Rows that are masked as a whole have no gradient by what would divide them, 0 as it is."""
    text = "def f(float(M,K) A, float(M) z, int32(M) L) -> (y) { y(m) +=! k < L(m) ? A(m, k) / z(m) : 0.0 }"
    lengths = torch.tensor([rows, 0, 5, 0], dtype=torch.int32)
    a, z = torch.randn(4, 7, requires_grad=True), torch.tensor([2.0, 0.0, -1.0, 0.0], requires_grad=True)
    got = torch.autograd.grad(tcjit.define(text).f(a, z, lengths), [a, z], torch.ones(4))
    used = torch.arange(7) < lengths[:, None]
    wanted = torch.autograd.grad(torch.where(used, a / torch.where(used, z[:, None], 1.0), 0.0).sum(1), [a, z], torch.ones(4))
    torch.testing.assert_close(got, wanted)
    assert torch.equal(got[1] == 0, lengths == 0)


@pytest.mark.parametrize("mask", ["j <= i", "j <= i && i - j < 2"])
def test_both_orders_of_scores_that_are_read_behind_a_mask(mask: str) -> None:
    """Sums that nothing reads are left out of the adjoint, and of the adjoint's adjoint."""
    text = f"""def f(double(N,D) q, double(N,D) k, double(N,D) v) -> (O) {{
        S(i, j) +=! q(i, d) * k(j, d)
        T(i, j) = {mask} ? S(i, j) * 0.5 + S(i, j) * S(i, j) : -1e30
        M(i) max=! T(i, j)
        E(i, j) = exp(T(i, j) - M(i))
        Z(i) +=! E(i, j)
        O(i, d) +=! {mask} ? E(i, j) / Z(i) * v(j, d) : 0.0
    }}"""
    args = [torch.randn(5, 3, generator=torch.Generator().manual_seed(n), dtype=torch.float64, requires_grad=True) for n in range(3)]
    f = tcjit.define(text).f
    assert "S(i, j) +=! " + mask in f.backward_source()
    assert gradcheck(f, args) and second_order(f, args)


@pytest.mark.parametrize("rows", [2, 5], ids=["a part", "the whole"])
def test_what_is_overwritten_adds_nothing(rows: int) -> None:
    """PyTorch multiplies an infinite factor by 0 where a part is overwritten: a NaN."""
    text = "def f(double(N) X, double(N) Z, double(R) V) -> (Y) { Y(i) = X(i) * Z(i)\n Y(i) = V(i) where i in 0:min(R, 5) }"
    x, v = drawn(5), drawn(rows)
    z = torch.tensor([torch.inf, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)
    dx, dv = grad(tcjit.define(text).f(x, z, v).sum(), (x, v))
    expected = z.clone()
    expected[:rows] = 0
    assert torch.equal(dx, expected) and torch.equal(dv, torch.ones_like(v))
