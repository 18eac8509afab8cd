"""Values that find mistakes: the ends of types, ties, signed zeros, NaN, infinities."""
from __future__ import annotations

import itertools
import math

import numpy as np
import torch

from tcjit.grammar.dtypes import DTYPES

INTEGERS = [name for name, d in DTYPES.items() if d.is_integer]
FLOATS = [name for name, d in DTYPES.items() if d.kind == "float"]
NAN, INF = math.nan, math.inf
SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, NAN, INF, -INF]


def edges(dtype: str) -> list[int]:
    """Integers at the ends of a type, around 0 and in between."""
    d = DTYPES[dtype]
    return sorted({v for v in (d.least, d.least + 1, -7, -3, -2, -1, 0, 1, 2, 3, 5, 100, d.greatest // 2, d.greatest - 1, d.greatest)
                   if d.least <= v <= d.greatest})


def pairs(values: list) -> tuple[list, list]:
    a, b = zip(*itertools.product(values, values))
    return list(a), list(b)


def assert_same(got, expected) -> None:
    """Equal, NaN to NaN, zeros of the same sign."""
    got, expected = np.asarray(got), np.asarray(expected)
    np.testing.assert_array_equal(got, expected)
    if got.dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(got) | np.isnan(got), np.signbit(expected) | np.isnan(expected))


def samples(dtype: str) -> list:
    """Values of a type on both sides of what other types hold."""
    if dtype == "bool":
        return [False, True]
    if DTYPES[dtype].is_integer:
        return edges(dtype)
    ends = [s * v for d in INTEGERS for v in (DTYPES[d].greatest, DTYPES[d].greatest + 1.0, DTYPES[d].greatest - 0.75) for s in (1.0, -1.0)]
    both = [*SPECIAL, 0.3, -0.99, 1.5, 127.5, 255.999, -128.5, 1e30, -1e30, 2.0**31 + 1024, 5e-324, 65519.0, 1.00390625000001, *ends]
    exact = torch.tensor(both, dtype=torch.float64).to(getattr(torch, dtype)).double()
    return exact.tolist()
