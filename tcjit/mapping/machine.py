"""What the analytic model must know of a processor; the runtime fills it in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """``vector_bytes``: width of a vector register; ``vector_registers``: how many; ``threads``: cores worth using."""

    vector_bytes: int = 32
    vector_registers: int = 16
    threads: int = 2

    def lanes(self, element_bytes: int) -> int:
        return max(1, self.vector_bytes // element_bytes)


BASELINE = Machine()
