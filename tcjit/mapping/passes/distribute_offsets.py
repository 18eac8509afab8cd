"""Distribute offsets: products of narrow integers less a zero point are products of these, and sums over each factor.

``(int32(X(n,k)) - z) * int32(W(o,k))`` may take more than 16 bits where ``z`` is a number of the call, or of each row. Arithmetic in int32
is exact modulo 2^32, and so distributive: the sum is that of ``X * W``, which instructions for bytes take, less ``z`` times that of ``W``
(Jacob et al., Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference, 2018, section 2.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from math import prod

from tcjit.grammar.ast import Access, Binary, Const, Expr, Index, Select, Unary
from tcjit.grammar.polynomial import names
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.nest.narrow_factors import narrow_factor, without_conditions
from tcjit.mapping.operations import may_fail

WORTH = 8  # times fewer terms of the sums over factors than of products
ZERO = Const(0, dtype="int32")


def distribute_offsets(before: Assignments) -> Assignments:
    """The program with sums of products of narrow integers that an offset keeps from being such."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        value, conditions = without_conditions(a.value)
        whole = all(isinstance(sub, Index) for sub in a.subscripts) and len({*a.subscripts}) == len(a.results)
        plain = whole and a.operator == "+=" and a.start == ZERO and not (a.dynamic or a.constraints or a.empty)
        if not plain or not a.reduction or not isinstance(value, Binary) or value.op != "*":
            return [a]
        (left, one), (right, other) = (_without_offset(factor, a.reduction) for factor in (value.left, value.right))
        sums = []  # (x + p) * (y + q) = x * y + p * (y + q) + q * x
        if one is not None:
            sums.append((one, right if other is None else Binary("+", right, other, dtype="int32")))
        if other is not None:
            sums.append((other, left))
        sure = not any(map(may_fail, (*conditions, *(offset for offset, _ in sums))))
        narrow = all((found := narrow_factor(factor)) is not None and not found[1] for factor in (left, right))
        every = all({*a.reduction} <= names(factor).keys() for factor in (left, right))
        results = prod(upper - lower for _, lower, upper in a.results)
        fewer = all(prod(a.extents[name] for name in _dims(a, part, conditions)) * WORTH <= results for _, part in sums)
        if not (sums and sure and narrow and every and fewer):
            return [a]
        return _distributed(a, conditions, Binary("*", left, right, dtype="int32"), sums, temporaries)

    return rewrite(before, visit)


def _without_offset(factor: Expr, terms: Sequence[str]) -> tuple[Expr, Expr | None]:
    """A factor, and what is added to it that is the same for all terms and no constant, which products of bytes allow."""
    if isinstance(factor, Binary) and factor.op in ("+", "-") and factor.dtype == "int32" and narrow_factor(factor) is None:
        for base, offset in ((factor.left, factor.right), (factor.right, factor.left)):
            if narrow_factor(base) is not None and not names(offset).keys() & {*terms}:
                if factor.op == "+":
                    return base, offset
                if base is factor.left:
                    return base, Unary("-", offset, dtype="int32")
    return factor, None


def _dims(a: Assignment, factor: Expr, conditions: Sequence[Expr]) -> list[str]:
    """The dimensions of results that a sum over a factor has."""
    used = {name for expr in (factor, *conditions) for name in names(expr)}
    return [name for name, _, _ in a.results if name in used]


def _distributed(
    a: Assignment, conditions: Sequence[Expr], product: Expr, sums: Sequence[tuple[Expr, Expr]], temporaries: Temporaries
) -> list[Assignment]:
    """The sum of products and the sums over factors, each times its offset."""
    made: list[Assignment] = []

    def summed(stem: str, value: Expr) -> Expr:
        """An element of a temporary for the sum of a value over all terms that count."""
        dims = _dims(a, value, conditions)
        for condition in reversed(conditions):
            value = Select(condition, value, ZERO, dtype="int32")
        stored = temporaries.stored(a, stem, value, tuple(bound for bound in a.results if bound[0] in dims))
        made.append(replace(stored, operator="+=", bounds=(*stored.bounds, *a.terms), reduction=a.reduction, start=ZERO))
        return Access(stored.tensor, stored.subscripts, dtype="int32")

    parts = [Binary("*", offset, summed(f"{a.tensor}_sums", factor), dtype="int32") for offset, factor in sums]
    value = reduce(lambda total, part: Binary("+", total, part, dtype="int32"), parts, summed(f"{a.tensor}_products", product))
    return [*made, Assignment(a.tensor, a.subscripts, "=", value, a.results, a.source)]
