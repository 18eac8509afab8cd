"""Skew reductions: terms of a band are counted from its lower edge, and a window of constant width takes the place of a condition.

``Y(i) +=! (s <= i && s > i - 8) ? X(s) : 0`` is a sum of eight terms ``X(i - 7 + s)``, those that exist, in the same order. What subtracts
the index of a result, as ``W(i - s)`` of a convolution does, reads the same for all results.
"""

from __future__ import annotations

from tcjit.mapping.assignment import Assignments
from tcjit.mapping.bands import skewed


def skew_reductions(before: Assignments, narrow: int) -> Assignments:
    """The program with windows in the place of bands; products whose tiles share operands only if these have ``narrow`` terms at most."""
    return before.with_parts([(old if old.final else skewed(old, before.values, narrow)[0],) for old in before.assignments])
