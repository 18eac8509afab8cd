"""``torch.vmap`` of every operator of the library: over all tensors, over each alone, over its numbers, as a call for each element gives.

Modules: grammar.batch jit.autograd
"""
from __future__ import annotations

from typing import Any

import pytest
import torch
from support.library import inputs, listed
from torch.func import vmap

import tcjit
from tcjit import library

TARGETS = ["reference", pytest.param("cpu", marks=pytest.mark.whole)]


def two(value: Any) -> torch.Tensor:
    """A batch of a value and another one that will do: the same elements elsewhere, or a number nearby."""
    if isinstance(value, torch.Tensor):
        return torch.stack([value, value.flip(tuple(range(value.dim())))])
    return torch.tensor([value, value + 0.125], dtype=torch.float64)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", library.names())
def test_a_batch_is_a_call_for_each_element(name: str, target: str) -> None:
    function = tcjit.define(library.source(name, "float64"), target=target)[name]
    params, case = function.signature.params, listed()[name][0]
    drawn = inputs(case, params, "float64")
    args = [drawn[param.name] if param.dims else case.scalars[param.name] for param in params]
    tensors = [number for number, param in enumerate(params) if param.dims]
    numbers = [number for number, param in enumerate(params) if not param.dims and param.dtype == "float64"]
    for batched in ([*tensors], *([one] for one in tensors if len(tensors) > 1), [*numbers]):
        if not batched:
            continue
        given = [two(value) if number in batched else value for number, value in enumerate(args)]
        dimensions = tuple(0 if number in batched else None for number in range(len(args)))
        found = vmap(function, dimensions)(*given)
        rows = [function(*(value[row] if number in batched else value for number, value in enumerate(given))) for row in range(2)]
        expected = tuple(map(torch.stack, zip(*rows))) if isinstance(rows[0], tuple) else torch.stack(rows)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12, equal_nan=True, msg=lambda text: f"{batched}: {text}")  # noqa: B023
        made = function.batched(frozenset(params[number].name for number in batched))
        assert made.origin is not None and made.origin[0] is function
