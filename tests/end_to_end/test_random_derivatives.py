"""Random programs, several statements writing one tensor among them: the adjoint against autograd, the normal form against the def.

Modules: grammar.differentiate.adjoint grammar.differentiate.normalise
"""
from __future__ import annotations

import random

import numpy as np
import pytest
from support.compare import assert_agree
from support.derivatives import failure, second_order_failure
from support.fuzz.programs import draw

from tcjit.grammar.differentiate.normalise import normalise
from tcjit.grammar.differentiate.write import normal_text
from tcjit.grammar.front import read
from tcjit.grammar.infer import specialise
from tcjit.runtime import reference

PIECE = 25


@pytest.mark.sample(2)
@pytest.mark.parametrize("first", range(0, 500, PIECE))
def test_adjoints(first: int) -> None:
    """Odd seeds with the numbers of their sizes and scalars."""
    assert [what for seed in range(first, first + PIECE) if (what := failure(seed))] == []


@pytest.mark.sample(2)
@pytest.mark.parametrize("first", range(0, 50, PIECE))
def test_adjoints_of_adjoints(first: int) -> None:
    assert [what for seed in range(first, first + PIECE) if (what := second_order_failure(seed))] == []


@pytest.mark.parametrize("first", range(0, 100, PIECE))
def test_normal_forms(first: int) -> None:
    for seed in range(first, first + PIECE):
        case = draw(random.Random(seed))
        if case.faults:
            continue
        definition, program = case.definition(), case.program()
        form = normalise(definition)
        again = read(normal_text(form))[-1]
        initial = case.outputs(program)
        inputs = {**case.inputs(), **{form.initial[name]: array for name, array in initial.items() if name in form.initial}}
        scalars = {**case.scalars, **{name: array.item() for name, array in inputs.items() if not array.ndim}}
        tensors = {name: array for name, array in inputs.items() if array.ndim}
        whole = {name: int(value) for name, value in scalars.items() if name in again.specialised}
        got = reference.run(specialise(again, {name: array.shape for name, array in tensors.items()}, whole), tensors, scalars)
        want = reference.run(program, case.inputs(), case.scalars, initial)
        for name in definition.returns:
            assert_agree(np.asarray(got.values[name]), want, name)
