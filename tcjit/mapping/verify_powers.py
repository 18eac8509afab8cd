"""Products in the place of powers: the exponents of every one are whole numbers of as few bits as it says. Divisions by the constants
that a divisor is one of: each where it is that one, and none of them is zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tcjit.grammar.affine import affine
from tcjit.grammar.ast import Binary, Call, Cast, Const, Expr, Select
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import children, same_node, walk
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.equality import exact
from tcjit.mapping.instances import Instances
from tcjit.mapping.nest.vector_forms import INTEGER_POWER
from tcjit.mapping.operations import divides_integers


def wrong_powers(proof: Instances, old: Assignment, new: Sequence[Assignment]) -> str:
    """What is wrong with assignments in the place of one whose value has powers; nothing where all is well."""
    if len(new) != 1 or replace(new[0], value=old.value) != old:
        return "more than its value changed"
    instances = proof.instances(old)

    def always(expr: Expr, least: float, greatest: float) -> bool:
        text = affine(exact(expr), proof.values)
        return text is not None and proof.empty(instances, old, f"not ({int(least)} <= {text} <= {int(greatest)})")

    def fits(exponent: Expr, bits: Expr) -> bool:
        if not isinstance(bits, Const):
            return False
        end = (1 << int(bits.value)) - 1
        if isinstance(exponent, Const):  # a negative one is the power of an inverse
            return exponent.value in range(-end, end + 1)
        if not isinstance(exponent, Cast) or DTYPES[exponent.operand.dtype].kind == "float":
            return False
        holds = all(always(part, DTYPES[part.dtype].least, DTYPES[part.dtype].greatest) for part in walk(exponent.operand))
        return holds and always(exponent.operand, 0, end)

    def divided(one: Binary, divisor: Expr, other: Expr) -> bool:
        """Whether ``other`` is the quotient of ``one`` for every constant that its divisor may be."""
        if not isinstance(divisor, Select):
            if not isinstance(other, Binary) or not same_node(one, other) or not isinstance(divisor, Const):
                return False
            return other.right == divisor and bool(divisor.value) and same(one.left, other.left)
        if not isinstance(other, Select) or not same(divisor.condition, other.condition):
            return False
        return divided(one, divisor.then, other.then) and divided(one, divisor.other, other.other)

    def same(one: Expr, other: Expr) -> bool:
        if divides_integers(one) and isinstance(one.right, Select) and isinstance(other, Select):
            return divided(one, one.right, other)
        if not isinstance(one, Call) or one.function != "pow" or same_node(one, other):
            return same_node(one, other) and all(map(same, children(one), children(other)))
        base, exponent = one.args
        if isinstance(other, Binary):
            square = exponent == Const(2.0, dtype=one.dtype) and (other.op, other.dtype) == ("*", one.dtype)
            return square and same(base, other.left) and same(base, other.right)
        if not isinstance(other, Call) or (other.function, other.dtype) != (INTEGER_POWER, one.dtype):
            return False
        return same(base, other.args[0]) and other.args[1] == exponent and fits(exponent, other.args[2])

    return "" if same(old.value, new[0].value) else "a power has another exponent, or a quotient another divisor"
