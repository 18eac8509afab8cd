"""Sums of products with offsets: the sums that took the place of one add up to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tcjit.grammar.ast import Access, Binary, Const, Expr, Unary
from tcjit.grammar.polynomial import names
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.nest.narrow_factors import without_conditions
from tcjit.mapping.reduction import identity

Polynomial = Counter[tuple[Expr, ...]]  # how often each product of values is added; of int32, whose arithmetic is exact modulo 2^32


def wrong_offsets(before: Assignments, after: Assignments, old: Assignment, new: Sequence[Assignment]) -> str:
    """Temporaries with sums over the terms of ``old``, each times what is the same for all of these, that add up to it."""
    *parts, combine = new
    product, conditions = without_conditions(old.value)
    sums = {part.tensor: part for part in parts}
    start = identity("+=", "int32")
    if old.operator != "+=" or old.start != start or old.dynamic or old.constraints or product.dtype != "int32" or old.tensor in old.inputs:
        return "no sum from zero in int32"
    if combine != Assignment(old.tensor, old.subscripts, "=", combine.value, old.results, old.source):
        return "the results are others"
    for part in parts:
        storage, results = after.storages[part.tensor], tuple(bound for bound in old.results if bound[0] in part.dims)
        temporary = part.tensor not in before.storages and storage.role == "temporary" and storage.dtype == "int32"
        places = [(name, upper) for name, _, upper in results] == [(name, extent) for name, extent in zip(part.dims, storage.shape)]
        whole = Assignment(part.tensor, part.subscripts, "+=", part.value, (*results, *old.terms), old.source, old.reduction, start=start)
        if not temporary or not places or part != whole or tuple(map(_name, part.subscripts)) != tuple(name for name, _, _ in results):
            return "a part is no temporary for sums over the same terms"
        if without_conditions(part.value)[1] != conditions or not names(part.value).keys() <= {*part.dims}:
            return "a part has other terms"
    total: Polynomial = Counter()
    for offset, element in _added(combine.value):
        found = sums.pop(element.tensor, None) if isinstance(element, Access) else None
        same = found is not None and element == Access(found.tensor, found.subscripts, dtype="int32")
        if found is None or not same or names(offset).keys() & {*old.reduction}:
            return "what is added is no sum times what all of its terms share"
        total.update(_times(_expanded(offset), _expanded(without_conditions(found.value)[0])))
    return "" if not sums and _without_zeros(total) == _without_zeros(_expanded(product)) else "the sums add up to something else"


def _added(expr: Expr) -> Iterator[tuple[Expr, Expr]]:
    """The terms of a combination, each an element and what it is multiplied by."""
    if isinstance(expr, Binary) and expr.op == "+":
        yield from _added(expr.left)
        yield from _added(expr.right)
    elif isinstance(expr, Binary) and expr.op == "*":
        yield expr.left, expr.right
    else:
        yield Const(1, dtype="int32"), expr


def _name(subscript: Expr) -> str:
    return next(iter(names(subscript)), "")


def _expanded(expr: Expr) -> Polynomial:
    """Sums, differences and products written out."""
    match expr:
        case Binary(op="+" | "-" as op, left=left, right=right, dtype="int32"):
            return _sum(_expanded(left), _times(_number(1 if op == "+" else -1), _expanded(right)))
        case Binary(op="*", left=left, right=right, dtype="int32"):
            return _times(_expanded(left), _expanded(right))
        case Unary(op="-", operand=operand, dtype="int32"):
            return _times(_number(-1), _expanded(operand))
        case Const(value=int(number)):
            return _number(number)
    return Counter({(expr,): 1})


def _number(number: int) -> Polynomial:
    return Counter({(): number})


def _sum(left: Polynomial, right: Polynomial) -> Polynomial:
    return Counter({key: left[key] + right[key] for key in {**left, **right}})


def _times(left: Polynomial, right: Polynomial) -> Polynomial:
    product: Polynomial = Counter()
    for one, often in left.items():
        for other, times in right.items():
            product[tuple(sorted((*one, *other), key=repr))] += often * times
    return product


def _without_zeros(polynomial: Polynomial) -> dict[tuple[Expr, ...], int]:
    return {key: often for key, often in polynomial.items() if often}
