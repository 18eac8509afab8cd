"""Temporaries of chains that are computed where they are read: which, what takes their place, and that each step of it is proved.

Modules: mapping.passes.substitute_forward
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.mapping import AVX512, program

import tcjit
from tcjit.errors import VerifyError
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.options import Options
from tcjit.mapping.passes.substitute_forward import MOST_NODES, substitute_forward
from tcjit.mapping.pipeline import map_program
from tcjit.mapping.verify_assignments import verify_assignments

SHAPES = {"X": (30, 40), "Y": (30, 40), "U": (30,)}
HEAD = "def f(float(N,M) X, float(N,M) Y, float(N) U) -> "


def before(body: str, head: str = HEAD) -> Assignments:
    return extract(program(f"{head}(O) {{ {body} }}", SHAPES))


def substituted(body: str, head: str = HEAD) -> list[str]:
    first = before(body, head)
    made = substitute_forward(first)
    verify_assignments("substitute_forward", first, made)
    return [a.show() for a in made.assignments]


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("A(i,j) = X(i,j) * 2  O(i,j) = A(i,j) + Y(i,j)", "X(i, j) * 2.0 + Y(i, j)"),
        ("A(i,j) = X(i,j) * 2  B(i,j) = A(i,j) + U(i)  O(i,j) = max(B(i,j), B(i,j) * 0.1)", None),
        ("A(i,j) = X(i,j) * 2  O(p,q) = A(p,q) + U(p)", "X(p, q) * 2.0 + U(p)"),  # other names
        ("A(j,i) = X(i,j) * 2  O(i,j) = A(j,i) + U(i)", "X(i, j) * 2.0 + U(i)"),  # axes in another order
        ("A(i,j) = exp(X(i,j))  O(i,j) = A(i,j) + U(i)", "exp(X(i, j)) + U(i)"),
    ],
)
def test_chains(body: str, value: str | None) -> None:
    (only,) = substituted(body)
    assert value is None or only.split(" = ", 1)[1].startswith(value)


@pytest.mark.parametrize(
    "body",
    [
        "A(i,j) = exp(X(i,j))  O(i,j) = A(i,j) * A(i,j)",  # takes long, and is mentioned twice
        "A(i) = U(i) * 2  O(i,j) = A(i) + X(i,j)",  # an element for many
        "A(i,j) = X(i,j) * 2  O(i) +=! A(i,j)",  # a reduction
        "A(i,j) = X(i,j) * 2  O(i) = A(i,int64(U(i)))",  # an element that data pick
        "A(i,j) = X(i,j) * 2  O(i,j) = A(i,j) + A(N-1-i,j)",  # two elements
        "A(i,j) = X(i,j) * 2  B(i,j) = A(i,j) + 1  O(i,j) = A(i,j) * B(i,j)",  # two readers: what reads them both is one
        "A(i,j) = X(i,j) * 2  O(i,j) = A(i,j) where i in 0:20",  # a part
        "A(i,j) = X(int64(U(i)),j)  O(i,j) = j > 3 ? A(i,j) : 0",  # may fail where it would not be computed any more
    ],
)
def test_what_stays(body: str) -> None:
    assert any(line.startswith("A(") for line in substituted(body))


def test_what_may_fail_is_computed_for_all_elements() -> None:
    assert len(substituted("A(i,j) = X(int64(U(i)),j)  O(i,j) = A(i,j) + Y(i,j)")) == 1


def test_what_is_rounded_stays() -> None:
    half = HEAD.replace("float", "half")
    assert len(substituted("A(i,j) = X(i,j) * 2  O(i,j) = A(i,j) + Y(i,j)", half)) == 2


def test_results_stay() -> None:
    text = f"{HEAD}(A, O) {{ A(i,j) = X(i,j) * 2  O(i,j) = A(i,j) + Y(i,j) }}"
    assert len(substitute_forward(extract(program(text, SHAPES))).assignments) == 2


def test_values_do_not_grow_for_ever() -> None:
    """Each step doubles the value."""
    steps = " ".join(f"T{n}(i,j) = {f'T{n - 1}' if n else 'X'}(i,j) * {f'T{n - 1}' if n else 'X'}(i,j)" for n in range(12))
    lines = substituted(f"{steps} O(i,j) = T11(i,j)")
    assert 1 < len(lines) < 12 and max(line.count("(i, j)") for line in lines) <= MOST_NODES // 2


def test_wrong_substitutions_are_found() -> None:
    first = before("A(i,j) = X(i,j) * 2  O(i,j) = A(i,j) + Y(i,j)")
    made = substitute_forward(first)
    other = before("A(i,j) = X(i,j) * 3  O(i,j) = A(i,j) + Y(i,j)")
    wrong = replace(made, assignments=substitute_forward(other).assignments, replaced=((), substitute_forward(other).assignments))
    with pytest.raises(VerifyError, match="a value changed"):
        verify_assignments("substitute_forward", first, wrong)
    lost = replace(first, assignments=first.assignments[1:], replaced=((), first.assignments[1:]))
    with pytest.raises(VerifyError, match="what is read is not computed"):
        verify_assignments("substitute_forward", first, lost)


def test_a_chain_is_one_loop() -> None:
    text = f"{HEAD}(O) {{ A(i,j) = X(i,j) * U(i)  B(i,j) = A(i,j) > 0 ? A(i,j) : A(i,j) * 0.01  O(i,j) = B(i,j) + Y(i,j) }}"
    made = map_program(program(text, SHAPES), Options(), AVX512)
    assert [s.tensor for s in made.scop.statements] == ["O"] and made.privates == ()
    assert len(map_program(program(text, SHAPES), Options(fusion="minimal"), AVX512).scop.statements) == 3
    x, y, u = torch.randn(30, 40), torch.randn(30, 40), torch.randn(30)
    torch.testing.assert_close(tcjit.define(text).f(x, y, u), torch.nn.functional.leaky_relu(x * u[:, None]) + y)
