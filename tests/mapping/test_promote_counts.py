"""Counts in the type that they compare.

Modules: mapping.passes.promote_counts mapping.counts mapping.verify_widened
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.mapping import program

import tcjit
from tcjit.errors import VerifyError
from tcjit.grammar.ast import Const, Select
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.passes.promote_counts import promote_counts
from tcjit.mapping.verify_assignments import verify_assignments

RANK = "(X(j) > X(i) || (X(j) == X(i) && j < i)) ? 1 : 0"


def of(value: str, n: int = 40) -> tuple[Assignments, Assignments]:
    text = f"def f(float(N) X, double(N) Z, int32(N) K, int64(N) L) -> (int32(N) R) {{ R(i) +=! {value} where i in 0:N }}"
    before = extract(program(text, dict.fromkeys("XZKL", (n,))), None)
    return before, promote_counts(before)


@pytest.mark.parametrize(
    ("value", "dtype", "term"),
    [
        ("X(j) < X(i) ? 1 : 0", "float32", "1.0 : 0.0 from 0.0"),
        ("X(j) < X(i) ? -3 : 2", "float32", "-3.0 : 2.0 from 0.0"),
        ("int32(Z(j) < Z(i))", "float64", "1.0 : 0.0 from 0.0"),
        (RANK, "float32", "1.0 : 0.0 from 0.0"),
    ],
)
def test_what_is_promoted(value: str, dtype: str, term: str) -> None:
    before, after = of(value)
    verify_assignments("promote_counts", before, after)
    assert after.storages[f"R_{dtype}"].dtype == dtype and term in after.show()


@pytest.mark.parametrize(
    "value",
    [
        "K(j) < K(i) ? 1 : 0",  # of its own type
        "L(j) < L(i) ? 1 : 0",  # a type that lanes have no form of
        "X(j) < X(i) && Z(j) < Z(i) ? 1 : 0",  # two types
        "X(j) < X(i) ? K(j) : 0",  # no count
        "X(i) < 0.5 ? 1 : 0",  # elements that are read for one result
    ],
)
def test_what_stays(value: str) -> None:
    before, after = of(value)
    assert after.assignments == before.assignments


def test_counts_that_floats_do_not_hold() -> None:
    before, after = of("X(j) < X(i) ? 1000000 : 0")
    assert after.assignments == before.assignments


@pytest.mark.parametrize(("dtype", "value"), [("int8", "1"), ("uint8", "1"), ("int8", "-1")])
def test_counts_that_wrap(dtype: str, value: str) -> None:
    text = f"def f(float(N) X) -> ({dtype}(N) R) {{ R(i) +=! {dtype}(X(j) < X(i) ? {value} : 0) }}"
    x = torch.arange(301.0)
    expected = (int(value) * torch.arange(301)).to(getattr(torch, dtype))
    assert torch.equal(tcjit.define(text).f(x), expected)


def test_the_validation() -> None:
    before, after = of(RANK)
    count, store = after.assignments
    assert isinstance(count.value, Select)
    other = replace(count, value=replace(count.value, then=Const(2.0, dtype="float32")))
    for wrong in ((other, store), (replace(count, start=Const(1.0, dtype="float32")), store), (count,)):
        with pytest.raises(VerifyError, match="promote_counts"):
            verify_assignments("promote_counts", before, replace(after, assignments=wrong, replaced=(wrong,)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("n", [5, 133])
def test_ranks(n: int, dtype: torch.dtype) -> None:
    name = {torch.float32: "float", torch.float64: "double", torch.float16: "half", torch.bfloat16: "bfloat16"}[dtype]
    text = f"""def f({name}(B,N) X) -> (int64(B,N) R, S) {{
        R(b,i) +=! (X(b,j) > X(b,i) || (X(b,j) == X(b,i) && j < i)) ? 1 : 0
        S(b,i) +=! int32(X(b,j) >= X(b,i) && j != i) }}"""
    x = torch.randint(0, n, (3, n), generator=torch.Generator().manual_seed(n)).to(dtype)
    x[0, 1] = float("nan")
    r, s = tcjit.define(text).f(x)
    greater, at = x[:, None, :] > x[:, :, None], torch.arange(n)
    same = x[:, None, :] == x[:, :, None]
    assert torch.equal(r, (greater | same & (at < at[:, None])).sum(-1))
    assert torch.equal(s.long(), ((greater | same) & (at != at[:, None])).sum(-1))
