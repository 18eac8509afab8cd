"""A written operator at other sizes: what each size of its parameters stands for is drawn anew."""
from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import torch

from generality.sizes import extent
from generality.written_operators.operator import WrittenOperator
from tcjit.jit.compile import definition

LEAST, MOST = 1 / 3, 2.5  # of a size, one factor as likely as another in proportion
SAME, ONE = 0.25, 0.05  # how often a size is left, and how often it is 1
MOST_BYTES = 2e8  # of all arguments


class NotResized(Exception):
    """The operator is not timed at other sizes; says why."""


def resized(one: WrittenOperator, seed: int) -> WrittenOperator:
    """The operator with arguments of other sizes, whose elements are those of the arguments at proportional places, stored in the order of
    theirs.

    Raises:
        NotResized: PyTorch's form is written for the operator's own sizes, the arguments are too large, or no size is open.
    """
    rng = random.Random(f"{seed}/{one.name}")
    tensors = one.tensors()
    parameters = definition(one.text, one.entry).params
    pairs = [pair for parameter, tensor in zip(parameters, tensors) for pair in zip(parameter.dims, tensor.shape)]
    sizes = {dim: n for dim, n in pairs if isinstance(dim, str)}
    drawn = {name: _drawn(rng, n) for name, n in sizes.items()}
    if drawn == sizes:
        raise NotResized("its sizes are as they were")
    wanted = [
        [drawn[dim] if isinstance(dim, str) and dim in drawn else n for dim, n in zip(parameter.dims, tensor.shape)]
        for parameter, tensor in zip(parameters, tensors)
    ]
    others = [_taken(tensor, shape) for tensor, shape in zip(tensors, wanted)]
    if sum(tensor.numel() * tensor.element_size() for tensor in others) > MOST_BYTES:
        raise NotResized("its arguments are too large")
    try:
        with torch.no_grad():
            one.reference(*others)
    except (RuntimeError, IndexError, ValueError, AssertionError, TypeError) as error:
        raise NotResized(f"PyTorch's form: {str(error).splitlines()[0][:80]}") from error
    return replace(one, arguments=lambda g: [_taken(tensor, shape) for tensor, shape in zip(one.arguments(g), wanted)])


def shapes(tensors: Sequence[torch.Tensor]) -> str:
    """For a table."""
    return " ".join("x".join(map(str, tensor.shape)) or "()" for tensor in tensors)


def _drawn(rng: random.Random, size: int) -> int:
    kind = rng.random()
    if size == 1 or kind < SAME:
        return size
    return 1 if kind < SAME + ONE else extent(rng, size * math.exp(rng.uniform(math.log(LEAST), math.log(MOST))))


def _taken(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Of a tensor the elements at proportional places, dimensions in the order of its strides."""
    order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
    result = tensor.permute(order)
    for place, dim in enumerate(order):
        if shape[dim] != tensor.shape[dim]:
            result = result.index_select(place, torch.arange(shape[dim]) * tensor.shape[dim] // shape[dim])
    return result.contiguous().permute(sorted(range(len(order)), key=lambda dim: order[dim]))
