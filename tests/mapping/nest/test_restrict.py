"""Conditions of a reduction as part of its domain: against enumeration, and what must stay in the body."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
from support.nests import DIM, affine_of, points, sizes

from tcjit.errors import VerifyError
from tcjit.grammar.ast import Const, Select
from tcjit.mapping.nest.restrict import restrict, verify_restrict
from tcjit.mapping.nest.statement import AffineStatement

SHAPES = {"A": (6, 7), "w": (7,)}


def both(value: str, operator: str = "+=!", dtype: str = "float32") -> tuple[AffineStatement, AffineStatement]:
    kind = {"float32": "float", "float64": "double"}[dtype]
    text = f"def f({kind}(N,K) A, {kind}(K) w) -> (O) {{ O(i) {operator} {value} }}"
    before, values = affine_of(text, SHAPES), sizes(text, SHAPES)
    after = restrict(before, dtype, values)
    verify_restrict(before, after, values)
    return before, after


@pytest.mark.parametrize(
    ("value", "inside"),
    [
        ("(k <= i ? A(i,k) : 0.0)", lambda i, k: k <= i),
        ("(k <= i ? 0.0 : A(i,k))", lambda i, k: k > i),
        ("(k <= i && i - k < 3 ? A(i,k) : 0.0)", lambda i, k: 0 <= i - k < 3),
        ("(k < 2 || k > 4 ? A(i,k) : 0.0)", lambda i, k: k < 2 or k > 4),
        ("(k == i ? A(i,k) : 0.0)", lambda i, k: k == i),
        ("(k != i ? A(i,k) : 0.0)", lambda i, k: k != i),
        ("(k <= i ? (k > 1 ? A(i,k) * w(k) : 0.0) : 0.0)", lambda i, k: 1 < k <= i),
        ("(k > i ? 0.0 : (k > 1 ? 0.0 : A(i,k)))", lambda i, k: k <= i and k <= 1),
        ("((i + k) % 2 == 0 ? A(i,k) : 0.0)", lambda i, k: (i + k) % 2 == 0),
        ("((i + k) / 3 == 1 ? A(i,k) : 0.0)", lambda i, k: (i + k) // 3 == 1),
        ("(k >= K ? A(i,k) : 0.0)", lambda i, k: False),
        ("(k < K ? A(i,k) : 0.0)", lambda i, k: True),
        ("(2*k + 1 < N ? A(i,k) : 0.0)", lambda i, k: 2 * k + 1 < 6),
    ],
)
def test_a_condition_becomes_domain(value: str, inside: Callable[[int, int], bool]) -> None:
    before, after = both(value)
    assert points(after.domain) == [at for at in product(range(6), range(7)) if inside(*at)]
    assert after.dims == ("i", "k") and not isinstance(after.body, Select)
    assert after.results.is_equal(before.results), "results without a term are started as well"
    assert after.reads and all(after.reads[access] is before.reads[access] for access in after.reads)


@pytest.mark.parametrize("operator", ["max=!", "min=!", "*=!"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_identities_of_other_operators(operator: str, dtype: str) -> None:
    before, _ = both("(k <= i ? A(i,k) : 9.0)", operator, dtype)
    assert before.start is not None and isinstance(before.body, Select)
    text = "def f(float(N,K) A, float(K) w) -> (O) { O(i) += A(i,k) }"
    given = replace(before, body=replace(before.body, other=before.start))  # written out, an infinity is a division
    after = restrict(given, dtype, sizes(text, SHAPES))
    verify_restrict(given, after, sizes(text, SHAPES))
    assert points(after.domain) == [(i, k) for i in range(6) for k in range(7) if k <= i]
    if operator != "*=!":
        wrong = replace(before, body=replace(before.body, other=Const(-before.start.value, dtype=dtype)))  # type: ignore[attr-defined]
        assert restrict(wrong, dtype, sizes(text, SHAPES)) is wrong


@pytest.mark.parametrize(
    ("value", "operator"),
    [
        ("(k <= i ? A(i,k) : -0.0)", "+=!"),  # a sum of nothing but -0.0 from 0.0 on is 0.0, but the rule asks for the identity itself
        ("(k <= i ? A(i,k) : 0.0) * w(k)", "+=!"),  # 0 * inf
        ("(k <= i ? A(i,k) : 1.0)", "+=!"),
        ("(k <= i ? A(i,k) : 0.0)", "*=!"),
        ("(k <= i ? A(i,k) : 0.0)", "max=!"),
        ("(A(i,k) > 0.0 ? A(i,k) : 0.0)", "+=!"),  # depends on data
        ("(k * i < 9 ? A(i,k) : 0.0)", "+=!"),  # not affine
        ("(k <= i ? A(i,k) : w(k))", "+=!"),
    ],
)
def test_what_stays_as_it_is(value: str, operator: str) -> None:
    before, after = both(value, operator)
    assert after is before


def test_a_sum_that_goes_on_with_what_its_result_holds() -> None:
    text = "def f(float(N,K) A) -> (O) { O(i) = A(i,0)  O(i) += (k <= i ? A(i,k) : 0.0) where i in 0:N }"
    shapes = {"A": (6, 7)}
    before = affine_of(text, shapes, 1)
    after = restrict(before, "float32", sizes(text, shapes))
    assert before.start is None and after.start is None
    assert points(after.domain) == [(i, k) for i in range(6) for k in range(7) if k <= i]
    verify_restrict(before, after, sizes(text, shapes))


def test_restriction_ends_at_a_condition_on_data() -> None:
    _, after = both("(k <= i ? (A(i,k) > 0.0 ? A(i,k) : 0.0) : 0.0)")
    assert isinstance(after.body, Select) and points(after.domain) == [(i, k) for i in range(6) for k in range(7) if k <= i]


def test_reads_of_conditions_that_are_gone_are_gone() -> None:
    before, after = both("(k > i ? 0.0 : A(i,k) * w(k))")
    assert len(before.reads) == 2 and dict(after.reads) == dict(before.reads)


def test_faults_are_found() -> None:
    before, after = both("(k <= i ? A(i,k) : 0.0)")
    values = {"N": 6, "K": 7}
    less = replace(after, domain=after.domain.lower_bound_val(DIM.set, 0, 1))  # not row 0
    for wrong in (
        less,
        replace(after, domain=before.domain),  # terms that were 0.0 are read
        replace(after, domain=before.domain.subtract(after.domain)),
        replace(after, domain=after.domain.union(before.domain.upper_bound_val(DIM.set, 1, 1))),
        replace(after, body=before.start),
    ):
        with pytest.raises(VerifyError, match="restrict"):
            verify_restrict(before, wrong, values)
