"""Scatter reductions: where a comparison with data picks one result for each term, go over the terms alone.

A sum for each class, ``O(v,d) +=! (I(n) == v) ? X(n,d) : 0.0``, takes a step for each term instead of one for each pair of a term and a
class. On a CPU a result has its terms in their order or, where threads have nothing else to share, is the sum of a few parts that do. On a
GPU threads share the terms, and update the results atomically, where the model says that this takes less time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tcjit.grammar.ast import Binary, Const, Expr, Index, Select
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.equality import Equality, equality, reads_inside, verify_equality, where
from tcjit.mapping.gpu.scatter_time import ScatterShape, scatter_chunks, summed_dims
from tcjit.mapping.machine import Device, Machine
from tcjit.mapping.passes.chunk_reductions import CPU_CHUNKS, LEAST_CHUNKS, WORTH_CHUNKS, in_chunks
from tcjit.mapping.passes.schedule_scatter import BLOCK
from tcjit.mapping.reduction import identity, is_atomic, leaves_any
from tcjit.mapping.verify_assignments import verify_assignments

LEAST = 2  # results along the dimension that pay for a scatter
SHARES = 16  # parts of the results, in blocks of a row, that are enough for threads
SPARE = 8  # terms for each partial result that pay for chunks


def scatter_reductions(before: Assignments, target: Machine | Device, prove: bool) -> Assignments:
    """The program with scatters in the place of reductions that compare data with an index of the result; ``prove`` proves them."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        found = _picked(before, a, temporaries)
        if found is None or isinstance(target, Device) and not _has_atomic_updates(a, target):
            return [a]
        combine: list[Assignment] = []
        update = _picked_again(before, _update(before, a, found), False)
        picked = prod(map(a.extents.__getitem__, update.scatter))
        count = _chunks(a, found, picked, target) if isinstance(target, Machine) else _gpu_chunks(update, picked, target)
        if not count and isinstance(target, Device):
            return [a]
        if count > 1:
            whole, (a, *combine) = a, in_chunks(a, count, temporaries, before, target)
            found = equality(a, found.index, before.values)
            assert found is not None, "chunks keep what a term is compared with"
            if prove:
                _verify_chunks(before, whole, (a, *combine), temporaries)
        if prove:
            verify_equality(before, a, found)
        return [*_start(before, a, found), _picked_again(before, _update(before, a, found), prove), *combine]

    return rewrite(before, visit)


def _picked(before: Assignments, a: Assignment, temporaries: Temporaries) -> Equality | None:
    """The comparison with data that picks a result of each term, where a scatter pays."""
    dtype = temporaries.tensors[a.tensor].dtype
    if not a.reduction or a.empty or a.constraints or a.value.dtype != dtype:
        return None
    if not all(isinstance(sub, Index) for sub in a.subscripts) or a.tensor in a.inputs:
        return None
    for index in (name for name, lower, upper in a.results if upper - lower >= LEAST):
        found = equality(a, index, before.values)
        if found is None or a.start not in (None, identity(a.operator, dtype)) and not leaves_any(found.identity, a.operator):
            continue
        if not found.reordered or reads_inside(before, _update(before, a, found)):
            return found
    return None


def _start(before: Assignments, a: Assignment, e: Equality) -> list[Assignment]:
    """What results start from, before terms are added: adding 0.0 makes 0.0 of a -0.0, for all terms that are not picked at once."""
    whole = replace(a, bounds=a.results, reduction=(), start=None, constraints=())
    if a.start is not None:
        return [replace(whole, operator="=", value=a.start)]
    if leaves_any(e.identity, a.operator) or _is_summed(before, a):
        return []
    return [replace(whole, value=e.identity)]


def _is_summed(before: Assignments, a: Assignment) -> bool:
    """Whether what a result holds is a sum that started from 0.0, which is never -0.0."""
    writes = [one for one in before.assignments if one.tensor == a.tensor]
    zero = identity("+=", a.value.dtype)
    starts = [one.start for one in writes[: writes.index(a)]]
    return bool(starts) and starts[0] == zero and set(starts) <= {None, zero} and all(one.operator == "+=" for one in writes)


def _verify_chunks(before: Assignments, a: Assignment, parts: tuple[Assignment, ...], temporaries: Temporaries) -> None:
    """Prove that partial results have every term once, and are combined."""
    whole = replace(before, assignments=(a,))
    verify_assignments("chunk_reductions", whole, whole.with_parts([parts], temporaries))


def _chunks(a: Assignment, e: Equality, picked: int, machine: Machine) -> int:
    """In how many chunks of terms results are summed, of which data pick one of ``picked``: 0, all terms, but where the results give
    threads little to share, or these would share the rows that come from memory, and there are terms enough for partial results."""
    compared = {e.index, *names(_at(a, e))}
    row = prod(upper - lower for name, lower, upper in a.results if name not in compared)
    outer = prod(upper - lower for name, lower, upper in a.results if name in compared and name != e.index)
    terms, longest = prod(upper - lower for _, lower, upper in a.terms), max(upper - lower for _, lower, upper in a.terms)
    element, cache = DTYPES[a.value.dtype].bytes, machine.cache_bytes
    streamed = terms * row * element > cache and picked * outer * row * element <= cache // 2
    long = not a.dynamic and terms * row * outer >= WORTH_CHUNKS and longest >= CPU_CHUNKS
    count = min(CPU_CHUNKS, terms // (picked * outer * SPARE))
    return count if long and count >= LEAST_CHUNKS and (streamed or outer * -(-row // BLOCK) < SHARES) else 0


def _has_atomic_updates(a: Assignment, device: Device) -> bool:
    """Whether a device has those of a reduction; of extrema of floats it has them where results are no NaN to begin with."""
    sure = a.start is not None or a.operator == "+=" or DTYPES[a.value.dtype].kind != "float"
    return sure and is_atomic(a.operator, a.value.dtype, device)


def _gpu_chunks(a: Assignment, picked: int, device: Device) -> int:
    """The same on a GPU; 1: none, 0: results that go over all terms."""
    terms, results = (prod(upper - lower for _, lower, upper in bounds) for bounds in (a.terms, a.results))
    longest = 1 if a.dynamic else max(upper - lower for _, lower, upper in a.terms)
    summed = prod(map(a.extents.__getitem__, summed_dims(a, device.processors // 2)))
    return scatter_chunks(ScatterShape(terms, picked, results // picked, DTYPES[a.value.dtype].bytes, summed), longest, device)


def _update(before: Assignments, a: Assignment, e: Equality) -> Assignment:
    """The reduction as one of ``index == data ? term : identity``."""
    picked = Binary("==", Index(e.index, dtype="int64"), _at(a, e), dtype="bool")

    def of_terms(conditions: Sequence[Expr]) -> Assignment:
        value = Select(picked, where(conditions, e.term, e.identity), e.identity, dtype=e.term.dtype)
        return replace(a, value=value, start=None, scatter=(e.index,))

    made = of_terms(e.after)  # no term is picked where a condition before does not hold, which isl only knows of conditions that stand here
    return made if reads_inside(before, made) else of_terms((*e.before, *e.after))


def _picked_again(before: Assignments, a: Assignment, prove: bool) -> Assignment:
    """A scatter along all dimensions of the results that its terms are compared with."""
    value = a.value
    assert isinstance(value, Select)
    inner = replace(a, value=value.then, scatter=())
    for index in (name for name, lower, upper in a.results if upper - lower >= LEAST and name not in a.scatter):
        found = equality(inner, index, before.values)
        if found is None or found.reordered or found.identity != value.other:
            continue
        if prove:
            verify_equality(before, inner, found)
        again = _picked_again(before, _update(before, inner, found), prove)
        return replace(a, value=replace(value, then=again.value), scatter=(*a.scatter, *again.scatter))
    return a


def _at(a: Assignment, e: Equality) -> Expr:
    """What the index is compared with: outside its range where a condition before that does not hold."""
    return where(e.before, e.value, Const(a.ranges[e.index][0] - 1, dtype="int64"))
