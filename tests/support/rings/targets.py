"""The targets on which the conformance suite runs, as parameters of its tests.

``@pytest.mark.parametrize("on", everywhere())`` runs a test once for each, with the target's name; ``everywhere(cuda="why")`` leaves one
out, and says why. The CPU and CUDA text on the host are run where the test is. PoCL may crash, and a kernel that goes astray takes CUDA
away from its process: a test on these is run by a worker (see ``conftest.py``), and what pytest says of it there is what it says here.
``pytest --here`` runs all in its own process.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import tcjit
from support.rings.cuda_host import COMPILER
from support.rings.cuda_target import TARGET as CUDA_HOST
from tcjit.mapping.options import Options

_WATCHED = pytest.mark.skipif(COMPILER is None, reason="needs g++")
_MARKS = {
    "cpu": (),
    CUDA_HOST: (_WATCHED,),
    "opencl": (pytest.mark.opencl, pytest.mark.apart("opencl")),
    "cuda": (pytest.mark.cuda, pytest.mark.apart("cuda")),
}


def everywhere(**without: str) -> list[Any]:
    """Parameters: the targets but for those ``without`` which a test must do, each with the reason."""
    assert all(name in _MARKS and why for name, why in without.items()), without
    return [on(name) for name in _MARKS if name not in without]


def on(name: str, *before: object, marks: Sequence[pytest.MarkDecorator] = ()) -> Any:
    """One target as a parameter, behind others of the same test."""
    return pytest.param(*before, name, marks=(*_MARKS.get(name, ()), *marks), id="-".join(map(str, (*before, name))))



# ---------------------------------------------------------------- what many of its tests do


def small(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Small whole numbers, on which sums and products are exact."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def only(text: str, **named: Any) -> Any:
    """The one def of a text."""
    defs = tcjit.define(text, **named)
    (name,) = defs
    return defs[name]


def assert_agrees(target: str, text: str, *args: Any, out: torch.Tensor | None = None, options: Options | None = None) -> None:
    """A def computes on a target what the reference says, bit for bit (the values are exact); -0.0 counts as 0.0."""

    def results(target: str, options: Options | None) -> tuple[torch.Tensor, ...]:
        given = None if out is None else out.clone()
        found = only(text, target=target, options=options)(*args, out=given)
        return found if isinstance(found, tuple) else (found,)

    for actual, expected in zip(results(target, options), results("reference", None), strict=True):
        assert actual.dtype == expected.dtype and actual.shape == expected.shape
        assert torch.equal(actual.double().nan_to_num(nan=1e300), expected.double().nan_to_num(nan=1e300)), (actual, expected)
