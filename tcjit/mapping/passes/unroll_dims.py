"""Unroll dimensions: those of a few points that lie innermost in memory, as coordinates and colours do, become statements of their own.

A loop of three iterations has no vectors, and ``(d + 1) % 3`` divides in it. With a statement for each point of such a dimension, and the
terms of a sum over one added up in one value, all loops run along the other dimensions: ``tile`` takes statements whose elements lie
between one another in memory in one loop, where C compilers load and store them with shuffles and keep temporaries in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import product
from math import prod

from tcjit.grammar.affine import is_gather
from tcjit.grammar.ast import Call, Index
from tcjit.grammar.dtypes import ROUNDED
from tcjit.grammar.polynomial import names, number
from tcjit.grammar.walk import walk, with_index
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.collapse import bare_indices
from tcjit.mapping.operations import CALL, operations
from tcjit.mapping.passes.substitute_forward import MOST_NODES
from tcjit.mapping.reduction import combined
from tcjit.mapping.strides import INTERLEAVED, stride_in

LEAST = 32  # iterations of the other dimensions, of which vectors are made
MOST_TERMS = 16  # of a sum over a window, or a part of a row, that is one value: whole rows, as softmax has them, are passed over together


def unroll_dims(before: Assignments) -> Assignments:
    """The program without loops over such dimensions."""
    added = [_added_up(before, a) for a in before.assignments]
    short = [innermost_points(before, a) for a in added]
    changed = {n for n, a in enumerate(added) if a is not before.assignments[n]}
    chosen = changed | {n for n, a in enumerate(added) if not all(_moves_alike(before, a, dim) for dim in short[n])}
    while more := {n for n, a in enumerate(added) if n not in chosen and short[n] and any(_share(a, added[other]) for other in chosen)}:
        chosen |= more
    return before.with_parts(_points(a, short[n]) if n in chosen else (a,) for n, a in enumerate(added))


def _added_up(before: Assignments, a: Assignment) -> Assignment:
    """A reduction of few terms without a nest as one value."""
    storage, terms = before.storages[a.tensor], prod(upper - lower for _, lower, upper in a.terms)
    typed = storage.dtype == a.value.dtype and storage.dtype not in (*ROUNDED, "bool")
    plain = a.reduction and not (a.final or a.outer and a.outer.columns or a.dynamic or a.constraints or a.tensor in a.inputs)
    most = MOST_TERMS if not _is_over_rows(before, a) else INTERLEAVED if _is_innermost(before, a) or _is_alone(before, a) else 0
    if not (plain and typed) or a.start is None or not 1 < terms <= most or a.points < LEAST * terms:
        return a
    picked = any(is_gather(sub) for access in a.reads for sub in access.subscripts)  # rows, before a loop over their elements
    if picked or terms * sum(1 for _ in walk(a.value)) > MOST_NODES:
        return a
    value = [a.value]
    for dim, lower, upper in a.terms:
        value = [with_index(term, dim, number(at)) for term in value for at in range(lower, upper)]
    total = reduce(partial(combined, a.operator), value, a.start)
    return replace(a, operator="=", value=total, bounds=a.results, reduction=(), start=None, untiled="")


def _is_over_rows(before: Assignments, a: Assignment) -> bool:
    """Whether a reduction goes over whole rows of all that it reads along it."""
    moving = [
        (sub, before.storages[access.tensor].shape[axis])
        for access in a.reads
        for axis, sub in enumerate(access.subscripts)
        if set(a.reduction) & set(names(sub))
    ]
    return all(isinstance(sub, Index) and a.extents[sub.name] == extent for sub, extent in moving)


def _is_innermost(before: Assignments, a: Assignment) -> bool:
    """Whether the terms of a reduction lie side by side in all that it reads along them, a few elements apart at most."""
    strides = (stride_in(before.storages[x.tensor], x.subscripts, dim, before.values) for x in a.reads for dim in a.reduction)
    return all(stride is not None and stride <= INTERLEAVED for stride in strides)


def _is_alone(before: Assignments, a: Assignment) -> bool:
    """Whether nothing else goes over the rows that a reduction goes over, in blocks that stay in a cache."""
    return not any(_share(a, other) for other in before.assignments if other is not a)


def innermost_points(before: Assignments, a: Assignment) -> tuple[str, ...]:
    """The dimensions of a few points in all along which the results of an elementwise assignment are neighbours."""
    own = {access.subscripts for access in a.reads if access.tensor == a.tensor}
    if a.outer and any(is_gather(sub) for access in a.reads for sub in access.subscripts):
        return ()  # a thread's loops stay as they are for elements that are checked, and read, one by one
    if not a.is_elementwise_in_loops or not own <= {a.subscripts}:
        return ()
    steps = {name: stride_in(before.storages[a.tensor], a.subscripts, name, before.values) for name, _, _ in a.bounds}
    shared = a.outer.dims if a.outer else ()
    found: dict[str, None] = {}
    block = 1  # points that lie side by side
    for dim, extent in sorted(a.extents.items(), key=lambda item: steps[item[0]] or 0):
        once = sum(dim in names(sub) for sub in a.subscripts) == 1
        if steps[dim] == block and once and dim not in shared and 1 < extent <= INTERLEAVED // block:
            found[dim] = None
            block *= extent
    least = 1 if any(isinstance(part, Call) and operations(part) >= CALL for part in walk(a.value)) else LEAST  # functions have far lanes
    long = {name for name, extent in a.extents.items() if steps[name] == block and extent >= least}
    rows = a.points >= LEAST * block and bool(long)
    return tuple(dim for dim in a.dims if dim in found) if rows else ()


def _moves_alike(before: Assignments, a: Assignment, dim: str) -> bool:
    """Whether all that an assignment reads moves by some number of elements along a dimension, which stands in subscripts alone."""
    moves = (stride_in(before.storages[access.tensor], access.subscripts, dim, before.values) for access in a.reads)
    return dim not in bare_indices(a.value) and None not in moves


def _share(a: Assignment, other: Assignment) -> bool:
    """Whether two assignments write one tensor, or one of them reads what the other writes."""
    return a.tensor == other.tensor or a.tensor in other.inputs or other.tensor in a.inputs


def _points(a: Assignment, dims: Sequence[str]) -> Sequence[Assignment]:
    """An assignment for each point of some dimensions, if there are such."""
    if not dims:
        return (a,)
    bounds = tuple(bound for bound in a.bounds if bound[0] not in dims)
    parts = []
    for point in product(*(range(*a.ranges[dim]) for dim in dims)):
        value, *subscripts = (a.value, *a.subscripts)
        for dim, at in zip(dims, map(number, point), strict=True):
            value, *subscripts = (with_index(expr, dim, at) for expr in (value, *subscripts))
        parts.append(replace(a, subscripts=tuple(subscripts), value=value, bounds=bounds))
    return parts
