"""Rematerialise: on a GPU, what would go through memory between statements is computed again where it is read, if that moves fewer bytes.

A softmax over few long rows has its sums in chunks, so that the exponentials are read in another launch than the one that adds them up, or
rows that no block of threads can keep: computed again from what they were computed from, they are neither stored nor loaded. That holds
for a result as well that another assignment changes afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access, Binary, Call, Expr, Index
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import replaced, walk, with_names
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries
from tcjit.mapping.instances import is_given_again
from tcjit.mapping.machine import Device
from tcjit.mapping.operations import may_fail, operations
from tcjit.mapping.options import Options
from tcjit.mapping.passes.chunk_reductions import number_of_chunks
from tcjit.mapping.passes.substitute_forward import gives_all
from tcjit.mapping.strides import fits_block, stride_in

COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
CHOICES = ("min", "max", "fmin", "fmax")


def rematerialise(before: Assignments, options: Options, device: Device) -> Assignments:
    """The program without such temporaries."""
    program: list[Assignment | None] = list(before.assignments)
    temporaries = Temporaries(before)
    for position, a in enumerate(program):
        if a is None or not gives_all(before, a) or may_fail(a.value):
            continue
        readers = {n: other for n, other in enumerate(program) if other is not None and a.tensor in other.tensors_read}
        others = [n for n, other in enumerate(program) if n != position and other is not None and other.tensor == a.tensor]
        last = [max(readers, default=0)] if before.storages[a.tensor].role == "output" else []
        if others != last or not all(is_given_again(a, program[n]) for n in last):
            continue
        if len(readers) < 2 or min(readers) < position or not _pays(before, a, list(readers.values()), device):
            continue
        changed = {other.tensor for other in program[position : max(readers)] if other is not None}
        cut = [
            r
            for r in readers.values()
            if r.terms and (number_of_chunks(r, temporaries, before, options, device) > 1 or not _fits_block(r, before))
        ]
        values = {n: _substituted(a, reader) for n, reader in readers.items()}
        if changed & a.inputs or not cut or not all(values.values()):
            continue
        for n, value in values.items():
            assert value is not None
            program[n] = replace(readers[n], value=value)
        program[position] = None
    return before.with_parts(() if a is None else (a,) for a in program)


def _fits_block(a: Assignment, before: Assignments) -> bool:
    """Whether the threads of a block can keep the terms of a result."""
    def step(access: Access, dim: str) -> int | None:
        return stride_in(before.storages[access.tensor], access.subscripts, dim, before.values)

    return fits_block({name: upper - lower for name, lower, upper in a.terms}, a.reads, step)


def _pays(before: Assignments, a: Assignment, readers: Iterable[Assignment], device: Device) -> bool:
    """Whether computing again takes less time than memory for what is moved less."""
    storages, listed = before.storages, list(readers)

    def size(tensors: Iterable[str]) -> int:
        return sum(storages[t].elements * DTYPES[storages[t].dtype].bytes for t in tensors)

    saved = size(a.inputs) + len(listed) * size([a.tensor]) - sum(size(a.inputs - reader.inputs) for reader in listed)
    again = operations(a.value) * (sum(reader.points for reader in listed) - a.points)
    return saved / device.costs.memory > again / (device.costs.fma_rate * device.processors)


def _substituted(a: Assignment, reader: Assignment) -> Expr | None:
    """The value of a reader with that of an assignment in its place; None where it may be that both have to be the same to the last bit,
    as it is compared, or where the reader has other points."""
    mentions = {part for part in walk(reader.value) if isinstance(part, Access) and part.tensor == a.tensor}
    chosen = reader.operator in ("min=", "max=") or any(
        (isinstance(part, Binary) and part.op in COMPARISONS) or (isinstance(part, Call) and part.function in CHOICES)
        for part in walk(reader.value)
        if any(isinstance(one, Access) and one.tensor == a.tensor for one in walk(part))
    )
    elsewhere = any(isinstance(one, Access) and one.tensor == a.tensor for sub in reader.subscripts for one in walk(sub))
    started = reader.start is not None and any(isinstance(one, Access) and one.tensor == a.tensor for one in walk(reader.start))
    if len(mentions) != 1 or chosen or elsewhere or started or reader.constraints or reader.dynamic or reader.final:
        return None
    (access,) = mentions
    pairs = zip(a.subscripts, access.subscripts, strict=True)
    names = {own.name: other.name for own, other in pairs if isinstance(own, Index) and isinstance(other, Index)}
    if len({*names.values()}) < len(a.bounds) or any(reader.ranges[other] != a.ranges[own] for own, other in names.items()):
        return None
    inside = any(guards for found, guards in guarded_accesses(reader.value) if found == access)
    return None if inside else replaced(reader.value, {access: with_names(a.value, names)})
