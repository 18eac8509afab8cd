"""Targets: subscripts of the left side that read tensors, as in ``Y(I(n), d) +=! X(n, d)``."""
from __future__ import annotations

from collections.abc import Collection

from tcjit.errors import CheckError
from tcjit.grammar.ast import Access, Assign, Const, Expr, ExtentClause, Index, Name, RangeClause
from tcjit.grammar.bounds import bounds
from tcjit.grammar.expressions import Typer
from tcjit.grammar.printer import show
from tcjit.grammar.walk import walk


def left_subscript(typer: Typer, tensor: str, subscript: Expr) -> Expr:
    """A subscript of the left side, typed: an index, or what reads a tensor."""
    if isinstance(subscript, Name):
        return Index(subscript.name, dtype="int64", where=subscript.where)
    typed = typer.index(subscript)
    if not any(isinstance(node, Access) for node in walk(typed)):
        what = f"`{show(subscript)}` on the left is no index, and reads no tensor"
        raise CheckError(what, where=subscript.where, hint=f"`{tensor}(i) = ...`, with `i` shifted or scaled on the right instead")
    return typed


def target_extents(typer: Typer, source: Assign, indices: Collection[str]) -> dict[int, Expr]:
    """The extents that clauses give targets, by position; ``indices`` are those of the statement."""
    extents: dict[int, Expr] = {}
    for clause in source.clauses:
        if not isinstance(clause, ExtentClause):
            continue
        text = show(clause.subscript)
        places = [position for position, subscript in enumerate(source.subscripts) if subscript == clause.subscript]
        if not places:
            raise CheckError(
                f"no subscript on the left is `{text}`, which has a range",
                where=clause.where,
                hint="a range is of an index, or of a subscript on the left that reads a tensor",
            )
        if places[0] in extents:
            raise CheckError(f"a second range for `{text}`", where=clause.where, hint="drop one of them")
        found = bounds(typer, RangeClause(text, clause.lower, clause.upper, clause.where), indices, "=")
        if found.lower != Const(0, dtype="int64"):
            raise CheckError(f"the range of `{text}`, an extent, does not start at 0", where=clause.where, hint=f"`{text} in 0:...`")
        extents |= dict.fromkeys(places, found.upper)
    return extents
