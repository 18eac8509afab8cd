"""Bounds of ranges: expressions over sizes and integer scalars, in the few forms that range inference works with."""
from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tcjit.errors import CheckError
from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Expr, Index, RangeClause, Scalar, Size, Unary
from tcjit.grammar.expressions import Typer
from tcjit.grammar.printer import show

_NEUTRAL = {"*=": "1", "max=": "-infinity()", "min=": "infinity()"}  # what a term has that leaves a result as it is; of sums 0


def bounds(typer: Typer, clause: RangeClause, indices: Collection[str], operator: str) -> RangeClause:
    """The range with its bounds typed: int64, of Const, Size, Scalar, Binary (+ - * /) and Call (min, max) only.

    ``indices`` are those of the statement, ``operator`` its own. Raises ``CheckError`` for a bound that names one (a triangular range) or
    reads a tensor.
    """
    neutral = _NEUTRAL.get(operator, "0")
    lower = _plain(typer.index(clause.lower), indices, clause.index, f"{clause.index} >= {show(clause.lower)} ? ... : {neutral}")
    upper = _plain(typer.index(clause.upper), indices, clause.index, f"{clause.index} < {show(clause.upper)} ? ... : {neutral}")
    return replace(clause, lower=lower, upper=upper)


def _plain(expr: Expr, indices: Collection[str], index: str, choice: str) -> Expr:
    match expr:
        case Const() | Size() | Scalar():
            return expr
        case Index() if expr.name in indices or expr.name == index:
            raise CheckError(
                f"the range of `{index}` names the index `{expr.name}`",
                where=expr.where,
                hint=f"give `{index}` a range of sizes, and choose in the value: `{choice}`",
            )
        case Index():
            raise CheckError(
                f"`{expr.name}` in the range of `{index}` is no size", where=expr.where, hint="sizes are the extents that parameters name"
            )
        case Access() | Cast(operand=Access()):
            read = expr.operand if isinstance(expr, Cast) else expr
            assert isinstance(read, Access)
            raise CheckError(
                f"the range of `{index}` depends on the tensor `{read.tensor}`",
                where=expr.where,
                hint=f"give `{index}` its largest range, and choose in the value: `{choice}`",
            )
        case Unary(operand=operand):
            return Binary("-", Const(0, dtype="int64"), _plain(operand, indices, index, choice), dtype="int64", where=expr.where)
        case Binary(op=op, left=left, right=right):
            left, right = _plain(left, indices, index, choice), _plain(right, indices, index, choice)
            if op != "%":
                return replace(expr, left=left, right=right)
            floored = Binary("/", left, right, dtype="int64", where=expr.where)
            product = Binary("*", floored, right, dtype="int64", where=expr.where)
            return Binary("-", left, product, dtype="int64", where=expr.where)
        case Call(function="min" | "max"):
            return replace(expr, args=tuple(_plain(arg, indices, index, choice) for arg in expr.args))
    raise CheckError(
        f"a bound of `{index}` is made of sizes, integer scalars and numbers under + - * / % min max",
        where=expr.where,
        hint="`min` and `max` choose between bounds",
    )
