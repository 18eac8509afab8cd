"""Operators that were written by hand, as researchers would: each agrees with PyTorch's form of it.

Modules: mapping.passes.unroll_dims mapping.passes.reduce_strength
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import tcjit

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "peers")]
from generality.backward import checked_gradients  # noqa: E402
from generality.written_operators import OPERATORS  # noqa: E402

# whose gradients gather, scatter, divide subscripts, or share loops
GRADIENTS = (
    "unfold3", "circulant", "face_normals", "bilinear_sample", "reverse_sequence", "floyd_step", "fem_stiffness", "factorisation_machine",
    "trilinear_volume_sample", "partial_rotary_neox", "ema_rows", "ssd_chunk", "polyphase_resample_3_2",
    "power_spectrogram", "time_delay_aggregate", "edgeconv_max", "blurpool_reflect",
)  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_agree_with_pytorch(name: str) -> None:
    error, _ = checked_gradients(OPERATORS[name], OPERATORS[name].tensors())
    assert error <= max(1e-4, OPERATORS[name].tolerance)


@pytest.mark.sample(4)  # `benchmarks/generality/written.py` compares all of them, too
@pytest.mark.parametrize("name", OPERATORS)
def test_agrees_with_pytorch(name: str) -> None:
    operator = OPERATORS[name]
    tensors = operator.tensors()
    function = tcjit.define(operator.text, target="cpu")[operator.entry]
    result, expected = function(*tensors), operator.reference(*tensors)
    assert operator.error(result, expected) <= operator.tolerance
    pairs = zip(*(found if isinstance(found, tuple) else (found,) for found in (result, function(*tensors))), strict=True)
    assert all(torch.equal(one, again) for one, again in pairs)
