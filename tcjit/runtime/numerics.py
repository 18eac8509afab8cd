"""The language's numbers in NumPy: how each scalar type rounds, wraps and converts.

Floats of every type are carried as float64 arrays, integers in arrays of their own type, bools as NumPy bools.
"""
from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tcjit.grammar.dtypes import DTYPES, FORMATS

Array = npt.NDArray[Any]


def is_float(dtype: str) -> bool:
    return DTYPES[dtype].kind == "float"


def computed_in(dtype: str) -> str:
    """The float type in which targets evaluate expressions of ``dtype``."""
    return "float64" if dtype == "float64" else "float32"


def storage(dtype: str) -> np.dtype[Any]:
    """The NumPy type that carries values of ``dtype`` here."""
    return np.dtype(np.float64) if is_float(dtype) else np.dtype(dtype)


def rounded(x: Array, dtype: str) -> Array:
    """float64 values rounded to nearest even in a float type; overflow gives infinity, denormals and NaN are kept.

    >>> float(rounded(np.array(0.1), "bfloat16"))
    0.10009765625
    """
    if dtype == "float64":
        return x
    if dtype != "bfloat16":
        narrow: Array = x.astype(np.dtype(dtype)).astype(np.float64)
        return narrow
    form = FORMATS[dtype]
    _, exponent = np.frexp(x)
    quantum = np.maximum(exponent - form.digits, form.least)
    grid = np.ldexp(np.rint(np.ldexp(x, -quantum)), quantum)
    grid = np.where(np.abs(grid) > form.greatest, np.copysign(np.inf, x), grid)
    return np.where(np.isfinite(x), grid, x)


def convert(x: Array, source: str, target: str) -> Array:
    """A cast: integers wrap, floats round, float to integer truncates and saturates with NaN giving 0, any non-zero is true.

    >>> convert(np.array([300.7, -1e9, np.nan]), "float32", "uint8").tolist()
    [255, 0, 0]
    >>> convert(np.array([200], dtype="uint8"), "uint8", "int8").tolist()
    [-56]
    """
    if source == target and not is_float(source):
        return x
    if is_float(target):
        return rounded(x.astype(np.float64), target)
    if target == "bool" or not is_float(source):
        return (x != 0) if target == "bool" else x.astype(np.dtype(target))
    kind = DTYPES[target]
    below, above = x <= float(kind.least), x >= float(kind.greatest)  # 2^63 and 2^64 as floats: at or above saturates
    inside = np.where(below | above | np.isnan(x), 0.0, x).astype(np.dtype(target))
    result: Array = np.where(below, np.asarray(kind.least, inside.dtype), inside)
    return np.where(above, np.asarray(kind.greatest, inside.dtype), result)


def identity(operator: str, dtype: str) -> Array:
    """The value that ``operator`` (one of ``+ * min max``) leaves alone, as a 0-d array."""
    kind = DTYPES[dtype]
    if operator in "+*":
        value: float | int = 0 if operator == "+" else 1
    elif kind.kind == "float":
        value = np.inf if operator == "min" else -np.inf
    else:
        value = kind.greatest if operator == "min" else kind.least
    return np.asarray(value, storage(dtype))
