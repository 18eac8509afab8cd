"""Number values: what two assignments compute alike is computed once, and stored.

``Z(i) +=! exp(X(i,j) - M(i))  Y(i,j) = exp(X(i,j) - M(i)) / Z(i)`` takes every exponential twice. Values that are equal but for the names
of indices have one number (Alpern, Wegman and Zadeck 1988, over whole iteration domains); those that take long are stored where they
are met first, unless a tensor that they read changes before they are met again. Rows that no cache holds are computed again: memory is
slower than an exponential.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from math import prod

from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Access, Binary, Call, Expr, Index, Select
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import children, rebuild, walk, with_names
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries
from tcjit.mapping.operations import CALL, operations
from tcjit.mapping.passes.contract import STACK_BYTES

TYPES = ("float32", "float64")  # of values that are stored as they are
MOST_CALLS = 16  # that take long in one value: more are compared part by part
WORTH_STORING = 1 << 14  # operations of all elements at least


@dataclass(frozen=True)
class _NumberedValue:
    """A value at its first place: the assignment, and the dimensions in the order in which it names them."""

    position: int
    expr: Expr
    dims: tuple[str, ...]


def number_values(before: Assignments) -> Assignments:
    """The program with temporaries for costly values that several assignments compute."""
    temporaries = Temporaries(before)
    program: list[tuple[Assignment, ...]] = [(a,) for a in before.assignments]  # what takes the place of each
    while (found := _repeated([parts[-1] for parts in program])) is not None:
        first, uses = found
        program = _stored(program, first, uses, temporaries)
    return before.with_parts(program, temporaries)


def _repeated(program: list[Assignment]) -> tuple[_NumberedValue, set[int]] | None:
    """The largest value that is met again, and the assignments with it."""
    known: dict[Expr, _NumberedValue] = {}
    met: dict[Expr, set[int]] = {}
    for position, a in enumerate(program):
        for expr in _costly(a):
            dims = _dims(a, expr)
            key = with_names(expr, {name: f"#{number}" for number, name in enumerate(dims)})
            first = known.get(key)
            same = first is not None and _ranges(program[first.position], first.dims) == _ranges(a, dims)
            if first is None or not same or not _unchanged(program, first, position):
                known[key], met[key] = _NumberedValue(position, expr, dims), set()
            elif first.position != position and _row_bytes(program[first.position], first, a, dims) <= STACK_BYTES:
                met[key].add(position)
    repeated = [key for key, uses in met.items() if uses]
    if not repeated:
        return None
    largest = max(repeated, key=operations)
    return known[largest], met[largest]


def _costly(a: Assignment) -> Iterator[Expr]:
    """The values inside an assignment that take long, wherever its indices are in their ranges."""
    if a.empty or a.dynamic or a.constraints or a.final or any(lower != 0 for _, lower, _ in a.bounds):
        return
    extents = {name: upper for name, _, upper in a.bounds}
    calls: dict[int, int] = {}  # by the identity of parts of the value

    def count(expr: Expr) -> int:
        """The calls in a value that take long."""
        if id(expr) not in calls:
            calls[id(expr)] = sum(map(count, children(expr))) + (isinstance(expr, Call) and operations(expr) >= CALL)
        return calls[id(expr)]

    def exists(expr: Expr) -> bool:
        """Whether a value has elements enough, all of which can be computed."""
        dims = [name for name in names(expr) if name in extents]
        accesses = [part for part in walk(expr) if isinstance(part, Access)]
        guarded = list(guarded_accesses(expr))
        complete = len(accesses) == len(guarded) and not any(guards for _, guards in guarded)
        enough = operations(expr) * prod(extents[name] for name in dims) >= WORTH_STORING
        return complete and bool(accesses) and bool(dims) and enough and expr.dtype in TYPES

    def visit(expr: Expr, inside: bool) -> Iterator[Expr]:
        """``inside``: it may not be evaluated everywhere."""
        if 0 < count(expr) <= MOST_CALLS and not inside and exists(expr):
            yield expr
        for number, child in enumerate(children(expr)) if count(expr) else ():
            guarded = isinstance(expr, Select) and number > 0 or isinstance(expr, Binary) and expr.op in ("&&", "||")
            yield from visit(child, inside or guarded)

    yield from visit(a.value, False)


def _dims(a: Assignment, expr: Expr) -> tuple[str, ...]:
    """The dimensions of a value, in the order of its names; those along which it reads no tensor last, which any loops may be inside."""
    along = {name for part in walk(expr) if isinstance(part, Access) for name in names(part)}
    return tuple(sorted((name for name in names(expr) if name in a.ranges), key=lambda name: name not in along))


def _ranges(a: Assignment, dims: tuple[str, ...]) -> list[tuple[int, int]]:
    return [a.ranges[name] for name in dims]


def _row_bytes(one: Assignment, first: _NumberedValue, other: Assignment, dims: tuple[str, ...]) -> int:
    """Bytes of a value below the outer dimensions that are results of both assignments, whose loops they can share."""
    results = [{name for name, _, _ in a.results} for a in (one, other)]
    outer = list(takewhile(lambda pair: pair[0] in results[0] and pair[1] in results[1], zip(first.dims, dims, strict=True)))
    return DTYPES[first.expr.dtype].bytes * prod(upper for _, upper in _ranges(one, first.dims)[len(outer) :])


def _unchanged(program: list[Assignment], first: _NumberedValue, position: int) -> bool:
    """Whether no tensor that a value reads is written before another position."""
    read = {part.tensor for part in walk(first.expr) if isinstance(part, Access)}
    return not any(a.tensor in read for a in program[first.position : position])


def _stored(
    program: list[tuple[Assignment, ...]], first: _NumberedValue, uses: set[int], temporaries: Temporaries
) -> list[tuple[Assignment, ...]]:
    """The program with a temporary for a value, before the assignment that has it first, unless that itself stores it."""
    a = program[first.position][-1]
    limits = _ranges(a, first.dims)
    own = [sub.name for sub in a.subscripts if isinstance(sub, Index)]
    later = [parts[-1].tensor for parts in program[first.position + 1 : max(uses) + 1]]
    whole = a.operator == "=" and a.value == first.expr and len(own) == len(a.subscripts) and sorted(own) == sorted(first.dims)
    kept = whole and a.tensor not in later and temporaries.tensors[a.tensor].dtype == first.expr.dtype
    dims = tuple(own) if kept else first.dims  # of the element that has a value
    bounds = tuple((name, *ends) for name, ends in zip(dims, limits, strict=True))
    copy = None if kept else temporaries.stored(a, f"{a.tensor}_value", first.expr, bounds)
    tensor = copy.tensor if copy else a.tensor

    def reading(one: Assignment) -> Assignment:
        def visit(expr: Expr) -> Expr:
            theirs = _dims(one, expr)
            renaming = dict(zip(first.dims, theirs))
            same = len(theirs) == len(first.dims) and _ranges(one, theirs) == limits and with_names(first.expr, renaming) == expr
            if same:
                return Access(tensor, tuple(Index(renaming[dim], dtype="int64") for dim in dims), dtype=expr.dtype)
            return rebuild(expr, visit)

        return replace(one, value=visit(one.value))

    made = list(program)
    for position in uses if kept else (first.position, *uses):
        *copies, last = program[position]
        made[position] = (*copies, reading(last))
    if copy:
        *copies, last = made[first.position]
        made[first.position] = (*copies, copy, last)
    return made
