"""From a program to its assignments: one for every statement that has results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile

from tcjit.grammar.affine import condition
from tcjit.grammar.arithmetic import index
from tcjit.grammar.ast import Binary, Const, Expr, Index, Program, Select, Statement, TargetSubscript
from tcjit.grammar.polynomial import number
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.operations import may_fail
from tcjit.mapping.reduction import conjunction, conjuncts, identity
from tcjit.mapping.storage import Storage, fresh


def extract(program: Program, layouts: Mapping[str, str] | None = None) -> Assignments:
    """``layouts`` gives the arguments' layouts as in a launch record; the rest is contiguous."""
    layouts, extents = layouts or {}, dict(program.extents)
    tensors = tuple(
        Storage(t.name, t.dtype, program.shape(t.name), t.role, layouts.get(t.name, "contiguous"), extents.get(t.name, ()))
        for t in program.definition.tensors
    )
    assignments = [_assignment(program, number) for number in range(len(program.definition.statements))]
    some = tuple(a for a in assignments if all(lower < upper for _, lower, upper in a.results))
    return Assignments(program, some, tensors)


def _assignment(program: Program, number: int) -> Assignment:
    s = program.definition.statements[number]
    bounds = tuple((r.index, *limits) for r, limits in zip(s.domain, program.domains[number], strict=True))
    ranges = program.ranges[number] if program.ranges else ()
    dynamic = {r.index: limits for r, limits in zip(s.domain, ranges) if limits is not None}
    start = identity(s.operator, program.definition.tensor(s.tensor).dtype) if s.operator != "=" and s.initialise else None
    value = _with_indices_first(s.value, program.values)
    a = Assignment(s.tensor, s.subscripts, s.operator, value, bounds, number, s.reduction, start=start, dynamic=dynamic)
    return _with_results_compared(a, s, program) if s.targets else a


def _with_results_compared(a: Assignment, s: Statement, program: Program) -> Assignment:
    """``Y(I(n), d) +=! X(n, d)`` as ``Y(v, d) +=! target(I(n)) == v ? X(n, d) : 0``, in which an element has its terms in their order."""
    shape, extents = program.shape(s.tensor), dict(program.extents).get(s.tensor, ())
    taken = {*a.dims, *(tensor.name for tensor in program.definition.tensors), *(p.name for p in program.definition.params)}
    subscripts, found, dynamic, conditions = list(a.subscripts), dict[str, tuple[int, int]](), dict(a.dynamic), list[Expr]()
    for position in s.targets:
        name = fresh("target", taken | set(found))
        own, extent = index(name), extents[position] if extents else None
        limit = number(shape[position]) if extent is None else extent
        target = TargetSubscript("target", (a.subscripts[position], limit), s.tensor, dtype="int64", where=a.subscripts[position].where)
        conditions.append(Binary("==", own, target, dtype="bool"))
        subscripts[position], found[name] = own, (0, shape[position])
        if extent is not None:
            dynamic[name] = number(0), extent
    results = {name: (lower, upper) for name, lower, upper in a.results} | found
    bounds = tuple((sub.name, *results[sub.name]) for sub in subscripts if isinstance(sub, Index))
    other = identity(a.operator, a.value.dtype)
    if other.value == 0 and isinstance(other.value, float) and a.start is None:
        other = replace(other, value=-0.0)  # to which nothing is added keeps its sign
    value = Select(conjunction(conditions), a.value, other, dtype=a.value.dtype)
    return replace(a, subscripts=tuple(subscripts), value=value, bounds=(*bounds, *a.terms), dynamic=dynamic)


def _with_indices_first(value: Expr, values: Mapping[str, int]) -> Expr:
    """``i && d ? e : c``, where indices decide ``i``, as ``i ? (d ? e : c) : c``: passes know what to do with conditions on indices."""
    if not isinstance(value, Select) or not isinstance(value.other, Const):
        return value
    parts = conjuncts(value.condition)
    affine = [condition(part, values) is not None for part in parts]
    sure = len(list(takewhile(lambda part: not may_fail(part, values), parts)))  # others are evaluated where all before them hold
    first = [part for number, part in enumerate(parts) if affine[number] and number <= sure]
    rest = [part for part in parts if part not in first]
    if not first or not rest:
        return value
    inside = replace(value, condition=conjunction(rest))
    return replace(value, condition=conjunction(first), then=_with_indices_first(inside, values))
