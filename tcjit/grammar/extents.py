"""Extents in the types of parameters and results: numbers, sizes, and expressions over sizes and integer scalars, ``H - KH + 1``."""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from tcjit.errors import CheckError, Where
from tcjit.grammar import polynomial
from tcjit.grammar.ast import Const, Expr, Index, Name, Param, Return, Size
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.expressions import NameScope, Typer
from tcjit.grammar.polynomial import ZeroDivisor
from tcjit.grammar.printer import extent as shown
from tcjit.grammar.printer import show
from tcjit.grammar.walk import walk


def plain(dim: str | int, where: Where | None = None) -> Expr:
    """A number or a size."""
    return Size(dim, dtype="int64", where=where) if isinstance(dim, str) else Const(dim, dtype="int64", where=where)


def dims(shape: Sequence[Expr]) -> tuple[str | int, ...]:
    """Extents as a type has them: numbers, sizes, and the texts of other expressions."""
    return tuple(int(e.value) if isinstance(e, Const) else e.name if isinstance(e, Size) else shown(e) for e in shape)


def sizes(params: Iterable[Param]) -> dict[str, None]:
    """The sizes that parameters have as extents, by first appearance: names, but not those of integer scalars."""
    params = tuple(params)
    scalars = {param.name for param in params if not param.dims and DTYPES[param.dtype].is_integer}
    return {dim: None for p in params for dim in p.dims if isinstance(dim, str) and dim.isidentifier() and dim not in scalars}


def typed(declared: Param | Return, scope: NameScope) -> tuple[Expr, ...]:
    """The extents in a type; ``scope`` has all sizes and scalars. CheckError for an expression of something else."""
    given = declared.extents or (None,) * len(declared.dims or ())
    found = []
    for dim, extent in zip(declared.dims or (), given, strict=True):
        if extent is None and isinstance(dim, str) and dim in scope.scalars:
            extent = Name(dim, where=declared.where)
        found.append(plain(dim, declared.where) if extent is None else _typed(extent, declared.name, scope))
    return tuple(found)


def _typed(extent: Expr, name: str, scope: NameScope) -> Expr:
    found = Typer(scope).index(extent)
    index = next((node for node in walk(found) if isinstance(node, Index)), None)
    if index is not None:
        raise CheckError(
            f"`{index.name}` in the extent `{show(extent)}` of `{name}` is no size",
            where=index.where,
            hint=f"a size is the whole extent of some parameter, as in `float({index.name}) X`",
        )
    try:
        value = polynomial.integer(found)
    except ZeroDivisor as error:
        raise CheckError("an extent is divided by zero", where=error.where or extent.where) from None
    if value is None:
        what = f"the extent `{show(extent)}` of `{name}` is made of sizes, integer scalars and numbers under + - * / % min max"
        raise CheckError(what, where=extent.where, hint="a size of its own")
    made = polynomial.expression(value)
    if isinstance(made, Const) and made.value < 0:
        raise CheckError(f"the extent `{show(extent)}` of `{name}` is negative", where=extent.where, hint="a positive number, or a size")
    return made
