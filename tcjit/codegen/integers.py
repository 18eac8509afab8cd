"""Index expressions over variables of known ranges: their bounds, what the ranges make simple, and text that cannot overflow.

On a GPU an ``int`` is cheaper than 64 bits, and an index of a private array must be a constant after unrolling. Ranges are intervals;
an expression of which they do not show that it fits 31 bits, step by step, is computed in 64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tcjit.codegen.linear import HELPERS, Linear, Opaque, combine

Ranges = Mapping[str, tuple[int, int]]  # loop variable -> least and greatest value, where both are constants
GREATEST = (1 << 31) - 1


def limits(value: Linear, ranges: Ranges) -> tuple[int, int] | None:
    """Least and greatest value of an expression; None where a variable's range is missing.

    >>> limits(Linear.of("i").times(3) - Linear.of("j"), {"i": (0, 7), "j": (1, 4)})
    (-4, 20)
    """
    least = greatest = value.constant
    for atom, coefficient in value.terms:
        found = ranges.get(atom) if isinstance(atom, str) else _opaque_limits(atom, ranges)
        if found is None:
            return None
        ends = (coefficient * found[0], coefficient * found[1])
        least += min(ends)
        greatest += max(ends)
    return least, greatest


def _opaque_limits(atom: Opaque, ranges: Ranges) -> tuple[int, int] | None:
    found = [limits(argument, ranges) for argument in atom.args]
    if atom.op in ("min", "max"):
        known = [each for each in found if each is not None]
        choose = min if atom.op == "min" else max
        return (choose(low for low, _ in known), choose(high for _, high in known)) if len(known) == len(found) else None
    value, divisor = found[0], atom.args[1].constant
    if not atom.args[1].is_constant or divisor <= 0:
        return None
    if atom.op == "floor":
        return None if value is None else (value[0] // divisor, value[1] // divisor)
    if value is not None and value[0] // divisor == value[1] // divisor:
        return value[0] % divisor, value[1] % divisor
    return 0, divisor - 1


def simplified(value: Linear, ranges: Ranges) -> Linear:
    """The same value: divisions, remainders, minima and maxima that the ranges decide are gone."""
    result = Linear((), value.constant)
    for atom, coefficient in value.terms:
        part = Linear(((atom, 1),)) if isinstance(atom, str) else _opaque_simplified(atom, ranges)
        result = result + part.times(coefficient)
    return result


def _opaque_simplified(atom: Opaque, ranges: Ranges) -> Linear:
    args = tuple(simplified(argument, ranges) for argument in atom.args)
    if atom.op in ("min", "max"):
        sign = 1 if atom.op == "min" else -1
        kept: list[Linear] = []
        for candidate in args:
            if not any(_never_beyond(other, candidate, sign, ranges) for other in kept):
                kept = [*(other for other in kept if not _never_beyond(candidate, other, sign, ranges)), candidate]
        return combine(atom.op, tuple(kept))
    found, divisor = limits(args[0], ranges), args[1].constant
    if args[1].is_constant and divisor > 0 and found is not None and found[0] // divisor == found[1] // divisor:
        quotient = found[0] // divisor
        return Linear.of(quotient) if atom.op == "floor" else args[0] - quotient * divisor
    return combine(atom.op, args)


def _never_beyond(one: Linear, other: Linear, sign: int, ranges: Ranges) -> bool:
    """Whether ``sign * one <= sign * other`` always."""
    found = limits((other - one).times(sign), ranges)
    return found is not None and found[0] >= 0


def fits(value: Linear, ranges: Ranges) -> bool:
    """Whether no step of computing the value leaves the range of int."""
    return _size(value, ranges) is not None


def _size(value: Linear, ranges: Ranges) -> int | None:
    """The greatest magnitude that a step of the computation may have, None beyond that of int."""
    total = abs(value.constant)
    for atom, coefficient in value.terms:
        if isinstance(atom, Opaque) and any(_size(argument, ranges) is None for argument in atom.args):
            return None
        found = ranges.get(atom) if isinstance(atom, str) else _opaque_limits(atom, ranges)
        if found is None:
            return None
        total += abs(coefficient) * max(abs(found[0]), abs(found[1]))
    return total if total <= GREATEST else None


def text(value: Linear, ranges: Ranges, helper: Callable[[str], str]) -> str:
    """The text of a simplified value, unparenthesised: an int where that is enough, else 64 bits; ``helper`` notes functions it calls."""
    ending = "_int" if fits(value, ranges) else ""
    return value.written(lambda atom: _operand(atom, ranges, ending, helper))


def _operand(atom: str | Opaque, ranges: Ranges, ending: str, helper: Callable[[str], str]) -> str:
    if isinstance(atom, str):
        return atom if ending else f"(int64_t){atom}"
    inner = [argument.written(lambda part: _operand(part, ranges, ending, helper)) for argument in atom.args]
    if atom.op in ("floor", "mod"):
        reach = limits(atom.args[0], ranges)
        if reach is not None and reach[0] >= 0:  # where C rounds as we do
            left = inner[0] if atom.args[0].is_operand else f"({inner[0]})"
            return f"({left} {'/' if atom.op == 'floor' else '%'} {inner[1]})"
    result = inner[0]
    for other in inner[1:]:
        result = f"{helper(HELPERS[atom.op] + ending)}({result}, {other})"
    return result
