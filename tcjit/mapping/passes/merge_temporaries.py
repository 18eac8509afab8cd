"""Merge temporaries: of those whose elements have the same values one is computed, and the others' readers read it.

Each of three products with ``Z(i,j) / X(j)`` has an invariant of its own. This is global value numbering, over whole temporaries.
"""

from __future__ import annotations

from dataclasses import replace

from tcjit.grammar.ast import Expr, Index
from tcjit.grammar.walk import with_accesses, with_names
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.passes.substitute_forward import is_candidate


def merge_temporaries(before: Assignments) -> Assignments:
    """The program with one of each."""
    known: dict[object, tuple[int, Assignment]] = {}
    merged: dict[str, str] = {}
    writers = [a.tensor for a in before.assignments]
    parts: list[tuple[Assignment, ...]] = []
    for position, old in enumerate(before.assignments):
        a = _reading(old, merged)
        parts.append((a,))
        if not is_candidate(before, old) or writers.count(a.tensor) > 1 or a.tensor in a.inputs:
            continue
        first, other = known.setdefault(_key(a), (position, a))
        if first < position and a.inputs.isdisjoint(writers[first:position]):
            merged[a.tensor] = other.tensor
            parts[-1] = ()
        else:
            known[_key(a)] = position, a
    return before.with_parts(parts)


def _key(a: Assignment) -> object:
    """What an assignment gives to which element: its value over the axes of its tensor."""
    axes = [sub.name for sub in a.subscripts if isinstance(sub, Index)]
    return with_names(a.value, {name: f"#{number}" for number, name in enumerate(axes)}), tuple(a.ranges[name] for name in axes)


def _reading(a: Assignment, merged: dict[str, str]) -> Assignment:
    """An assignment that reads other temporaries in the place of some."""
    if a.tensors_read.isdisjoint(merged):
        return a

    def visit(expr: Expr) -> Expr:
        return with_accesses(expr, lambda access: replace(access, tensor=merged.get(access.tensor, access.tensor)))

    start = None if a.start is None else visit(a.start)
    return replace(a, value=visit(a.value), subscripts=tuple(map(visit, a.subscripts)), start=start)
