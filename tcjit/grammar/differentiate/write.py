"""The text of a def from updates in normal form: types that literals do not tell, and ranges that inference does not find, are written.

Whether a range is found is asked of ``ranges`` statement by statement, with the extents known before it.
"""
from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from tcjit.errors import TCError
from tcjit.grammar import polynomial
from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Expr, Param, RangeClause, Select, Size, Statement, Unary
from tcjit.grammar.differentiate.normalise import NormalForm, Update
from tcjit.grammar.differentiate.simplify import integer_of
from tcjit.grammar.expressions import DEFAULTS
from tcjit.grammar.extents import dims
from tcjit.grammar.polynomial import NOTHING, Value, ZeroDivisor
from tcjit.grammar.printer import show
from tcjit.grammar.ranges import analyse, solve
from tcjit.grammar.specialised import is_affine_comparison
from tcjit.grammar.walk import children, rebuild

Shape = tuple[Expr, ...]
Statements = tuple[Statement, ...]


def statements(params: Sequence[Param], updates: Iterable[Update], shapes: Mapping[str, Shape]) -> Statements:
    """The statements, each with the ranges that inference would not find; ``shapes`` are those of what the updates write."""
    known = {p.name: tuple(map(integer_of, shapes[p.name])) for p in params if p.dims}
    made = []
    for update in updates:
        made.append(_statement(update, known, shapes[update.target]))
        known.setdefault(update.target, tuple(integer_of(extent) for extent in shapes[update.target]))
    return tuple(made)


def write(
    name: str,
    params: Sequence[Param],
    returns: Sequence[str],
    body: Statements,
    dtypes: Mapping[str, str],
    shapes: Mapping[str, Shape],
) -> str:
    """The text of a def."""
    sizes = {dim for p in params for dim in p.dims}
    results = ", ".join(_return(result, dtypes[result], shapes[result], sizes) for result in returns)
    lines = "".join(f"    {show(statement)}\n" for statement in body)
    return f"def {name}({', '.join(map(show, params))}) -> ({results}) {{\n{lines}}}\n"


def dimension(extent: Expr) -> str | int | None:
    """An extent as it may stand in a type: a number or a size; None for other expressions."""
    value = polynomial.expression(integer_of(extent))
    if isinstance(value, Const):
        return int(value.value)
    return value.name if isinstance(value, Size) and "." not in value.name else None


def normal_text(form: NormalForm) -> str:
    """The text of a def in normal form; the version 0 of a result is one more parameter.

    >>> from tcjit.grammar.differentiate.normalise import normalise
    >>> from tcjit.grammar.front import read
    >>> d, = read("def f(float(N) X) -> (S) { S = 1.0 S += X(i) S max= X(i) * X(i) }")
    >>> print(normal_text(normalise(d)), end="")
    def f(float32(N) X) -> (float32 S) {
        S_1() = 1.0
        S_1() += X(i)
        e_S_3(i) = X(i) * X(i)
        S_3() max=! e_S_3(i)
        S() = max(S_1, S_3)
    }
    """
    definition = form.definition
    params = [*definition.params, *(parameter(n, form.dtypes[n], form.shapes[n]) for n in form.initial.values())]
    body = statements(params, form.updates, form.shapes)
    return write(definition.name, params, definition.returns, body, form.dtypes, form.shapes)


def parameter(name: str, dtype: str, shape: Shape) -> Param:
    """A tensor as a parameter."""
    return Param(name, dtype, dims([polynomial.expression(integer_of(extent)) for extent in shape]))


def _return(name: str, dtype: str, shape: Shape, sizes: Container[str | int]) -> str:
    """A result with its type, where the extents are numbers and ``sizes``."""
    dims = [dimension(extent) for extent in shape]
    if any(dim is None or (isinstance(dim, str) and dim not in sizes) for dim in dims):
        return name
    return f"{dtype}({', '.join(map(str, dims))}) {name}" if dims else f"{dtype} {name}"


# ---------------------------------------------------------------- ranges


def _statement(update: Update, known: Mapping[str, tuple[Value, ...]], shape: Shape) -> Statement:
    """The statement with no more ranges than it needs."""
    given = update.target not in known and bool(update.targets)  # what data pick has its extent from the text
    extents = tuple(polynomial.expression(integer_of(e)) if name in update.targets else None for name, e in zip(update.left, shape))
    value = _typed(update.value)
    clauses = {i: RangeClause(i, *_bounds(*ends)) for i, ends in update.ranges.items()}
    left, ranges = update.places, tuple(clauses.values())
    full = Statement(update.target, left, update.operator, update.initialise, value, "", update.reduction, ranges, update.exists)
    full = replace(full, extents=extents) if given else full
    wanted = {i: (integer_of(lower), integer_of(upper)) for i, (lower, upper) in update.ranges.items()}
    bare = replace(full, clauses=())
    if _finds(bare, known, wanted):
        return bare
    for name in list(clauses):
        fewer = replace(full, clauses=tuple(clause for i, clause in clauses.items() if i != name))
        if _finds(fewer, known, wanted):
            del clauses[name]
            full = fewer
    return full


def _bounds(lower: Expr, upper: Expr) -> tuple[Expr, Expr]:
    return polynomial.expression(integer_of(lower)), polynomial.expression(integer_of(upper))


def _finds(statement: Statement, known: Mapping[str, tuple[Value, ...]], wanted: Mapping[str, tuple[Value, Value]]) -> bool:
    """Whether inference gives the indices these ranges."""
    try:
        analysis = analyse(statement, known)
        if analysis.open:
            return False
        ranges = solve(analysis, known, NOTHING)
    except (TCError, ZeroDivisor):
        return False
    return all((ranges[i].lower, ranges[i].upper) == ends for i, ends in wanted.items())


# ---------------------------------------------------------------- types of literals


def _typed(value: Expr) -> Expr:
    """A statement's value so that its text has its type: one made of literals only is converted."""
    if _is_choice_of_literals(value):
        return value if value.dtype in DEFAULTS.values() else Cast(value, dtype=value.dtype)
    return _with_typed_literals(value)


def _with_typed_literals(expr: Expr) -> Expr:
    """``expr`` with a conversion at each literal that no operand beside it gives its type; index arithmetic is int64 anyway."""
    if isinstance(expr, (Const, Access)) or is_affine_comparison(expr):
        return expr
    if isinstance(expr, Cast) and _is_weak(expr.operand):
        return replace(expr, operand=_pinned(expr.operand))
    if isinstance(expr, Select):
        then, other = (
            _pinned(arm) if _is_weak(arm) and not _is_choice_of_literals(arm) else _with_typed_literals(arm)
            for arm in (expr.then, expr.other)
        )
        return replace(expr, condition=_with_typed_literals(expr.condition), then=then, other=other)
    if isinstance(expr, (Binary, Unary, Call)) and children(expr) and _is_weak(expr) and expr.dtype != "bool":
        return _pinned(expr)
    if isinstance(expr, Binary) and expr.dtype == "bool" and _is_weak(expr.left) and _is_weak(expr.right) and expr.left.dtype != "bool":
        return replace(expr, left=_pinned(expr.left), right=_pinned(expr.right))
    return rebuild(expr, _with_typed_literals)


def _is_weak(expr: Expr) -> bool:
    """Whether the text of an expression is made of literals, whose type is open."""
    if isinstance(expr, Select):
        return _is_weak(expr.then) and _is_weak(expr.other)
    if isinstance(expr, (Binary, Unary, Call)):
        return bool(children(expr)) and all(map(_is_weak, children(expr)))
    return isinstance(expr, Const)


def _is_choice_of_literals(expr: Expr) -> bool:
    if isinstance(expr, Select):
        return _is_choice_of_literals(expr.then) and _is_choice_of_literals(expr.other)
    return isinstance(expr, Const)


def _pinned(expr: Expr) -> Expr:
    """An expression of literals with a conversion at each of them."""
    if isinstance(expr, Const):
        return Cast(expr, dtype=expr.dtype)
    if isinstance(expr, Select):
        return replace(expr, condition=_with_typed_literals(expr.condition), then=_pinned(expr.then), other=_pinned(expr.other))
    return rebuild(expr, _pinned)
