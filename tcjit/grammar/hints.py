"""The errors of range inference, each with the text that would settle it."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tcjit.errors import CheckError, ShapeError, TCError, Where
from tcjit.grammar import polynomial, printer
from tcjit.grammar.ast import Access, Binary, Const, Def, Expr, Index, RangeClause, Select, Size, Statement
from tcjit.grammar.bounds_check import shown
from tcjit.grammar.polynomial import Value
from tcjit.grammar.ranges import Analysis, Interval
from tcjit.grammar.walk import rebuild, walk


def refuse_open(analysis: Analysis, definition: Def) -> None:
    """Raises CheckError where an index has no range."""
    if not analysis.open:
        return
    statement = analysis.statement
    # a subscript with two open indices is settled by a range for either; a reduction is the one whose length people know
    index = next((i for i in analysis.open if i in statement.reduction), analysis.open[0])
    shared = next((s for s in analysis.subscripts if s.linear is not None and index in s.indices), None)
    other = next((s for s in analysis.subscripts if index in s.indices), None)
    if shared is not None:
        others = " and ".join(f"`{i}`" for i in shared.indices if i != index)
        why = f"`{printer.show(shared.access)}` shares a subscript between it and {others}"
        hint = f"`where {index} in 0:3`"
    elif other is not None:
        why = f"`{printer.extent(other.expr)}` is no sum of indices times sizes or numbers, and such a subscript gives no range"
        hint = f"`where {index} in 0:{printer.extent(_extent(other.access, other.position, definition))}`"
    else:
        why = "it stands in no subscript of a tensor whose extents are known"
        hint = f"`where {index} in 0:{definition.sizes[0] if definition.sizes else 10}`"
    raise CheckError(f"nothing gives the index `{index}` a range: {why}", where=_index_site(analysis, index), hint=hint)


def _extent(access: Access, position: int, definition: Def) -> Expr:
    shape = definition.tensor(access.tensor).shape
    return shape[position] if shape else Size(f"{access.tensor}.{position}", dtype="int64")


def _index_site(analysis: Analysis, index: str) -> Where | None:
    statement = analysis.statement
    for root in (*statement.subscripts, statement.value, *statement.exists):
        for node in walk(root):
            if isinstance(node, Index) and node.name == index and node.where:
                return node.where
    return statement.where


def empty(analysis: Analysis, interval: Interval) -> CheckError:
    """The range of an index has no element whatever the sizes."""
    index = interval.step.index
    clauses, subscripts = interval.step.clauses, interval.step.subscripts
    where = clauses[0].where if clauses else subscripts[0].where
    read = "" if clauses else f": `{printer.show(subscripts[0].access)}` is inside `{subscripts[0].tensor}` for none of its values"
    return CheckError(
        f"the range {shown(interval.lower)}:{shown(interval.upper)} of the index `{index}` is empty whatever the sizes{read}",
        where=where or analysis.statement.where,
        hint=f"a range is half-open: `where {index} in 0:N` runs from 0 to N - 1",
    )


def intricate(analysis: Analysis, interval: Interval) -> CheckError:
    """The formula of a range has outgrown what can be worked with."""
    index = interval.step.index
    return CheckError(
        f"the range that the accesses give the index `{index}` is too long a formula",
        where=_index_site(analysis, index),
        hint=f"its range in short: `where {index} in 0:...`",
    )


def negative(interval: Interval, values: Mapping[str, int]) -> ShapeError:
    """The extent of a range is negative for these sizes."""
    index, step = interval.step.index, interval.step
    source = step.clauses[0].where if step.clauses else step.subscripts[0].where
    given = "its `where` clause" if step.clauses else ", ".join(f"`{printer.show(s.access)}`" for s in step.subscripts[:2])
    return ShapeError(
        f"the range {shown(interval.lower)}:{shown(interval.upper)} of the index `{index}`, given by {given}, has a negative extent",
        where=source,
        sizes=values,
        hint="larger arguments" if step.subscripts else "a range that ends where it starts, or later",
    )


def negative_extent(analysis: Analysis, position: int, extent: int, values: Mapping[str, int]) -> ShapeError:
    """The extent that a clause gives a target is negative for these sizes."""
    subscript = analysis.statement.subscripts[position]
    return ShapeError(
        f"the range 0:{extent} of `{printer.subscript(subscript)}` has a negative extent",
        where=subscript.where,
        sizes=values,
        hint="a range that ends where it starts, or later",
    )


def refuse_no_elements(statement: Statement, shape: tuple[int, ...], values: Mapping[str, int]) -> None:
    """Raises ShapeError where there are terms, and no element that they could go to."""
    for position in statement.targets:
        if shape[position] == 0:
            subscript = statement.subscripts[position]
            raise ShapeError(
                f"`{printer.subscript(subscript)}` is outside of `{statement.tensor}`, whose dimension {position} has no elements",
                where=subscript.where,
                sizes=values,
                hint="a larger extent, or no terms",
            )


def shifted(analysis: Analysis, position: int, least: Value, extent: Value, values: Mapping[str, int] = polynomial.NOTHING) -> TCError:
    """A left index whose range does not start at 0; shows the statement with that index shifted, or with its range cut off at 0."""
    statement = analysis.statement
    subscript = statement.subscripts[position]
    index = subscript.name if isinstance(subscript, Index) else printer.show(subscript)
    what = f"the left index `{index}` runs over {shown(least)}:{shown(extent)}, which does not start at 0"
    hint = f"`{printer.show(_shift(statement, index, least))}`" if isinstance(subscript, Index) else ""
    if hint and isinstance(least, int) and least < 0 and all(clause.index != index for clause in statement.clauses):
        own = RangeClause(index, Const(0, dtype="int64"), polynomial.expression(extent))
        hint = f"`{printer.show(replace(statement, clauses=(*statement.clauses, own)))}`, or for all of them, shifted, {hint}"
    conditions = (node.condition for node in walk(statement.value) if isinstance(node, Select))
    if all(clause.index != index for clause in statement.clauses) and any(index in polynomial.names(one) for one in conditions):
        hint = f"its range, `where {index} in 0:...`: a condition does not widen it; or, shifted, {hint}"
    where = subscript.where or statement.where
    return ShapeError(what, where=where, sizes=values, hint=hint) if values else CheckError(what, where=where, hint=hint)


def _shift(statement: Statement, index: str, least: Value) -> Statement:
    """The statement with ``index + least`` for ``index`` on the right, and its ranges moved to match."""
    amount = polynomial.expression(least)

    def change(expr: Expr) -> Expr:
        if isinstance(expr, Index) and expr.name == index:
            if isinstance(least, int):
                return Binary("+" if least > 0 else "-", expr, Const(abs(least), dtype=expr.dtype), dtype=expr.dtype)
            return Binary("+", expr, replace(amount, dtype=expr.dtype), dtype=expr.dtype)
        new = rebuild(expr, change)
        if isinstance(new, Access):
            return replace(new, subscripts=tuple(map(_tidy, new.subscripts)))
        return rebuild(new, _tidy) if isinstance(new, Binary) and new.dtype == "bool" else new

    def move(end: Expr) -> Expr:
        value = polynomial.integer(end)
        return end if value is None else polynomial.expression(value - least)

    clauses = tuple(RangeClause(c.index, move(c.lower), move(c.upper)) if c.index == index else c for c in statement.clauses)
    return replace(statement, value=change(statement.value), exists=tuple(map(change, statement.exists)), clauses=clauses)


def _tidy(expr: Expr) -> Expr:
    """Index arithmetic with like terms collected."""
    value = polynomial.integer(expr) if expr.dtype == "int64" else None
    return expr if value is None else polynomial.expression(value)
