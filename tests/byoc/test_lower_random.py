"""Random compositions of operations, from a fixed seed, as regions against PyTorch."""
from __future__ import annotations

import random

import pytest
import torch
from support.byoc.lower import assert_lowered

_UNARY = ("relu", "sigmoid", "neg", "abs", "tanh", "silu", "exp_small", "hardswish", "square_")
_BINARY = ("add.Tensor", "sub.Tensor", "mul.Tensor", "maximum")


def _step(g, draw, values):
    """One more value from those that there are."""
    x = draw.choice(values)
    shape = list(x.type.shape)
    rank = len(shape)
    dim = draw.randrange(rank) if rank else 0
    match draw.randrange(13):
        case 0 | 1:
            name = draw.choice(_UNARY)
            if name == "exp_small":
                return g("exp", g("clamp", x, -3.0, 3.0))
            return g("mul.Tensor", x, x) if name == "square_" else g(name, x)
        case 2 | 3:
            y = draw.choice(values)
            try:
                torch.broadcast_shapes(shape, y.type.shape)
            except RuntimeError:
                return g("add.Scalar", x, draw.choice((1, -0.5)))
            return g(draw.choice(_BINARY), x, y)
        case 4:
            return g(draw.choice(("sum.dim_IntList", "amax", "mean.dim")), x, [dim], draw.random() < 0.5) if rank else g("neg", x)
        case 5:
            return g("softmax.int", x, dim) if rank else g("relu", x)
        case 6:
            return g("reshape", x, draw.choice(([-1], [1, -1], [*shape[1:], shape[0]] if rank else [1])))
        case 7:
            return g("transpose.int", x, dim, draw.randrange(rank)) if rank else g("unsqueeze", x, 0)
        case 8:
            return g("slice.Tensor", x, dim, draw.randrange(shape[dim]), None, draw.choice((1, 2))) if rank else g("exp", g("tanh", x))
        case 9:
            return g("cat", [x, g("relu", x), x], dim) if rank and x.type.elements < 400 else g("sigmoid", x)
        case 10:
            return g("constant_pad_nd", x, [1, draw.choice((0, 2))], 0.5) if rank else g("add.Scalar", x, 2)
        case 11:
            return g("where.self", g("gt.Scalar", x, 0.1), x, g("mul.Scalar", x, 0.2))
        case _:
            return g("matmul", x, g("transpose.int", x, -1, -2)) if 2 <= rank <= 4 else g("flip", x, [dim] if rank else [])


@pytest.mark.sample(2)
@pytest.mark.parametrize("seed", range(30))
def test_compositions(seed):
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)

    def make(g, *inputs):
        values = list(inputs)
        for _ in range(draw.randrange(4, 12)):
            values.append(_step(g, draw, values))
        # what is computed last, and something in between that is used inside as well
        return dict.fromkeys([values[-1], draw.choice(values[len(inputs) :])])

    shapes = draw.choice((((2, 3, 4), (4,)), ((3, 5), (3, 1)), ((2, 1, 3, 2), (3, 1)), ((6,), ())))
    tensors = (torch.randn(shape, generator=generator) for shape in shapes)
    assert_lowered(lambda g, *inputs: list(make(g, *inputs)), *tensors, rtol=2e-5, atol=2e-5)
