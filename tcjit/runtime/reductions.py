"""Accumulators of one statement: the value of a reduction and what bounds its error, combined piece by piece."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from tcjit.grammar.dtypes import FORMATS
from tcjit.runtime.bounds import Bounded, either, plain
from tcjit.runtime.numerics import Array, computed_in, identity, is_float

UFUNCS: dict[str, Any] = {"+": np.add, "*": np.multiply, "min": np.minimum, "max": np.maximum}
Position = tuple[slice | Array, ...]  # slices for a block, index arrays for a scatter


class Accumulator:
    """The reduction ``operator`` in ``dtype`` over a tensor of ``shape``; starts from ``start``, which is one term of each element.

    ``terms`` bounds the number of terms of an element. With ``track`` off only values are computed.
    """

    def __init__(self, operator: str, dtype: str, start: Bounded, terms: int, track: bool) -> None:
        self.operator, self.dtype, self.terms = operator, dtype, terms
        self.track = track and (is_float(dtype))
        self.value = start.value.copy()
        self.undecided = np.zeros(self.value.shape) if start.error is None else np.where(start.error == np.inf, np.inf, 0.0)
        self.form = FORMATS[computed_in(dtype)] if is_float(dtype) else FORMATS["float64"]
        self.parts: dict[str, tuple[str, Array]] = {}
        if self.track:
            self.parts = {name: (op, np.array(part)) for name, (op, part) in self._parts(start).items()}

    def _parts(self, term: Bounded) -> dict[str, tuple[str, Array]]:
        """The quantities that bound the value's error, accumulated beside it: name, operator and the contribution of ``term``."""
        x = term.value
        error = np.zeros(x.shape) if term.error is None else np.broadcast_to(term.error, x.shape)
        if self.operator in ("min", "max"):
            return {"low": (self.operator, x - error), "high": (self.operator, x + error)}
        size = np.where(np.isfinite(x), np.abs(x), 0.0)
        fraction = np.where(np.isfinite(x) & (x != np.rint(x)), self.form.tiny, 0.0)  # marks sums that are not exact in integers
        if self.operator == "+":
            return {"size": ("+", size), "error": ("+", error + fraction)}
        large = np.where(np.isfinite(x), size + error, 1.0)
        return {"size": ("*", large), "peak": ("*", np.maximum(large, 1.0)), "error": ("+", error + fraction)}

    def add(self, position: Position, term: Bounded, axes: tuple[int, ...]) -> None:
        """Combine ``term``, reduced over its ``axes``, into the elements at ``position``; undecided terms count as what float64 gives."""
        self._combine(self.value, position, UFUNCS[self.operator], term.value, axes)
        if term.error is not None:
            lost = np.broadcast_to(np.where(term.error == np.inf, np.inf, 0.0), term.value.shape)
            self._combine(self.undecided, position, np.maximum, lost, axes)
            term = Bounded(np.where(lost > 0, np.asarray(0, term.value.dtype), term.value), np.where(lost > 0, 0.0, term.error))
        if self.track:
            for name, (op, part) in self._parts(term).items():
                self._combine(self.parts[name][1], position, UFUNCS[op], part, axes)

    def _combine(self, whole: Array, position: Position, ufunc: Any, part: Array, axes: tuple[int, ...]) -> None:
        if axes:
            part = ufunc.reduce(part, axis=axes, dtype=whole.dtype)
        if any(isinstance(p, slice) for p in position) or not position:
            whole[position] = ufunc(whole[position], part)
        else:
            ufunc.at(whole, position, part)

    def result(self) -> Bounded:
        """The accumulated value with its error, in ``dtype``, not yet rounded to the tensor's."""
        if not self.track:
            return Bounded(self.value, either(self.undecided) if np.any(self.undecided) else None)
        form = self.form
        part = {name: array for name, (_, array) in self.parts.items()}
        if self.operator in ("min", "max"):
            gap = [np.where(side == self.value, 0.0, np.abs(side - self.value)) for side in part.values()]
            error = np.where(np.isnan(self.value), 0.0, np.maximum(*gap))
            return plain(self.value, np.maximum(error, self.undecided))
        if self.operator == "+":
            largest = part["size"]
            error = part["error"] + (self.terms + 8) * form.eps * largest + form.tiny
        else:
            largest = part["peak"]
            grown = part["size"] * math.exp((self.terms + 8) * form.eps)
            error = grown - np.where(np.isfinite(self.value), np.abs(self.value), 0.0) + (self.terms + 8) * form.tiny * largest
        exact = (part["error"] == 0) & (largest <= form.integers)
        error = np.where(exact, 0.0, error)
        lost = np.isnan(error) | (largest + error > form.greatest)
        certain = np.where((part["error"] > 0) & (self.operator == "*"), np.inf, 0.0)  # of an infinite or NaN result
        error = np.where(lost, np.inf, np.where(np.isfinite(self.value), error, certain))
        return plain(self.value, np.maximum(error, self.undecided))


def start(operator: str, dtype: str, shape: tuple[int, ...]) -> Bounded:
    """The operator's identity over a tensor."""
    return Bounded(np.full(shape, identity(operator, dtype)))
