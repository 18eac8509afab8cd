"""A cache that drops the least recently used."""
from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most ``limit`` values by key: beyond, the eighth goes that was used longest ago. Threads share it without a lock: a race costs a
    value that must be made again.

    >>> table = Recent(8)
    >>> for number in range(8):
    ...     table.put(number, str(number))
    >>> table.get(0)
    '0'
    >>> table.put(8, "8"), len(table), table.get(1), table.get(0)
    (None, 7, None, '0')
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held: dict[K, list[tuple[V, int]]] = {}  # a list of one: value, and when it was used
        self._clock = count()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: K) -> V | None:
        """The value, which counts as used; None where there is none."""
        slot = self._held.get(key)
        if slot is None:
            return None
        value = slot[0][0]
        slot[0] = value, next(self._clock)
        return value

    def put(self, key: K, value: V) -> None:
        """Keep a value, and if there are too many let go of others."""
        self._held[key] = [(value, next(self._clock))]
        if len(self._held) > self.limit:
            by_use = sorted([*self._held.items()], key=lambda item: item[1][0][1])
            for old, _ in by_use[: len(by_use) - self.limit + self.limit // 8]:
                self._held.pop(old, None)

    def items(self) -> Iterator[tuple[K, V]]:
        """Every key with its value; none of them counts as used."""
        return ((key, slot[0][0]) for key, slot in [*self._held.items()])

    def clear(self) -> None:
        """Let go of all."""
        self._held.clear()
