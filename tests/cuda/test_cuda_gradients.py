"""Gradients of calls on tensors of a GPU: autograd's own threads, streams, cotangents without dimensions."""
from __future__ import annotations

from typing import Any

import pytest
import torch
from support.gradients import EXPRESSIONS, arguments, defs
from torch.func import grad, vmap

pytestmark = pytest.mark.cuda


def on_gpu(name: str) -> tuple[Any, ...]:
    args = arguments(name, grad=False)
    return tuple(a.cuda().requires_grad_(a.is_floating_point()) if isinstance(a, torch.Tensor) else a for a in args)


def gradients(function: Any, args: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    inputs = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    return torch.autograd.grad(function(*args).sin().sum(), inputs)


@pytest.mark.parametrize("side", [False, True])
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_gradients_are_pytorchs(name: str, side: bool) -> None:
    stream = torch.cuda.Stream() if side else torch.cuda.default_stream()
    with torch.cuda.stream(stream):
        args = on_gpu(name)
        torch.testing.assert_close(gradients(defs()[name], args), gradients(EXPRESSIONS[name], args))
        stream.synchronize()


def test_second_order() -> None:
    assert torch.autograd.gradgradcheck(defs().mm, on_gpu("mm"))


def test_transforms() -> None:
    x = torch.randn(5, 4, dtype=torch.float64, device="cuda")
    found = vmap(grad(lambda row: defs().cube(row).sum()))(x)
    torch.testing.assert_close(found, 3 * x * x)
