"""Gradients in half types, of dynamic sizes, and of what has none: adjoints accumulate wide and serve ranges of sizes.

Modules: jit.differentiation
"""
from __future__ import annotations

from typing import Any

import pytest
import torch
from support.calls import assert_refused
from torch import Tensor
from torch.autograd import grad

import tcjit
from tcjit.jit.derivative import derived_adjoint

pytestmark = pytest.mark.host
HALVES = {"half": torch.float16, "bfloat16": torch.bfloat16}
TEXTS = {
    "mm": "def f(T(M,K) A, T(K,N) B) -> (C) { C(m, n) +=! A(m, k) * B(k, n) }",
    "layer": "def f(T(N,K) X, T(M,K) W) -> (Y) { Z(n, m) +=! X(n, k) * W(m, k)  Y(n, m) = tanh(Z(n, m)) }",
    "softmax": """def f(T(M,N) X) -> (Y) {
        Top(m) max=! X(m, n)  E(m, n) = exp(X(m, n) - Top(m))  Total(m) +=! E(m, n)  Y(m, n) = E(m, n) / Total(m)
    }""",
    "bias": "def f(T(N,M) X, T(M) b) -> (Y) { Y(n, m) = X(n, m) * b(m) }",
    "product": "def f(T(N,M) X) -> (Y) { Y(n) *=! X(n, m) }",
    "maximum": "def f(T(N,M) X) -> (Y) { Z(n, m) = X(n, m) * X(n, m)  Y(n) max=! Z(n, m) }",
}
SHAPES = {"mm": [(5, 300), (300, 7)], "layer": [(5, 300), (7, 300)], "bias": [(3000, 4), (4,)], "product": [(6, 5)]}


def drawn(name: str, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in SHAPES.get(name, [(4, 200)])]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", TEXTS)
def test_halves(name: str, half: str) -> None:
    """Against the same def in float64: what half the digits of inputs and results leave, however many terms are summed."""
    dtype = HALVES[half]
    f, exact = (tcjit.define(TEXTS[name].replace("T(", f"{each}(")).f for each in (half, "double"))
    args = drawn(name, dtype)
    wide = [each.detach().double().requires_grad_() for each in args]
    made, wanted = f(*args), exact(*wide)
    assert made.dtype == dtype
    cotangent = torch.randn(made.shape, generator=torch.Generator().manual_seed(6)).to(dtype)
    found, expected = grad(made, args, cotangent), grad(wanted, wide, cotangent.double())
    eps = torch.finfo(dtype).eps
    for one, other in zip(found, expected):
        assert one.dtype == dtype
        assert (one.double() - other).abs().max() < 6 * eps * other.abs().max(), (one, other)


@pytest.mark.parametrize("half", HALVES)
def test_temporaries_have_cotangents_of_float32(half: str) -> None:
    text = "def f(T(N,K) X, T(M,K) W) -> (Y) { Z(n, m) +=! X(n, k) * W(m, k)  Y(n, m) = Z(n, m) * Z(n, m) }"
    made = derived_adjoint(text.replace("T(", f"{half}("), "f", None, {}, "even").definition
    dtypes = {tensor.name: tensor.dtype for tensor in made.tensors}
    own = {"half": "float16"}.get(half, half)
    assert dtypes["d_Z"] == "float32" and {dtypes[name] for name in ("d_Y", "d_X", "d_W")} == {own}


def test_long_sums_are_wide() -> None:
    """3,000 ones in bfloat16 stop at 256 where each sum is rounded."""
    f = tcjit.define(TEXTS["bias"].replace("T(", "bfloat16(")).f
    x, b = torch.ones(3000, 4, dtype=torch.bfloat16), torch.ones(4, dtype=torch.bfloat16, requires_grad=True)
    f(x, b).sum().backward()
    assert torch.equal(b.grad, torch.full((4,), 3000.0).bfloat16())


MLP = "def f(float(N,K) X, float(M,K) W) -> (Y) { Z(n, m) +=! X(n, k) * W(m, k)  Y(n, m) = tanh(Z(n, m)) * Z(n, m) }"


def reference(x: Tensor, w: Tensor) -> Tensor:
    z = x @ w.T
    return z.tanh() * z


def test_dynamic_sizes_have_one_adjoint_for_many() -> None:
    f = tcjit.define(MLP, dynamic=["N"], saved=["Z"]).f
    w = torch.randn(5, 6, requires_grad=True)
    for size in (9, 17, 32, 11, 30, 1, 2):
        x = torch.randn(size, 6, requires_grad=True)
        torch.testing.assert_close(grad(f(x, w).sum(), (x, w)), grad(reference(x, w).sum(), (x, w)), rtol=1e-4, atol=1e-5)
        second, wanted = (grad(run(x, w).square().sum(), x, create_graph=True)[0].square().sum() for run in (f, reference))
        torch.testing.assert_close(grad(second, w), grad(wanted, w), rtol=1e-3, atol=1e-3)
    (adjoint,) = {id(each): each for known in f.adjoints.values() for each in known if len(each.gradients) == 2}.values()
    assert adjoint.saving is not None
    taken = adjoint.saving.adjoint.function
    assert isinstance(taken, type(f)) and taken.dynamic == ("N",)
    assert len(taken._dynamic_kernels) <= 3  # for 2 to 8, 9 to 32, and a size of one by itself


@pytest.mark.parametrize("backend", ["aot_eager", "tcjit"])
def test_compiled_for_sizes_that_change(backend: str) -> None:
    f, w = tcjit.define(MLP).f, torch.randn(5, 6, requires_grad=True)
    run = torch.compile(lambda x, w: f(x, w) * 2, dynamic=True, fullgraph=True, backend=backend)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for size in (9, 17, 5):
            x = torch.randn(size, 6, requires_grad=True)
            wanted = grad((reference(x, w) * 2).sum(), (x, w))
            torch.testing.assert_close(grad(run(x, w).sum(), (x, w)), wanted, rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


@pytest.mark.parametrize("settings", [{}, {"saved": ["Z"]}, {"dynamic": ["N"]}])
def test_operators_pass_the_checks_of_torch(settings: dict[str, Any]) -> None:
    f = tcjit.define(MLP, **settings).f
    args = torch.randn(4, 6, requires_grad=True), torch.randn(5, 6, requires_grad=True)
    results = torch.library.opcheck(f.operator_for(args).overload, args)
    assert set(results.values()) == {"SUCCESS"} and "test_aot_dispatch_dynamic" in results


def test_complex_numbers_are_refused() -> None:
    f = tcjit.define(MLP).f
    x, w = torch.randn(4, 6, dtype=torch.complex64, requires_grad=True), torch.randn(5, 6)
    assert_refused(lambda: f(x, w), tcjit.ArgumentError, "complex64")
    assert_refused(lambda: tcjit.define("def f(complex(N) X) -> (Y) { Y(i) = X(i) }"), tcjit.TCError, "complex")
