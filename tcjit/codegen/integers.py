"""Integer expressions as text that cannot overflow: an ``int`` where the ranges of the variables show that it is enough, else 64 bits.

On a GPU an ``int`` is cheaper than 64 bits. Ranges are intervals; an expression of which they do not show that it fits 31 bits, step by
step, is computed in 64.
"""

from __future__ import annotations

from collections.abc import Callable

from tcjit.grammar.linear import HELPERS, Linear, Opaque, Ranges, limits

GREATEST = (1 << 31) - 1


def fits(value: Linear, ranges: Ranges) -> bool:
    """Whether no step of computing the value leaves the range of int."""
    return _size(value, ranges) is not None


def _size(value: Linear, ranges: Ranges) -> int | None:
    """The greatest magnitude that a step of the computation may have, None beyond that of int."""
    total = abs(value.constant)
    for atom, coefficient in value.terms:
        if isinstance(atom, Opaque) and any(_size(argument, ranges) is None for argument in atom.args):
            return None
        found = limits(Linear.of(atom), ranges)
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
