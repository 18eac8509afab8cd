"""Adjoints chosen by the sizes of a call: each is right for all sizes, and calls that choose alike share one.

Modules: jit.differentiation grammar.differentiate.size_hints
"""
from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import grad

import tcjit
from tcjit.jit import differentiation
from tcjit.jit.differentiation import adjoint_of, known_sizes

TEXT = "def conv(double(N,C,H) X, double(F,C,A) K) -> (Y) { Y(n,f,h) +=! X(n,c,h+i) * K(f,c,i) }"
SMALL, LARGE = (2, 3, 12, 4, 3), (2, 3, 12, 4, 10)  # N, C, H, F, A


@pytest.fixture
def conv() -> Any:
    """The def, whose adjoints are derived here."""
    conv = tcjit.define(TEXT).conv
    conv.adjoints.clear()
    return conv


def drawn(n: int, c: int, h: int, f: int, a: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, c, h, dtype=torch.float64, requires_grad=True), torch.randn(f, c, a, dtype=torch.float64, requires_grad=True)


def assert_right(conv: Any, *sizes: int) -> None:
    args = drawn(*sizes)
    own, wanted = conv(*args), F.conv1d(*args)
    cotangent = torch.randn_like(wanted)
    torch.testing.assert_close(grad(own, args, cotangent), grad(wanted, args, cotangent))


@pytest.fixture
def derivations(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One for each adjoint that is derived."""
    made: list[object] = []
    derive = differentiation._derived_adjoint

    def derived(function: Any, *rest: Any, **others: Any) -> Any:
        made.append(function)
        return derive(function, *rest, **others)

    monkeypatch.setattr(differentiation, "_derived_adjoint", derived)
    return made


def test_sizes_of_a_call_choose(conv: Any, derivations: list[object]) -> None:
    for sizes in (SMALL, LARGE, SMALL, LARGE):
        assert_right(conv, *sizes)
    assert len(derivations) == 2
    few, many = (adjoint_of(conv, frozenset("XK"), (), drawn(*sizes)) for sizes in (SMALL, LARGE))
    assert few is not many and few.function is not many.function


def test_other_sizes_derive_nothing_new(conv: Any, derivations: list[object]) -> None:
    for batch, length in ((2, 12), (7, 12), (1, 30), (64, 13)):
        assert_right(conv, batch, 3, length, 4, 3)
    assert len(derivations) == 1


def test_each_choice_is_right_for_the_sizes_of_the_other(conv: Any) -> None:
    for sizes, others in ((SMALL, LARGE), (LARGE, SMALL), (SMALL, SMALL)):
        function: Any = adjoint_of(conv, frozenset("XK"), (), drawn(*sizes)).function
        args = drawn(*others)
        result = F.conv1d(*args)
        cotangent = torch.randn_like(result)
        values = {"d_Y": cotangent, "X": args[0].detach(), "K": args[1].detach()}
        found = function(*(values[param.name] for param in function.signature.params))
        torch.testing.assert_close(found, grad(result, args, cotangent))


def test_sizes_of_index_arithmetic_are_written_out(derivations: list[object]) -> None:
    """``(4 * p + i + 3) % N`` has an inverse for a number: what is left is no sum. Of many numbers all but a few share an adjoint."""
    f = tcjit.define("def shifted(double(A,N) X) -> (Y) { Y(a,p,i) = X(a, (4*p + i + 3) % N) where p in 0:N/4, i in 0:4 }").shifted
    f.adjoints.clear()
    sizes = range(8, 8 + 4 * (differentiation.MOST_VARIANTS + 3), 4)
    texts = {}
    for n in sizes:
        for rows in (2, 5) if n == sizes[0] else (2,):
            x = torch.randn(rows, n, dtype=torch.float64, requires_grad=True)
            cotangent = torch.randn(rows, n // 4, 4, dtype=torch.float64)
            torch.testing.assert_close(grad(f(x), x, cotangent), grad(x.roll(-3, 1).view(rows, -1, 4), x, cotangent))
            texts[n] = adjoint_of(f, frozenset("X"), (), (x,)).function.text
    assert len(derivations) == differentiation.MOST_VARIANTS + 1 == len({*texts.values()})
    assert "+=!" not in texts[8] and "float64(A, 8)" in texts[8]
    assert texts[sizes[differentiation.MOST_VARIANTS]] == texts[sizes[-1]] and "% N" in texts[sizes[-1]]


def test_sizes_that_save_no_sum_stay_symbols() -> None:
    f = tcjit.define("def rolled(double(A,N) X) -> (Y) { Y(i,a) = X(a, (i + 3) % N) where i in 0:N }").rolled
    x = torch.randn(3, 11, dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn(11, 3, dtype=torch.float64)
    torch.testing.assert_close(grad(f(x), x, cotangent), grad(x.roll(-3, 1).T, x, cotangent))
    assert "float64(A, N)" in adjoint_of(f, frozenset("X"), (), (x,)).function.text


def test_equal_texts_are_one_function() -> None:
    """The order of sizes that no text depends on: kernels of one adjoint serve the other."""
    f = tcjit.define("def f(double(N) X, double(A,B) K) -> (Y) { Y(h) +=! X(h + i + j) * K(i,j) }").f
    texts: dict[str, set[int]] = {}
    for a, b in ((3, 5), (5, 3), (4, 4), (3, 9)):
        sizes = torch.randn(40, requires_grad=True, dtype=torch.float64), torch.randn(a, b, dtype=torch.float64)
        made = adjoint_of(f, frozenset("X"), (), sizes).function
        texts.setdefault(made.text, set()).add(id(made))
    assert all(len(functions) == 1 for functions in texts.values())


def test_batches_and_higher_orders(conv: Any) -> None:
    for sizes in (SMALL, LARGE):
        args = drawn(*sizes)
        assert torch.autograd.gradcheck(conv, args, check_batched_grad=True) and torch.autograd.gradgradcheck(conv, args)
        many = torch.randn(3, *args[0].shape, dtype=torch.float64)

        def slope(run: Any, x: Tensor) -> Tensor:
            return torch.func.grad(lambda one: run(one, args[1].detach()).sin().sum())(x)  # noqa: B023 - called at once

        batches = (torch.vmap(lambda x: slope(run, x))(many) for run in (conv, F.conv1d))  # noqa: B023
        torch.testing.assert_close(*batches)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(conv: Any, dynamic: bool) -> None:
    """A symbolic size is no hint."""
    torch._dynamo.reset()
    run = torch.compile(lambda x, k: conv(x, k) * 2, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for n, c, h, f, a in (SMALL, LARGE):
        args = drawn(n + 2, c + 2, h + 2, f + 2, a)
        torch.testing.assert_close(grad(run(*args).sum(), args), grad((F.conv1d(*args) * 2).sum(), args))


def test_sizes_that_are_numbers(conv: Any) -> None:
    assert known_sizes(conv.signature, drawn(*SMALL)) == dict(zip("NCHFA", SMALL))
    wrong = [torch.nn.UninitializedParameter(), None, 3, torch.randn(2), torch.nested.nested_tensor([torch.randn(2), torch.randn(3)])]
    assert all(known_sizes(conv.signature, (value, value)).keys() <= {"N", "F"} for value in wrong)
