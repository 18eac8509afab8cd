"""The table "Where this differs from PyTorch" of docs/language.md, both sides of every row.

Modules: grammar.recomputed
"""

from __future__ import annotations

import pytest
import torch
from support.rings.targets import only

import tcjit

NAN = float("nan")
TARGETS = pytest.mark.parametrize("on", ["cpu", "reference"])


def each(on: str, value: str, *x: float) -> list[float]:
    return list(only(f"def f(float(N) X) -> (Y) {{ Y(i) = {value} }}", target=on)(torch.tensor(x)).tolist())


@TARGETS
def test_round_and_remainder(on: str) -> None:
    assert each(on, "round(X(i))", 0.5, 1.5, 2.5) == [1, 2, 3] and torch.tensor([0.5, 1.5, 2.5]).round().tolist() == [0, 2, 2]
    assert each(on, "remainder(X(i), 3.0)", -4.0) == [-1] and torch.tensor([-4.0]).remainder(3.0).tolist() == [2]
    assert each(on, "X(i) % 3.0", -4.0) == [2] and (torch.tensor([-4.0]) % 3.0).tolist() == [2]


@TARGETS
def test_the_sign_of_nan(on: str) -> None:
    (ours,) = each(on, "sign(X(i))", NAN)
    assert ours != ours and torch.tensor([NAN]).sign().item() == 0


@TARGETS
def test_sums_of_bools_and_bytes(on: str) -> None:
    bools, numbers = torch.tensor([True, True]), torch.full((10,), 255, dtype=torch.uint8)
    ours = only("def f(bool(N) X) -> (Y) { Y +=! X(i) }", target=on)(bools)
    assert ours.dtype == torch.bool and ours.item() is True and bools.sum().dtype == torch.int64 and bools.sum().item() == 2
    ours = only("def f(uint8(N) X) -> (Y) { Y +=! X(i) }", target=on)(numbers)
    assert ours.dtype == torch.uint8 and ours.item() == 2550 % 256 and numbers.sum().item() == 2550
    assert only("def f(uint8(N) X) -> (Y) { Y +=! int32(X(i)) }", target=on)(numbers).item() == 2550


def signs(found: list[float]) -> list[bool]:
    return torch.tensor(found).signbit().tolist()


@TARGETS
def test_signed_zeros(on: str) -> None:
    zeros = (-0.0, 0.0)
    first = [True, False]
    assert signs(each(on, "relu(X(i))", *zeros)) == first == signs(torch.relu(torch.tensor(zeros)).tolist())
    assert signs(each(on, "clamp(X(i), 0.0, 1.0)", *zeros)) == first
    for name in ("max", "min", "fmax", "fmin"):
        assert signs(each(on, f"{name}(X(i), -X(i))", *zeros)) == first
        assert signs(each(on, f"{name}(0.0, X(i))", *zeros)) == [False, False]


@TARGETS
@pytest.mark.filterwarnings("ignore::tcjit.TCWarning")
def test_what_is_computed_again(on: str) -> None:
    x = torch.linspace(0, 1, 100).half()
    text = "def f(half(N) X) -> (E) { Y(i) = X(i) * X(i)  E(i) = X(i) * X(i) == Y(i) }"
    assert not only(text, target=on)(x).all() and (x * x == x * x).all()


@TARGETS
def test_an_index_from_the_end(on: str) -> None:
    x, last = torch.ones(3), torch.tensor([-1])
    pick = only("def f(float(N) X, int64(M) I) -> (Y) { Y(i) = X(I(i)) }", target=on)
    with pytest.raises(tcjit.GatherError):
        pick(x, last)
    assert x[last].item() == 1


@TARGETS
def test_half_types_round_where_they_are_stored(on: str) -> None:
    x = torch.tensor([60000.0]).half()
    assert only("def f(half(N) X) -> (Y) { Y(i) = (X(i) + X(i)) - X(i) }", target=on)(x).item() == 60000 and (x + x - x).isinf().item()


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_float_terms_of_a_half_result_are_not_rounded(target: str) -> None:
    source = """
    def product(bfloat16(N,D) X, float(D) W, bfloat16(N) Z) -> (bfloat16(N) Y, bfloat16(N) A) {
        Y(n) +=! X(n,d) * W(d)
        A(n) = Z(n)
        A(n) += X(n,d) * W(d)
    }"""
    generator = torch.Generator().manual_seed(1)
    x, z = torch.rand(7, 5000, generator=generator).bfloat16(), torch.rand(7, generator=generator).bfloat16()
    w = torch.rand(5000, generator=generator)
    y, a = tcjit.define(source, target=target).product(x, w, z)
    exact = (x.double() * w.double()).sum(1)
    assert torch.equal(y, exact.bfloat16()) and torch.equal(a, (exact + z).bfloat16())
