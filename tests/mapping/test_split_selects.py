"""Extremes of selects: which become an extreme of fewer terms and an update, that each is proved, that faults are found, and the numbers.

Modules: mapping.passes.split_selects mapping.verify_selects
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.mapping import program

import tcjit
from tcjit.errors import VerifyError
from tcjit.grammar.ast import Binary, Const, Select
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.passes.split_selects import split_selects
from tcjit.mapping.verify_assignments import verify_assignments

SHAPES = {"X": (3, 20), "F": (3,)}
POOL = "O(c,h) max=! (2*h + k >= 1 && 2*h + k <= N) ? X(c, 2*h + k - 1) : -1e30 where h in 0:(N+1)/2, k in 0:3"


def of(statement: str) -> tuple[Assignments, Assignments]:
    before = extract(program(f"def f(float(C,N) X, float(C) F) -> (O) {{ {statement} }}", SHAPES))
    return before, split_selects(before)


def test_the_value_outside_is_taken_once_by_the_results_at_the_border() -> None:
    before, after = of(POOL)
    verify_assignments("split_selects", before, after)
    assert [a.show() for a in after.assignments] == [
        "O(c, h) max= 2 * h + k >= 1 && 2 * h + k <= N ? X(c, 2 * h + k - 1) : -infinity() from -infinity()"
        " where c in 0:3, h in 0:10, k in 0:3",
        "O(c, h) = !(2 * h + 0 >= 1) || !(2 * h + 2 <= N) ? max(O(c, h), -1e+30) : O(c, h) where c in 0:3, h in 0:10",
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "O(c,i) min=! !(i + k < N) ? 7.0 : X(c, i + k) where i in 0:N, k in 0:4",
        "O(c,i) max=! (i < k || i - k >= 12) ? 0.0 : X(c, i - k) where i in 0:N, k in 0:4",
        "O(c,i) max=! i + k < N ? (i + k >= 2 ? X(c, i + k) : -3.0) : -5.0 where i in 0:N, k in 0:4",
        "O(c) max=! k < 5 ? X(c, k) : 0.5",
    ],
)  # fmt: skip
def test_forms_of_conditions(statement: str) -> None:
    before, after = of(statement)
    verify_assignments("split_selects", before, after)
    assert len(after.assignments) == 2
    x = torch.randn(3, 20)
    function = tcjit.define(f"def f(float(C,N) X) -> (O) {{ {statement} }}")["f"]
    size = 20 if "i in" in statement else 1
    expected = torch.empty(3, size)
    for i in range(size):
        values = []
        for k in range(4 if "k in" in statement else 20):
            if "min" in statement:
                values.append(x[:, i + k] if i + k < 20 else torch.full((3,), 7.0))
            elif "||" in statement:
                values.append(torch.zeros(3) if i < k or i - k >= 12 else x[:, i - k])
            elif "-3.0" in statement:
                inside = x[:, i + k] if 2 <= i + k < 20 else torch.full((3,), -3.0)
                values.append(inside if i + k < 20 else torch.full((3,), -5.0))
            else:
                values.append(x[:, k] if k < 5 else torch.full((3,), 0.5))
        together = torch.stack(values)
        expected[:, i] = together.amin(0) if "min" in statement else together.amax(0)
    assert torch.equal(function(x).reshape(3, size), expected)


@pytest.mark.parametrize(
    "statement",
    [
        "O(c,i) +=! i + k < N ? X(c, i + k) : 1.0 where i in 0:N, k in 0:4",  # each term counts
        "O(c,i) max=! i + k < N ? X(c, i + k) : F(c) where i in 0:N, k in 0:4",
        "O(c,i) max=! i + k < N ? X(c, i + k) : float(k) where i in 0:N, k in 0:4",
        "O(c,i) max=! (i + k) % 3 == 0 ? X(c, i) : 0.0 where i in 0:N, k in 0:4",
        "O(c,i) max=! X(c, i) > 0.0 ? X(c, k) : 0.0 where i in 0:N, k in 0:4",
        "O(c,i) max=! (i < k && i - k < 12) ? 0.0 : X(c, i) where i in 0:N, k in 0:4",  # no comparison alone says for which results
    ],
)  # fmt: skip
def test_other_reductions_stay(statement: str) -> None:
    before, after = of(statement)
    assert after.assignments == before.assignments


def broken(change: int, before: Assignments, after: Assignments) -> Assignments:
    inside, border = after.assignments
    assert isinstance(border.value, Select) and isinstance(inside.value, Select)
    other = Binary("&&", border.value.condition, Const(True, dtype="bool"), dtype="bool")
    never = Binary("&&", border.value.condition, Const(False, dtype="bool"), dtype="bool")
    changes: list[list[Assignment]] = [
        [inside, replace(border, value=replace(border.value, condition=never))],
        [inside, replace(border, value=border.value.other)],
        [inside, replace(border, value=replace(border.value, then=border.value.other))],
        [replace(inside, value=replace(inside.value, other=Const(0.0, dtype="float32"))), border],
        [replace(inside, value=replace(inside.value, then=inside.value.other)), border],
        [inside, replace(border, bounds=(border.bounds[0], ("h", 0, 9)))],
        [inside],
        [inside, replace(border, value=replace(border.value, condition=other))],
    ]
    return replace(after, assignments=tuple(changes[change]), replaced=(tuple(changes[change]),))


@pytest.mark.parametrize("change", range(7))
def test_faults_are_found(change: int) -> None:
    before, after = of(POOL)
    with pytest.raises(VerifyError, match="split_selects"):
        verify_assignments("split_selects", before, broken(change, before, after))


def test_the_same_results_by_another_condition_are_fine() -> None:
    before, after = of(POOL)
    verify_assignments("split_selects", before, broken(7, before, after))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_max_pooling_with_a_finite_value_outside_has_a_nest(dtype: torch.dtype, channels_last: bool) -> None:
    name = {torch.float32: "float", torch.bfloat16: "bfloat16", torch.float16: "half"}[dtype]
    order, x = ("n,y,x,c", "n,2*y+i-1,2*x+j-1,c") if channels_last else ("n,c,y,x", "n,c,2*y+i-1,2*x+j-1")
    sizes = "N,H,W,C" if channels_last else "N,C,H,W"
    text = f"""def pool({name}({sizes}) X) -> (Y) {{
        Y({order}) max=! (2*y + i >= 1 && 2*y + i <= H && 2*x + j >= 1 && 2*x + j <= W) ? X({x}) : 0.25
            where y in 0:(H+1)/2, x in 0:(W+1)/2, i in 0:3, j in 0:3
    }}"""
    tensor = torch.randn(2, 12, 17, 24).to(dtype)
    padded = torch.nn.functional.pad(tensor.float(), (1, 1, 1, 1), value=0.25)
    expected = torch.nn.functional.max_pool2d(padded, 3, 2).to(dtype)
    given = tensor.permute(0, 2, 3, 1).contiguous() if channels_last else tensor
    function = tcjit.define(text)["pool"]
    result = function(given)
    assert torch.equal(result.permute(0, 3, 1, 2) if channels_last else result, expected)
    assert all("no nest" not in line for line in function.compile(given).resources["reductions"])
