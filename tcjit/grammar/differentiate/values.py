"""A def for given sizes and integer scalars: their numbers written out, and the ranges inferred anew."""
from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace

from tcjit.errors import CheckError
from tcjit.grammar import polynomial
from tcjit.grammar.ast import Access, Binary, Cast, Const, Def, Expr, Scalar, Select, Size, Statement
from tcjit.grammar.differentiate.box import positive_scalars
from tcjit.grammar.differentiate.simplify import FALSE, TRUE
from tcjit.grammar.dtypes import DTYPES, converted
from tcjit.grammar.extents import dims
from tcjit.grammar.infer import infer
from tcjit.grammar.polynomial import ZeroDivisor, names
from tcjit.grammar.specialised import is_affine_comparison
from tcjit.grammar.walk import rebuild

_COMPARISONS = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


def with_values(definition: Def, values: Mapping[str, int]) -> Def:
    """``definition`` with the sizes and integer scalars named in ``values`` as numbers.

    Ranges that are empty for them cannot be written as numbers: then only what index arithmetic is specialised to is written out, and
    where that is refused too, nothing. Raises CheckError for a scalar below 1 that would be taken to be positive.
    """
    specialised = {name: value for name, value in values.items() if name in definition.specialised}
    for chosen in (values, specialised):
        try:
            return infer(_numbered(definition, chosen))
        except CheckError:
            continue
    negative = [name for name in sorted(positive_scalars(definition)) if values.get(name, 1) < 1]
    if negative:
        name = negative[0]
        raise CheckError(
            f"`{definition.name}` has no derivative for {name} = {values[name]}",
            hint=f"a value of {name} that is at least 1",
        )
    return definition


def _numbered(definition: Def, values: Mapping[str, int]) -> Def:
    integers = {p.name for p in definition.params if not p.dims and DTYPES[p.dtype].is_integer} | set(definition.sizes)
    known = {name: int(value) for name, value in values.items() if name in integers}

    def number(expr: Expr) -> Expr:
        if isinstance(expr, (Size, Scalar)) and expr.name in known:
            return Const(known[expr.name], dtype=expr.dtype, where=expr.where)
        return _folded(rebuild(expr, number))

    def statement(old: Statement) -> Statement:
        value = number(old.value)
        used = names(value)
        for expr in (*old.exists, *old.subscripts):
            used.update(names(expr))
        if any(name not in used for name in old.reduction):
            raise CheckError("an index has a range and no use", where=old.where, hint="another value")
        return replace(
            old,
            subscripts=tuple(map(number, old.subscripts)),
            value=value,
            clauses=tuple(replace(clause, lower=number(clause.lower), upper=number(clause.upper)) for clause in old.clauses),
            exists=tuple(map(number, old.exists)),
            domain=(),
            extents=tuple(extent and number(extent) for extent in old.extents),
        )

    inputs = {t.name: tuple(_arithmetic(number(extent)) for extent in t.shape) for t in definition.tensors if t.role == "input"}
    tensors = tuple(replace(t, shape=inputs.get(t.name, ())) for t in definition.tensors)
    params = tuple(replace(p, dims=dims(inputs[p.name])) if p.dims else p for p in definition.params)
    agreements = tuple(replace(a, left=number(a.left), right=number(a.right)) for a in definition.agreements)
    sizes = tuple(name for name in definition.sizes if name not in known)
    return replace(
        definition,
        params=params,
        sizes=sizes,
        tensors=tensors,
        statements=tuple(map(statement, definition.statements)),
        agreements=agreements,
    )


def _folded(expr: Expr) -> Expr:
    """A node with its index arithmetic simplified, a number converted, and the choice made where that decides a condition."""
    if isinstance(expr, Cast) and isinstance(expr.operand, Const):
        return Const(converted(expr.operand.value, expr.dtype), dtype=expr.dtype)
    if isinstance(expr, Access):
        return replace(expr, subscripts=tuple(map(_arithmetic, expr.subscripts)))
    if is_affine_comparison(expr):
        assert isinstance(expr, Binary)
        left, right = _arithmetic(expr.left), _arithmetic(expr.right)
        if isinstance(left, Const) and isinstance(right, Const):
            return Const(_COMPARISONS[expr.op](left.value, right.value), dtype="bool")
        return replace(expr, left=left, right=right)
    if isinstance(expr, Binary) and expr.op in ("&&", "||"):
        decisive = FALSE if expr.op == "&&" else TRUE
        if expr.left == decisive or isinstance(expr.right, Const) and expr.right != decisive:
            return expr.left
        return expr.right if isinstance(expr.left, Const) else expr
    if isinstance(expr, Select) and isinstance(expr.condition, Const):
        return expr.then if expr.condition == TRUE else expr.other
    return expr


def _arithmetic(expr: Expr) -> Expr:
    try:
        value = polynomial.integer(expr)
    except ZeroDivisor:
        return expr
    return expr if value is None else polynomial.expression(value)
