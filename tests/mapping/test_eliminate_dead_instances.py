"""Sums of elements that nothing reads are left out, which is proved.

Modules: mapping.passes.eliminate_dead_instances grammar.liveness
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.mapping import AVX512, program

from tcjit.errors import VerifyError
from tcjit.grammar.ast import Select
from tcjit.grammar.printer import show
from tcjit.mapping.assignment import Assignments
from tcjit.mapping.extract import extract
from tcjit.mapping.options import Options
from tcjit.mapping.passes.eliminate_dead_instances import eliminate_dead_instances
from tcjit.mapping.pipeline import map_program
from tcjit.mapping.verify_assignments import verify_assignments

SHAPES = {"A": (40, 8), "B": (40, 8), "G": (40, 40)}


def assignments(uses: str) -> Assignments:
    text = f"def f(float(N,K) A, float(N,K) B, float(N,N) G) -> (O, P) {{ S(i, j) +=! A(i, k) * B(j, k) {uses} }}"
    return extract(program(text, SHAPES))


def condition(uses: str) -> str:
    """That of the terms of ``S``."""
    before = assignments(uses)
    after = eliminate_dead_instances(before)
    verify_assignments("eliminate_dead_instances", before, after)
    value = after.assignments[0].value
    return show(value.condition) if isinstance(value, Select) else ""


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        ("O(i, j) = j <= i ? S(i, j) : 0.0  P(i) +=! G(i, j)", "j <= i"),
        ("O(j, i) = j <= i ? S(j, i) : 0.0  P(i) +=! G(i, j)", "i <= j"),  # the axes have other names there
        ("O(i, j) = j <= i && i - j < 9 ? S(i, j) : 0.0  P(i) max=! j <= i ? S(i, j) : 0.0", "j <= i"),  # what both say
        ("O(i, j) = j <= i ? 1.0 : S(i, j)  P(i) +=! G(i, j)", "!(j <= i)"),
        ("O(i, j) = j <= i && G(i, j) > 0.0 ? S(i, j) : 0.0  P(i) +=! G(i, j)", "j <= i"),
        ("O(i, j) = j <= i ? S(i, j) : 0.0  P(i) +=! S(i, j)", ""),
        ("O(i, j) = j <= 9 && i >= 2 ? S(i, j) : 0.0  P(i) +=! G(i, j)", ""),  # a box
        ("O(i, j) = G(i, j) > 0.0 ? S(i, j) : 0.0  P(i) +=! G(i, j)", ""),  # which only the call knows
        ("O(i, j) = j <= i ? S(j, j) + G(i, j) : 0.0  P(i) +=! G(i, j)", ""),  # one element for many
        ("O(i, j) = j < i ? S(i - 1, j) : 0.0 where i in 0:N, j in 0:N  P(i) +=! G(i, j)", ""),
        ("O(i, j) = i * j < 9 ? S(i, j) : 0.0  P(i) +=! G(i, j)", ""),  # which isl cannot express
        ("O(i, j) = S(i, j)  P(i) +=! j <= i ? S(i, j) : 0.0", ""),
    ],
)
def test_conditions_of_all_reads(uses: str, expected: str) -> None:
    assert condition(uses) == expected


def test_results_are_read_by_whoever_called() -> None:
    text = "def f(float(N,K) A) -> (S, O) { S(i, j) +=! A(i, k) * A(j, k)  O(i) +=! j <= i ? S(i, j) : 0.0 }"
    before = extract(program(text, {"A": (9, 4)}))
    assert eliminate_dead_instances(before).assignments == before.assignments


def test_what_has_the_condition_keeps_its_value() -> None:
    text = "def f(float(N,K) A) -> (O) { S(i, j) +=! j <= i ? A(i, k) * A(j, k) : 0.0  O(i) +=! j <= i ? S(i, j) : 0.0 }"
    before = extract(program(text, {"A": (9, 4)}))
    assert eliminate_dead_instances(before).assignments == before.assignments


@pytest.mark.parametrize("wrong", ["j < i", "j <= i && i < 30"])
def test_a_condition_that_leaves_out_what_is_read_is_found(wrong: str) -> None:
    before = assignments("O(i, j) = j <= i ? S(i, j) : 0.0  P(i) +=! G(i, j)")
    other = eliminate_dead_instances(assignments(f"O(i, j) = {wrong.replace('i < 30', 'i - j < 30')} ? S(i, j) : 0.0  P(i) +=! G(i, j)"))
    first = other.assignments[0]
    after = replace(before, assignments=(first, *before.assignments[1:]), replaced=((first,), *((a,) for a in before.assignments[1:])))
    with pytest.raises(VerifyError, match="an element is read whose terms are gone"):
        verify_assignments("eliminate_dead_instances", before, after)


def test_dead_tiles_take_no_time() -> None:
    """The domain of the product is a triangle: tiles above it have no points."""
    text = "def f(float(N,K) A, float(N,K) B) -> (O) { S(i, j) +=! A(i, k) * B(j, k)  O(i, j) = j <= i ? S(i, j) : 0.0 }"
    mapped = map_program(program(text, {"A": (512, 64), "B": (512, 64)}), Options(), AVX512)
    (tiled,) = next(s.tiled for s in mapped.scop.statements if s.tensor == "S")
    full, partial = (tiled.tiles.full.count_val().to_python(), tiled.tiles.partial.count_val().to_python())
    assert 0 < full + partial < 0.6 * tiled.tiles.box.count_val().to_python()
