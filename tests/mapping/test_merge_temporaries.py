"""Temporaries with the same values: which are merged, that each is proved, that faults are found, and the numbers.

Modules: mapping.passes.merge_temporaries mapping.verify_merged
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.mapping import program

import tcjit
from tcjit.errors import VerifyError
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.passes.hoist_invariants import hoist_invariants
from tcjit.mapping.passes.merge_temporaries import merge_temporaries
from tcjit.mapping.verify_assignments import verify_assignments

CHAIN = """def f(double(S,S) Z, double(S) X, double(R,S) Y) -> (B) {
    A(r,i) +=! Z(i,j) / X(j) * Y(r,j)
    B(r,i) +=! Z(i,j) / X(j) * A(r,j)
}"""
SHAPES = {"Z": (90, 90), "X": (90,), "Y": (20, 90)}
VALUES = "float(N) X, float(N) W"


def of(text: str, shapes: dict[str, tuple[int, ...]]) -> tuple[Assignments, Assignments]:
    before = hoist_invariants(extract(program(text, shapes)), True)
    after = merge_temporaries(before)
    verify_assignments("merge_temporaries", before, after)
    return before, after


def small(statements: str) -> list[str]:
    return [a.show() for a in of(f"def f({VALUES}) -> (Y) {{ {statements} }}", {"X": (50,), "W": (50,)})[1].assignments]


def test_invariants_of_several_products_are_one() -> None:
    before, after = of(CHAIN, SHAPES)
    assert [a.tensor for a in before.assignments] == ["A_invariant", "A", "B_invariant", "B"]
    assert [a.tensor for a in after.assignments] == ["A_invariant", "A", "B"]
    assert "A_invariant(i, j) * A(r, j)" in after.assignments[-1].show()


def test_what_merged_temporaries_are_computed_from_is_merged_too() -> None:
    found = small("A(i) = X(i) + 1.0  B(j) = X(j) + 1.0  C(i) = A(i) * W(i)  D(i) = B(i) * W(i)  Y(i) = C(i) + D(i)")
    assert [line.split(" where")[0] for line in found] == ["A(i) = X(i) + 1.0", "C(i) = A(i) * W(i)", "Y(i) = C(i) + C(i)"]


@pytest.mark.parametrize(
    "statements",
    [
        "A(i) = X(i) + 1.0  B(i) = X(i) + 2.0  Y(i) = A(i) * B(i)",
        "A(i) = X(i) + 1.0  B(i) = X(i) + 1.0 where i in 0:10  Y(i) = A(i) * B(i)",
        "C(i) = W(i)  A(i) = C(i) + 1.0  C(i) = X(i)  B(i) = C(i) + 1.0  Y(i) = A(i) * B(i)",  # what they read changes
        "A(i) = X(i) + 1.0  B(i) = X(i) + 1.0  B(i) += W(i)  Y(i) = A(i) * B(i)",
        "A(i,j) = X(i) - X(j)  B(i,j) = X(j) - X(i)  Y(i,j) = A(i,j) * B(i,j)",
    ],
)
def test_what_stays(statements: str) -> None:
    text = f"def f({VALUES}) -> (Y) {{ {statements} }}"
    before, after = of(text, {"X": (50,), "W": (50,)})
    assert after.assignments == before.assignments


def test_what_is_merged_may_be_computed_between_what_reads_it() -> None:
    found = small("A(i) = X(i) + 1.0  C(i) = A(i) * W(i)  B(j) = X(j) + 1.0  D(i) = B(i) * W(i)  Y(i) = C(i) + D(i)")
    assert [line.split(" where")[0] for line in found] == ["A(i) = X(i) + 1.0", "C(i) = A(i) * W(i)", "Y(i) = C(i) + C(i)"]


def test_faults_are_found() -> None:
    before, after = of(CHAIN, SHAPES)
    first, update, last = after.assignments

    def refused(*parts: tuple[object, ...]) -> None:
        wrong = replace(after, assignments=tuple(a for part in parts for a in part), replaced=parts)  # type: ignore[arg-type]
        with pytest.raises(VerifyError, match="merge_temporaries: statement"):
            verify_assignments("merge_temporaries", before, wrong)

    other = replace(last, value=replace(last.value, left=last.value.right))  # type: ignore[attr-defined]
    refused((first,), (update,), (), (other,))
    refused((), (update,), (), (last,))
    refused((first,), (replace(update, value=last.value),), (), (last,))
    refused((first,), (update,), (before.assignments[2], last), (last,))
    scaled = before.assignments[2]
    twice = replace(scaled, value=replace(scaled.value, op="*"))  # type: ignore[attr-defined]
    unlike = replace(before, assignments=(*before.assignments[:2], twice, before.assignments[3]))
    with pytest.raises(VerifyError, match="merge_temporaries: statement 2 of f: a value changed"):
        verify_assignments("merge_temporaries", unlike, replace(after, replaced=((first,), (unlike.assignments[1],), (), (last,)),
                                                               assignments=(first, unlike.assignments[1], last)))


def test_numbers() -> None:
    z, x, y = torch.randn(90, 90).double(), torch.rand(90).double() + 0.5, torch.randn(20, 90).double()
    f = tcjit.define(CHAIN, target="cpu").f
    torch.testing.assert_close(f(z, x, y), y @ (z / x).T @ (z / x).T)
    assert f.compile(z, x, y).source.count("B_invariant") == 0
