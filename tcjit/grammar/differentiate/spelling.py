"""Conditions on indices and sizes as texts for isl, in names of which none is a keyword and no two are equal."""
from __future__ import annotations

from collections.abc import Mapping

from tcjit.grammar.affine import condition
from tcjit.grammar.ast import Expr, Index, Scalar, Size
from tcjit.grammar.differentiate.simplify import compare, index
from tcjit.grammar.polynomial import NOTHING
from tcjit.grammar.polynomial import names as indices
from tcjit.grammar.walk import rebuild


class IslSpelling:
    """Names for isl: sizes and scalars are ``n0, n1, ..``, whatever they are called; those of indices are given."""

    def __init__(self) -> None:
        self.parameters: dict[str, str] = {}
        self.known_sizes: set[str] = set()

    def sizes(self) -> list[str]:
        """No size is negative."""
        return [f"{spelled} >= 0" for name, spelled in self.parameters.items() if name in self.known_sizes]

    def text(self, names: Mapping[str, str], expr: Expr) -> str | None:
        """isl's text of a condition; None where it is not affine, or on another index."""
        if any(name not in names for name in indices(expr)):
            return None
        found = condition(self._spelled(names, expr), NOTHING)
        return None if found is None else f"({found})"

    def within(self, names: Mapping[str, str], name: str, lower: Expr, upper: Expr) -> str | None:
        """isl's text of ``lower <= name < upper``."""
        low, high = self.text(names, compare(">=", index(name), lower)), self.text(names, compare("<", index(name), upper))
        return None if low is None or high is None else f"{low} and {high}"

    def _spelled(self, names: Mapping[str, str], expr: Expr) -> Expr:
        match expr:
            case Index(name=name):
                return Index(names[name], dtype=expr.dtype)
            case Size(name=name) | Scalar(name=name):
                if isinstance(expr, Size):
                    self.known_sizes.add(name)
                return Size(self.parameters.setdefault(name, f"n{len(self.parameters)}"), dtype=expr.dtype)
        return rebuild(expr, lambda part: self._spelled(names, part))
