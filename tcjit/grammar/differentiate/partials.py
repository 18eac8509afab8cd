"""The derivative of an expression by every float that it reads, bottom-up: factors common to several reads are built once."""
from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from functools import reduce

from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access, Binary, Call, Cast, Expr, Scalar, Select, Unary
from tcjit.grammar.differentiate import table
from tcjit.grammar.differentiate.simplify import (
    TRUE,
    add,
    call,
    conjunction,
    conjuncts,
    divide,
    either,
    is_float,
    is_number,
    literal,
    multiply,
    negate,
    opposite,
    reads,
    select,
    square,
)
from tcjit.grammar.walk import walk

Leaf = Access | Scalar
Derivatives = dict[Leaf, Expr]


def derivatives(expr: Expr, active: Container[str], stored: Expr | None = None) -> Derivatives:
    """The derivative of ``expr`` by each distinct read of a tensor or scalar in ``active``; those that are 0 are left out.

    ``stored`` may stand for ``expr`` itself: a read of the tensor that holds its value. Integers have no derivatives.
    """
    return _PartialDerivatives(active).of(expr, stored)


def may_reuse(expr: Expr) -> bool:
    """Whether the derivative is simpler in terms of the value: of a quotient, or a function such as ``exp``, perhaps as an arm."""
    if isinstance(expr, Select):
        return may_reuse(expr.then) or may_reuse(expr.other)
    return (isinstance(expr, Binary) and expr.op == "/" and is_float(expr.dtype)) or table.may_reuse(expr)


def read_where(leaf: Leaf, expr: Expr) -> Expr:
    """The conditions on indices under which ``expr`` reads ``leaf``: all of those of one place, or of another."""
    places = [
        [guard if holds else opposite(guard) for guard, holds in guards if _is_on_indices(guard)]
        for access, guards in guarded_accesses(expr)
        if replace(access, where=None) == leaf
    ]
    if not places:  # a scalar is there everywhere
        return TRUE
    common = conjunction(*(part for part in places[0] if all(part in place for place in places)))
    rest = {conjunction(*(part for part in place if part not in conjuncts(common))): None for place in places}
    return common if TRUE in rest else conjunction(common, reduce(either, rest))


def _is_on_indices(condition: Expr) -> bool:
    return not reads(condition) and all(node.dtype in ("int64", "bool") for node in walk(condition))


class _PartialDerivatives:
    def __init__(self, active: Container[str]) -> None:
        self.active = active
        # by id and whether the value is stored, with the node, which keeps its id its own
        self.known: dict[tuple[int, bool], tuple[Expr, Derivatives]] = {}

    def of(self, expr: Expr, stored: Expr | None = None) -> Derivatives:
        key = id(expr), stored is not None
        if key not in self.known:
            self.known[key] = expr, self._new(expr, stored)
        return self.known[key][1]

    def _new(self, expr: Expr, stored: Expr | None) -> Derivatives:
        if not is_float(expr.dtype):
            return {}
        match expr:
            case Access(tensor=name) | Scalar(name=name):
                return {replace(expr, where=None): literal(1, expr.dtype)} if name in self.active else {}
            case Cast(operand=operand):
                return self.of(operand)  # not rounded in between
            case Unary(operand=operand):
                return {leaf: negate(value) for leaf, value in self.of(operand).items()}
            case Select():
                return self._select(expr, stored)
            case Binary():
                return self._binary(expr, stored)
            case Call():
                return self._call(expr, stored)
        return {}

    def _select(self, expr: Select, stored: Expr | None) -> Derivatives:
        then, other, zero = self.of(expr.then, stored), self.of(expr.other, stored), literal(0, expr.dtype)
        return {leaf: select(expr.condition, then.get(leaf, zero), other.get(leaf, zero)) for leaf in {**then, **other}}

    def _binary(self, expr: Binary, stored: Expr | None) -> Derivatives:
        left, right = self.of(expr.left), self.of(expr.right)
        match expr.op:
            case "+":
                return _sum(left, right)
            case "-":
                return _sum(left, _scaled(literal(-1, expr.dtype), right))
            case "*":
                by_left = {leaf: multiply(value, expr.right) for leaf, value in left.items()}
                return _sum(by_left, _scaled(expr.left, right))
            case "/":
                by_left = {leaf: divide(value, expr.right) for leaf, value in left.items()}
                quotient = divide(expr.left, square(expr.right)) if stored is None else divide(stored, expr.right)
                return _sum(by_left, {leaf: negate(multiply(quotient, value)) for leaf, value in right.items()})
            case "%":
                return _sum(left, _scaled(negate(call("floor", divide(expr.left, expr.right))), right))
        return {}

    def _call(self, expr: Call, stored: Expr | None) -> Derivatives:
        inner = [self.of(arg) for arg in expr.args]
        if not any(inner):
            return {}
        if expr.function == "polygamma" and inner[0]:
            table.refuse_order(expr)
        by_argument = table.partials(expr.function, expr.args, expr if stored is None else stored)
        return _sum(*(_scaled(partial, each) for partial, each in zip(by_argument, inner)))


def _scaled(factor: Expr, values: Derivatives) -> Derivatives:
    return {} if is_number(factor, 0) else {leaf: multiply(factor, value) for leaf, value in values.items()}


def _sum(*parts: Derivatives) -> Derivatives:
    total: Derivatives = {}
    for part in parts:
        for leaf, value in part.items():
            total[leaf] = add(total[leaf], value) if leaf in total else value
    return {leaf: value for leaf, value in total.items() if not is_number(value, 0)}
