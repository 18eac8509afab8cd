"""Pair terms: products of narrow integers are summed two terms at a time, by an instruction that multiplies pairs of 16 bits.

``sum_k x(k) * y(k)`` in int32 becomes ``sum_k' pair_dot(x'(k'), y'(k'))``, in which an element of ``x'`` holds ``x(2*k')`` in its low and
``x(2*k' + 1)`` in its high half. Integers wrap, so that any order of the terms gives the same sum. Where no term can be paired, the high
half is 0: one multiply-add is still cheaper than a product of 32 bits and a sum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Expr, Index, Select
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import rebuild
from tcjit.mapping.assignment import Assignment, Temporaries
from tcjit.mapping.nest.convert_operands import WORTH_CONVERTING
from tcjit.mapping.nest.strip_mine import with_indices
from tcjit.mapping.nest.vector_forms import PAIR_DOT
from tcjit.mapping.storage import fresh

RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-(1 << 15), (1 << 15) - 1)}


@dataclass(frozen=True)
class _Factor:
    """``value``, of int32 and in the range of int16, of one ``access``."""

    value: Expr
    access: Access


def pair_terms(a: Assignment, temporaries: Temporaries) -> tuple[list[Assignment], Assignment]:
    """Copies in pairs of what is read in windows, and the assignment over pairs; nothing changes where it is no sum of products of narrow
    integers, each of which is used several times."""
    product, conditions = _without_conditions(a.value)
    if a.operator != "+=" or a.value.dtype != "int32" or not isinstance(product, Binary) or product.op != "*":
        return [], a
    left, right = _factor(product.left), _factor(product.right)
    if left is None or right is None:
        return [], a
    conditions += [*left[1], *right[1]]
    factors = (left[0], right[0])
    points = prod(upper - lower for _, lower, upper in a.bounds)
    if any(points < WORTH_CONVERTING * temporaries.tensors[factor.access.tensor].elements for factor in factors):
        return [], a
    bound = {name for condition in conditions for name in names(condition)}
    pairable = [
        (upper, dim)
        for dim, lower, upper in a.terms
        if lower == 0 and upper > 1 and dim not in bound and not a.constraints and all(_moves_one_axis(f.access, dim) for f in factors)
    ]
    count, dim = max(pairable, default=(0, ""))
    copies: list[Assignment] = []
    value: Expr = Call(PAIR_DOT, tuple(_paired(a, factor, dim, count, copies, temporaries) for factor in factors), dtype="int32")
    for condition in conditions:
        value = Select(condition, value, Const(0, dtype="int32"), dtype="int32")
    bounds = tuple((name, lower, -(-upper // 2) if name == dim else upper) for name, lower, upper in a.bounds)
    return copies, replace(a, value=value, bounds=bounds)


def _without_conditions(expr: Expr) -> tuple[Expr, list[Expr]]:
    """What a chain of ``condition ? value : 0`` selects, and its conditions."""
    conditions = []
    while isinstance(expr, Select) and isinstance(expr.other, Const) and expr.other.value == 0:
        conditions.append(expr.condition)
        expr = expr.then
    return expr, conditions


def _factor(expr: Expr) -> tuple[_Factor, list[Expr]] | None:
    value, conditions = _without_conditions(expr)
    accesses = {access for access, _ in guarded_accesses(value)}
    span = _range(value)
    if len(accesses) != 1 or span is None or span[0] < RANGES["int16"][0] or span[1] > RANGES["int16"][1]:
        return None
    return _Factor(value, accesses.pop()), conditions


def _range(expr: Expr) -> tuple[int, int] | None:
    """The values that an expression of narrow integers and constants can have."""
    match expr:
        case Access():
            return RANGES.get(expr.dtype)
        case Const() if isinstance(expr.value, int):
            return int(expr.value), int(expr.value)
        case Cast() if expr.dtype == "int32":
            return _range(expr.operand)
        case Binary() if expr.op in ("+", "-") and expr.dtype == "int32":
            left, right = _range(expr.left), _range(expr.right)
            if left is None or right is None:
                return None
            right = right if expr.op == "+" else (-right[1], -right[0])
            return left[0] + right[0], left[1] + right[1]
    return None


def _moves_one_axis(access: Access, dim: str) -> bool:
    """Whether a dimension is a subscript by itself, and part of no other."""
    moving = [sub for sub in access.subscripts if dim in names(sub)]
    return len(moving) == 1 and isinstance(moving[0], Index)


def _paired(a: Assignment, factor: _Factor, dim: str, count: int, copies: list[Assignment], temporaries: Temporaries) -> Expr:
    """A factor's pairs: a value that is computed as it is copied into panels, or an access to a copy of the whole tensor where panels
    would repeat what windows share, or neighbours in memory pair up."""
    access = factor.access
    axis = next((number for number, sub in enumerate(access.subscripts) if dim in names(sub)), -1)
    once = all(isinstance(sub, Index) for sub in access.subscripts) and len(set(access.subscripts)) == len(access.subscripts)
    if dim and once and temporaries.tensors[access.tensor].strides[axis] != 1:
        return _pair(factor.value, dim, count)
    taken = set(temporaries.tensors)
    indices = [Index(fresh(f"axis{n}", taken), dtype="int64") for n in range(len(access.subscripts))]
    extents = list(temporaries.tensors[access.tensor].shape)
    if dim:
        extents[axis] = -(-count // 2)
    copy = temporaries.add(a.source, f"{access.tensor}_pairs", "int32", extents)
    element = replace(access, subscripts=tuple(indices))
    value = _pair(_reading(factor.value, access, element), indices[axis].name if dim else "", count)
    bounds = tuple((index.name, 0, extent) for index, extent in zip(indices, extents, strict=True))
    copies.append(Assignment(copy.name, tuple(indices), "=", value, bounds, a.source))
    return replace(access, tensor=copy.name, dtype="int32")


def _pair(value: Expr, dim: str, count: int) -> Expr:
    """Two values of ``dim`` in one int32, the first in the low half; the one after the last is 0, and so is the other without ``dim``."""

    def int32(number: int) -> Expr:
        return Const(number, dtype="int32")

    def binary(op: str, left: Expr, right: Expr) -> Expr:
        return Binary(op, left, right, dtype=left.dtype)

    first = binary("*", Const(2, dtype="int64"), Index(dim, dtype="int64"))
    second = binary("+", first, Const(1, dtype="int64"))
    low, high = (with_indices(value, {dim: at}) for at in (first, second))
    if not dim:
        high = int32(0)
    elif count % 2:
        inside = Binary("<", second, Const(count, dtype="int64"), dtype="bool")
        high = Select(inside, high, int32(0), dtype="int32")
    # a negative low half takes one from the high
    borrow = Select(Binary("<", low, int32(0), dtype="bool"), int32(1), int32(0), dtype="int32")
    return binary("+", low, binary("*", binary("+", high, borrow), int32(1 << 16)))


def _reading(expr: Expr, access: Access, other: Access) -> Expr:
    return other if expr == access else rebuild(expr, lambda part: _reading(part, access, other))
