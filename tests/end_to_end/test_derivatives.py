"""Derivatives at the places where they go wrong: each test is one trap, its values against PyTorch's or counted by hand.

Modules: grammar.differentiate.adjoint grammar.differentiate.contribute grammar.differentiate.rules grammar.differentiate.values
"""
from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.derivatives import Differentiable, distance, dual_product, gradients, interpret, seeded
from support.library import Case, inputs, listed
from support.torch_interpreter import run

import tcjit
from tcjit import library
from tcjit.grammar.ast import Def
from tcjit.grammar.differentiate import differentiate
from tcjit.grammar.front import read


def define(text: str) -> Def:
    return read(text)[-1]


def arguments(case: Case, definition: Def) -> dict[str, Any]:
    scalars = {n: torch.tensor(v, dtype=torch.float64) if isinstance(v, float) else v for n, v in case.scalars.items()}
    return {**inputs(case, definition.params, "float64"), **scalars}


def assert_right(text: str, args: dict[str, Any], orders: int = 2, **settings: Any) -> None:
    """The gradients of these orders are those of the interpreter's graph, and forward mode is dual to reverse mode."""
    definition = define(text)
    made = Differentiable(definition, **settings)
    for got, want in zip(gradients(made, args, orders), gradients(lambda given: interpret(definition, given), args, orders), strict=True):
        assert max(map(distance, got, want)) < 1e-9
    one, other = dual_product(definition, args)
    assert one == pytest.approx(other)


def test_two_writers_of_one_tensor_with_a_maximum_between() -> None:
    text = """def f(double(N) X, double(N,M) A) -> (Y) {
        Y(i) max=! A(i, j)
        Y(i) += A(i, j) * X(i)
        Z(i) = exp(Y(i))
        Z(i) += A(i, j)
        Y(i) = Z(i) * X(i) where i in 1:3
        Y(i) *= A(i, j) }"""
    assert_right(text, {"X": seeded((4,), 1), "A": seeded((4, 3), 2)})


@pytest.mark.parametrize(
    "place",
    [
        "min(max(n + k - 2, 0), N - 1)",  # the border is repeated
        "abs(n + k - 2) < N ? abs(n + k - 2) : 2 * N - n - k",  # reflected
        "n + k - 2 < 0 ? n + k - 2 + N : n + k - 2 >= N ? n + k - 2 - N : n + k - 2",  # and goes on at the other end
        "max(n + k, 3)",
    ],
)
@pytest.mark.parametrize("n", [1, 2, 9])
def test_borders(place: str, n: int) -> None:
    text = f"def f(double(N,M) X, double(K) G) -> (Y) {{ Y(n, m) +=! X({place}, min(m + 1, M - 1)) * G(k) where n in 0:N, m in 0:M }}"
    if n == 9 or place.startswith("min"):
        text = text.replace("where n in 0:N", "where n in 0:N-2") if place.startswith("max") else text
        assert_right(text, {"X": seeded((n, 4), 1), "G": seeded((3,), 2)})


def test_a_maximum_of_products_compiled_twice() -> None:
    """The forward's kernel may contract the product with what stands beside it: every row must have a winner all the same."""
    text = "def f(float(M,N) A, float(M,N) B) -> (Y) { Y(m) max=! A(m, n) * B(m, n) + B(m, n) }"
    a, b = (seeded((64, 33), seed).float() for seed in (1, 2))
    forward = tcjit.define(text, target="cpu").f
    adjoint = differentiate(define(text))
    backward = getattr(tcjit.define(adjoint.text, target="cpu"), adjoint.definition.name)
    given = {"A": a, "B": b, "Y": forward(a, b), "d_Y": torch.ones(64)}
    d_a, d_b = backward(*(given[p.name] for p in adjoint.definition.params))
    assert bool(((d_a != 0).sum(1) == 1).all()) and bool(((d_b != 0).sum(1) == 1).all())


@pytest.mark.parametrize("ties", ["even", "first"])
def test_ties(ties: str) -> None:
    x = torch.tensor([[[1.0, 1.0, 0.0, 2.0, 2.0, 2.0, 0.0, 0.0]]], dtype=torch.float64)
    scalars = {"kernel": 3, "stride": 2, "padding": 1, "dilation": 1}
    definition = define(library.source("max_pool1d", "float64"))
    got, = gradients(Differentiable(definition, ties=ties), {"X": x, **scalars}, 1)[0]
    if ties == "first":
        want, = gradients(lambda given: {"Y": F.max_pool1d(given["X"], 3, 2, 1)}, {"X": x}, 1)[0]
        assert distance(got, want) == 0
    row = define("def f(double(M,N) X) -> (Y) { Y(m) max=! X(m, n) }")
    tied = torch.tensor([[1.0, 3.0, 3.0, 3.0]], dtype=torch.float64)
    weight = seeded((1,), 0)
    found, = gradients(Differentiable(row, ties=ties), {"X": tied}, 1)[0]
    shares = [0, 1 / 3, 1 / 3, 1 / 3] if ties == "even" else [0, 1, 0, 0]
    assert torch.allclose(found[0], weight * torch.tensor(shares, dtype=torch.float64))


@pytest.mark.parametrize("row", [[2.0, 3.0, 4.0], [2.0, 0.0, 3.0], [0.0, 0.0, 3.0]])
def test_zeros_in_a_product(row: list[float]) -> None:
    text = "def f(double(M,N) X) -> (Y) { Y(m) *=! X(m, n) }"
    assert_right(text, {"X": torch.tensor([row], dtype=torch.float64)}, orders=3)
    assert_right(text, {"X": torch.tensor([row], dtype=torch.float64)}, orders=1, differentiable=False)


def test_a_logarithm_in_an_arm_that_is_not_taken() -> None:
    """Autograd's ``where`` gives NaN: 0 * inf."""
    text = "def f(double(N) X) -> (Y) { Y(i) = (X(i) > 0.0) ? log(X(i)) : 0.0 }"
    got, = gradients(Differentiable(define(text)), {"X": torch.tensor([0.0, -1.0, 2.0], dtype=torch.float64)}, 1)[0]
    assert torch.isfinite(got).all() and got[0] == got[1] == 0


def test_an_index_that_the_inverse_keeps_and_nothing_reads() -> None:
    assert_right("def f(double(N) X, double(M) W) -> (Y) { Y +=! X(i) + W(j) }", {"X": seeded((3,), 1), "W": seeded((4,), 2)})


def test_a_gather_before_the_condition_that_protects_it() -> None:
    text = "def f(double(V) T, int64(N) I) -> (Y) { Y(i) +=! (i + k < N) ? T(I(i + k)) : 0.0 where i in 0:N, k in 0:3 }"
    assert_right(text, {"T": seeded((5,), 1), "I": torch.tensor([0, 4, 4, 1])})


@pytest.mark.parametrize("values", [None, {"s": 2, "t": 1}])
def test_negative_symbolic_coefficients(values: dict[str, int] | None) -> None:
    text = "def f(double(N) X, int32 s, int32 t) -> (Y) { Y(i, j) = X(N - 1 - s*i - t*j) where i in 0:3, j in 0:2 }"
    assert_right(text, {"X": seeded((8,), 1), "s": 2, "t": 1}, values=values, orders=1)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("numbers", [False, True])
def test_extents_of_0(shape: tuple[int, int], numbers: bool) -> None:
    text = "def f(double(M,N) X, double(N) W) -> (Y) { Y(m) +=! X(m, n) * W(n) }"
    values = {"M": shape[0], "N": shape[1]} if numbers else None
    assert_right(text, {"X": seeded(shape, 1), "W": seeded(shape[1:], 2)}, orders=1, values=values)


def test_a_range_that_does_not_start_at_0() -> None:
    text = "def f(double(N) X) -> (Y, Z) { Y max=! X(i) * X(i) where i in 2:N Z(i) *=! X(j) + X(i) where i in 0:N, j in 1:3 }"
    assert_right(text, {"X": seeded((5,), 1)})


@pytest.mark.parametrize("dtype", ["double", "float", "half", "bfloat16"])
def test_a_cotangent_of_zeros_has_its_type(dtype: str) -> None:
    adjoint = differentiate(define(f"def f({dtype}(N) X, {dtype}(N) W) -> (Y) {{ Y(i) = X(i) + floor(W(i)) }}"))
    assert adjoint.definition.tensor("d_W").dtype == adjoint.definition.tensor("W" if "W" in adjoint.reads else "d_Y").dtype


def test_names_that_are_taken() -> None:
    text = "def f(double(N) X, double(N) d_X, double(N) d_d_X) -> (d_Y, Y) { d_Y(i) = X(i) * d_X(i) Y(i) = d_Y(i) * d_d_X(i) }"
    assert_right(text, {name: seeded((3,), place) for place, name in enumerate(("X", "d_X", "d_d_X"))})


@pytest.mark.parametrize("values", [{"s": -1}, {"s": -1, "N": 6, "K": 3}])
def test_a_negative_stride_is_known_by_its_number(values: dict[str, int]) -> None:
    text = "def f(double(N) X, double(K) W, int32 s) -> (Y) { Y(i) +=! X(s*i + k + 3) * W(k) where i in 0:3 }"
    definition = define(text)
    args = {"X": seeded((6,), 1), "W": seeded((3,), 2), "s": -1}
    got = gradients(Differentiable(definition, values=values), args, 1)[0]
    want = gradients(lambda given: interpret(definition, given), args, 1)[0]
    assert max(map(distance, got, want)) < 1e-12


def test_masked_scores_of_minus_infinity() -> None:
    text = """def f(double(N) X, bool(N) keep) -> (Y) {
        S(i) = keep(i) ? X(i) : -infinity()
        top max=! S(i)
        E(i) = exp(S(i) - top)
        total +=! E(i)
        Y(i) = E(i) / total }"""
    args = {"X": seeded((5,), 1), "keep": torch.tensor([True, False, True, True, False])}
    got, = gradients(Differentiable(define(text)), args, 1)[0]
    weight = seeded((5,), 0)
    x = args["X"].clone().requires_grad_()
    (torch.softmax(x.masked_fill(~args["keep"], -torch.inf), 0) * weight).sum().backward()
    assert x.grad is not None and torch.allclose(got, x.grad)


def test_infinities_that_no_term_replaces() -> None:
    """The identity of a minimum is infinite, too: outside of the part that the statement writes, and where data pick no element."""
    x = torch.tensor([torch.inf, torch.inf, -1.0, torch.inf], dtype=torch.float64)
    text = "def f(double(N) X, double(N,M) A) -> (Y) { Y(i) = X(i)  Y(i) min= A(i, j) where i in 1:3 }"
    assert_right(text, {"X": x, "A": seeded((4, 3), 1)})
    text = "def f(double(N) X, int64(M) I, double(M) A) -> (Y) { Y(i) = X(i)  Y(I(j)) min= A(j) * A(j) }"
    args = {"X": x, "I": torch.tensor([1, 2, 1]), "A": seeded((3,), 1)}
    assert_right(text, args)
    by_x, _ = gradients(Differentiable(define(text)), args, 1)[0]
    assert by_x.tolist() == [weight if i != 1 else 0.0 for i, weight in enumerate(seeded((4,), 0).tolist())]


def test_a_divisor_that_is_there_under_a_condition_only() -> None:
    text = "def f(double(M) X, double(N) Z) -> (Y) { Y(i) +=! (i >= 1) ? X(k) / Z(i - 1) : 0.0 where i in 0:N+1 }"
    assert_right(text, {"X": seeded((3,), 1), "Z": seeded((4,), 2)})
    text = "def f(double(M) X, double(V) Z, int64(N) I) -> (Y) { Y(i) +=! (k < N - i) ? X(k) / Z(I(i)) : 0.0 where i in 0:N+1 }"
    assert_right(text, {"X": seeded((3,), 1), "Z": seeded((4,), 2), "I": torch.tensor([3, 0])})


@pytest.mark.parametrize("read", ["X(i)", "X(I(i))"])
@pytest.mark.parametrize(
    "value",
    [
        "(i < N ? READ * A(i) : 0.0) + (i >= 2 && i < N ? READ : 0.0)",
        "(i < 2 ? READ * A(i) : 0.0) + (i >= 3 && i < N && A(i) > -9.0 ? READ : A(0))",
        "i >= 4 ? A(0) : (i < 2 ? exp(READ) : sin(READ)) + READ",
        "(i >= N ? 0.0 : READ * A(i)) + (i >= 4 || A(i) > 9.0 ? 0.0 : READ)",
    ],
)
def test_one_read_under_several_conditions(value: str, read: str) -> None:
    """Each protects it in its own term of the derivative, where a gather asks what it reads, and a tangent is read, once for all."""
    text = f"def f(double(N) X, double(N) A, int64(N) I) -> (Y) {{ Y(i) = {value.replace('READ', read)} where i in 0:N+2 }}"
    assert_right(text, {"X": seeded((4,), 1), "A": seeded((4,), 2), "I": torch.tensor([2, 0, 2, 3])})


@pytest.mark.parametrize("dtype", ["half", "bfloat16", "float"])
def test_narrow_types_are_near_the_wide_one(dtype: str) -> None:
    """Through the compiler for CPUs: cotangents of temporaries are float32, so that only the results are rounded."""
    text = """def f(T(M,N) X) -> (Y) {
        mean(m) +=! X(m, n) / N
        D(m, n) = X(m, n) - mean(m)
        Y(m, n) = tanh(D(m, n)) * D(m, n) }"""
    torch_dtype = {"half": torch.float16, "bfloat16": torch.bfloat16, "float": torch.float32}[dtype]
    x = seeded((4, 9), 1).to(torch_dtype)
    adjoint = differentiate(define(text.replace("T(", f"{dtype}(", 1)))
    narrow = text.replace("T(", f"{dtype}(", 1)
    given = {"X": x, "Y": tcjit.define(narrow, target="cpu").f(x), "d_Y": torch.ones(4, 9, dtype=torch_dtype)}
    backward = getattr(tcjit.define(adjoint.text, target="cpu"), adjoint.definition.name)
    got = backward(*(given[p.name] for p in adjoint.definition.params))
    wide = define(text.replace("T(", "double(", 1))
    leaf = x.double().requires_grad_()
    interpret(wide, {"X": leaf})["Y"].sum().backward()
    assert got.dtype == torch_dtype and leaf.grad is not None
    assert torch.allclose(got.double(), leaf.grad, atol=20 * torch.finfo(torch_dtype).eps)


@pytest.mark.parametrize("name", "layer_norm softmax attention conv2d batch_norm_training moments embedding_bag_max gelu".split())
def test_saved_temporaries(name: str) -> None:
    """Each alone, and all of them: nothing changes but what is computed again."""
    definition = define(library.source(name, "float64"))
    args = arguments(listed()[name][0], definition)
    tensors = {p.name: args[p.name] for p in definition.params if p.dims}
    state = run(definition, tensors, {p.name: args[p.name] for p in definition.params if not p.dims})
    temporaries = [t.name for t in definition.tensors if t.role == "temporary"]
    cotangents = {r: seeded(state[r].shape, place) for place, r in enumerate(definition.returns)}

    def of(saved: list[str]) -> list[torch.Tensor]:
        adjoint = differentiate(definition, saved=saved)
        assert not any(s.tensor in saved for s in adjoint.definition.statements)
        given = {**args, **state, **{c: cotangents[r] for r, c in adjoint.cotangents.items()}}
        return list(interpret(adjoint.definition, {p.name: given[p.name] for p in adjoint.definition.params}).values())

    wanted = of([])
    for saved in ([one] for one in temporaries):
        assert max(map(distance, of(saved), wanted)) < 1e-12
    assert max(map(distance, of(temporaries), wanted)) < 1e-12


def test_a_let_that_is_an_arm_and_a_part_of_the_other() -> None:
    """What is stored is the first arm's value in one place only."""
    assert_right("def f(double(N) X) -> (Y) { Y(i) = (i < 2) ? e : e * e where e = exp(X(i)) }", {"X": seeded((5,), 1)})


def test_two_parameters_of_one_scalar_sum() -> None:
    assert_right("def f(double(N) X, double a) -> (Y) { Y(i) = a * sin(X(i) * a) }", {"X": seeded((3,), 1), "a": seeded((), 2)})


TARGETS = {
    "sums": "def f(int64(N) I, double(N,D) X, double(V) L) -> (double(V,D) Y) { Y(I(n), d) +=! X(n, d) * X(n, d) * L(d) where d in 0:D }",
    "sums onto what is there": """def f(int64(N) I, double(N,D) X, double(V) L) -> (Y) {
        Y(v, d) = L(v) where d in 0:D
        Y(I(n), d) += exp(X(n, d))
        Z(v, d) = Y(v, d) * L(v)
        Y(v, d) = Z(v, d) + Y(v, d) }""",
    "maxima of products": """def f(int64(N) I, double(N,D) X, double(V) L) -> (Y) {
        Z(I(n), d) max=! X(n, d) * X(n, 0) where I(n) in 0:V
        Y(v, d) = (Z(v, d) > -100.0) ? Z(v, d) * L(v) : 0.0 }""",
    "minima onto what is there": """def f(int64(N) I, double(N,D) X, double(V) L) -> (Y) {
        Y(v, d) = L(v) where d in 0:D
        Y(I(n), d) min= X(n, d) * X(n, 0) }""",
    "a part": """def f(int64(N) I, double(N,D) X, double(V) L) -> (Y) {
        Y(v, d) = L(v) where d in 0:D
        Y(I(n), d) +=! X(n, d) where d in 1:D }""",
    "a part of what it reads": """def f(int64(N) I, double(M,D) X, double(V) L) -> (Y) {
        Y(m, v) = L(v) where m in 0:M
        Y(n, I(n) + n) += X(n, d) where n in 0:N
        Y(n, I(n)) max= X(n, d) * X(n, 0) where n in 1:N }""",
    "an element for each": """def f(int64(N) I, double(N,D) X, double(V) L) -> (double(V,N) Y) {
        Y(I(n), n) +=! X(n, d) * L(d) where d in 0:D }""",
    "pairs": """def f(int64(N) I, double(N,D) X, double(V) L) -> (double(V,V) Y) {
        Y(I(n), I(N-1-n)) +=! X(n, d) * L(d) where d in 0:D }""",
}


@pytest.mark.parametrize("name", TARGETS)
def test_data_on_the_left(name: str) -> None:
    given = {"I": torch.tensor([2, 0, 2, 3, 2]), "X": seeded((5, 3), 1), "L": seeded((5,), 2)}
    if name == "a part of what it reads":
        given |= {"I": torch.tensor([2, 0, 2]), "L": seeded((9,), 2)}
    assert_right(TARGETS[name], given)
    if name == "a part of what it reads":  # compiled, too
        f = tcjit.define(TARGETS[name]).f
        args = given["I"], given["X"].requires_grad_(), given["L"].requires_grad_()
        assert torch.autograd.gradcheck(lambda x, like: f(args[0], x, like), args[1:])


def test_products_of_what_data_pick() -> None:
    """Against finite differences: PyTorch's has no second derivative. Of the two zeros one shares its element with others."""
    f = tcjit.define("def f(int64(N) I, double(N,D) X, double(V) L) -> (Y) { Y(I(n), d) *=! X(n, d) where I(n) in 0:V }").f
    x = seeded((5, 3), 1)
    x[0, 0] = x[1, 1] = 0.0
    index, like = torch.tensor([2, 0, 2, 3, 2]), torch.zeros(5, dtype=torch.float64)
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: f(index, x, like), (x,))
    assert torch.autograd.gradgradcheck(lambda x: f(index, x, like), (x,))


def test_the_adjoint_of_data_on_the_left_reads() -> None:
    text = "def f(int64(N) I, float(N,D) X, float(V) L) -> (float(V,D) Y) { Y(I(n), d) +=! X(n, d) }"
    assert differentiate(define(text), ["X"]).text == (
        "def f_backward(float32(V, D) d_Y, int64(N) I) -> (float32(N, D) d_X) {\n    d_X(n, d) = d_Y(I(n), d)\n}\n"
    )
    text = "def f(int64(N) I, float(N,D) X) -> (Y) { Y(I(n), d) max=! X(n, d) where I(n) in 0:9 }"
    tied = torch.tensor([[1.0, 2.0], [1.0, 3.0], [0.0, 5.0]])
    gradients = []
    for ties in ("even", "first"):
        adjoint = differentiate(define(text), ["X"], ties=ties)
        given = {"I": torch.tensor([4, 4, 4]), "X": tied, "d_Y": torch.ones(9, 2), "Y": tcjit.define(text).f(torch.tensor([4, 4, 4]), tied)}
        backward = getattr(tcjit.define(adjoint.text), adjoint.definition.name)
        gradients.append(backward(*(given[p.name] for p in adjoint.definition.params)).tolist())
    assert gradients == [[[0.5, 0.0], [0.5, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]]


def test_second_derivatives_of_a_banded_product() -> None:
    """Whose sums over terms under conditions gcc loaded from an array before it had been written."""
    text = """def f(float(M,N) X, float(M,N) Y) -> (P, S) {
        P(m,i) *=! (i - 4 <= j && j <= i) ? X(m,j) : 1.0 where i in 0:N
        S(m,j) = 2.0 * X(m,j) * X(m,j) + Y(m,j) }"""
    f = tcjit.define(text)["f"]
    torch.manual_seed(0)
    x = (torch.rand(2, 150) * 0.6 + 0.7).requires_grad_()
    first, second = torch.randn(2, 2, 150)

    def products(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        windows = torch.nn.functional.pad(x, (4, 0), value=1.0).unfold(1, 5, 1)
        return windows.prod(2), 2.0 * x * x + y

    found = []
    for function, at in ((f, x), (products, x.detach().double().requires_grad_())):
        p, s = function(at, at.detach())
        (once,) = torch.autograd.grad((p * first).sum() + s.sum(), at, create_graph=True)
        (twice,) = torch.autograd.grad((once * second).sum(), at)
        found.append((once.detach(), twice))
    torch.testing.assert_close(found[0], tuple(t.float() for t in found[1]), rtol=1e-3, atol=1e-3)
