"""Loops with constant trips: what must be unrolled so that the indices of a thread's own arrays become constants.

isl bounds such a loop by ``min(constant, expression)``, or by an expression alone where it knows that no more is needed. Either becomes a
loop over constants with the expression as a condition inside.
"""

from __future__ import annotations

from collections.abc import Sequence

from tcjit.codegen.inequalities import facts, split
from tcjit.codegen.loops import Compare, Condition, For, substitute
from tcjit.grammar.linear import Linear, Opaque, Ranges, limits, simplified

_NEVER = Linear.of(-1)


def parts(value: Linear, op: str) -> tuple[Linear, ...]:
    """The expressions of which a bound is the ``min`` or ``max``."""
    if len(value.terms) == 1 and not value.constant:
        atom, coefficient = value.terms[0]
        if isinstance(atom, Opaque) and atom.op == op and coefficient == 1:
            return tuple(part for argument in atom.args for part in parts(argument, op))
    return (value,)


def constant_trips(loop: For, ranges: Ranges) -> tuple[For, tuple[Compare, ...]] | None:
    """The loop from a constant to a constant, and the conditions on its variable under which its body runs; None without such a form."""
    lowers, uppers = parts(simplified(loop.lower, ranges), "max"), parts(simplified(loop.upper, ranges), "min")
    found = _shortest(lowers, uppers, loop.step, ranges)
    if found is None:
        return None
    lower, upper, trips = found
    variable = Linear.of(loop.variable)
    guards = [Compare(variable, ">=", each) for each in lowers if not _at_least(lower, each, ranges)]
    guards += [Compare(variable, "<=", each) for each in uppers if not _at_least(each, upper, ranges)]
    if lower.is_constant and loop.step == 1:
        return For(loop.variable, lower, lower + (trips - 1), 1, loop.body), tuple(guards)
    values = {loop.variable: lower + variable.times(loop.step)}
    body = tuple(substitute(node, values) for node in loop.body)
    return For(loop.variable, Linear.of(0), Linear.of(trips - 1), 1, body), tuple(guard.substitute(values) for guard in guards)


def _shortest(
    lowers: tuple[Linear, ...], uppers: tuple[Linear, ...], step: int, ranges: Ranges
) -> tuple[Linear, Linear, int] | None:
    """The pair of bounds with the fewest trips between them; the least and greatest values count as bounds where they are known."""
    pairs = [(lower, upper) for lower in lowers for upper in uppers if (upper - lower).is_constant]
    starts = [found for each in lowers if (found := limits(each, ranges)) is not None]
    ends = [found for each in uppers if (found := limits(each, ranges)) is not None]
    if starts and ends and (step == 1 or all(each.is_constant for each in lowers)):
        pairs.insert(0, (Linear.of(max(low for low, _ in starts)), Linear.of(min(high for _, high in ends))))
    trips = [max(0, (upper - lower).constant // step + 1) for lower, upper in pairs]
    if not trips:
        return None
    best = trips.index(min(trips))
    return (*pairs[best], trips[best])


def full_trips(loop: For, guards: Sequence[Condition], ranges: Ranges) -> tuple[int, int] | None:
    """The first and last iteration between which the guards hold, whatever the other variables are; None where there is none of them.

    ``loop`` runs over constants.
    """
    first, last = loop.lower.constant, loop.upper.constant
    inner = {**ranges, loop.variable: (first, last)}
    for fact in (fact for guard in guards for fact in facts(guard) or [_NEVER]):
        for piece in split(simplified(fact, inner)):
            step = piece.coefficient(loop.variable)
            rest = None if step is None else limits(piece - Linear.of(loop.variable).times(step), inner)
            if step is None or rest is None:
                return None
            if step > 0:
                first = max(first, -(rest[0] // step))
            elif step < 0:
                last = min(last, rest[0] // -step)
            elif rest[0] < 0:
                return None
    return (first, last) if first <= last else None


def _at_least(one: Linear, other: Linear, ranges: Ranges) -> bool:
    found = limits(one - other, ranges)
    return found is not None and found[0] >= 0
