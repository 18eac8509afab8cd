"""Gradients of the library's operators through PyTorch, compiled: beside the PyTorch expression above each def, and PyTorch's own checks.

Modules: jit.derivative
"""
from __future__ import annotations

from typing import Any

import pytest
import torch
from support.library import NAMES, Case, expected, inputs, listed

import tcjit
from tcjit import library

WITHOUT = ("batch_norm_inference",)  # PyTorch has no derivative by the statistics
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.sample(4)]


def prepared(name: str, case: Case) -> tuple[Any, dict[str, Any]]:
    """The operator in float64, and arguments whose floats require gradients."""
    function = tcjit.define(library.source(name, "float64"), target="cpu")[name]
    given = inputs(case, function.signature.params, "float64")
    tensors = {n: value.requires_grad_() if value.is_floating_point() else value for n, value in given.items()}
    return function, {**tensors, **case.scalars}


def summed(results: Any) -> torch.Tensor:
    """A number that every float among some results has a part in."""
    several = results if isinstance(results, (tuple, list)) else (results,)
    floats = [result for result in several if result.is_floating_point()]
    weights = [torch.linspace(0.5, 1.5, result.numel(), dtype=result.dtype).view_as(result) for result in floats]
    return torch.stack([(result * weight).sum() for result, weight in zip(floats, weights, strict=True)]).sum()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITHOUT])
def test_gradients_are_those_of_pytorch(name: str) -> None:
    for case in (listed()[name][0], listed()[name][-1]):
        function, given = prepared(name, case)
        wanted = [value for value in given.values() if isinstance(value, torch.Tensor) and value.requires_grad]
        got = torch.autograd.grad(summed(function(*(given[p.name] for p in function.signature.params))), wanted, allow_unused=True)
        tensors = {n: value for n, value in given.items() if n not in case.scalars}
        want = torch.autograd.grad(summed(expected(case, tensors)), wanted, allow_unused=True)
        for mine, theirs, of in zip(got, want, wanted, strict=True):
            zeros = torch.zeros_like(of)
            mine, theirs = (zeros if g is None else g for g in (mine, theirs))
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7 * (1 + float(theirs.abs().max())) if theirs.numel() else 0)


@pytest.mark.parametrize("name", NAMES)
def test_pytorchs_checks_of_an_operator(name: str) -> None:
    function, given = prepared(name, listed()[name][0])
    args = tuple(given[p.name] for p in function.signature.params)
    torch.library.opcheck(function._overload, args, test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))
