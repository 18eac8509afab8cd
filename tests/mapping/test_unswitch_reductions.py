"""Conditions on data that leave sums of products: which, that each is proved, that faults are found, and the numbers.

Modules: mapping.passes.unswitch_reductions mapping.verify_unswitched
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.mapping import program

import tcjit
from tcjit.errors import GatherError, VerifyError
from tcjit.grammar.ast import Select
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.passes.unswitch_reductions import unswitch_reductions
from tcjit.mapping.verify_assignments import verify_assignments

SCORES = "S(b,r,t) +=! t < Len(b) ? Q(b,r,d) * K(Page(b,t),d) : 0.0"
VALUES = "S(b,r,d) +=! t < Len(b) ? exp(P(b,r,t)) * K(Page(b,t),d) : 0.0"
PARAMETERS = "float(B,R,D) Q, float(N,D) K, float(B,R,T) P, int32(B,T) Page, int32(B) Len, float(B,T,D) M"
SHAPES = {"Q": (3, 8, 16), "K": (40, 16), "P": (3, 8, 50), "Page": (3, 50), "Len": (3,), "M": (3, 50, 16)}


def of(statement: str) -> tuple[Assignments, Assignments]:
    before = extract(program(f"def f({PARAMETERS}) -> (S) {{ {statement} }}", SHAPES))
    return before, unswitch_reductions(before)


def test_a_condition_that_no_term_moves_stands_behind_the_sum() -> None:
    before, after = of(SCORES)
    verify_assignments("unswitch_reductions", before, after)
    assert [a.show() for a in after.assignments] == [
        "S_guarded(b, t, d) = t < Len(b) ? K(Page(b, t), d) : 0.0 where b in 0:3, t in 0:50, d in 0:16",
        "S_sum(b, r, t) += Q(b, r, d) * S_guarded(b, t, d) from 0.0 where b in 0:3, r in 0:8, t in 0:50, d in 0:16",
        "S(b, r, t) = t < Len(b) ? S_sum(b, r, t) : 0.0 where b in 0:3, r in 0:8, t in 0:50",
    ]


def test_a_product_of_zeros_needs_no_condition() -> None:
    before, after = of(VALUES)
    verify_assignments("unswitch_reductions", before, after)
    assert [a.show() for a in after.assignments][1:] == [
        "S_guarded1(b, t, d) = t < Len(b) ? K(Page(b, t), d) : 0.0 where b in 0:3, t in 0:50, d in 0:16",
        "S(b, r, d) += S_guarded(b, r, t) * S_guarded1(b, t, d) from 0.0 where b in 0:3, r in 0:8, d in 0:16, t in 0:50",
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "S(b,r,d) +=! t < Len(b) ? P(b,r,t) * K(t,d) : 0.0",  # an element of K may be infinite where no term counts
        "S(b,r,t) +=! t < Len(b) ? Q(b,r,d) * K(Page(b,t),d) : 1.0",
        "S(b,r,t) max=! t < Len(b) ? Q(b,r,d) * K(Page(b,t),d) : 0.0",
        "S(b,t) +=! t < Len(b) ? K(Page(b,t),d) * M(b,t,d) : 0.0",  # each element is used once
        "S(b,r,t) +=! t < 20 ? Q(b,r,d) * M(b,t,d) : 0.0",  # a condition on indices
        "S(b,r,t) +=! K(Page(b,t),0) > 0.0 ? Q(b,r,d) * M(b,t,d) : 0.0",  # a condition that may fail
    ],
)
def test_what_stays(statement: str) -> None:
    before, after = of(statement)
    assert after.assignments == before.assignments


def change(a: Assignment, **fields: object) -> Assignment:
    return replace(a, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("statement", "number", "fault"),
    [
        (SCORES, 0, lambda a: change(a, value=a.value.then)),  # gathered without its condition
        (SCORES, 0, lambda a: change(a, bounds=(*a.bounds[:2], ("d", 0, 15)))),
        (SCORES, 1, lambda a: change(a, value=a.value.right)),
        (SCORES, 2, lambda a: change(a, value=a.value.then)),
        (SCORES, 2, lambda a: change(a, bounds=(*a.bounds[:2], ("t", 0, 49)))),
        (VALUES, 0, lambda a: change(a, value=a.value.then)),
        (VALUES, 1, lambda a: change(a, value=Select(a.value.condition, a.value.then, a.value.then, dtype="float32"))),
        (VALUES, 2, lambda a: change(a, value=a.value.left)),
    ],
)
def test_faults_are_found(statement: str, number: int, fault: object) -> None:
    before, after = of(statement)
    assert callable(fault)
    parts = [fault(a) if at == number else a for at, a in enumerate(after.assignments)]
    with pytest.raises(VerifyError, match="unswitch_reductions: statement 1 of f"):
        verify_assignments("unswitch_reductions", before, replace(after, assignments=tuple(parts), replaced=(tuple(parts),)))


@pytest.mark.parametrize("statement", [SCORES, VALUES])
def test_numbers_beyond_the_lengths_do_not_count(statement: str) -> None:
    text = f"def f({PARAMETERS}) -> (S) {{ {statement} }}"
    given = {name: torch.randn(shape) for name, shape in SHAPES.items() if name not in ("Page", "Len")}
    given["Page"] = torch.randint(0, 40, SHAPES["Page"], dtype=torch.int32)
    given["Len"] = torch.tensor([50, 13, 0], dtype=torch.int32)
    given["Page"][1, 13:] = -7
    given["P"][:, :, 13:] = torch.inf
    given["P"][0] = 0.5
    args = [given[name] for name in SHAPES]
    f = tcjit.define(text, target="cpu").f
    torch.testing.assert_close(f(*args), tcjit.define(text, target="reference").f(*args), rtol=1e-5, atol=1e-5)
    assert f.compile(*args).nests >= 1
    given["Page"][1, 12] = 40
    with pytest.raises(GatherError):
        f(*args)
