"""Scatter reductions: where a comparison with data picks one result for each term, go over the terms alone.

A sum for each class, ``O(v,d) +=! (I(n) == v) ? X(n,d) : 0.0``, takes a step for each term instead of one for each pair of a term and a
class. A result has its terms in the order of the program.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Binary, Const, Expr, Index, Select
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.equality import Equality, equality, reads_inside, verify_equality, where
from tcjit.mapping.machine import Machine
from tcjit.mapping.passes.chunk_reductions import CPU_CHUNKS, WORTH_CHUNKS, in_chunks
from tcjit.mapping.passes.schedule_scatter import BLOCK
from tcjit.mapping.reduction import identity

LEAST = 4  # results along the dimension that pay for a scatter, where the terms are not alike
SHARES = 16  # parts of the results that are enough for threads
SPARE = 8  # terms for each partial result that pay for chunks


def scatter_reductions(before: Assignments, machine: Machine, prove: bool) -> Assignments:
    """The program with scatters in the place of reductions that compare data with an index of the result; ``prove`` proves them."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        dtype = temporaries.tensors[a.tensor].dtype
        if not a.reduction or a.empty or a.dynamic or a.constraints or a.start != identity(a.operator, dtype) or a.value.dtype != dtype:
            return [a]
        if before.program.dynamic or not all(isinstance(sub, Index) for sub in a.subscripts):
            return [a]
        if any(access.tensor == a.tensor for access, _ in guarded_accesses(a.value)):
            return [a]
        for index, lower, upper in a.results:
            found = equality(a, index, before.values)
            if found is None:
                continue
            # vectors count what is equal to each of a few results faster
            if upper - lower < (machine.lanes(DTYPES[dtype].bytes) if isinstance(found.term, Const) else LEAST):
                continue
            if found.reordered and not reads_inside(before, _update(a, found)):
                continue
            if prove:
                verify_equality(before, a, found)
            if not _worth_chunks(a, found):
                return _scattered(a, found)
            accumulate, *combine = in_chunks(a, CPU_CHUNKS, temporaries, before, machine)
            found = equality(accumulate, index, before.values)
            assert found is not None, "chunks keep what a term is compared with"
            return [*_scattered(accumulate, found), *combine]
        return [a]

    return rewrite(before, visit)


def _worth_chunks(a: Assignment, e: Equality) -> bool:
    """Whether the results give threads little to share, and there are terms enough for partial results."""
    compared = {e.index, *names(_at(a, e))}
    row = prod(upper - lower for name, lower, upper in a.results if name not in compared)
    outer = prod(upper - lower for name, lower, upper in a.results if name in compared and name != e.index)
    picked = next(upper - lower for name, lower, upper in a.results if name == e.index)
    terms, longest = prod(upper - lower for _, lower, upper in a.terms), max(upper - lower for _, lower, upper in a.terms)
    long = terms * row * outer >= WORTH_CHUNKS and longest >= CPU_CHUNKS
    return long and outer * -(-row // BLOCK) < SHARES and picked * outer * CPU_CHUNKS * SPARE <= terms


def _scattered(a: Assignment, e: Equality) -> list[Assignment]:
    """The start of every result, and the update."""
    assert a.start is not None
    return [replace(a, operator="=", value=a.start, bounds=a.results, reduction=(), start=None, constraints=()), _update(a, e)]


def _update(a: Assignment, e: Equality) -> Assignment:
    """The reduction as one of ``index == data ? term : identity``."""
    picked = Binary("==", Index(e.index, dtype="int64"), _at(a, e), dtype="bool")
    value = Select(picked, where(e.after, e.term, e.identity), e.identity, dtype=e.term.dtype)
    return replace(a, value=value, start=None, scatter=e.index)


def _at(a: Assignment, e: Equality) -> Expr:
    """What the index is compared with: outside its range where a condition before that does not hold."""
    lower = next(least for name, least, _ in a.bounds if name == e.index)
    return where(e.before, e.value, Const(lower - 1, dtype="int64"))
