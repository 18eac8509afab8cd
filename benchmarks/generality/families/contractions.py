"""Sums of products of one to three operands, in any order of their indices."""
from __future__ import annotations

import math
import random
from functools import partial

import torch

from generality.operators import Argument, Operator, Work, size_of
from generality.sizes import extents, layout

LETTERS = "abcdefgh"
OPERANDS = "XUV"


def contraction(rng: random.Random, seconds: float, dtype: str = "") -> Operator:
    """Each index in the operands and the result that its role says; orders of all of them at random."""
    dtype = dtype or rng.choices(["float", "double"], [5, 1])[0]
    count = rng.choices([1, 2, 3], [1, 5, 2])[0]
    operands, result = _ONE_TO_THREE[count](rng)
    operands = [_shuffled(rng, operand) for operand in operands]
    return product(rng, seconds, "contraction", operands, _shuffled(rng, result), dtype)


def product(rng: random.Random, seconds: float, family: str, operands: list[str], result: str, dtype: str) -> Operator:
    """The contraction of operands with these indices, at sizes for an amount of work."""
    letters = sorted(set("".join(operands)))

    def cost(*values: float) -> Work:
        size = dict(zip(letters, values))
        moved = sum(_volume(size, operand) for operand in [*operands, result])
        return Work(max(1, len(operands)) * _volume(size, letters), size_of(dtype) * moved)

    values = extents(rng, seconds, cost, [2] * len(letters))
    size = dict(zip(letters, values))
    arguments = [
        Argument(name, tuple(size[i] for i in operand), dtype, order=layout(rng, len(operand)))
        for name, operand in zip(OPERANDS, operands)
    ]
    params = ", ".join(f"{dtype}({','.join(operand.upper())}) {name}" for name, operand in zip(OPERANDS, operands))
    value = " * ".join(f"{name}({','.join(operand)})" for name, operand in zip(OPERANDS, operands))
    left = f"O({','.join(result)})" if result else "O"
    text = f"def {family}({params}) -> (O) {{\n    {left} +=! {value}\n}}"
    equation = f"{','.join(operands)}->{result}"
    name = f"{equation} " + " ".join(f"{letter}={size[letter]}" for letter in letters)
    return Operator(family, name, text, tuple(arguments), partial(torch.einsum, equation), cost(*values), dtype)


def _volume(size: dict[str, float], indices: str | list[str]) -> float:
    return math.prod(size[index] for index in indices)


def _shuffled(rng: random.Random, indices: str) -> str:
    return "".join(rng.sample(indices, len(indices))) if rng.random() < 0.7 else indices


def _one(rng: random.Random) -> tuple[list[str], str]:
    rank = rng.randint(2, 4)
    kept = rng.randint(0, rank - 1)
    return [LETTERS[:rank]], "".join(sorted(rng.sample(LETTERS[:rank], kept)))


def _two(rng: random.Random) -> tuple[list[str], str]:
    """Batch, rows, columns and terms of a matrix product, each of none to two indices; rarely none of them summed."""
    letters = iter(LETTERS)
    batch, rows, columns, terms = (
        "".join(next(letters) for _ in range(rng.choices(range(3), weights)[0]))
        for weights in ([6, 3, 1], [1, 6, 2], [1, 6, 2], [1, 7, 3])
    )
    if not batch + rows + terms:
        rows = next(letters)
    if not batch + columns + terms:
        columns = next(letters)
    return [batch + rows + terms, batch + terms + columns], batch + rows + columns


def _three(rng: random.Random) -> tuple[list[str], str]:
    """Each of three to five indices in some of the operands, and in the result or summed."""
    while True:
        letters = LETTERS[: rng.randint(3, 5)]
        operands = ["", "", ""]
        for letter in letters:
            for place in rng.sample(range(3), rng.choices([1, 2, 3], [2, 5, 1])[0]):
                operands[place] += letter
        if all(operands):
            return operands, "".join(letter for letter in letters if rng.random() < 0.55)


_ONE_TO_THREE = {1: _one, 2: _two, 3: _three}
