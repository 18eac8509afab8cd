"""What a register tile can compute: the bodies of reductions that have a form over vectors."""

from __future__ import annotations

from tcjit.grammar.ast import Access, Binary, Call, Const, Expr, Select, Unary
from tcjit.grammar.walk import children

PAIR_DOT = "pair_dot"  # of two int32, both of whose halves are int16: the sum of the products of the halves
TYPES = ("float32", "float64", "int32")
OPERATIONS = ("+", "-", "*", "/", "&&", "||", "<", ">", "<=", ">=", "==", "!=")
FUNCTIONS = ("abs", "fabs", "min", "max", "relu")
INTEGER_FUNCTIONS = ("min", "max")


def has_vector_form(body: Expr) -> bool:
    """Whether a body has one, its conditions included."""
    match body:
        case Access() | Const():
            return body.dtype in TYPES
        case Unary():
            known = body.op == "-"
        case Binary():
            known = body.op in OPERATIONS and not (body.op == "/" and body.dtype == "int32")
        case Call() if body.function == PAIR_DOT:
            return True  # of what is staged
        case Call():
            known = body.function in (INTEGER_FUNCTIONS if body.dtype == "int32" else FUNCTIONS)
        case Select():
            known = body.condition.dtype == "bool"
        case _:
            known = False
    return known and all(map(has_vector_form, children(body)))
