"""Share: let groups that follow one another run inside common outer loops, tile by tile as each of them wants below.

What one group leaves for the next is then still in cache, and ``contract`` may give it a buffer that is no larger than what one round
needs. A sum that is computed in another order of indices, and copied from there into its result, takes its copy along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.dependences import Dependences
from tcjit.mapping.machine import Machine
from tcjit.mapping.options import Options
from tcjit.mapping.passes.fuse import ENOUGH_PARALLEL, Group, same_box, shared_columns
from tcjit.mapping.plan import Plan
from tcjit.mapping.scop import Scop


@dataclass(frozen=True)
class Shared:
    """The groups ``first`` to ``last`` and the columns, of statements to dimensions, that run outside of them; none for a single group."""

    first: int
    last: int
    columns: tuple[dict[str, str], ...] = ()


def share(
    scop: Scop, deps: Dependences, groups: Sequence[Group], plans: Sequence[Plan], options: Options, machine: Machine
) -> tuple[Shared, ...]:
    """All groups in their order, those together that share loops."""
    found: list[Shared] = []
    for number in range(len(groups)):
        columns = _common(scop, deps, groups, plans, number, machine) if number and options.fusion != "minimal" else ()
        if columns and found[-1].first == number - 1:
            found[-1] = Shared(number - 1, number, columns)
        else:
            found.append(Shared(number, number))
    return tuple(found)


def inside(group: Group, plan: Plan, shared: Shared) -> tuple[int, ...]:
    """The order of a group's columns inside of the shared loops."""
    outside = [{name: column[name] for name in group.statements} for column in shared.columns]
    return tuple(c for c in plan.order if group.columns[c] not in outside)


def _common(
    scop: Scop, deps: Dependences, groups: Sequence[Group], plans: Sequence[Plan], number: int, machine: Machine
) -> tuple[dict[str, str], ...]:
    """The outermost columns of a group that those of the next, a copy of its result, can run with; none where that would bring nothing."""
    first, second = groups[number - 1], groups[number]
    if scop.parameters or not any(scop.statement(name).apart for name in second.statements):
        return ()
    pairs = [pair for pair in shared_columns(scop, deps, first, second) if same_box(scop, [pair])]
    columns: list[dict[str, str]] = []
    rounds = 1
    for c in plans[number - 1].order:
        name, dim = next(iter(first.columns[c].items()))
        extent = scop.statement(name).extent(dim)
        if extent == 1:
            continue
        pair = next((pair for pair in pairs if pair[name] == dim), None)
        if pair is None or plans[number - 1].tile[c] != 1 or not _single(second, plans[number], pair):
            break
        columns.append(pair)
        rounds *= extent
    copied = {a.tensor for name in second.statements for a, _ in scop.statement(name).reads()} & {
        scop.statement(name).tensor for name in first.statements
    }
    left = sum(prod(scop.tensor(t).shape) * DTYPES[scop.tensor(t).dtype].bytes for t in copied) // rounds
    enough = max(ENOUGH_PARALLEL, 2 * machine.threads)  # what stays inside is no work for other threads
    return tuple(columns) if rounds >= enough and 2 * left <= machine.cache_bytes else ()


def _single(group: Group, plan: Plan, pair: dict[str, str]) -> bool:
    """Whether a group takes one value of a column at a time."""
    wanted = {name: pair[name] for name in group.statements}
    return any(column == wanted and plan.tile[c] == 1 for c, column in enumerate(group.columns))
