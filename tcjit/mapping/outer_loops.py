"""Outer loops that several statements share: each iteration runs all of them, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from tcjit.grammar.ast import Expr


@dataclass(frozen=True)
class OuterLoops:
    """``dims`` of a statement, outermost first, over which the statements with the same ``number`` have their loops in common.

    ``row``: where these are overlapped blocks of rows, the row that an instance of the statement computes. ``columns``: whether they are
    chunks of rows, over which some of the statements reduce.
    """

    number: int
    dims: tuple[str, ...]
    row: Expr | None = None
    columns: bool = False
