"""Making a failing case small: default options, fewer defs, statements, returns, clauses and parameters, smaller extents and values."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from support.cases import Case, Fill
from support.fuzz.options import nearer
from tcjit.errors import TCError
from tcjit.grammar.ast import Apply, Assign, CallDef, ExistsClause, Expr, LetClause, Name, Number, Return, SurfaceDef
from tcjit.grammar.parse import parse
from tcjit.grammar.printer import show
from tcjit.grammar.walk import children, operands, rebuild, walk

EXTENTS = (0, 1, 2, 3, 5)


def shrink(case: Case, fails: Callable[[Case], bool], tries: int = 2000) -> Case:
    """The smallest case found for which ``fails`` still holds, with at most ``tries`` calls of it.

    ``fails`` is asked about cases that may not be valid any more: it decides what counts.
    """
    left = tries
    progress = True
    while progress and left > 0:
        progress = False
        for smaller in _candidates(case):
            left -= 1
            if left < 0:
                break
            if fails(smaller):
                case, progress = smaller, True
                break
    return case


def _candidates(case: Case) -> Iterator[Case]:
    try:
        defs = parse(case.text)
    except TCError:
        return
    for options in nearer(case.options):
        yield replace(case, options=options)
    if case.device:
        yield replace(case, device={})
    for smaller in _programs(defs):
        yield _fitted(case, smaller)
    yield from _sizes(case, defs[-1])
    yield from _values(case)


def _fitted(case: Case, defs: tuple[SurfaceDef, ...]) -> Case:
    """The case for a changed program: arguments that it does not take any more are dropped."""
    taken = {p.name for p in defs[-1].params}
    return replace(
        case,
        text="\n\n".join(show(d) for d in defs) + "\n",
        shapes={n: s for n, s in case.shapes.items() if n in taken},
        fills={n: f for n, f in case.fills.items() if n in taken},
        scalars={n: v for n, v in case.scalars.items() if n in taken},
        initial={n: f for n, f in case.initial.items() if n in {r.name for r in defs[-1].returns}},
    )


# ---------------------------------------------------------------- programs


def _programs(defs: tuple[SurfaceDef, ...]) -> Iterator[tuple[SurfaceDef, ...]]:
    if len(defs) > 1:
        yield defs[-1:]
        yield defs[:-1]
    for position, definition in enumerate(defs):
        for smaller in _definitions(definition):
            yield (*defs[:position], smaller, *defs[position + 1 :])


def _definitions(d: SurfaceDef) -> Iterator[SurfaceDef]:
    for position in reversed(range(len(d.body))):
        body = d.body[:position] + d.body[position + 1 :]
        written = {n for s in body for n in (s.targets if isinstance(s, CallDef) else (s.tensor,))}
        returns = tuple(r for r in d.returns if r.name in written)
        yield replace(d, body=body, returns=returns or _promoted(d, written))
    if len(d.returns) > 1:
        for position in range(len(d.returns)):
            yield replace(d, returns=d.returns[:position] + d.returns[position + 1 :])
    used = {n for s in d.body for e in _expressions(s) for node in walk(e) if isinstance(node, (Name, Apply)) for n in (node.name,)}
    idle = [p for p in d.params if p.name not in used]
    if idle:
        yield replace(d, params=tuple(p for p in d.params if p.name in used))
        for param in idle:
            yield replace(d, params=tuple(p for p in d.params if p is not param))
    for position, ret in enumerate(d.returns):
        if ret.dtype:
            plain = replace(ret, dtype=None, dims=None)
            yield replace(d, returns=(*d.returns[:position], plain, *d.returns[position + 1 :]))
    for position, statement in enumerate(d.body):
        if isinstance(statement, Assign):
            for smaller in _statements(statement):
                yield replace(d, body=(*d.body[:position], smaller, *d.body[position + 1 :]))


def _promoted(d: SurfaceDef, written: set[str]) -> tuple[Return, ...]:
    """A temporary returned, where no return is left."""
    return tuple(replace(d.returns[0], name=name, dtype=None, dims=None) for name in sorted(written)[:1])


def _expressions(statement: Assign | CallDef) -> Iterator[Expr]:
    if isinstance(statement, CallDef):
        yield from statement.args
        return
    yield from statement.subscripts
    yield statement.value
    for clause in statement.clauses:
        yield from operands(clause)


def _statements(statement: Assign) -> Iterator[Assign]:
    for position in range(len(statement.clauses)):
        yield replace(statement, clauses=statement.clauses[:position] + statement.clauses[position + 1 :])
    for position in range(len(statement.subscripts)):
        yield replace(statement, subscripts=statement.subscripts[:position] + statement.subscripts[position + 1 :])
    for smaller in _simpler(statement.value):
        yield replace(statement, value=smaller)
    for position, clause in enumerate(statement.clauses):
        if isinstance(clause, LetClause | ExistsClause):
            for smaller in _simpler(clause.value):
                changed = replace(clause, value=smaller)
                yield replace(statement, clauses=(*statement.clauses[:position], changed, *statement.clauses[position + 1 :]))


def _simpler(expr: Expr) -> Iterator[Expr]:
    """One node replaced by one of its operands or by a literal, outermost first."""
    yield from children(expr)
    if not isinstance(expr, (Number, Name)):
        yield Number("1")
    if isinstance(expr, Number) and expr.text not in ("0", "1", "true", "false"):
        yield Number("1")
    for position, child in enumerate(children(expr)):
        for smaller in _simpler(child):
            yield _with(expr, position, smaller)


def _with(expr: Expr, position: int, new: Expr) -> Expr:
    count = iter(range(len(children(expr))))
    return rebuild(expr, lambda child: new if next(count) == position else child)


# ---------------------------------------------------------------- arguments


def _sizes(case: Case, definition: SurfaceDef) -> Iterator[Case]:
    """One size, or one numeric extent, made smaller."""
    values: dict[str, int] = {}
    for param in definition.params:
        for dim, extent in zip(param.dims, case.shapes.get(param.name, ())):
            if isinstance(dim, str):
                values[dim] = extent
    for size, value in values.items():
        for smaller in sorted({*(e for e in EXTENTS if e < value), value // 2, value - 1} - {value, -1}):
            shapes = {
                p.name: tuple(smaller if dim == size else e for dim, e in zip(p.dims, case.shapes[p.name]))
                for p in definition.params
                if p.name in case.shapes
            }
            yield replace(case, shapes=shapes)
    for position, param in enumerate(definition.params):
        for dimension, dim in enumerate(param.dims):
            if not isinstance(dim, int):
                continue
            for smaller in sorted({*(e for e in (1, 2, 3) if e < dim), dim // 2} - {0, dim}):
                changed = replace(param, dims=(*param.dims[:dimension], smaller, *param.dims[dimension + 1 :]))
                extents = list(case.shapes[param.name])
                extents[dimension] = smaller
                params = (*definition.params[:position], changed, *definition.params[position + 1 :])
                defs = (*parse(case.text)[:-1], replace(definition, params=params))
                yield replace(_fitted(case, defs), shapes={**case.shapes, param.name: tuple(extents)})


def _values(case: Case) -> Iterator[Case]:
    for name, value in case.scalars.items():
        if value not in (0, 1) and not isinstance(value, bool):
            yield replace(case, scalars={**case.scalars, name: type(value)(1)})
    for group in ("fills", "initial"):
        fills: dict[str, Fill] = getattr(case, group)
        for name, fill in fills.items():
            if fill.kind != "small":
                yield replace(case, **{group: {**fills, name: replace(fill, kind="small", low=-3, high=3)}})
