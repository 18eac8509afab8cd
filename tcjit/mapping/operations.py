"""What a value costs, and whether it may fail, before anything is known of where it is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import frexp
from typing import TypeGuard

from tcjit.grammar.affine import is_gather
from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Expr, Index, Size, TargetSubscript
from tcjit.grammar.builtins import ONE_OPERATION
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import NOTHING, ZeroDivisor, integer, names
from tcjit.grammar.walk import children, walk
from tcjit.mapping.nest.vector_forms import INTEGER_POWER

CALL, DIVISION = 20, 8  # operations that a call and a division take as long as


def divides_integers(part: Expr) -> TypeGuard[Binary]:
    """Whether an operation is a quotient or remainder of integers, whose divisor may be zero."""
    return isinstance(part, Binary) and part.op in "/%" and DTYPES[part.dtype].kind != "float"


def is_number(divisor: Expr, values: Mapping[str, int]) -> bool:
    """Whether a divisor is known, and not zero."""
    try:
        return integer(divisor, values) not in (None, 0) and not names(divisor)
    except ZeroDivisor:
        return False


def is_power_of_two(divisor: Expr, values: Mapping[str, int] = NOTHING) -> bool:
    """Whether a divisor, sizes in ``values`` being numbers, is a power of two, by whose inverse compilers multiply."""
    if isinstance(divisor, Cast) and isinstance(divisor.operand, Size) and divisor.operand.name in values:
        divisor = Const(float(values[divisor.operand.name]), dtype=divisor.dtype)
    return isinstance(divisor, Const) and frexp(divisor.value)[0] in (0.5, -0.5)


def may_fail(value: Expr, values: Mapping[str, int] = NOTHING, *, gathers: bool = True) -> bool:
    """Whether a value may raise an error: it divides integers by what may be zero, names in ``values`` being numbers, or, if ``gathers``
    count, reads where data say."""
    for part in walk(value):
        if divides_integers(part) and not is_number(part.right, values):
            return True
        if gathers and isinstance(part, Access) and any(map(is_gather, part.subscripts)):
            return True
    return False


def either_comparison(test: Expr) -> Expr | None:
    """The comparison that ``x > y || x == y`` or ``x < y || x == y`` is, of NaN as well; None of any other condition."""
    if not isinstance(test, Binary) or test.op != "||" or not isinstance(test.left, Binary) or not isinstance(test.right, Binary):
        return None
    ops, same = {test.left.op, test.right.op}, (test.left.left, test.left.right) == (test.right.left, test.right.right)
    order = next((op for op in ("<", ">") if ops == {op, "=="}), None)
    return replace(test.left, op=f"{order}=") if same and order else None


def computed_bytes(value: Expr) -> int:
    """Bytes of an element of the type in which a value is computed, which may be converted to a narrower one at last."""
    own = value.operand if isinstance(value, Cast) and not isinstance(value.operand, Access) else value
    return max(DTYPES[own.dtype].bytes, DTYPES[value.dtype].bytes)


def operations(value: Expr, call: int = CALL) -> int:
    """About how many additions a value takes as long as, what its subscripts take aside; ``call``: those of a function."""
    if isinstance(value, (Access, Const, Index)):
        return 0
    own = 1
    if isinstance(value, Cast):
        own = 1 if DTYPES[value.operand.dtype].kind in ("signed", "unsigned") and names(value.operand) else 0
    elif isinstance(value, Call) and value.function == INTEGER_POWER:
        bits = value.args[2]
        own = 2 * int(bits.value) if isinstance(bits, Const) else call
    elif isinstance(value, Call):
        own = 1 if value.function in ONE_OPERATION or isinstance(value, TargetSubscript) else call
    elif isinstance(value, Binary) and value.op in "/%":
        own = DIVISION
    return own + sum(operations(child, call) for child in children(value))
