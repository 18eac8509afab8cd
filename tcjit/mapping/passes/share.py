"""Share: let groups that follow one another run inside common outer loops, tile by tile as each of them wants below.

What one group leaves for the next is then still in cache, and ``contract`` may give it a buffer that is no larger than what one round
needs. A sum that is computed in another order of indices, and copied from there into its result, takes its copy along; and an operand that
is copied into another order for a sum is copied as it comes to be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tcjit.grammar.ast import Access
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.dependences import Dependences
from tcjit.mapping.group import Group
from tcjit.mapping.machine import Machine
from tcjit.mapping.options import Options
from tcjit.mapping.passes.fuse import ENOUGH_PARALLEL, same_box, shared_columns
from tcjit.mapping.passes.parallelise import WORTH_THREADS
from tcjit.mapping.plan import Plan
from tcjit.mapping.scop import Scop, ScopStatement


@dataclass(frozen=True)
class Shared:
    """The groups ``first`` to ``last`` and the columns, of statements to dimensions, that run outside of them; none for a single group."""

    first: int
    last: int
    columns: tuple[dict[str, str], ...] = ()


def share(
    scop: Scop, deps: Dependences, groups: Sequence[Group], plans: Sequence[Plan], options: Options, machine: Machine
) -> tuple[Shared, ...]:
    """All groups in their order, those together that share loops.

    Where a group could share loops with the one before or with the one after, but not the same loops, the larger part of what is handed
    on decides.
    """
    found: list[Shared] = []
    for number in range(len(groups)):
        columns = _common(scop, deps, groups, plans, number, machine) if number and options.fusion != "minimal" else ()
        last = found[-1] if found else Shared(0, 0)
        joined = _joined(last.columns, columns)
        if joined:
            found[-1] = Shared(last.first, number, joined)
        elif columns and (not last.columns or _bytes(scop, groups, number) > _bytes(scop, groups, number - 1)):
            found[-1:] = [*(Shared(each, each) for each in range(last.first, number - 1)), Shared(number - 1, number, columns)]
        else:
            found.append(Shared(number, number))
    return tuple(found)


def _joined(before: Sequence[dict[str, str]], after: Sequence[dict[str, str]]) -> tuple[dict[str, str], ...]:
    """The columns of groups that share loops with those of one more, if these are the same loops of the group in the middle."""
    pairs = [(one, other) for one in before for other in after if one.items() & other.items()]
    return tuple({**one, **other} for one, other in pairs) if len(pairs) == len(before) == len(after) else ()


def inside(group: Group, plan: Plan, shared: Shared) -> tuple[int, ...]:
    """The order of a group's columns inside of the shared loops."""
    outside = [{name: column[name] for name in group.statements} for column in shared.columns]
    return tuple(c for c in plan.order if group.columns[c] not in outside)


def _common(
    scop: Scop, deps: Dependences, groups: Sequence[Group], plans: Sequence[Plan], number: int, machine: Machine
) -> tuple[dict[str, str], ...]:
    """The outermost columns that a group can run with the one before; none where that would bring nothing.

    It does where one of them only copies: the result of a sum into its place, or an operand into the order in which a sum reads it.
    """
    first, second = groups[number - 1], groups[number]
    if any(scop.statement(name).fuse_outer_only for name in second.statements):
        sums, copies = number - 1, number
    elif _packs(scop, first, second):
        sums, copies = number, number - 1
    else:
        return ()
    pairs = [pair for pair in shared_columns(scop, deps, first, second) if same_box(scop, [pair])]
    points = sum(scop.statement(name).points for name in first.statements + second.statements)
    columns: list[dict[str, str]] = []
    least = most = 1  # rounds of the loops
    for c in plans[sums].order:
        name, dim = next(iter(groups[sums].columns[c].items()))
        extent = scop.statement(name).extent(dim)
        if extent == 1:
            continue
        if 2 * _bytes(scop, groups, number) // most <= machine.near_bytes and _enough(points, least, most, machine):
            break  # what a round leaves is near as it is
        pair = next((pair for pair in pairs if pair[name] == dim), None)
        if pair is None or plans[sums].tile[c] != 1 or not _single(groups[copies], plans[copies], pair):
            break
        columns.append(pair)
        least *= _fewest(scop, scop.statement(name), dim)
        most *= extent
    near = 2 * _bytes(scop, groups, number) // most <= machine.cache_bytes
    return tuple(columns) if near and _enough(points, least, most, machine) else ()


def _enough(points: int, least: int, most: int, machine: Machine) -> bool:
    """Whether so many rounds busy all threads. What stays inside is no work for other ones, unless it is not worth them."""
    worth = points // most >= 2 * WORTH_THREADS
    return (least if worth else most) >= max(ENOUGH_PARALLEL if worth else 0, 2 * machine.threads)


def _fewest(scop: Scop, s: ScopStatement, dim: str) -> int:
    """Values that a dimension has at least, where a size that only the call knows may bound it."""
    if all(name != dim for name, _, _ in s.dynamic_bounds):
        return s.extent(dim)
    lower, upper = s.range(dim)
    return next((d.least for d in scop.program.dynamic if lower == "0" and upper == d.name), 1)


def _packs(scop: Scop, first: Group, second: Group) -> bool:
    """Whether the first group does nothing but copy what sums of the second read."""
    copies = [scop.statement(name) for name in first.statements]
    plain = all(s.operator == "=" and isinstance(s.value, Access) and scop.tensor(s.tensor).role == "temporary" for s in copies)
    sums = any(scop.statement(name).reduction for name in second.statements)
    return plain and sums and {s.tensor for s in copies} == _handed(scop, first, second)


def _handed(scop: Scop, first: Group, second: Group) -> set[str]:
    """The tensors that a group reads from the one before."""
    read = {a.tensor for name in second.statements for a, _ in scop.statement(name).reads()}
    return read & {scop.statement(name).tensor for name in first.statements}


def _bytes(scop: Scop, groups: Sequence[Group], number: int) -> int:
    """Of the tensors that a group reads from the one before."""
    handed = [scop.tensor(name) for name in _handed(scop, groups[number - 1], groups[number])]
    return sum(prod(t.shape) * DTYPES[t.dtype].bytes for t in handed)


def _single(group: Group, plan: Plan, pair: dict[str, str]) -> bool:
    """Whether a group takes one value of a column at a time."""
    wanted = {name: pair[name] for name in group.statements}
    return any(column == wanted and plan.tile[c] == 1 for c, column in enumerate(group.columns))
