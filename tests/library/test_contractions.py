"""Attention and contractions against PyTorch.

Modules: library.attention library.winograd
"""
from __future__ import annotations

import pytest
from support.library import TARGETS, Case, assert_agrees, assert_family_covered, cases, runs

HEADS = (
    {"B": 2, "H": 3, "Q": 5, "K": 7, "D": 4, "E": 6},
    {"B": 1, "H": 1, "Q": 1, "K": 1, "D": 1, "E": 1},
    {"B": 1, "H": 2, "Q": 9, "K": 9, "D": 8, "E": 8},
)
ATTENTION = [
    case for name in ("attention", "causal_attention", "biased_attention") for case in cases(name, *HEADS, scalars={"scale": 0.375})
]
CONTRACTIONS = [
    *cases("dot", {"N": 1}, {"N": 7}, {"N": 1000}),
    *cases("outer", {"M": 5, "N": 7}, {"M": 1, "N": 40}),
    *cases("bilinear", {"B": 3, "I": 4, "J": 5, "O": 2}, {"B": 1, "I": 1, "J": 9, "O": 1}),
    *cases("mttkrp", {"I": 5, "J": 6, "K": 7, "R": 3}, {"I": 1, "J": 2, "K": 33, "R": 1}),
    *cases("tensordot_channels", {"N": 2, "A": 3, "B": 4, "C": 2, "H": 3, "W": 5}),
    *cases("tccg4", {"A": 3, "B": 4, "C": 5, "D": 2, "E": 6, "F": 3}, {"A": 1, "B": 1, "C": 7, "D": 9, "E": 2, "F": 1}),
    *cases("kronecker3", {"M": 2, "N0": 3, "N1": 4, "N2": 5, "D0": 2, "D1": 6, "D2": 3}),
]


@pytest.mark.parametrize(("case", "dtype", "target"), runs(ATTENTION + CONTRACTIONS))
def test_agrees_with_pytorch(case: Case, dtype: str, target: str) -> None:
    assert_agrees(case, dtype, target)


@pytest.mark.sample(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_keep_wide_scores(dtype: str, target: str) -> None:
    assert_agrees(Case("attention", HEADS[0], {"scale": 0.5}), dtype, target)


def test_every_operator_has_a_case() -> None:
    assert_family_covered("attention", ATTENTION)
    assert_family_covered("contractions", CONTRACTIONS)
