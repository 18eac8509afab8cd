"""From a program to its assignments: one for every statement that has results."""

from __future__ import annotations

from collections.abc import Mapping

from tcjit.grammar.ast import Program
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
    return Assignment(s.tensor, s.subscripts, s.operator, s.value, bounds, number, s.reduction, start=start, dynamic=dynamic)
