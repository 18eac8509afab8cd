"""Activations, reductions and losses against PyTorch.

Modules: library.activations library.embedding library.losses library.rearrangement
"""
from __future__ import annotations

import pytest
import torch
from support.library import TARGETS, Case, assert_agrees, assert_family_covered, below, between, cases, coin, distribution, normal, runs

LINES = ({"N": 1}, {"N": 7}, {"N": 131})
ROWS = ({"M": 5, "N": 7}, {"M": 1, "N": 1}, {"M": 3, "N": 130}, {"M": 40, "N": 2})


def tails(random: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    """Wide enough to meet every branch and both tails."""
    return 8 * torch.randn(shape, generator=random, dtype=torch.float64)


def log_distribution(random: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.log_softmax(normal(random, shape), -1)


SCALARS = {"leaky_relu": {"slope": 0.125}, "elu": {"alpha": 1.5}, "hardtanh": {"low": -0.75, "high": 2.0}}
PLAIN = (
    "relu leaky_relu elu selu gelu gelu_tanh sigmoid log_sigmoid tanh silu mish softplus softsign hardtanh hardsigmoid hardswish".split()
)
ACTIVATIONS = [
    *(case for name in PLAIN for case in cases(name, *LINES, scalars=SCALARS.get(name), draws={"X": tails})),
    *cases("prelu", {"M": 5, "C": 7}, {"M": 1, "C": 1}),
    *cases("bias_gelu", *ROWS),
    *cases("swiglu", *LINES),
]

REDUCTIONS = [
    *(case for name in ("row_sum", "column_sum", "total_sum", "row_mean", "row_max", "row_min", "row_norm") for case in cases(name, *ROWS)),
    *cases("row_prod", *ROWS, draws={"X": between(0.8, 1.2)}),
    *(case for name in ("row_logsumexp", "moments") for case in cases(name, *ROWS)),
    *cases("moments_one_pass", *ROWS),
]

CLASSES = {"Class": below(4)}
SAMPLES = ({"N": 5, "C": 4}, {"N": 1, "C": 6}, {"N": 33, "C": 9})
LOSSES = [
    *(case for name in ("mse_loss", "l1_loss") for case in cases(name, *LINES)),
    *cases("huber_loss", *LINES, scalars={"delta": 0.75}),
    *cases("smooth_l1_loss", *LINES, scalars={"beta": 0.75}),
    *cases("cross_entropy", *SAMPLES, draws=CLASSES),
    *cases("soft_cross_entropy", *SAMPLES, draws={"P": distribution}),
    *cases("nll_loss", *SAMPLES, draws={**CLASSES, "X": log_distribution}),
    *cases("bce_loss", *LINES, draws={"P": between(0.01, 0.99), "Y": coin}),
    *cases("bce_with_logits_loss", *LINES, draws={"X": tails, "Y": coin}),
    *cases("kl_div_loss", *SAMPLES, draws={"X": log_distribution, "P": distribution}),
]


@pytest.mark.parametrize(("case", "dtype", "target"), runs(ACTIVATIONS + REDUCTIONS + LOSSES))
def test_agrees_with_pytorch(case: Case, dtype: str, target: str) -> None:
    assert_agrees(case, dtype, target)


@pytest.mark.sample(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["gelu", "silu", "relu", "mse_loss"])
def test_half_types(name: str, dtype: str, target: str) -> None:
    assert_agrees(Case(name, {"N": 100}), dtype, target)


def test_every_operator_has_a_case() -> None:
    assert_family_covered("activations", ACTIVATIONS)
    assert_family_covered("reductions", REDUCTIONS)
    assert_family_covered("losses", LOSSES)
