"""Random programs, the same in every run, on the CPU against the reference: fifty, a hundred with --whole; `make soak` draws fresh ones.

And every program that once failed, shrunk, from ``tests/regressions``.
"""
from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases import REGRESSIONS, Case, load, save
from support.compare import decided
from support.fuzz.expressions import ANYWHERE, DOMAINS, STEPS
from support.fuzz.kernels import mixed
from support.fuzz.programs import Statistics, candidate, draw
from support.fuzz.shrink import shrink
from support.run import assert_right, call

from tcjit.errors import TCError
from tcjit.grammar.builtins import BUILTINS
from tcjit.jit.call import function
from tcjit.mapping.options import Options
from tcjit.mapping.passes import parallelise

PROGRAMS, SHARDS, SEED = 100, 10, 20240601
SAVED = sorted(REGRESSIONS.glob("*.tc"))


def test_random_expressions_call_every_builtin() -> None:
    drawn = {*DOMAINS, *ANYWHERE, *STEPS, "infinity"}
    assert drawn == set(BUILTINS), "every built-in has its arguments in support/fuzz/expressions.py"


@pytest.mark.sample(2)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_cpu_agrees_with_the_reference(shard: int) -> None:
    counts = Statistics()
    for number in range(shard, PROGRAMS, SHARDS):
        case = draw(random.Random(f"{SEED} {number}"), counts)
        try:
            assert_right(case, "cpu")
        except (AssertionError, TCError) as error:
            raise AssertionError(f"program {number}: {error}\n{case}\n{case.text}") from error
    assert counts.refused <= counts.drawn // 10, "\n".join(counts.reasons)


@pytest.mark.sample(2)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_kernels_whose_tensors_have_types_of_their_own(shard: int) -> None:
    for number in range(shard, PROGRAMS, SHARDS):
        case = mixed(random.Random(f"{SEED} mixed {number}"))
        try:
            assert_right(case, "cpu")
        except (AssertionError, TCError) as error:
            raise AssertionError(f"kernel {number}: {error}\n{case}\n{case.text}") from error


@pytest.mark.parametrize("path", SAVED, ids=[p.stem for p in SAVED])
def test_programs_that_once_failed(path: Path) -> None:
    assert_right(load(path), "cpu")


def test_the_reference_is_a_target() -> None:
    for number in range(40):
        case = draw(random.Random(f"reference {number}"))
        if case.faults:
            continue
        program = case.program()
        expected = case.expected(program)
        for name, value in call(case, program, "reference").items():
            np.testing.assert_array_equal(value, expected.values[name])


def test_what_is_drawn_is_worth_comparing() -> None:
    """Nearly every element is decided, and programs over small integers are compared bit for bit."""
    parts, exact = [], []
    for number in range(150):
        case = draw(random.Random(f"worth {number}"))
        if case.faults:
            continue
        expected = case.expected(case.program())
        parts.append(decided(expected))
        if case.exact:
            exact.append(np.mean([np.mean(error == 0) for error in expected.error.values() if error.size] or [1.0]))
    assert np.mean(parts) > 0.95
    assert len(exact) > 20 and np.mean(exact) > 0.9


def test_drawing_depends_on_the_seed_alone() -> None:
    first, second = (candidate(random.Random("again")) for _ in range(2))
    assert first == second
    assert candidate(random.Random("another")).text != first.text


def test_a_failing_case_shrinks_and_is_kept(tmp_path: Path) -> None:
    """A division in a def of several statements is all that remains when divisions are what fails."""
    drawn = (candidate(random.Random(f"shrink {n}")) for n in range(1000))
    case = next(c for c in drawn if " % " in c.text and c.text.count("=") > 3 and c.text.count("def ") == 1)

    def fails(smaller: Case) -> bool:
        try:
            smaller.program()
        except TCError:
            return False
        return " % " in smaller.text

    small = shrink(replace(case, options=Options(vector_width=4)), fails)
    assert small.options is None
    assert fails(small) and small.text.count("\n") <= 4 and len(small.text) < len(case.text)
    for options in (None, Options(), Options(tile=(3, 1000), private_buffers=False)):
        save(replace(small, options=options), tmp_path / "kept.tc", "found by a test")
        assert load(tmp_path / "kept.tc") == replace(small, options=options)


def test_a_case_is_mapped_by_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(load(SAVED[0]), options=Options(vector_width=1, fusion="minimal"))
    given, shared = [], []

    def called(text: str, name: str, target: str | None, options: Options | None, dynamic: tuple[str, ...]) -> Any:
        given.append(options)
        shared.append(parallelise.WORTH_THREADS)
        return function(text, name, target, options, dynamic)

    monkeypatch.setattr("support.run.function", called)
    assert_right(case, "cpu")
    assert_right(replace(case, options=None), "cpu")
    assert given == [case.options, None] and shared == [1, parallelise.WORTH_THREADS] and shared[1] > 1
