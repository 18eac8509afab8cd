"""Number values: what several assignments compute alike is computed once, and stored.

``Z(i) +=! exp(X(i,j) - M(i))  Y(i,j) = exp(X(i,j) - M(i)) / Z(i)`` takes every exponential twice. Values that are equal but for the names
of indices have one number (Alpern, Wegman and Zadeck 1988, over whole iteration domains); those that take long are stored where they
are met first, unless a tensor that they read changes before they are met again. Rows that no cache holds are computed again where memory
is slower than that: than an exponential for one other assignment, not than powers for five, as gradients by several factors have them.
What stands under a condition is stored for all indices, if all that it reads is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from itertools import takewhile
from math import prod

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import condition, guarded_accesses, isl_name
from tcjit.grammar.ast import Access, Binary, Call, Expr, Index, Select
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import children, rebuild, walk, with_names
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries
from tcjit.mapping.equality import reads_inside
from tcjit.mapping.isl import context, count_points, points, sizes_in
from tcjit.mapping.machine import Machine, core_of
from tcjit.mapping.nest.cost import instructions
from tcjit.mapping.operations import CALL, may_fail, operations
from tcjit.mapping.passes.contract import STACK_BYTES

TYPES = ("float32", "float64")  # of values that are stored as they are
MOST_CALLS = 16  # that take long in one value: more are compared part by part
WORTH_STORING = 1 << 14  # operations of all elements at least
MOST_COUNTED = 1 << 20  # elements, of which those for which conditions hold are counted
GAIN = 1.5  # times what storing and reading values takes that computing them again does, at least

Guards = tuple[tuple[Expr, bool], ...]  # conditions under which a value is computed, each with whether it holds


@dataclass(frozen=True)
class _NumberedValue:
    """A value at its first place: the assignment, and the dimensions in the order in which it names them; with the parts of its elements
    that other places compute, by their assignments, of which those ``near`` find it in a cache."""

    position: int
    expr: Expr
    dims: tuple[str, ...]
    part: float
    uses: dict[int, float] = field(default_factory=dict)
    near: set[int] = field(default_factory=set)


def number_values(before: Assignments, machine: Machine) -> Assignments:
    """The program with temporaries for costly values that several assignments compute."""
    temporaries = Temporaries(before)
    program, owners = list(before.assignments), list(range(len(before.assignments)))  # of each, the number of what it takes the place of
    refused = set[Expr]()
    while (found := _repeated(program, refused, before.values, machine)) is not None:
        key, first, uses = found
        stem = f"{before.assignments[owners[first.position]].tensor}_value"
        made = _stored(program, first, uses, stem, temporaries)
        if len(made) > len(program) and not reads_inside(before.with_parts([made], temporaries), made[first.position]):
            refused.add(key)  # a condition keeps it from reading what is not there
            continue
        owners[first.position : first.position] = [owners[first.position]] * (len(made) - len(program))
        program = made
    parts = [[a for a, one in zip(program, owners, strict=True) if one == owner] for owner in range(len(before.assignments))]
    return before.with_parts(parts, temporaries)


def _repeated(
    program: list[Assignment], refused: set[Expr], values: Mapping[str, int], machine: Machine
) -> tuple[Expr, _NumberedValue, set[int]] | None:
    """The largest value that is met again and worth storing, with its number, and the assignments with it."""
    known: dict[Expr, _NumberedValue] = {}
    met: list[tuple[Expr, _NumberedValue]] = []
    for position, a in enumerate(program):
        for expr, guards in _costly(a):
            dims = _dims(a, expr)
            key = with_names(expr, {name: f"#{number}" for number, name in enumerate(dims)})
            first = known.get(key)
            same = first is not None and _ranges(program[first.position], first.dims) == _ranges(a, dims)
            part = _part(a, guards, values)
            if first is None or not same or not _unchanged(program, first, position):
                known[key] = _NumberedValue(position, expr, dims, part)
                met.append((key, known[key]))
            elif first.position != position:
                first.uses[position] = max(part, first.uses.get(position, 0.0))
                if _row_bytes(program[first.position], first, a, dims) <= STACK_BYTES:
                    first.near.add(position)
    found = [(key, value, _readers(program, value, machine)) for key, value in met if value.uses and key not in refused]
    return max((one for one in found if one[2]), key=lambda one: operations(one[0]), default=None)


def _readers(program: list[Assignment], value: _NumberedValue, machine: Machine) -> set[int]:
    """The other assignments that read a value once it is stored: all, where that is faster than to compute it again, or those near."""
    near = {position: value.uses[position] for position in value.near}
    size = DTYPES[value.expr.dtype].bytes
    core = core_of(machine, machine.lanes(size), size)
    cycles = instructions(value.expr, "+=") * core.multiply_add / core.lanes
    elements = prod(upper for _, upper in _ranges(program[value.position], value.dims))
    read = value.part + sum(value.uses.values())
    traffic = size * core.far_byte(size * elements) * (2 + read)  # a line that is written is read before
    saved = (read - 1) * cycles - GAIN * traffic
    if saved > max(0.0, (value.part + sum(near.values()) - 1) * cycles) and value.uses.keys() != near.keys():
        return {*value.uses}
    return {*near} if value.part + sum(near.values()) > 1 else set()


def _part(a: Assignment, guards: Guards, values: Mapping[str, int]) -> float:
    """The part of the elements for which conditions on indices hold; of those on data vectors compute both sides."""
    affine = {test: text for test, _ in guards if (text := condition(test, values)) is not None}
    dims = sorted({name for test in affine for name in names(test) if name in a.ranges})
    size = prod(a.extents[name] for name in dims)
    if not dims or size > MOST_COUNTED or sizes_in(affine, values):
        return 1.0
    box = [f"{lower} <= {isl_name(name)} < {upper}" for name, (lower, upper) in a.ranges.items() if name in dims]
    facts = [f"({affine[test]})" if holds else f"(not ({affine[test]}))" for test, holds in guards if test in affine]
    return count_points(points(context(), map(isl_name, dims), [*box, *facts])) / size


def _costly(a: Assignment) -> Iterator[tuple[Expr, Guards]]:
    """The values inside an assignment that take long, wherever its indices are in their ranges, and the conditions above them."""
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

    def visit(expr: Expr, guards: Guards) -> Iterator[tuple[Expr, Guards]]:
        if 0 < count(expr) <= MOST_CALLS and exists(expr) and not (guards and may_fail(expr)):
            yield expr, guards
        for number, child in enumerate(children(expr)) if count(expr) else ():
            own: Guards = ()
            if isinstance(expr, Select) and number > 0:
                own = ((expr.condition, number == 1),)
            elif isinstance(expr, Binary) and expr.op in ("&&", "||") and number > 0:
                own = ((expr.left, expr.op == "&&"),)
            yield from visit(child, (*guards, *own))

    yield from visit(a.value, ())


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


def _stored(program: list[Assignment], first: _NumberedValue, uses: set[int], stem: str, temporaries: Temporaries) -> list[Assignment]:
    """The program with a temporary for a value, before the assignment that has it first, unless that itself stores it."""
    a = program[first.position]
    limits = _ranges(a, first.dims)
    own = [sub.name for sub in a.subscripts if isinstance(sub, Index)]
    later = [one.tensor for one in program[first.position + 1 : max(uses) + 1]]
    whole = a.operator == "=" and a.value == first.expr and len(own) == len(a.subscripts) and sorted(own) == sorted(first.dims)
    kept = whole and a.tensor not in later and temporaries.tensors[a.tensor].dtype == first.expr.dtype
    dims = tuple(own) if kept else first.dims  # of the element that has a value
    bounds = tuple((name, *ends) for name, ends in zip(dims, limits, strict=True))
    copy = None if kept else temporaries.stored(a, stem, first.expr, bounds)
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

    made = [
        reading(one) if position in uses or position == first.position and copy else one for position, one in enumerate(program)
    ]
    return [*made[: first.position], *([copy] if copy else []), *made[first.position :]]
