"""Source text of any node, surface or typed, with no parenthesis too many.

Surface defs come back from ``parse(show(d))`` as they were. A typed def prints its conversions (``float32(i)``) and, once inferred, its
ranges; the conversions to int64 that every subscript implies are left out.
"""
from __future__ import annotations

import math
from collections.abc import Iterable

from tcjit.dataclass import dataclass
from tcjit.grammar import polynomial
from tcjit.grammar.ast import (
    Access,
    Agreement,
    Apply,
    Assign,
    Binary,
    Call,
    CallDef,
    Cast,
    Const,
    Def,
    ExistsClause,
    Expr,
    ExtentClause,
    Index,
    LetClause,
    Name,
    Number,
    Param,
    Range,
    RangeClause,
    Return,
    Scalar,
    Select,
    Size,
    Statement,
    SurfaceDef,
    Tensor,
    Unary,
)
from tcjit.grammar.dtypes import rounded
from tcjit.grammar.specialised import is_affine_comparison

_LEVELS = (("?",), ("||",), ("&&",), ("<", "<=", ">", ">=", "==", "!="), ("+", "-"), ("*", "/", "%"), ("unary",), ("atom",))
_LEVEL = {op: level for level, ops in enumerate(_LEVELS) for op in ops}

Clause = RangeClause | LetClause | ExistsClause | ExtentClause | Range
Node = Expr | Clause | Assign | CallDef | Statement | Param | Return | Tensor | Agreement | SurfaceDef | Def


def show(node: Node) -> str:
    """The source text of ``node``.

    >>> from tcjit.grammar.parse import parse
    >>> print(show(parse("def f(float(N) A) -> (B) { B(i) = ((A(i) + (2)) * A(i)) }")[0]))
    def f(float32(N) A) -> (B) {
        B(i) = (A(i) + 2) * A(i)
    }
    """
    match node:
        case Expr():
            return _SourcePrinter().expr(node)
        case RangeClause() | Range():
            return f"{node.index} in {show(node.lower)}:{show(node.upper)}"
        case ExtentClause():
            return f"{subscript(node.subscript)} in {show(node.lower)}:{show(node.upper)}"
        case LetClause():
            return f"{node.name} = {show(node.value)}"
        case ExistsClause():
            return f"exists {show(node.value)}"
        case Assign():
            return f"{node.tensor}({', '.join(map(show, node.subscripts))}) {node.operator} {show(node.value)}{_where(node.clauses)}"
        case Statement():
            return _statement(node)
        case CallDef():
            return f"{', '.join(node.targets)} = {node.name}({', '.join(map(show, node.args))})"
        case Param():
            return f"{_type(node.dtype, node.dims)} {node.name}"
        case Return():
            return node.name if node.dtype is None else f"{_type(node.dtype, node.dims or ())} {node.name}"
        case Tensor():
            return _tensor(node)
        case Agreement():
            return f"{show(node.left)} == {show(node.right)}"
        case SurfaceDef():
            return _definition(node.name, map(show, node.params), map(show, node.returns), map(show, node.body))
        case Def():
            returns = (_tensor(node.tensor(name)) for name in node.returns)
            return _definition(node.name, map(show, node.params), returns, map(show, node.statements))


def extent(expr: Expr) -> str:
    """An extent or bound, with like terms collected.

    >>> m, k, one = Size("M", dtype="int64"), Size("K", dtype="int64"), Const(1, dtype="int64")
    >>> extent(Binary("-", m, Binary("-", k, one, dtype="int64"), dtype="int64"))
    'M - K + 1'
    """
    value = polynomial.integer(expr)
    return show(expr if value is None else polynomial.expression(value))


def subscript(expr: Expr) -> str:
    """A subscript, without the conversions that it implies."""
    return _SourcePrinter(index=True).expr(expr)


def number(value: int | float | bool, dtype: str) -> str:
    """A constant as the shortest literal that reads back as it.

    >>> number(rounded(0.1, "float32"), "float32"), number(2.0, "float64"), number(-math.inf, "float32"), number(True, "bool")
    ('0.1', '2.0', '-infinity()', 'true')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "0.0 / 0.0"
    if math.isinf(value):
        return "infinity()" if value > 0 else "-infinity()"
    shorter = (float(f"{value:.{digits}g}") for digits in range(1, 17))
    return repr(next((short for short in shorter if rounded(short, dtype) == value), value))


def _type(dtype: str, dims: Iterable[str | int]) -> str:
    inside = ", ".join(map(str, dims))
    return f"{dtype}({inside})" if inside else dtype


def _tensor(tensor: Tensor) -> str:
    """``float32(M, N) C`` where the extents are names and numbers, otherwise ``C``."""
    if len(tensor.shape) != tensor.rank or not all(isinstance(e, (Size, Const)) for e in tensor.shape):
        return tensor.name
    return f"{_type(tensor.dtype, map(show, tensor.shape))} {tensor.name}"


def _statement(node: Statement) -> str:
    left = ", ".join(map(subscript, node.subscripts))
    zero = Const(0, dtype="int64")
    targets = [ExtentClause(sub, zero, extent) for sub, extent in zip(node.subscripts, node.extents) if extent is not None]
    clauses = (*(node.domain or node.clauses), *targets, *map(ExistsClause, node.exists))
    return f"{node.tensor}({left}) {node.operator}{'!' if node.initialise else ''} {show(node.value)}{_where(clauses)}"


def _where(clauses: Iterable[Clause]) -> str:
    inside = ", ".join(map(show, clauses))
    return f" where {inside}" if inside else ""


def _definition(name: str, params: Iterable[str], returns: Iterable[str], body: Iterable[str]) -> str:
    lines = "".join(f"    {line}\n" for line in body)
    return f"def {name}({', '.join(params)}) -> ({', '.join(returns)}) {{\n{lines}}}"


@dataclass(frozen=True)
class _SourcePrinter:
    """``index``: in a subscript or an affine comparison, where conversions to int64 go without saying."""

    index: bool = False

    def expr(self, node: Expr, least: int = 0) -> str:
        """``node``, in parentheses if it binds looser than the level ``least``."""
        text, level = self._text(node)
        return f"({text})" if level < least else text

    def _text(self, node: Expr) -> tuple[str, int]:
        match node:
            case Cast(operand=operand) if self.index and node.dtype == "int64" and operand.dtype.startswith(("int", "uint")):
                return self._text(operand)
            case Cast(operand=operand):
                return f"{node.dtype}({_SourcePrinter().expr(operand)})", _LEVEL["atom"]
            case Unary(op=op, operand=operand):
                return op + self.expr(operand, _LEVEL["unary"]), _LEVEL["unary"]
            case Binary(op=op, left=left, right=right):
                inner = _SourcePrinter(is_affine_comparison(node)) if node.dtype == "bool" else self
                least = _LEVEL[op] + (_LEVEL[op] == _LEVEL["=="])  # comparisons do not chain
                return f"{inner.expr(left, least)} {op} {inner.expr(right, _LEVEL[op] + 1)}", _LEVEL[op]
            case Select(condition=condition, then=then, other=other):
                head = _SourcePrinter().expr(condition, _LEVEL["||"])
                return f"{head} ? {self.expr(then)} : {self.expr(other)}", _LEVEL["?"]
            case Const(value=value):
                text = number(value, node.dtype)
                return text, _LEVEL["/"] if "/" in text else _LEVEL["unary"] if text.startswith("-") else _LEVEL["atom"]
            case Number(text=text) | Name(name=text) | Index(name=text) | Size(name=text) | Scalar(name=text):
                return text, _LEVEL["atom"]
            case Access(tensor=name, subscripts=args):
                return (_apply(name, args, _SourcePrinter(index=True)) if args else name), _LEVEL["atom"]
            case Apply(name=name, args=args) | Call(function=name, args=args):
                return _apply(name, args, self), _LEVEL["atom"]
        raise TypeError(f"{type(node).__name__} is no expression")  # unreachable: all the classes of ast.py stand above


def _apply(name: str, args: Iterable[Expr], printer: _SourcePrinter) -> str:
    return f"{name}({', '.join(map(printer.expr, args))})"
