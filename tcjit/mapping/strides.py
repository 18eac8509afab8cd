"""By how much an access moves in memory along a dimension: what coalescing, vectorising and reuse are decided by."""
from __future__ import annotations

from collections.abc import Mapping

from tcjit.grammar.ast import Access, Expr, Index
from tcjit.grammar.form import Form, integer, names
from tcjit.mapping.scop import Scop, ScopStatement


def involves(subscript: Expr, dim: str) -> bool:
    """Whether a subscript mentions a dimension, inside a gather's index too."""
    return dim in names(subscript)


def coefficients(subscript: Expr, values: Mapping[str, int]) -> dict[str, int] | None:
    """The integer coefficient of every index in an affine subscript; None where it is not a plain sum."""
    value = integer(subscript, values)
    if value is None:
        return None
    found: dict[str, int] = {}
    for monomial, factor in value.terms.items() if isinstance(value, Form) else ():
        if not monomial:
            continue
        if len(monomial) != 1 or not isinstance(monomial[0], Index):
            return None
        found[monomial[0].name] = factor
    return found


def stride(scop: Scop, access: Access, dim: str) -> int | None:
    """Elements that an access moves when a dimension moves by one; None where that is not one number."""
    total = 0
    for subscript, step in zip(access.subscripts, scop.tensor(access.tensor).strides, strict=True):
        if not involves(subscript, dim):
            continue
        factors = coefficients(subscript, scop.values)
        if factors is None or step is None:
            return None
        total += factors.get(dim, 0) * step
    return total


def accesses(s: ScopStatement) -> list[Access]:
    """The write of a statement and all its reads."""
    return [Access(s.tensor, s.subscripts, dtype=s.value.dtype), *(access for access, _ in s.reads())]
