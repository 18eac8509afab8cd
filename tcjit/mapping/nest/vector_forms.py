"""What a register tile can compute: the bodies of reductions that have a form over vectors."""

from __future__ import annotations

from tcjit.grammar.ast import Access, Binary, Call, Const, Expr, Select, Unary
from tcjit.grammar.walk import children

TYPES = ("float32", "float64")
OPERATIONS = ("+", "-", "*", "/", "&&", "||", "<", ">", "<=", ">=", "==", "!=")
FUNCTIONS = ("abs", "fabs", "min", "max", "relu")


def has_vector_form(body: Expr) -> bool:
    """Whether a body has one, its conditions included."""
    match body:
        case Access() | Const():
            return body.dtype in TYPES
        case Unary():
            known = body.op == "-"
        case Binary():
            known = body.op in OPERATIONS
        case Call():
            known = body.function in FUNCTIONS
        case Select():
            known = body.condition.dtype == "bool"
        case _:
            known = False
    return known and all(map(has_vector_form, children(body)))
