"""Split divisions: a dimension divided by a constant, as the groups of a convolution divide its channels, becomes quotient and rest.

``X(f / 3 * 13 + c)`` is no linear access in ``f``; with ``f = 3 * f_block + f`` it is one in ``f_block``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tcjit.grammar.ast import Binary, Const, Expr, Index
from tcjit.grammar.walk import rebuild, walk
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.nest.strip_mine import Strip, strip_mine, strip_mined


def split_divisions(a: Assignment) -> tuple[Assignment, list[Strip]]:
    """The assignment without divisions of single dimensions by constants that divide their extents, and how those were split."""
    strips: list[Strip] = []
    while (found := next(_divided(a), None)) is not None:
        strip = strip_mine(a, *found)
        a = strip_mined(a, strip)
        a = replace(a, value=_simplified(a.value, strip), subscripts=tuple(_simplified(sub, strip) for sub in a.subscripts))
        strips.append(strip)
    return a, strips


def _divided(a: Assignment) -> Iterator[tuple[str, int]]:
    """Dimensions of the results and what divides them."""
    extents = {name: upper for name, lower, upper in a.results if lower == 0 and name not in a.dynamic}
    for sub in (sub for access in a.reads for sub in access.subscripts):
        for node in walk(sub):
            match node:
                case Binary(op="/" | "%", left=Index(name=name), right=Const(value=int(block))):
                    if name in extents and 1 < block < extents[name] and extents[name] % block == 0:
                        yield name, block


def _simplified(expr: Expr, strip: Strip) -> Expr:
    """Quotients and rests of what a dimension was replaced by, as indices."""
    divides = isinstance(expr, Binary) and expr.op in ("/", "%") and isinstance(expr.right, Const) and expr.right.value == strip.block
    if isinstance(expr, Binary) and divides and expr.left == strip.value:
        return Index(strip.outer if expr.op == "/" else strip.dim, dtype="int64")
    return rebuild(expr, lambda part: _simplified(part, strip))
