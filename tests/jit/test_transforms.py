"""``torch.func`` over defs: derivatives in both modes, batches, and both nested, as PyTorch's own operators give them.

Modules: jit.autograd jit.differentiation
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.calls import assert_refused
from support.gradients import EXPRESSIONS, arguments, defs, second_order
from support.rings.targets import everywhere
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import tcjit

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.sample(2, over="targets")]
CUDA = "tests/cuda/test_cuda_calls.py has calls on tensors of a GPU"
Transform = Callable[[Callable[..., Any]], Any]


@pytest.fixture(params=["reference", *everywhere(cuda=CUDA)])
def tc(request: pytest.FixtureRequest) -> Any:
    return defs(request.param)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


X, A, B = drawn(4), drawn(3, 4), drawn(4, 2)
XS, AS, BS = drawn(5, 4), drawn(6, 3, 4), drawn(6, 4, 2)
XSS = drawn(2, 5, 4)

OF_CUBE: dict[str, Transform] = {
    "grad": lambda f: grad(lambda x: f(x).sum())(X),
    "vjp": lambda f: vjp(f, X)[1](X + 1),
    "jvp": lambda f: jvp(f, (X,), (X + 1,)),
    "jacrev": lambda f: jacrev(f)(X),
    "jacfwd": lambda f: jacfwd(f)(X),
    "grad of grad": lambda f: grad(lambda x: grad(lambda y: f(y).sum())(x).sum())(X),
    "grad of grad of sines": lambda f: grad(lambda x: grad(lambda y: f(y).sin().sum())(x).sin().sum())(X),
    "jacrev of jacrev": lambda f: jacrev(jacrev(f))(X),
    "hessian": lambda f: hessian(lambda x: f(x).sin().sum())(X),
    "vmap": lambda f: vmap(f)(XS),
    "vmap of another dimension": lambda f: vmap(f, in_dims=1, out_dims=1)(XS.t()),
    "vmap of vmap": lambda f: vmap(vmap(f))(XSS),
    "vmap of grad": lambda f: vmap(grad(lambda x: f(x).sin().sum()))(XS),
    "grad of vmap": lambda f: grad(lambda x: vmap(f)(x).sin().sum())(XS),
    "vmap of jvp": lambda f: vmap(lambda x: jvp(f, (x,), (X,)))(XS),
    "jvp of vmap": lambda f: jvp(vmap(f), (XS,), (XS + 1,)),
    "vmap of grad of grad": lambda f: vmap(grad(lambda x: grad(lambda y: f(y).sum())(x).sum()))(XS),
    "vmap of hessian": lambda f: vmap(hessian(lambda x: f(x).sin().sum()))(XS),
    "vmap of vmap of grad": lambda f: vmap(vmap(grad(lambda x: f(x).sin().sum())))(XSS),
    "grad of vmap of vmap": lambda f: grad(lambda x: vmap(vmap(f))(x).sin().sum())(XSS),
    "vmap of grad of vmap": lambda f: vmap(grad(lambda x: vmap(f)(x).sin().sum()))(XSS),
    "grad of grad of vmap": lambda f: grad(lambda x: grad(lambda y: vmap(f)(y).sum())(x).sin().sum())(XS),
    "hessian of vmap": lambda f: hessian(lambda x: vmap(f)(x).sin().sum())(XS),
}
OF_MM: dict[str, Transform] = {
    "vmap of the left": lambda f: vmap(f, (0, None))(AS, B),
    "vmap of the right": lambda f: vmap(f, (None, 0))(A, BS),
    "vmap of both": lambda f: vmap(f, (2, 0))(AS.movedim(0, 2), BS),
    "gradient by what a batch shares": lambda f: grad(lambda b: vmap(lambda a: f(a, b))(AS).sin().sum())(B),
    "gradients of every sample": lambda f: vmap(grad(lambda b, a: f(a, b).sin().sum()), (None, 0))(B, AS),
    "by what two batches share": lambda f: grad(lambda b: vmap(vmap(lambda a: f(a, b)))(AS.reshape(2, 3, 3, 4)).sin().sum())(B),
    "hessian by both": lambda f: hessian(lambda a, b: f(a, b).sin().sum(), (0, 1))(A, B),
    "jacfwd by what a batch shares": lambda f: jacfwd(lambda b: vmap(lambda a: f(a, b))(AS).sum(0))(B),
    "hessian by what a batch shares": lambda f: hessian(lambda b: vmap(lambda a: f(a, b))(AS).sin().sum())(B),
    "outer products": lambda f: vmap(lambda a: vmap(lambda b: f(a, b))(BS))(AS),
}


def check(function: Any, expression: Callable[..., Any], transform: Transform) -> None:
    torch.testing.assert_close(transform(function), transform(expression))


@pytest.mark.parametrize("name", OF_CUBE)
def test_elementwise(tc: Any, name: str) -> None:
    check(tc.cube, EXPRESSIONS["cube"], OF_CUBE[name])


@pytest.mark.parametrize("name", OF_MM)
def test_products(tc: Any, name: str) -> None:
    check(tc.mm, torch.matmul, OF_MM[name])


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_both_ways_give_one_result(tc: Any, name: str) -> None:
    """Through functorch as through autograd's graph."""
    args = arguments(name, grad=False)
    floats = tuple(n for n, a in enumerate(args) if isinstance(a, torch.Tensor) and a.is_floating_point())
    found = grad(lambda *given: tc[name](*given).sin().sum(), floats)(*args)
    inputs = [args[n].clone().requires_grad_() if n in floats else a for n, a in enumerate(args)]
    tc[name](*inputs).sin().sum().backward()
    for gradient, n in zip(found, floats):
        assert torch.equal(gradient, inputs[n].grad)


def test_scalars(tc: Any) -> None:
    x, a = arguments("norm", grad=False)
    many = torch.stack([a, 2 * a, 3 * a])
    for transform in (
        lambda f: vmap(f, (None, 0))(x, many),
        lambda f: vmap(grad(lambda s: f(x, s).sin()))(many),
        lambda f: grad(lambda s: vmap(lambda t: f(x, t))(s).sin().sum())(many),
        lambda f: jacrev(jacrev(lambda s: f(x, s).sin()))(a),
        lambda f: grad(lambda s: vmap(lambda y: f(y, s))(torch.stack([x, x + 1])).sin().sum())(a),
    ):
        check(tc.norm, EXPRESSIONS["norm"], transform)
    assert torch.equal(vmap(lambda s: tc.norm(x, s))(many.float()), vmap(lambda s: tc.norm(x, s))(many.float().double()))


def test_scalars_that_are_part_of_the_code(tc: Any) -> None:
    x = drawn(7)
    found = vmap(lambda s: tc.window(x, s), randomness="same")(torch.tensor([2, 2]))
    torch.testing.assert_close(found, torch.sin(x[2:]).expand(2, -1))
    assert_refused(lambda: vmap(lambda s: tc.window(x, s))(torch.tensor([1, 2])), tcjit.ShapeError, "elements of a batch")
    assert_refused(lambda: vmap(lambda s: tc.window(x, s))(torch.empty(0, dtype=torch.int64)), tcjit.ArgumentError, "empty")


def test_a_result_that_the_batch_does_not_reach(tc: Any) -> None:
    """Its cotangent counts once for each element."""
    text = """
def f(double(N) X, double(N) W) -> (Y, Z) { Y(i) = X(i) * W(i) Z(i) = 2.0 * W(i) }
def f_back(double(N) d_Y, double(N) d_Z, double(N) X, double(N) W) -> (d_X, d_W) {
    d_X(i) = d_Y(i) * W(i)
    d_W(i) = d_Y(i) * X(i) + 2.0 * d_Z(i)
}
"""
    f = tcjit.define(text, target=tc.cube.target, backward={"f": "f_back"}).f

    def expression(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * w, 2 * w

    def total(made: Callable[..., Any]) -> Callable[[torch.Tensor], torch.Tensor]:
        def of(w: torch.Tensor) -> torch.Tensor:
            y, z = vmap(lambda x: made(x, w))(XS)
            return y.sin().sum() + z.cos().sum()

        return of

    torch.testing.assert_close(grad(total(f))(X), grad(total(expression))(X))


def test_batches_of_nothing(tc: Any) -> None:
    assert vmap(tc.cube)(XS[:0]).shape == (0, 4)
    assert vmap(tc.mm, (0, None))(AS[:0], B).shape == (0, 3, 2)


def test_calls_of_other_defs_and_names_that_are_taken(tc: Any) -> None:
    text = """
def product(double(M, K) A, double(K, N) B) -> (b) { b(m, n) +=! A(m, k) * B(k, n) }
def f(double(B, K) X, double(L, N) b_) -> (Y) { Y = product(X, b_) }
"""
    f = tcjit.define(text, target=tc.cube.target).f
    torch.testing.assert_close(vmap(f, (0, None))(AS, B), AS @ B)
    torch.testing.assert_close(vmap(vmap(f, (0, None)), (0, 0))(AS.reshape(2, 3, 3, 4), BS[:2]), (AS.reshape(2, 3, 3, 4) @ BS[:2, None]))
    assert_refused(lambda: vmap(f, (0, None))(AS, drawn(5, 2)), tcjit.ShapeError)


def test_a_batch_is_one_call(tc: Any) -> None:
    made = tc.mm.batched(frozenset({"A"}))
    assert made is tc.mm.batched(frozenset({"A"})) and str(made.signature) == "mm(float64(B_, M, K) A, float64(K, N) B) -> (C)"
    assert_refused(lambda: vmap(tc.mm, (0, None))(AS, drawn(5, 2)), tcjit.ShapeError)
    assert_refused(lambda: vmap(tc.mm, (0, None))(AS[0], B), tcjit.ArgumentError, "must have 2 dimensions, not 1")


def test_no_tangent_is_an_error(tc: Any) -> None:
    """A user's adjoint that gives no gradient by what has a tangent has none."""
    text = """
def f(double(N) X, double(N) W) -> (Y) { Y(i) = X(i) * W(i) }
def f_back(double(N) d_Y, double(N) W) -> (d_X) { d_X(i) = d_Y(i) * W(i) }
"""
    f = tcjit.define(text, target=tc.cube.target, backward={"f": "f_back"}).f
    torch.testing.assert_close(jvp(lambda x: f(x, X), (X,), (X + 1,))[1], X * (X + 1))
    assert_refused(lambda: jvp(lambda w: f(X, w), (X,), (X,)), tcjit.ArgumentError, "argument W of f() has a tangent")
    gamma = tcjit.define("def gamma(double(N) X) -> (Y) { Y(i) = polygamma(X(i), 2.0) }", target=tc.cube.target).gamma
    for transform in (lambda: jvp(gamma, (X,), (X,)), lambda: jacfwd(gamma)(X), lambda: vmap(grad(lambda x: gamma(x).sum()))(XS)):
        assert_refused(transform, tcjit.CheckError, "polygamma")
    with forward_ad.dual_level():
        assert_refused(lambda: gamma(forward_ad.make_dual(X, X)), tcjit.CheckError, "polygamma")


def test_tangents_of_users_adjoints(tc: Any) -> None:
    check(tc.softmax, EXPRESSIONS["softmax"], lambda f: jvp(f, (A,), (A + 1,)))
    check(tc.softmax, EXPRESSIONS["softmax"], lambda f: vmap(lambda a: jacfwd(f)(a))(AS))
    check(tc.norm, EXPRESSIONS["norm"], lambda f: hessian(lambda x: f(x, torch.tensor(2.0, dtype=torch.float64)))(X))


def test_a_tangent_that_leaves_a_parameter_out(tc: Any) -> None:
    text = """
def f(double(N) X, double(N) W) -> (Y) { Y(i) = X(i) * W(i) }
def f_tangent(double(N) t_X, double(N) W) -> (t_Y) { t_Y(i) = t_X(i) * W(i) }
"""
    f = tcjit.define(text, target=tc.cube.target, tangent={"f": "f_tangent"}).f
    torch.testing.assert_close(jvp(lambda x: f(x, X), (X,), (X + 1,))[1], X * (X + 1))
    assert_refused(lambda: jvp(lambda w: f(X, w), (X,), (X,)), tcjit.ArgumentError, "argument W of f() has a tangent")


def test_integers_have_no_tangents(tc: Any) -> None:
    t, i = arguments("pick", grad=False)
    for transform in (lambda f: jacfwd(lambda v: f(v, i))(t), lambda f: vmap(lambda k: jvp(lambda v: f(v, k), (t,), (t + 1,)))(i[:, None])):
        check(tc.pick, EXPRESSIONS["pick"], transform)
    x = drawn(4)
    torch.testing.assert_close(jvp(lambda v: tc.ranks(v)[0], (x,), (x,))[1], 2 * x)


def test_forward_mode_without_functorch(tc: Any) -> None:
    (x,) = arguments("cube")
    assert torch.autograd.gradcheck(tc.cube, (x,), check_forward_ad=True)
    assert second_order(tc.cube, (x,), check_fwd_over_rev=True)
    assert second_order(tc.mm, arguments("mm"), check_fwd_over_rev=True)


def test_operators_refuse_forward_mode(tc: Any) -> None:
    """Torch would take the tangents to be zero."""
    operator = tc.cube._overload
    for transform in (
        lambda: jvp(operator, (X,), (X,)),
        lambda: jacfwd(operator)(X),
        lambda: hessian(lambda x: operator(x).sum())(X),
        lambda: hessian(lambda x: operator(x).sin().sum())(X),
        lambda: vmap(lambda x: jvp(operator, (x,), (x,)))(XS),
    ):
        assert_refused(transform, tcjit.ArgumentError, "forward mode does not pass through operators")
    with forward_ad.dual_level():
        assert_refused(lambda: operator(forward_ad.make_dual(X, X)), tcjit.ArgumentError, "forward mode")


def test_operators_under_reverse_transforms(tc: Any) -> None:
    for name in ("grad", "grad of grad of sines", "jacrev", "vmap", "vmap of grad", "grad of vmap", "grad of grad of vmap"):
        check(tc.cube._overload, EXPRESSIONS["cube"], OF_CUBE[name])


def test_traced(tc: Any) -> None:
    """The graph has the operators of the def and of its adjoint, those over the batch."""
    slopes = make_fx(vmap(grad(lambda x: tc.cube(x).sin().sum())), tracing_mode="symbolic")(XS)
    called = [str(node.target) for node in slopes.graph.nodes if "tcjit" in str(node.target)]
    assert [name.rpartition("_")[0] for name in called] == ["tcjit.cube", "tcjit.cube_back"]
    torch.testing.assert_close(slopes(XS[:3]), vmap(grad(lambda x: (x**3).sin().sum()))(XS[:3]))


def test_linearize(tc: Any) -> None:
    made, along = torch.func.linearize(tc.mm, A, B)
    torch.testing.assert_close(made, A @ B)
    torch.testing.assert_close(along(A, B), 2 * (A @ B))


@pytest.mark.sample(2, over="all targets")
@pytest.mark.parametrize("name", ["grad", "grad of grad of sines", "jacrev", "jvp", "hessian", "vmap", "vmap of grad", "grad of vmap"])
def test_compiled(tc: Any, name: str) -> None:
    """The right result, or an error: a compiled graph has the operator, through which forward mode does not pass."""
    try:
        found = torch.compile(OF_CUBE[name], backend="aot_eager")(tc.cube)
    except Exception as error:
        assert name in ("jvp", "hessian") and "forward mode" in str(error), error
    else:
        torch.testing.assert_close(found, OF_CUBE[name](EXPRESSIONS["cube"]))
    finally:
        torch._dynamo.reset()


def test_a_parameter_that_the_adjoint_leaves_out(tc: Any) -> None:
    """It does not hide the gradients that other transforms ask for, through the def or its operator."""
    text = """
def f(double(N) X, double(N) W) -> (Y) { Y(i) = X(i) * W(i) }
def f_back(double(N) d_Y, double(N) W) -> (d_X) { d_X(i) = d_Y(i) * W(i) }
"""
    f = tcjit.define(text, target=tc.cube.target, backward={"f": "f_back"}).f
    for made in (f, f._overload):

        def outer(x: torch.Tensor, made: Any = made) -> torch.Tensor:
            return (x + grad(lambda w: (made(x, w) + x * w).sum())(X) + made(x, X)).sum()

        torch.testing.assert_close(grad(outer)(X), 2 + X)
        assert torch.equal(grad(lambda w, made=made: (made(X, w) + w).sum())(X), torch.ones(4, dtype=torch.float64))


def test_no_gradient_by_integers(tc: Any) -> None:
    x, s = drawn(7), torch.tensor(2.0)
    for transform in (
        lambda: grad(lambda v: tc.window(x, v).sum())(s),
        lambda: grad(lambda v: grad(lambda y: tc.window(y, v).sum())(x).sum())(s),
        lambda: vmap(grad(lambda v: tc.window(x, v).sum()))(torch.tensor([2.0, 2.0])),
    ):
        assert_refused(transform, tcjit.ArgumentError, "there is no gradient by int32")


def test_numbers_of_other_types(tc: Any) -> None:
    text = "def f(float(N) X, int32 k, float a) -> (Y) { Y(i) = a * X(i) * k }"
    f, x = tcjit.define(text, target=tc.cube.target).f, torch.ones(3)
    for numbers in (torch.tensor([2, 3], dtype=torch.int32), torch.tensor([2, 3]), torch.tensor([2.0, 3.0])):
        assert torch.equal(vmap(lambda k: f(x, k, 1.0))(numbers), torch.tensor([[2.0] * 3, [3.0] * 3]))
        assert torch.equal(vmap(lambda a: f(x, 1, a))(numbers), torch.tensor([[2.0] * 3, [3.0] * 3]))
    assert_refused(lambda: vmap(lambda k: f(x, k, 1.0))(torch.tensor([2.5])), tcjit.ArgumentError, "cannot be 2.5")
    assert_refused(lambda: vmap(lambda a: f(x, 1, a))(torch.tensor([2**24 + 1])), tcjit.ArgumentError, "does not hold it exactly")


def test_out_under_a_transform(tc: Any) -> None:
    assert_refused(lambda: vmap(lambda x: tc.cube(x, out=torch.empty_like(X)))(XS))
    assert_refused(lambda: grad(lambda x: tc.cube(x, out=torch.empty_like(X)).sum())(X), tcjit.ArgumentError, "out=")
