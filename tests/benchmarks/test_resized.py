"""Written operators at other sizes: what is drawn, what is kept, and what is left out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import tcjit

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "peers")]
from generality.resized import NotResized, resized, shapes  # noqa: E402
from generality.written_operators import OPERATORS, WrittenOperator  # noqa: E402

PRODUCT = "def product(float(M,K) A, float(4,K) B) -> (C) { C(m,n) +=! A(m,k) * B(n,k) }"


def arguments(g: torch.Generator) -> list[torch.Tensor]:
    return [torch.randn(50, 60, generator=g).T, torch.randn(4, 50, generator=g)]


def operator(reference: Callable[..., torch.Tensor] = lambda a, b: a @ b.T) -> WrittenOperator:
    return WrittenOperator("product", PRODUCT, arguments, reference, 1e-5)


def test_sizes_agree_and_layouts_stay() -> None:
    drawn = set()
    for seed in range(8):
        a, b = resized(operator(), seed).tensors()
        assert a.shape[1] == b.shape[1] and b.shape[0] == 4 and a.stride() == (1, a.shape[0])
        assert [tuple(t.shape) for t in resized(operator(), seed).tensors()] == [tuple(a.shape), tuple(b.shape)]
        drawn.add(shapes([a, b]))
    assert len(drawn) >= 6


def test_elements_are_those_at_proportional_places() -> None:
    one = operator()
    (before, _), (after, _) = one.tensors(), resized(one, 1).tensors()
    places = [torch.arange(new) * old // new for new, old in zip(after.shape, before.shape, strict=True)]
    assert torch.equal(after, before[places[0]][:, places[1]])


def test_a_form_for_its_own_sizes_is_left_out() -> None:
    with pytest.raises(NotResized, match="PyTorch's form"):
        resized(operator(lambda a, b: a.reshape(60, 50) @ b.T), 1)
    fixed = WrittenOperator("f", "def f(float(3) A) -> (C) { C(i) = A(i) }", lambda g: [torch.ones(3)], lambda a: a, 0.0)
    with pytest.raises(NotResized, match="as they were"):
        resized(fixed, 1)


@pytest.mark.parametrize("name", ["swiglu_bf16", "circulant", "maxpool_nhwc_bf16", "hifigan_upsample_1d", "convnext_dw7_layernorm"])
@pytest.mark.parametrize("seed", [3, 5])
def test_results_agree_with_pytorch(name: str, seed: int) -> None:
    other = resized(OPERATORS[name], seed)
    tensors = other.tensors()
    assert shapes(tensors) != shapes(OPERATORS[name].tensors())
    result = tcjit.define(other.text, target="cpu")[other.entry](*tensors)
    assert other.error(result, other.reference(*tensors)) <= other.tolerance
