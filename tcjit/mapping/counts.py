"""Counts: what a sum of integers that comparisons choose compares, whether a type holds it, and its terms in another type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tcjit.grammar.ast import Access, Binary, Cast, Const, Expr, Select
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import walk
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.nest.vector_forms import COMPARISONS, NARROW

EXACT = {"float32": 1 << 24, "float64": 1 << 53, "int32": (1 << 31) - 1}  # magnitudes up to which a type holds every integer


def compared(value: Expr) -> str | None:
    """The one type of elements that a count of integers compares, other than its own; None of other values."""
    condition = value.condition if isinstance(value, Select) else value.operand if isinstance(value, Cast) else None
    arms = (value.then, value.other) if isinstance(value, Select) else ()
    if condition is None or condition.dtype != "bool" or not DTYPES[value.dtype].is_integer or not all(map(_is_integer, arms)):
        return None
    compared_elements = [part for part in _comparisons(condition) if any(isinstance(one, Access) for one in walk(part))]
    types = {_loaded(part) for part in compared_elements}
    dtype = types.pop() if len(types) == 1 else None
    return dtype if dtype in EXACT and dtype != value.dtype else None


def holds_counts(a: Assignment, dtype: str, result: str) -> bool:
    """Whether a type holds every partial sum of a count exactly, and the type of the ``result`` all of them, so that none wraps."""
    arms = (a.value.then, a.value.other) if isinstance(a.value, Select) else ()
    values = [arm.value for arm in arms if isinstance(arm, Const)] or [1]
    terms = prod(upper - lower for _, lower, upper in a.terms)
    least, greatest = terms * min(0, *values), terms * max(0, *values)
    own = DTYPES[result]
    return max(-least, greatest) <= EXACT.get(dtype, 0) and own.is_integer and own.least <= least and greatest <= own.greatest


def counted(value: Expr, dtype: str) -> Expr:
    """A count's term in another type."""
    one, zero = (Const(float(n) if DTYPES[dtype].kind == "float" else n, dtype=dtype) for n in (1, 0))
    if isinstance(value, Cast):
        return Select(value.operand, one, zero, dtype=dtype)
    assert isinstance(value, Select)
    arms = (replace(arm, value=type(one.value)(arm.value), dtype=dtype) for arm in (value.then, value.other) if isinstance(arm, Const))
    return Select(value.condition, *arms, dtype=dtype)


def _loaded(comparison: Binary) -> str:
    """The type that nests compare: halves that are elements are converted where they are loaded."""
    elements = isinstance(comparison.left, (Access, Const)) and isinstance(comparison.right, (Access, Const))
    narrow = elements and comparison.left.dtype in NARROW["float32"]
    return "float32" if narrow else comparison.left.dtype


def _is_integer(arm: Expr) -> bool:
    return isinstance(arm, Const) and DTYPES[arm.dtype].is_integer


def _comparisons(condition: Expr) -> Iterator[Binary]:
    if isinstance(condition, Binary) and condition.op in COMPARISONS:
        yield condition
    elif isinstance(condition, Binary):
        yield from _comparisons(condition.left)
        yield from _comparisons(condition.right)
