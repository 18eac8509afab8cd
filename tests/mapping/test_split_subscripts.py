"""Elements at clamped indices: the linear parts, what stays, that faults are found, and the numbers.

Modules: mapping.linear_pieces mapping.passes.split_subscripts mapping.verify_subscripts
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.mapping import program

import tcjit
from tcjit.errors import VerifyError
from tcjit.grammar.ast import Select
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.passes.split_subscripts import split_subscripts
from tcjit.mapping.verify_assignments import verify_assignments


def split(body: str, m: int = 20, n: int = 30) -> tuple[Assignments, Assignments]:
    before = extract(program(f"def f(float(M,N) X) -> (Y) {{ {body} where i in 0:{m}, j in 0:{n} }}", {"X": (m, n)}))
    after = split_subscripts(before)
    verify_assignments("split_subscripts", before, after)
    return before, after


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("Y(i,j) = X(i, min(j + 2, 29))", "j <= 27 ? X(i, j + 2) : X(i, 29)"),
        ("Y(i,j) = X(i, max(j - 1, 0))", "j <= 1 ? X(i, 0) : X(i, j + -1)"),
        ("Y(i,j) = X(i, min(max(2 * j - 9, 0), 29))", "j <= 4 ? X(i, 0) : j <= 19 ? X(i, 2 * j + -9) : X(i, 29)"),
        ("Y(i,j) = X(max(i - 1, 0), min(j, 7))", "i <= 1 ? j <= 7 ? X(0, j) : X(0, 7) : j <= 7 ? X(i + -1, j) : X(i + -1, 7)"),
        ("Y(i,j) = X(i, 29 - max(j - 3, 0))", "j <= 3 ? X(i, 29) : X(i, -1 * j + 32)"),
        ("Y(i,j) = X(i, max(j, 29 - j))", "j <= 14 ? X(i, -1 * j + 29) : X(i, j)"),
        ("Y(j) max=! X(i, min(j + 2, 29))", "j <= 27 ? X(i, j + 2) : X(i, 29)"),
        ("Y(i,j) = X(i, min(j, 40))", "X(i, j)"),  # which is never more
    ],
)
def test_linear_parts(body: str, value: str) -> None:
    (a,) = split(body)[1].assignments
    assert a.show().split(" = " if a.operator == "=" else " max= ")[1].split(" where ")[0].split(" from ")[0] == value


@pytest.mark.parametrize(
    "body",
    [
        "Y(i,j) = X(i, min(j + 2, 30))",  # checked when it runs
        "Y(i,j) = X(i, min(i + j, 29))",  # of two indices
        "Y(i,j) = X(i, (j + 3) % 30)",
        "Y(i,j) = X(i, min(max(j - 3, 0), max(20 - j, 2)))",  # too many parts
        "Y(i,d) +=! X(i, j) * X(min(j, 19), d)",  # read for several results
    ],
)
def test_what_stays(body: str) -> None:
    before, after = split(body)
    assert before.assignments == after.assignments


@pytest.mark.parametrize("fault", [0, 1, 2])
def test_faults_are_found(fault: int) -> None:
    before, after = split("Y(i,j) = X(i, min(j + 2, 29))")
    (a,) = after.assignments
    assert isinstance(a.value, Select)
    wrong = [
        replace(a, value=replace(a.value, then=a.value.other)),
        replace(a, value=replace(a.value, then=a.value.other, other=a.value.then)),
        replace(a, operator="+="),
    ]
    with pytest.raises(VerifyError, match="split_subscripts"):
        verify_assignments("split_subscripts", before, before.with_parts([[wrong[fault]]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.bool])
def test_numbers(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, (37, 61)).to(dtype)
    name = {torch.float32: "float", torch.float16: "half", torch.int32: "int32", torch.bool: "bool"}[dtype]
    text = f"""def f({name}(M,N) X) -> (Y, R, C, S) {{
        Y(i,j) = X(max(i - 1, 0), min(max(j - 2, 0), 50)) where i in 0:M, j in 0:N
        R(i) max=! (X(i, min(j + 2, 60)) ? 1.5 : 0.5) where j in 0:N
        C(j) +=! (X(min(i + 5, 36), max(j - 1, 0)) ? 1.0 : 0.0) where i in 0:M, j in 0:N
        S(i,j) = (X(i, min(2 * j, 60)) ? 2.0 : 1.0) where i in 0:M, j in 0:N
    }}"""
    if dtype != torch.bool:
        text = text.replace(" ? 1.5", " > 0 ? 1.5").replace(" ? 1.0", " > 0 ? 1.0").replace(" ? 2.0", " > 0 ? 2.0")
    rows, columns = torch.arange(37), torch.arange(61)
    y, r, c, s = tcjit.define(text, target="cpu").f(x)
    assert torch.equal(y, x[(rows - 1).clamp(0)][:, (columns - 2).clamp(0, 50)])
    assert torch.equal(r, torch.where(x[:, (columns + 2).clamp(max=60)] > 0, 1.5, 0.5).amax(1))
    assert torch.equal(c, (x[(rows + 5).clamp(max=36)][:, (columns - 1).clamp(0)] > 0).float().sum(0))
    assert torch.equal(s, torch.where(x[:, (2 * columns).clamp(max=60)] > 0, 2.0, 1.0))


def test_nothing_is_checked_when_it_runs() -> None:
    text = "def f(float(M,N) X) -> (Y) { Y(i,j) = X(i, min(j + 2, 60)) where j in 0:N }"
    kernel = tcjit.define(text, target="cpu").f.compile(torch.ones(37, 61))
    assert "TC_AT" not in kernel.source and "min" not in kernel.source.partition("int64_t tc_f(")[2]
