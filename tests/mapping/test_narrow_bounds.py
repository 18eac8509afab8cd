"""Updates over the values of indices that their conditions leave.

Modules: mapping.passes.narrow_bounds
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.mapping import program

from tcjit.errors import VerifyError
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.passes.narrow_bounds import narrow_bounds
from tcjit.mapping.verify_assignments import verify_assignments

ONTO = "def f(float(N) A, float(K) G) -> (O) {{ O(i) +=! A(i) * G(k)  O(i) += {condition} ? A(t) * G(k) : 0.0 }}"
WHOLE = {"i": (0, 40), "t": (0, 40), "k": (0, 3)}


def of(text: str) -> tuple[Assignments, Assignments]:
    before = extract(program(text, {"A": (40,), "G": (3,)}), None)
    return before, narrow_bounds(before)


@pytest.mark.parametrize(
    ("condition", "narrowed"),
    [
        ("i == 0 && t - k < 0", {"i": (0, 1), "t": (0, 2)}),
        ("N == i + 1 && t + k >= N", {"i": (39, 40), "t": (38, 40)}),
        ("2 * i + k < 5", {"i": (0, 3)}),
        ("3 * i >= 100 && 7 > t", {"i": (34, 40), "t": (0, 7)}),
        ("i <= t && t <= k", {"i": (0, 3), "t": (0, 3)}),  # one after the other
        ("t - i == k", {}),
        ("t < 30", {}),  # too many are left
        ("i == 50 && t == 0", {}),  # no term counts: a matter of others
        ("i % 40 == 0 && A(k) > 0.0", {}),
    ],
)
def test_what_is_left(condition: str, narrowed: dict[str, tuple[int, int]]) -> None:
    before, after = of(ONTO.format(condition=condition))
    verify_assignments("narrow_bounds", before, after)
    assert after.assignments[1].ranges == {**WHOLE, **narrowed} and after.assignments[0] == before.assignments[0]


def test_all_results_are_started() -> None:
    before, after = of("def f(float(N) A, float(K) G) -> (O) { O(i) +=! i == 0 && t < k ? A(t) * G(k) : 0.0 where i in 0:40 }")
    verify_assignments("narrow_bounds", before, after)
    assert after.assignments[0].ranges == {**WHOLE, "t": (0, 2)}


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("float(N) A, float(K) G) -> (O) { O(i) = A(i) O(i) += ", True),  # -0.0 and what is added, 0.0, are 0.0
        ("float(N) A, float(K) G) -> (O) { O(i) = A(i) O(i) max= ", False),
        ("float(N) A, float(K) G, int32(N) J) -> (O) { O(i) = J(i) O(i) += ", False),
        ("float(N) A, float(K) G) -> (O) { O(i) += ", True),  # what the caller passes
    ],
)
def test_results_that_an_identity_changes_are_visited(text: str, whole: bool) -> None:
    identity = "-infinity()" if "max" in text else "0" if "J" in text else "0.0"
    term = "J(t)" if "J" in text else "A(t) * G(k)"
    shapes = {"A": (40,), "G": (3,), **({"J": (40,)} if "J" in text else {})}
    whole_text = f"def f({text} i == 0 && t - k < 0 ? {term} : {identity} where i in 0:40, t in 0:40, k in 0:3 }}"
    before = extract(program(whole_text, shapes), None)
    after = narrow_bounds(before)
    verify_assignments("narrow_bounds", before, after)
    assert after.assignments[-1].ranges == {"i": (0, 40 if whole else 1), "t": (0, 2), "k": (0, 3)}


def test_a_term_that_is_lost_is_found() -> None:
    before, after = of(ONTO.format(condition="i == 0 && t - k < 0"))
    first, update = after.assignments
    wrong = replace(update, bounds=tuple((name, lower, 1 if name == "t" else upper) for name, lower, upper in update.bounds))
    with pytest.raises(VerifyError, match="a term that counts is lost"):
        verify_assignments("narrow_bounds", before, before.with_parts([(first,), (wrong,)]))


GATHERED = """def f(float(M,C) X, int64(N) I, float(N,O) G) -> (O2) {{
    O2(o,c) +=! {condition} ? G(n,o) * X(I(n),c - {first}) : 0.0 where c in 0:48
}}"""


@pytest.mark.parametrize(
    ("condition", "first", "box"), [("c < 24", 0, (0, 24)), ("c >= 24", 24, (24, 48)), ("c >= 12 && c < 36", 12, (12, 36))]
)
def test_results_without_terms_of_what_gathers_are_started_by_themselves(condition: str, first: int, box: tuple[int, int]) -> None:
    text = GATHERED.format(condition=condition, first=first)
    before = extract(program(text, {"X": (30, 24), "I": (50,), "G": (50, 40)}), None)
    after = narrow_bounds(before)
    verify_assignments("narrow_bounds", before, after)
    *starts, narrowed = after.assignments
    assert narrowed.ranges["c"] == box and [one.operator for one in starts] == ["="] * len(starts)
    places = [place for one in starts for place in range(*one.ranges["c"])]
    assert sorted([*places, *range(*box)]) == [*range(48)]
    moved = replace(starts[0], bounds=narrowed.results)
    for wrong in ((narrowed,), (*starts, replace(narrowed, start=None)), (*starts[1:], moved, narrowed)):
        with pytest.raises(VerifyError, match="narrow_bounds"):
            verify_assignments("narrow_bounds", before, replace(after, assignments=wrong, replaced=(wrong,)))
