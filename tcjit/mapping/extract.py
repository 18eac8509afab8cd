"""From a program to its assignments: one for every statement that has results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from itertools import takewhile

from tcjit.grammar.affine import condition
from tcjit.grammar.ast import Binary, Const, Expr, Program, Select
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.reduction import identity
from tcjit.mapping.storage import Storage


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
    return Assignment(s.tensor, s.subscripts, s.operator, value, bounds, number, s.reduction, start=start, dynamic=dynamic)


def _with_indices_first(value: Expr, values: Mapping[str, int]) -> Expr:
    """``i && d ? e : c``, where indices decide ``i``, as ``i ? (d ? e : c) : c``: passes know what to do with conditions on indices."""
    if not isinstance(value, Select) or not isinstance(value.other, Const):
        return value
    parts = _conjuncts(value.condition)
    count = len(list(takewhile(lambda part: condition(part, values) is not None, parts)))
    if not 0 < count < len(parts):
        return value
    first, rest = (reduce(_both, some) for some in (parts[:count], parts[count:]))
    return replace(value, condition=first, then=_with_indices_first(replace(value, condition=rest), values))


def _conjuncts(test: Expr) -> list[Expr]:
    """The parts of a condition that must all hold, in the order in which they are evaluated."""
    if isinstance(test, Binary) and test.op == "&&":
        return [*_conjuncts(test.left), *_conjuncts(test.right)]
    return [test]


def _both(left: Expr, right: Expr) -> Expr:
    return Binary("&&", left, right, dtype="bool")
