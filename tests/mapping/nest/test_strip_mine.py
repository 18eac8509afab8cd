"""Strip-mined assignments: every result and term once, whatever the remainder and the lower bound.

Modules: grammar.arithmetic
"""

from __future__ import annotations

import pytest
from support.nests import assignments, points, terms_of

from tcjit.grammar.arithmetic import plus
from tcjit.grammar.printer import show
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.isl import context
from tcjit.mapping.nest.affine_statement import affine_statement
from tcjit.mapping.nest.statement import AffineStatement
from tcjit.mapping.nest.strip_mine import strip_mine, strip_mined


def statement(a: Assignment, before: object) -> AffineStatement:
    tensors = {storage.name: storage for storage in before.tensors}  # type: ignore[attr-defined]
    return affine_statement("S", a, tensors, before.program, context())  # type: ignore[attr-defined]


@pytest.mark.parametrize(("lower", "upper"), [(0, 12), (0, 13), (0, 3), (0, 1), (2, 10), (3, 14), (5, 6)])
@pytest.mark.parametrize("block", [4, 5])
def test_blocks(lower: int, upper: int, block: int) -> None:
    statements = f"C(m,n) = 0.0 where m in 0:M, n in 0:N  C(m,n) += A(m,n) * A(m,n) where n in {lower}:{upper}"
    before = assignments(f"def f(float(M,N) A) -> (C) {{ {statements} }}", {"A": (3, 14)})
    a = before.assignments[-1]
    strip = strip_mine(a, "n", block)
    after = strip_mined(a, strip)
    assert strip.lower == lower and strip.extent == upper - lower and strip.outer not in {name for name, _, _ in a.bounds}
    assert bool(after.constraints) == bool((upper - lower) % block)
    old, new = statement(a, before), statement(after, before)
    assert terms_of(new) == terms_of(old)
    names = [name for name, _, _ in after.bounds]
    assert names.index(strip.outer) + 1 == names.index("n")
    n, outer = new.dims.index("n"), new.dims.index(strip.outer)
    for at in points(new.domain):
        assert 0 <= at[n] < block and 0 <= at[outer] < -(-(upper - lower) // block)


def test_two_dimensions_and_their_reads() -> None:
    before = assignments("def f(float(M,K) A, float(K,N) B) -> (C) { C(m,n) +=! A(m,k) * B(k,n) }", {"A": (5, 3), "B": (3, 7)})
    (a,) = before.assignments
    rows = strip_mine(a, "m", 2)
    once = strip_mined(a, rows)
    columns = strip_mine(once, "n", 4)
    twice = strip_mined(once, columns)
    assert terms_of(statement(twice, before)) == terms_of(statement(a, before)) and len(terms_of(statement(twice, before))) == 5 * 3 * 7
    assert [name for name, _, _ in twice.bounds] == [rows.outer, "m", columns.outer, "n", "k"]
    assert show(columns.rewritten(a.value)) == "A(m, k) * B(k, 4 * n_block + n)"
    assert twice.constraints == ("2 * m_block + m < 5", "4 * n_block + n < 7")


def test_names_that_are_taken_or_isl_keeps_for_itself() -> None:
    before = assignments("def f(float(M,N) A) -> (C) { C(mod_block,mod) +=! A(mod_block,mod) * A(k,mod) }", {"A": (5, 7)})
    (a,) = before.assignments
    strip = strip_mine(a, "mod", 2)
    after = strip_mined(a, strip)
    assert strip.outer not in {"mod_block", "mod"}
    assert terms_of(statement(after, before)) == terms_of(statement(a, before))


def test_no_number_is_added_to_nothing() -> None:
    before = assignments("def f(float(M,N) A) -> (C) { C(m,n) +=! A(m,n) * A(k,n) }", {"A": (5, 7)})
    value = before.assignments[0].value
    assert plus(value, 0) is value
