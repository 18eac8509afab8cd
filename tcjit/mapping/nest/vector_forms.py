"""What a register tile can compute: the bodies of reductions that have a form over vectors."""

from __future__ import annotations

from typing import TypeGuard

from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Expr, Index, Select, Unary
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import children
from tcjit.mapping.reduction import identity

# by the number of terms in 32 bits: functions of two words, the sum of the products of int16, or of uint8 by int8
DOT_PRODUCTS = {2: "dot2", 4: "dot4"}
# the same of bytes of which both have a sign, or none, as a matrix unit takes them
SIGNED_PRODUCTS, UNSIGNED_PRODUCTS = "dot4_signed", "dot4_unsigned"
MATRIX_PRODUCTS = (SIGNED_PRODUCTS, UNSIGNED_PRODUCTS)
# functions of integers, the first in the lowest bits; of two bfloat16 PACK and ADJACENT give the bits of a float32
PACK = "pack"  # the low halves of two, or the low bytes of four
ADJACENT = "adjacent"  # the same of elements that follow one another in memory: one load
FLIP_SIGNS = "flip_signs"  # of a word of four bytes: signed ones plus 128 as unsigned ones, and unsigned ones minus 128 as signed ones
WORDS = (PACK, ADJACENT, FLIP_SIGNS)
TYPES = ("float32", "float64", "int32", "int16", "int8", "uint8")
MASKED_BYTES = 64  # of vectors whose masks are registers of their own; those of shorter ones are vectors
NARROW = {"float32": ("float16", "bfloat16"), "int32": ("int8", "uint8", "int16", "bool"), "uint8": ("bool",)}  # what loads convert
INTEGER_POWER = "integer_power"  # of a value, an exponent that is a whole number, and how many bits that has
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
OPERATIONS = ("+", "-", "*", "/", "&&", "||", *COMPARISONS)
STORED_TOGETHER = 16  # bytes of neighbours in several rows of a register tile that are stored at once where its lanes are apart
FUNCTIONS = ("abs", "fabs", "min", "max", "fmin", "fmax", "relu")
INTEGER_FUNCTIONS = ("min", "max")


def is_dot_product(body: Expr) -> TypeGuard[Call]:
    """Whether a body is one of words, which are computed when they are copied."""
    return isinstance(body, Call) and body.function in (*DOT_PRODUCTS.values(), *MATRIX_PRODUCTS)


def is_converted(body: Expr) -> TypeGuard[Cast]:
    """Whether a body is what a load of narrower elements gives."""
    return isinstance(body, Cast) and isinstance(body.operand, Access) and body.operand.dtype in NARROW.get(body.dtype, ())


def has_lane_form(body: Expr) -> bool:
    """Whether a body without a form over vectors can be evaluated lane by lane, as the C compiler vectorises it: from elements alone, and
    with nothing that fails."""
    if isinstance(body, Access) or is_converted(body):
        return True
    if isinstance(body, (Cast, Index)) or isinstance(body, Binary) and body.op in ("/", "%") and body.dtype not in ("float32", "float64"):
        return False
    return all(map(has_lane_form, children(body)))


def has_vector_form(body: Expr) -> bool:
    """Whether a body has one, its conditions included."""
    match body:
        case Access() | Const():
            return body.dtype in TYPES
        case Cast():
            return is_converted(body)
        case Unary():
            known = body.op == "-"
        case Binary():
            known = body.op in OPERATIONS and not (body.op == "/" and DTYPES[body.dtype].kind != "float")
        case Call() if is_dot_product(body):
            return True  # of what is staged
        case Call() if body.function == INTEGER_POWER:
            base, exponent, _ = body.args
            inverse = isinstance(exponent, Const) and exponent.value < 0
            return body.dtype == "float64" and not inverse and has_vector_form(base) and has_vector_form(exponent)
        case Call():
            known = body.function in (FUNCTIONS if DTYPES[body.dtype].kind == "float" else INTEGER_FUNCTIONS)
        case Select():
            known = body.condition.dtype == "bool"
        case _:
            known = False
    return known and all(map(has_vector_form, children(body)))


def predicated(body: Expr, operator: str) -> Select | None:
    """A term of updates under masks: where its condition, of comparisons, does not hold, a reduction stays as it is. None for others."""
    if not isinstance(body, Select) or not _compares(body.condition) or not isinstance(body.other, Const):
        return None
    return body if body.other.value == identity(operator, body.dtype).value else None


def _compares(condition: Expr) -> bool:
    if not isinstance(condition, Binary) or condition.op in COMPARISONS:
        return isinstance(condition, Binary)
    return condition.op in ("&&", "||") and _compares(condition.left) and _compares(condition.right)
