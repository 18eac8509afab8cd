"""Outer loops that several statements share: each iteration runs all of them, one after the other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OuterLoops:
    """``dims`` of a statement, outermost first, over which the statements with the same ``number`` have their loops in common."""

    number: int
    dims: tuple[str, ...]
