"""Substitute forward: a temporary that one elementwise assignment reads, each element once, is computed where it is read.

A chain of elementwise assignments is then one loop whose values stay in registers, and whose result goes to memory past the caches. What is
rounded as it is stored, in a half type, stays as it is, and so does what takes long and is mentioned more than once.
"""

from __future__ import annotations

from dataclasses import replace

from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access, Expr, Index
from tcjit.grammar.dtypes import ROUNDED
from tcjit.grammar.walk import replaced, walk, with_names
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.operations import CALL, may_fail, operations

MOST_NODES = 256  # of a value: C compilers take long for larger ones


def substitute_forward(before: Assignments) -> Assignments:
    """The program without such temporaries."""
    program: list[Assignment | None] = list(before.assignments)
    for position, a in enumerate(program):
        if a is None or not is_candidate(before, a):
            continue
        readers = [number for number, other in enumerate(program) if other is not None and a.tensor in other.tensors_read]
        writers = [other for other in program if other is not None and other.tensor == a.tensor]
        if len(readers) != 1 or len(writers) != 1 or readers[0] < position:
            continue
        reader = program[readers[0]]
        changed = {other.tensor for other in program[position : readers[0] + 1] if other is not None}
        if reader is not None and not changed & a.inputs and (value := _substituted(a, reader)) is not None:
            program[readers[0]], program[position] = replace(reader, value=value), None
    return before.with_parts(() if a is None else (a,) for a in program)


def is_candidate(before: Assignments, a: Assignment) -> bool:
    """Whether an elementwise assignment gives all elements of a temporary its values as they are."""
    return before.storages[a.tensor].role == "temporary" and gives_all(before, a)


def gives_all(before: Assignments, a: Assignment) -> bool:
    """Whether an elementwise assignment gives all elements of a tensor its values as they are."""
    storage = before.storages[a.tensor]
    whole = sorted(sub.name for sub in a.subscripts if isinstance(sub, Index)) == sorted(name for name, _, _ in a.bounds)
    typed = storage.dtype == a.value.dtype and storage.dtype not in ROUNDED
    return a.is_elementwise and whole and len(a.subscripts) == len(a.bounds) and typed


def _substituted(a: Assignment, reader: Assignment) -> Expr | None:
    """The value of a reader with that of an assignment in its place; None where the reader has other points, or it would not pay."""
    if not reader.is_elementwise:
        return None
    mentions = [part for part in walk(reader.value) if isinstance(part, Access) and part.tensor == a.tensor]
    if len(set(mentions)) != 1 or (len(mentions) > 1 and operations(a.value) >= CALL):
        return None
    guarded = any(guards for access, guards in guarded_accesses(reader.value) if access == mentions[0])
    if guarded and may_fail(a.value):
        return None  # an error belongs to all elements, also to those that are not read
    pairs = zip(a.subscripts, mentions[0].subscripts, strict=True)
    names = {own.name: other.name for own, other in pairs if isinstance(own, Index) and isinstance(other, Index)}
    own, others = a.ranges, reader.ranges
    same = len(names) == len(own) and sorted(names.values()) == sorted(others)
    if not same or any(own[name] != others[other] for name, other in names.items()):
        return None
    value = with_names(a.value, names)
    nodes = sum(1 for _ in walk(reader.value)) + len(mentions) * sum(1 for _ in walk(value))
    return replaced(reader.value, {mentions[0]: value}) if nodes <= MOST_NODES else None
