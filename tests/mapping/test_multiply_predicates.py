"""Truth values of tensors as factors of sums of integers.

Modules: mapping.passes.multiply_predicates mapping.verify_predicates
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.mapping import program

import tcjit
from tcjit.errors import VerifyError
from tcjit.grammar.ast import Const
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.passes.multiply_predicates import multiply_predicates
from tcjit.mapping.verify_assignments import verify_assignments

TRIANGLES = "(A(i,j) && A(j,k) && A(k,i)) ? 1 : 0"


def of(value: str) -> tuple[Assignments, Assignments]:
    text = f"def f(bool(N,N) A, int8(N) W, float(N) X) -> (T) {{ T(i) +=! {value} where i in 0:N }}"
    before = extract(program(text, {"A": (40, 40), "W": (40,), "X": (40,)}), None)
    return before, multiply_predicates(before)


@pytest.mark.parametrize(
    ("value", "product"),
    [
        (TRIANGLES, "int32(A(i, j)) * int32(A(j, k)) * int32(A(k, i))"),
        ("A(i,j) ? int32(W(j)) : 0", "int32(A(i, j)) * int32(W(j))"),
        ("(j > i && A(i,j) && W(j) > 2) ? 5 : 0", "j > i && W(j) > 2 ? int32(A(i, j)) * 5 : 0"),
    ],
)
def test_what_becomes_a_product(value: str, product: str) -> None:
    before, after = of(value)
    verify_assignments("multiply_predicates", before, after)
    assert f" += {product} from 0" in after.show()


@pytest.mark.parametrize("value", ["A(i,j) ? X(j) : 0.0", "A(i,j) ? 0 : 1", "(A(i,j) || A(j,i)) ? 1 : 0", "A(i,j) ? int64(W(j)) : 0"])
def test_what_stays(value: str) -> None:
    before, after = of(value)
    assert after.assignments == before.assignments


def test_the_validation() -> None:
    before, after = of(TRIANGLES)
    (a,) = after.assignments
    for wrong in (replace(a, value=Const(1, dtype="int32")), replace(a, operator="max=")):
        with pytest.raises(VerifyError, match="a (term|condition) changed"):
            verify_assignments("multiply_predicates", before, before.with_parts([(wrong,)]))


@pytest.mark.parametrize("n", [3, 67, 130])
def test_counts_of_graphs(n: int) -> None:
    text = f"""def f(bool(N,N) A, bool(N,M) B) -> (T, C, D) {{
        T(i) +=! {TRIANGLES}
        C(i,m) +=! (A(i,j) && B(j,m)) ? 1 : 0
        D(m) +=! B(i,m) ? i : 0 }}"""
    a, b = (torch.rand(n, m, generator=torch.Generator().manual_seed(m)) < 0.3 for m in (n, 75))
    found = tcjit.define(text).f(a, b)
    x, y = a.long(), b.long()
    wanted = ((x @ x) * x.T).sum(1), x @ y, (y * torch.arange(n)[:, None]).sum(0)
    assert all(torch.equal(one.long(), other) for one, other in zip(found, wanted, strict=True))
