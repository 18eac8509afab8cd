"""Derivatives of the library's operators in float64: two orders against the PyTorch expression above each def, and forward against reverse.

Modules: grammar.differentiate.adjoint grammar.differentiate.tangent grammar.differentiate.shifts
"""
from __future__ import annotations

import functools

import pytest
import torch
from support.derivatives import Differentiable, Values, distance, dual_product, gradients, interpret
from support.library import NAMES, Case, expected, inputs, listed

from tcjit import library
from tcjit.grammar import front
from tcjit.grammar.ast import Def

WITHOUT = ("batch_norm_inference",)  # PyTorch has no derivative by the statistics


@functools.cache
def function(name: str) -> Differentiable:
    return Differentiable(front.read(library.source(name, "float64"))[-1])


def arguments(case: Case, definition: Def) -> Values:
    scalars = {n: torch.tensor(v, dtype=torch.float64) if isinstance(v, float) else v for n, v in case.scalars.items()}
    return {**inputs(case, definition.params, "float64"), **scalars}


def by_pytorch(case: Case, definition: Def, given: Values) -> dict[str, torch.Tensor]:
    """The documented expression of tensors that require gradients; scalars are numbers in it."""
    tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor) and name not in case.scalars}
    return dict(zip(definition.returns, expected(case, tensors), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_two_orders(name: str) -> None:
    """The interpreter of the language is the judge: PyTorch lacks second derivatives of some of the expressions."""
    made, definition = function(name), function(name).definition
    case = listed()[name][0]
    args = arguments(case, definition)
    for got, want in zip(gradients(made, args, 2), gradients(lambda given: interpret(definition, given), args, 2), strict=True):
        assert len(got) == len(want)
        assert max(map(distance, got, want)) < 1e-8


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT])
def test_the_first_order_is_that_of_pytorch(name: str) -> None:
    made, definition = function(name), function(name).definition
    case = listed()[name][-1]
    tensors = {n: v for n, v in arguments(case, definition).items() if n not in case.scalars or not isinstance(v, torch.Tensor)}
    numbers = {n: v for n, v in case.scalars.items() if isinstance(v, float)}
    got = gradients(lambda given: made({**given, **numbers}), tensors, 1)[0]
    want = gradients(lambda given: by_pytorch(case, definition, given), tensors, 1)[0]
    assert max(map(distance, got, want)) < 1e-7  # ATen has 1/6 in float32 for `hardsigmoid`


@pytest.mark.parametrize("name", NAMES)
def test_forward_and_reverse_mode_are_dual(name: str) -> None:
    definition = function(name).definition
    one, other = dual_product(definition, arguments(listed()[name][0], definition))
    assert abs(one - other) <= 1e-10 * (1 + abs(one))
