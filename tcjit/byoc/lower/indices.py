"""Index expressions: views become arithmetic on subscripts, which are sums of bounded index variables.

Splits and merges of dimensions are kept simple, so that a view of a view reads like an access that somebody wrote.
"""
from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tcjit.grammar.linear import BoundedVariable, Limits, Linear, limits


def variable(name: str, extent: int) -> Linear:
    """The index ``name`` in ``0:extent``; where that leaves one value, the value."""
    return Linear.of(0) if extent == 1 else Linear.of(BoundedVariable(name, 0, extent - 1))


def from_text(text: str, low: int, high: int) -> Linear:
    """An integer expression of any kind, an access for one, whose value is ``low <= value <= high``."""
    return Linear.of(BoundedVariable(f"({text})", low, high))


def interval(index: Linear) -> Limits:
    """Least and greatest value of an index, all of whose variables are bounded."""
    found = limits(index)
    assert found is not None
    return found


def reshaped(subscripts: Sequence[Linear], shape: Sequence[int], source: Sequence[int]) -> list[Linear]:
    """Where in a tensor of shape ``source`` an element of its view of shape ``shape`` stands.

    >>> print(*reshaped([variable("i", 2), variable("j", 12)], (2, 12), (2, 3, 4)))
    i (j/4) (j%4)
    """
    flat = Linear.of(0)
    for subscript, extent in zip(subscripts, shape):
        flat = flat.times(extent) + subscript
    found = []
    for place, extent in enumerate(source):
        outer = flat // prod(source[place + 1 :])
        found.append(outer if place == 0 and extent > 1 else outer % extent)
    return found


def inside(index: Linear, low: int, high: int) -> list[str] | None:
    """The conditions for ``low <= index < high`` that its interval leaves open; None where none of its values is inside."""
    least, greatest = interval(index)
    if greatest < low or least >= high:
        return None
    return [*([f"{index} >= {low}"] if least < low else []), *([f"{index} < {high}"] if greatest >= high else [])]
