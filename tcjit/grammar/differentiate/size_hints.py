"""Sizes that a derivative is likely to run with: by them it chooses among texts that hold for every size.

What two extents compare like, and which numbers were written out, is kept as a guard, as a tracer with symbolic shapes does: for all sizes
for which the guards hold, the same text would be derived.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping

from tcjit.dataclass import dataclass
from tcjit.grammar.ast import Size
from tcjit.grammar.polynomial import NOTHING, Polynomial, Value, ZeroDivisor, at, atom

Extent = Value | None  # None for an index whose extent is not known
_UNKNOWN = 1 << 62  # what an extent that is no number counts as


@dataclass(frozen=True)
class SizeGuard:
    """``order`` is 1 where ``one`` extent is greater than the ``other``, -1 where it is less, 0 where they are equal."""

    one: Extent
    other: Extent
    order: int

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether extents are ordered like this for other sizes."""
        return order(self.one, self.other, sizes) == self.order


class SizeHints:
    """``sizes`` and integer scalars with typical values, and the ``guards`` of the choices that were made by them."""

    def __init__(self, sizes: Mapping[str, int] = NOTHING) -> None:
        self.sizes = sizes
        self._guards: dict[SizeGuard, None] = {}

    @property
    def guards(self) -> tuple[SizeGuard, ...]:
        return tuple(self._guards)

    def knows(self, extent: Extent) -> bool:
        """Whether an extent is a number for these sizes."""
        return _number(extent, self.sizes) != _UNKNOWN

    def order(self, one: Extent, other: Extent) -> int:
        """The order of two extents, as that of a guard, which is kept where other sizes could give another one."""
        found = order(one, other, self.sizes)
        if one != other and (isinstance(one, Polynomial) or isinstance(other, Polynomial)):
            self._guards[SizeGuard(one, other, found)] = None
        return found

    def numbers(self, names: Iterable[str]) -> dict[str, int]:
        """The known ones of some sizes, as far as they are positive."""
        return {name: self.sizes[name] for name in names if self.sizes.get(name, 0) > 0}

    def keep(self, numbers: Mapping[str, int]) -> None:
        """Note that the numbers of sizes were written out."""
        for name, number in numbers.items():
            self.order(atom(Size(name, dtype="int64")), number)


def order(one: Extent, other: Extent, sizes: Mapping[str, int]) -> int:
    """1, 0 or -1; an extent that is no number, for these sizes, is greater than any that is."""
    left, right = _number(one, sizes), _number(other, sizes)
    return (left > right) - (left < right)


def _number(extent: Extent, sizes: Mapping[str, int]) -> int:
    try:
        value = None if extent is None else at(extent, sizes)
    except ZeroDivisor:
        return _UNKNOWN
    return value if isinstance(value, int) else _UNKNOWN
