"""Narrow factors: integers of 8 and 16 bits, and sums of them and constants, of a product in int32; bfloat16 of one in float32."""

from __future__ import annotations

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access, Binary, Cast, Const, Expr, Select
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import rebuild, replaced

BYTES = ("int8", "uint8", "bool")
HALVES = (-(1 << 15), (1 << 15) - 1)  # the values of 16 bits


@dataclass(frozen=True)
class NarrowFactor:
    """``value``, of int32 and in the range of int16 unless ``constant`` is known, of one ``access``: then the value is their sum."""

    value: Expr
    access: Access
    constant: int | None

    @property
    def as_unsigned(self) -> int | None:
        """What is added to the value where the byte is taken as an unsigned one, its sign flipped if it is signed; None of other types."""
        return None if self.constant is None else (128 if self.access.dtype == "int8" else 0) - self.constant

    @property
    def as_signed(self) -> int | None:
        return None if self.constant is None else (-128 if self.access.dtype == "uint8" else 0) - self.constant


def without_conditions(expr: Expr) -> tuple[Expr, list[Expr]]:
    """What a chain of ``condition ? value : 0`` selects, and its conditions."""
    conditions = []
    while isinstance(expr, Select) and isinstance(expr.other, Const) and expr.other.value == 0:
        conditions.append(expr.condition)
        expr = expr.then
    return expr, conditions


def narrow_factor(expr: Expr) -> tuple[NarrowFactor, list[Expr]] | None:
    """A factor and the conditions under which it is not 0; None for what may need more than 16 bits, or is of several accesses."""
    value, conditions = without_conditions(expr)
    accesses = {access for access, _ in guarded_accesses(value)}
    if len(accesses) != 1:
        return None
    factor = NarrowFactor(value, accesses.pop(), _constant(value))
    span = _range(value)
    halves = span is not None and HALVES[0] <= span[0] and span[1] <= HALVES[1]
    return (factor, conditions) if halves else None


def bfloat16_factor(expr: Expr) -> tuple[NarrowFactor, list[Expr]] | None:
    """A factor that is an element of bfloat16, and the conditions under which it is not 0."""
    value, conditions = without_conditions(expr)
    access = value.operand if isinstance(value, Cast) else value
    return (NarrowFactor(value, access, None), conditions) if isinstance(access, Access) and access.dtype == "bfloat16" else None


def _range(expr: Expr) -> tuple[int, int] | None:
    """The values that an expression of narrow integers and constants can have."""
    match expr:
        case Access() if expr.dtype in (*BYTES, "int16"):
            return (0, 1) if expr.dtype == "bool" else (DTYPES[expr.dtype].least, DTYPES[expr.dtype].greatest)
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


def _constant(expr: Expr) -> int | None:
    """What is added to an access to bytes; None in any other expression."""
    match expr:
        case Access() if expr.dtype in BYTES:
            return 0
        case Cast() if expr.dtype == "int32":
            return _constant(expr.operand)
        case Binary(left=left, right=Const(value=int() as number)) if expr.op in ("+", "-") and expr.dtype == "int32":
            inside = _constant(left)
            return None if inside is None else inside + (number if expr.op == "+" else -number)
        case Binary(left=Const(value=int() as number), right=right) if expr.op == "+" and expr.dtype == "int32":
            inside = _constant(right)
            return None if inside is None else inside + number
    return None


def is_narrow_product(value: Expr) -> bool:
    """Whether a value in int32 is the product of two narrow factors without conditions."""
    if not isinstance(value, Binary) or value.op != "*" or value.dtype != "int32":
        return False
    found = [narrow_factor(side) for side in (value.left, value.right)]
    return all(factor is not None and not factor[1] for factor in found)


def with_conditions_inside(value: Expr) -> Expr:
    """``condition ? X(i) + c : 0`` as ``(condition ? X(i) : -c) + c``, a choice among integers of the type of X, where that has ``-c``."""
    if isinstance(value, Select) and isinstance(value.other, Const) and value.other.value == 0 and value.dtype == "int32":
        constant = _constant(value.then)
        accesses = [access for access, _ in guarded_accesses(value.then)]
        if constant is not None and len(accesses) == 1:
            (access,) = accesses
            if DTYPES[access.dtype].least <= -constant <= DTYPES[access.dtype].greatest:
                chosen = Select(value.condition, access, Const(-constant, dtype=access.dtype), dtype=access.dtype)
                return replaced(value.then, {access: chosen})
    return rebuild(value, with_conditions_inside)
