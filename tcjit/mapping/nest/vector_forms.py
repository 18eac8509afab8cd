"""What a register tile can compute: the bodies of reductions that have a form over vectors."""

from __future__ import annotations

from typing import TypeGuard

from tcjit.grammar.ast import Access, Binary, Call, Const, Expr, Select, Unary
from tcjit.grammar.walk import children

# by the number of terms in 32 bits: functions of two words, the sum of the products of int16, or of uint8 by int8
DOT_PRODUCTS = {2: "dot2", 4: "dot4"}
TYPES = ("float32", "float64", "int32")
OPERATIONS = ("+", "-", "*", "/", "&&", "||", "<", ">", "<=", ">=", "==", "!=")
STORED_TOGETHER = 16  # bytes of neighbours in several rows of a register tile that are stored at once where its lanes are apart
FUNCTIONS = ("abs", "fabs", "min", "max", "relu")
INTEGER_FUNCTIONS = ("min", "max")


def is_dot_product(body: Expr) -> TypeGuard[Call]:
    """Whether a body is one of words, which are computed when they are copied."""
    return isinstance(body, Call) and body.function in DOT_PRODUCTS.values()


def has_vector_form(body: Expr) -> bool:
    """Whether a body has one, its conditions included."""
    match body:
        case Access() | Const():
            return body.dtype in TYPES
        case Unary():
            known = body.op == "-"
        case Binary():
            known = body.op in OPERATIONS and not (body.op == "/" and body.dtype == "int32")
        case Call() if is_dot_product(body):
            return True  # of what is staged
        case Call():
            known = body.function in (INTEGER_FUNCTIONS if body.dtype == "int32" else FUNCTIONS)
        case Select():
            known = body.condition.dtype == "bool"
        case _:
            known = False
    return known and all(map(has_vector_form, children(body)))
