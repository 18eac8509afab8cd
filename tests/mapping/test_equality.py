"""Equalities of an index with data: what is found, what is refused, what a proof takes.

Modules: mapping.equality
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.mapping import program

from tcjit.errors import VerifyError
from tcjit.grammar.ast import Const
from tcjit.grammar.dynamic import generalise
from tcjit.grammar.front import read
from tcjit.grammar.printer import show
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.equality import Equality, equality, reads_inside, verify_equality
from tcjit.mapping.extract import extract

SHAPES = {"I": (5,), "J": (5,), "X": (9, 4), "F": (5,)}


def assignments(condition: str, kind: str = "int64", operator: str = "+=!", neutral: str = "0.0", body: str = "X(v,d)") -> Assignments:
    parameters = f"{kind}(N) I, {kind}(N) J, float(V,D) X, float(N) F"
    text = f"def f({parameters}) -> (O) {{ O(n,d) {operator} ({condition} ? {body} : {neutral}) where n in 0:N, v in 0:V, d in 0:D }}"
    return extract(program(text, SHAPES))


def found(condition: str, kind: str = "int64", **others: str) -> Equality | None:
    """What determines v, proved."""
    before = assignments(condition, kind, **others)
    (a,) = before.assignments
    e = equality(a, "v", before.values)
    if e is not None:
        verify_equality(before, a, e)
    return e


@pytest.mark.parametrize(
    ("condition", "kind", "value"),
    [
        ("I(n) == v", "int64", "I(n)"),
        ("v == I(n)", "int64", "I(n)"),
        ("I(n) == v", "uint8", "int64(int32(I(n)))"),
        ("int64(I(n)) == v", "uint32", "int64(I(n))"),
        ("int64(v) == int64(I(n))", "uint64", "int64(I(n))"),
        ("uint64(v) == I(n)", "uint64", "int64(I(n))"),
        ("I(n) == v + 1", "int32", "int64(int64(I(n)) - 1)"),
        ("3 - v == I(n)", "int32", "int64(-(int64(I(n)) - 3))"),
        ("v + n - D == I(n)", "int64", "int64(I(n) - n - -4)"),
        ("I(n) - 1 == v", "int64", "int64(I(n) - 1)"),
        ("I(n) * J(n) == v", "int64", "int64(I(n) * J(n))"),
        ("I(J(n)) == v", "int64", "I(J(n))"),
    ],
)
def test_values(condition: str, kind: str, value: str) -> None:
    e = found(condition, kind)
    assert e is not None and show(e.value) == value and e.value.dtype == "int64"
    assert not e.before and not e.after and show(e.term) == "X(v, d)" and show(e.identity) == "0.0"


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("I(n) != v", "all values but one"),
        ("I(n) <= v", "many values"),
        ("I(n) == v || n > 2", "the other side may hold"),
        ("!(I(n) != v)", "written another way"),
        ("F(n) == float(v)", "floats"),
        ("I((v + n) % N) == v", "the data depend on the index"),
        ("I(n) == 2 * v", "not every value of the data is one of the index"),
        ("I(n) == v / 2", "several values"),
        ("I(n) == v * v", "several values"),
        ("I(n) == v - v", "no value in particular"),
        ("int64(int8(v * 100)) == I(n)", "may be cut off"),
        ("int64(v * 1000000000) == I(n)", "may wrap"),
        ("n == v", "no data: a condition on indices"),
        ("int32(F(n)) == int32(float(v))", "no integer arithmetic"),
        ("X(I(n),d) > 0.0", "no equality"),
        ("J(J((n + v) % N)) > 1 && I(n) == v", "a condition before that may fail"),
        ("J((n + v) % N) > 1 && I(J(n)) == v", "data that may fail, behind a condition on the index"),
    ],
)
def test_what_is_none(condition: str, why: str) -> None:
    assert found(condition) is None, why


@pytest.mark.parametrize(
    ("operator", "neutral", "taken"),
    [
        ("+=!", "0.0", True),
        ("+=!", "1.0", False),
        ("+=!", "-0.0", True),
        ("*=!", "1.0", True),
        ("*=!", "0.0", False),
        ("min=!", "infinity()", True),
        ("max=!", "-infinity()", True),
        ("max=!", "0.0", False),
        ("+=!", "F(n)", False),
    ],
)
def test_the_other_side_is_the_identity(operator: str, neutral: str, taken: bool) -> None:
    assert (found("I(n) == v", operator=operator, neutral=neutral) is not None) == taken


def test_conditions_keep_their_order() -> None:
    e = found("n > 1 && X(v,d) > 0.0 && I(n) == v && F(n) > 0.0 && d > v", body="(J(n) > 2) ? X(v,d) : 0.0")
    assert e is not None and e.reordered
    assert list(map(show, e.before)) == ["n > 1"]
    assert list(map(show, e.after)) == ["d > v", "X(v, d) > 0.0", "F(n) > 0.0", "J(n) > 2"]  # those on indices first
    plain = found("n > 1 && I(n) == v && F(n) > 0.0")
    assert plain is not None and not plain.reordered


def test_reads_that_a_condition_on_the_index_protects() -> None:
    """Read before it, the data would be outside of their tensor."""
    text = "def f(int64(N) I, float(V) X) -> (O) { O(n) +=! (n + v < N && I(n) == v ? X(v) : 0.0) where n in 0:2*N, v in 0:V }"
    before = extract(program(text, {"I": (5,), "X": (4,)}))
    (a,) = before.assignments
    e = equality(a, "v", before.values)
    assert e is not None and e.reordered and reads_inside(before, a)
    assert not reads_inside(before, replace(a, value=e.value))


@pytest.mark.parametrize(
    ("condition", "dynamic", "taken"),
    [("I(n) == v", {"V": (1, 9)}, True), ("I(J(n)) == v", {"V": (1, 9)}, False), ("I(J(n)) == v", {"D": (1, 9)}, True)],
)
def test_data_that_may_fail_are_not_read_for_an_empty_range(condition: str, dynamic: dict[str, tuple[int, int]], taken: bool) -> None:
    """Of an index whose extent only the call knows there may be no value, and then the program reads nothing."""
    text = f"def f(int64(N) I, int64(N) J, float(V,D) X) -> (O) {{ O(n,d) +=! ({condition} ? X(v,d) : 0.0) }}"
    before = extract(generalise(read(text)[0], {"N": 5, "V": 9, "D": 9}, {}, dynamic))
    (a,) = before.assignments
    assert (equality(a, "v", before.values) is not None) == taken


def test_a_wrong_one_is_refused() -> None:
    before = assignments("n > 1 && I(n) == v + 1 && d > v")
    (a,) = before.assignments
    e = equality(a, "v", before.values)
    assert e is not None
    verify_equality(before, a, e)
    for wrong, what in (
        (replace(e, value=e.data), "another value"),
        (replace(e, before=()), "gone"),
        (replace(e, after=()), "gone"),
        (replace(e, term=Const(2.0, dtype="float32")), "gone"),
        (replace(e, before=e.after, after=e.before), "gone"),
        (replace(e, after=(*e.after, *e.after)), "new"),
    ):
        with pytest.raises(VerifyError, match=what):
            verify_equality(before, a, wrong)
    wrapping = assignments("int8(v + 127) == I(n)", "int8")
    one = replace(e, data=wrapping.assignments[0].value.condition.right, before=(), after=())  # type: ignore[attr-defined]
    with pytest.raises(VerifyError, match="wrap"):
        verify_equality(wrapping, wrapping.assignments[0], one)
