"""Softmax and normalisation against PyTorch.

Modules: library.reductions library.softmax
"""
from __future__ import annotations

import pytest
import torch
from support.library import TARGETS, Case, assert_agrees, assert_family_covered, between, cases, runs

ROWS = ({"M": 5, "N": 7}, {"M": 1, "N": 1}, {"M": 3, "N": 130}, {"M": 40, "N": 2})
PLANE = ({"N": 2, "C": 3, "H": 5, "W": 4}, {"N": 1, "C": 1, "H": 7, "W": 9})
EPS = {"eps": 1e-3}


def far(random: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    """So large that an exponential overflows unless the row's greatest element is taken off."""
    return 300 * torch.randn(shape, generator=random, dtype=torch.float64)


SOFTMAX = [
    *(case for name in ("softmax", "log_softmax") for case in cases(name, *ROWS)),
    *(case for name in ("softmax", "log_softmax") for case in cases(name, {"M": 4, "N": 9}, draws={"X": far})),
]
CASES = [
    *(case for name in ("layer_norm", "rms_norm", "l2_normalize") for case in cases(name, *ROWS, scalars=EPS)),
    *cases("group_norm", {"N": 2, "G": 3, "C": 2, "H": 4, "W": 5}, {"N": 1, "G": 1, "C": 1, "H": 6, "W": 3}, scalars=EPS),
    *cases("instance_norm", *PLANE, scalars=EPS),
    *cases("batch_norm_training", *PLANE, scalars=EPS),
    *cases("batch_norm_inference", *PLANE, scalars=EPS, draws={"var": between(0.1, 2.0)}),
]


@pytest.mark.parametrize(("case", "dtype", "target"), runs(SOFTMAX + CASES))
def test_agrees_with_pytorch(case: Case, dtype: str, target: str) -> None:
    assert_agrees(case, dtype, target)


@pytest.mark.sample(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_statistics_of_half_types_are_wide(name: str, dtype: str, target: str) -> None:
    assert_agrees(Case(name, {"M": 3, "N": 100}, EPS if name == "layer_norm" else {}), dtype, target)


def test_every_operator_has_a_case() -> None:
    assert_family_covered("softmax", SOFTMAX)
    assert_family_covered("normalization", CASES)
