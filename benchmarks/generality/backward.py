"""Gradients of written operators: the calls that are timed, and how far they are from PyTorch's."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

import tcjit
from generality.measure import ALLOWED, largest_error
from generality.written_operators import WrittenOperator

Gradients = tuple[torch.Tensor, ...]
Form = tuple[Callable[..., Any], Sequence[torch.Tensor]]
SEED = 2  # of the gradients of the results
LEAST_LIMIT = 1e-3  # of the error of a gradient, where its operator says nothing larger
HALVES = 0.1  # in a half type: PyTorch rounds in between, and a relu's sign may turn with that


# Operators whose gradients are not those of PyTorch's form, and why.
DIFFERENT = {
    "batch_hard_triplet": "the slope of a root at 0, which PyTorch's distances take as 0",
    "block6_schur_solve": "PyTorch's form reads one half of a symmetric matrix",
    "distance_correlation": "the slope of a root at 0, which PyTorch's distances take as 0",
    "fp8_e4m3_roundtrip": "PyTorch's form has casts with a gradient in the place of rounding",
    "ldpc_min_sum_check_bf16": "ties, of which PyTorch's form takes the first",
    "maxpool_nhwc_bf16": "ties, of which PyTorch's form takes the first",
    "silhouette_samples": "the slope of a root at 0, which PyTorch's distances take as 0",
}


class NoGradients(Exception):
    """No result has gradients in every form, or PyTorch's form has none because it writes in place, or other ones."""


def backwards(forms: Mapping[str, Form]) -> dict[str, Callable[[], Gradients]]:
    """Calls that give the gradients of several forms of one operator, each at its tensors, for the results that have some in every form."""
    found = {}
    for name, (form, given) in forms.items():
        tensors = [t.detach().requires_grad_() if t.is_floating_point() else t for t in given]
        try:
            results = form(*tensors)
        except RuntimeError as error:
            if "not differentiable with respect to" not in str(error):  # a statistic, which tcjit has the gradient of
                raise
            raise NoGradients(f"PyTorch: {error}") from None
        found[name] = ([t for t in tensors if t.requires_grad], results if isinstance(results, tuple) else (results,))
    each = list(zip(*(results for _, results in found.values()), strict=True))
    both = [at for at, several in enumerate(each) if all(result.requires_grad for result in several)]
    if not both:
        raise NoGradients("no result has gradients")
    generator = torch.Generator().manual_seed(SEED)
    seeds = [torch.randn(each[at][0].shape, generator=generator) for at in both]
    return {
        name: partial(
            torch.autograd.grad, [results[at] for at in both], wanted, [seed.to(results[at]) for seed, at in zip(seeds, both, strict=True)],
            retain_graph=True, allow_unused=True,
        )
        for name, (wanted, results) in found.items()
    }  # fmt: skip


def checked_gradients(one: WrittenOperator, tensors: Sequence[torch.Tensor]) -> tuple[float, float]:
    """The largest error of a gradient relative to its largest magnitude, PyTorch's on the host being right, and the largest that is
    allowed. One above that does not count where it is a few times PyTorch's own: of a gradient that is zero but for rounding nothing else
    is left. Arguments that PyTorch's form does not read are not compared."""
    if one.name in DIFFERENT:
        raise NoGradients(f"not compared: {DIFFERENT[one.name]}")
    halves = any(t.dtype in (torch.float16, torch.bfloat16) for t in tensors)
    limit, host = HALVES if halves else max(LEAST_LIMIT, 10 * one.tolerance), one.tensors()
    calls = backwards({"tcjit": (tcjit.define(one.text)[one.entry], tensors), "eager": (one.reference, host)})
    own = calls["tcjit"]()
    try:
        expected = calls["eager"]()
    except RuntimeError as error:
        raise NoGradients(f"PyTorch: {error}") from None
    worst = 0.0
    for at, (a, b) in enumerate(zip(own, expected, strict=True)):
        if a is None or b is None:
            if a is not None or b is None:  # PyTorch's form has constants in its place
                continue
            a = torch.zeros_like(b)
        relative = largest_error(a.to(b.device), b) / max(float(b.double().abs().max()) if b.numel() else 0.0, 1e-30)
        if relative > limit and (true := _exact(one, host, at)) is not None:
            if largest_error(a.to(b.device), true) <= ALLOWED * largest_error(b, true):
                continue
        worst = max(worst, relative)
    return worst, limit


def _exact(one: WrittenOperator, tensors: Sequence[torch.Tensor], at: int) -> torch.Tensor | None:
    """A gradient in double; None where PyTorch's form is of one type."""
    try:
        return backwards({"eager": (one.reference, [t.double() if t.is_floating_point() else t for t in tensors])})["eager"]()[at]
    except RuntimeError:
        return None
