"""Text to the surface tree: Lark's LALR parser, positions on every node, errors in human words."""
from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from tcjit.errors import ParseError, Where
from tcjit.grammar import syntax_errors
from tcjit.grammar.ast import (
    Apply,
    Assign,
    Binary,
    CallDef,
    Cast,
    Clause,
    ExistsClause,
    Expr,
    ExtentClause,
    LetClause,
    Name,
    Number,
    Param,
    RangeClause,
    Return,
    Select,
    SurfaceDef,
    Unary,
)
from tcjit.grammar.dtypes import ALIASES
from tcjit.grammar.printer import show
from tcjit.grammar.walk import excess, measure, operands, walk

if TYPE_CHECKING:
    from lark import Lark, Token

_LOCK = threading.Lock()  # one parser, whose builder holds the text being parsed


def parse(text: str) -> tuple[SurfaceDef, ...]:
    """The defs of a program's text, in order.

    Raises ``ParseError`` (with line, column, what was expected, often a hint) where the text is not in the grammar.

    >>> parse("def twice(float(N) A) -> (B) { B(i) = A(i) * 2 }")[0].returns[0].name
    'B'
    """
    from lark.exceptions import UnexpectedInput

    if not isinstance(text, str):
        raise ParseError(f"a program is a string, not {type(text).__name__}")
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")  # as editors on Windows and old Macs write
    with _LOCK:
        parser, builder = _parser()
        builder.start(text)
        try:
            defs: tuple[SurfaceDef, ...] = parser.parse(text)  # type: ignore[assignment]  # the builder's product
        except UnexpectedInput as error:
            raise syntax_errors.explain(error, text, parser) from None
        except RecursionError:
            raise ParseError("the program nests too deeply", hint="split the expression over several statements") from None
        finally:
            builder.start("")
    return defs


@cache
def _parser() -> tuple[Lark, TreeBuilder]:
    """Read on the first parse."""
    from tcjit.grammar import parse_table

    builder = TreeBuilder()
    return parse_table.parser(builder), builder


class TreeBuilder:
    """What each rule of ``tc.lark`` becomes; called as the rules are reduced, so no tree is ever walked."""

    def start(self, text: str) -> None:
        self.lines = text.split("\n")
        self.defs: list[str] = []

    # ------------------------------------------------------------ positions

    def _at(self, token: Token) -> Where:
        return syntax_errors.where(token, self.lines)

    def _span(self, first: Where | None, last: Where | None) -> Where | None:
        """From the start of ``first`` to the end of ``last``, or of the line where ``last`` lies on another."""
        if first is None or last is None:
            return first
        end = last.column + last.length if last.line == first.line else len(first.line_text) + 1
        return Where(first.line, first.column, max(1, end - first.column), first.line_text)

    # ------------------------------------------------------------ expressions

    def args(self, items: list[Expr]) -> tuple[Expr, ...]:
        return tuple(items)

    def number(self, items: list[Token]) -> Expr:
        return Number(str(items[0]), where=self._at(items[0]))

    def name(self, items: list[Token]) -> Expr:
        return Name(str(items[0]), where=self._at(items[0]))

    def apply(self, items: list[Any]) -> Expr:
        name, _, args, close = items
        return Apply(str(name), args, where=self._span(self._at(name), self._at(close)))

    def apply2(self, items: list[Any]) -> Expr:
        name, _, left, right, close = items
        return Apply(str(name), (left, right), where=self._span(self._at(name), self._at(close)))

    def cast(self, items: list[Any]) -> Expr:
        scalar, _, operand, close = items
        return Cast(operand, dtype=_dtype(scalar), where=self._span(self._at(scalar), self._at(close)))

    def unary(self, items: list[Any]) -> Expr:
        op, operand = items
        return Unary(str(op), operand, where=self._span(self._at(op), operand.where))

    def binary(self, items: list[Any]) -> Expr:
        left, op, right = items
        return Binary(str(op), left, right, where=self._span(left.where, right.where))

    def chained(self, items: list[Any]) -> Expr:
        raise syntax_errors.chained(items, self._span(items[0].where, items[-1].where))

    def select(self, items: list[Expr]) -> Expr:
        condition, then, other = items
        return Select(condition, then, other, where=self._span(condition.where, other.where))

    # ------------------------------------------------------------ clauses and statements

    def range(self, items: list[Any]) -> Clause:
        index, _, lower, upper = items
        where = self._span(index.where, upper.where)
        if isinstance(index, Name):
            return RangeClause(index.name, lower, upper, where=where)
        return ExtentClause(index, lower, upper, where=where)

    def let(self, items: list[Any]) -> Clause:
        name, value = items
        return LetClause(str(name), value, where=self._span(self._at(name), value.where))

    def exists(self, items: list[Any]) -> Clause:
        keyword, value = items
        return ExistsClause(value, where=self._span(self._at(keyword), value.where))

    def where(self, items: list[Clause]) -> tuple[Clause, ...]:
        return tuple(items)

    def assign(self, items: list[Token]) -> str:
        return str(items[0])

    def plain(self, items: list[Any]) -> Assign | CallDef:
        name, operator, value, *rest = items
        clauses = rest[0] if rest else ()
        self._depth(value, clauses)
        where = self._span(self._at(name), value.where)
        if operator == "=" and not clauses and isinstance(value, Apply) and value.name in self.defs:
            return CallDef((str(name),), value.name, value.args, where)
        return Assign(str(name), (), operator, value, clauses, where)

    def indexed(self, items: list[Any]) -> Assign:
        name, _, left, _, operator, value, *rest = items
        clauses = rest[0] if rest else ()
        self._depth(value, clauses)
        self._shallow(left)
        for index in left:
            if not isinstance(index, Name) and not reads(index):
                raise syntax_errors.left_index(str(name), index)
        return Assign(str(name), left, operator, value, clauses, self._span(self._at(name), value.where))

    def call(self, items: list[Any]) -> CallDef:
        *targets, value = items
        self._depth(value, ())
        if not isinstance(value, Apply):
            raise ParseError(
                "several names on the left stand for the results of an earlier def, and here is no call of one",
                where=value.where,
                hint=f"`{', '.join(targets)} = f(X, Y)`, or one statement for each tensor",
            )
        return CallDef(tuple(map(str, targets)), value.name, value.args, self._span(self._at(targets[0]), value.where))

    def _depth(self, value: Expr, clauses: Sequence[Clause]) -> None:
        for clause in clauses:
            self._shallow(operands(clause))
        self._shallow((value,))

    def _shallow(self, roots: Sequence[Expr]) -> None:
        if much := excess(measure(roots)):
            hint = "split it over several statements, or keep the terms in a tensor and reduce over it"
            raise ParseError(f"an expression {much}", where=roots[0].where, hint=hint)

    # ------------------------------------------------------------ defs

    def dim(self, items: list[Expr]) -> Expr:
        self._shallow(items)
        return items[0]

    def type(self, items: list[Any]) -> tuple[Token, tuple[str | int, ...], tuple[Expr | None, ...], Where]:
        scalar, *rest = items
        where = self._at(scalar)
        dims = tuple(map(_dim, rest[1:-1]))
        extents = tuple(None if isinstance(extent, Name | Number) else extent for extent in rest[1:-1])
        span = self._span(where, self._at(rest[-1])) or where if rest else where
        return scalar, dims, extents if any(extents) else (), span

    def param(self, items: list[Any]) -> Param:
        (scalar, dims, extents, where), name = items
        return Param(str(name), _dtype(scalar), dims, self._span(where, self._at(name)), extents)

    def params(self, items: list[Param]) -> tuple[Param, ...]:
        return tuple(items)

    def ret(self, items: list[Any]) -> Return:
        if len(items) == 1:
            return Return(str(items[0]), where=self._at(items[0]))
        (scalar, dims, extents, where), name = items
        return Return(str(name), _dtype(scalar), dims, self._span(where, self._at(name)), extents)

    def returns(self, items: list[Return]) -> tuple[Return, ...]:
        return tuple(items)

    def definition(self, items: list[Any]) -> SurfaceDef:
        _, name, params, _, returns, *body = items
        self.defs.append(str(name))
        own = {p.name for p in params} | {s.tensor for s in body if isinstance(s, Assign)}
        # `O = f(1)` where a tensor of this def is called f as an earlier def is: an access
        body = [_access(s) if isinstance(s, CallDef) and len(s.targets) == 1 and s.name in own else s for s in body]
        return SurfaceDef(str(name), params, returns, tuple(body), self._at(name))

    def program(self, items: list[SurfaceDef]) -> tuple[SurfaceDef, ...]:
        return tuple(items)


def reads(subscript: Expr) -> bool:
    """Whether a subscript may read a tensor: it has a name with arguments, other than ``min`` and ``max``."""
    return any(isinstance(node, Apply) and node.name not in ("min", "max") for node in walk(subscript))


def _access(call: CallDef) -> Assign:
    return Assign(call.targets[0], (), "=", Apply(call.name, call.args, where=call.where), (), call.where)


def _dtype(scalar: Token) -> str:
    return ALIASES.get(str(scalar), str(scalar))


def _dim(extent: Expr) -> str | int:
    """A number, the name of a size, or the text of an expression."""
    if not isinstance(extent, Number):
        return show(extent)
    if not extent.text.isdigit():
        raise ParseError(f"an extent is a whole number or made of sizes, not {extent.text}", where=extent.where)
    if len(extent.text) > 18:  # beyond any extent, and int() itself refuses texts of thousands of digits
        raise ParseError("a number too large for an extent", where=extent.where)
    return int(extent.text)
