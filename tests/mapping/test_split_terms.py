"""Sums and extremes of terms that conditions on indices choose: their parts, what stays, that faults are found, and the numbers.

Modules: mapping.passes.split_terms
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.mapping import program

import tcjit
from tcjit.errors import VerifyError
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.passes.split_terms import split_terms
from tcjit.mapping.verify_assignments import verify_assignments

SYMMETRIC = "Y(i) +=! (j <= i ? A(i,j) : A(j,i)) * X(j)"


def split(body: str, n: int = 200) -> tuple[Assignments, Assignments]:
    before = extract(program(f"def f(float(N,N) A, float(N) X) -> (Y) {{ {body} }}", {"A": (n, n), "X": (n,)}))
    after = split_terms(before)
    verify_assignments("split_terms", before, after)
    return before, after


def test_a_sum_for_each_value() -> None:
    box = " where i in 0:200, j in 0:200"
    assert [a.show() for a in split(SYMMETRIC)[1].assignments] == [
        f"Y(i) += j <= i ? A(i, j) * X(j) : 0.0 from 0.0{box}",
        f"Y(i) += !(j <= i) ? A(j, i) * X(j) : 0.0{box}",
    ]


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("Y(i) max=! (j < 40 ? A(i,j) : exp(A(i,j)))", 2),
        ("Y(i) min=! i < 40 && j < i ? (j % 2 == 0 ? A(i,j) : -A(j,i)) : infinity()", 2),
        ("Y(i) +=! (j < 40 ? A(i,j) : 0.0) + (i < 30 ? X(j) : A(j,i))", 4),
        ("Y(i) +=! (j < 40 ? A(i,j) : j < 60 ? X(j) : A(j,i))", 3),
        ("Y(i) +=! j <= i ? (j <= i || j > 40 ? A(i,j) : A(j,i)) : 0.0", 2),  # of which one has no terms
        ("Y(i) +=! (A(i,j) > 0.0 ? A(i,j) : A(j,i))", 1),  # nests choose by data
        ("Y(i) +=! (j < 40 ? A(i,j) : 1.0) * (i < 30 ? X(j) : 2.0) * (i + j < 50 ? X(j) : 3.0)", 1),  # too many
        ("Y(i,j) = (j <= i ? A(i,j) : A(j,i))", 1),
        ("Y(i) +=! (j <= i ? A(i,j) * X(j) : 0.0)", 1),  # a domain
    ],
)
def test_how_many_parts(body: str, parts: int) -> None:
    before, after = split(body)
    assert len(after.assignments) == parts and (parts > 1 or before.assignments == after.assignments)


def test_few_terms_stay() -> None:
    before, after = split(SYMMETRIC, 9)
    assert before.assignments == after.assignments


@pytest.mark.parametrize("fault", range(4))
def test_faults_are_found(fault: int) -> None:
    before, after = split(SYMMETRIC)
    one, other = after.assignments
    wrong: list[list[Assignment]] = [
        [one],
        [one, replace(other, value=one.value)],
        [one, replace(other, start=one.start)],
        [replace(one, value=before.assignments[0].value), other],
    ]
    with pytest.raises(VerifyError, match="split_terms"):
        verify_assignments("split_terms", before, before.with_parts([wrong[fault]]))


def test_numbers() -> None:
    a, x = torch.randn(200, 200), torch.randn(200)
    text = f"""def f(float(N,N) A, float(N) X) -> (Y, M, S, Z) {{
        {SYMMETRIC}
        M(i) max=! (j < 40 ? A(i,j) : j < 60 ? X(j) : 0.5 * A(j,i))
        S(i) +=! i != j ? (j % 2 == 0 ? A(i,j) : -A(j,i)) * X(j) : 0.0
        Z(i) +=! (j < 40 ? A(i,j) : 0.0) + (i < 30 ? X(j) : A(j,i))
    }}"""
    y, m, s, z = tcjit.define(text, target="cpu").f(a, x)
    i, j = torch.arange(200)[:, None], torch.arange(200)
    torch.testing.assert_close(y, torch.where(j <= i, a, a.T) @ x, rtol=1e-4, atol=1e-4)
    assert torch.equal(m, torch.where(j < 40, a, torch.where(j < 60, x, 0.5 * a.T)).amax(1))
    torch.testing.assert_close(s, torch.where(i != j, torch.where(j % 2 == 0, a, -a.T), 0.0) @ x, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(z, (torch.where(j < 40, a, 0.0) + torch.where(i < 30, x, a.T)).sum(1), rtol=1e-4, atol=1e-4)
