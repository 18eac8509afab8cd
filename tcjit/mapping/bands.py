"""The bands of reductions: terms that conditions keep between two edges, a constant number of them; the edges move with other indices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import affine, conjuncts
from tcjit.grammar.arithmetic import index, plus
from tcjit.grammar.ast import Access, Binary, Expr, Index, Select
from tcjit.grammar.polynomial import Value, ZeroDivisor, atom, divide, expression, integer, names, number
from tcjit.grammar.walk import rebuild, walk, with_index
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.fused_run import divided_dims
from tcjit.mapping.reduction import conjunction, guarded_term, identity, is_reused

# Terms of a band up to which a product is faster over windows than in tiles of results that share operands, a part of which is outside of
# the band: on a CPU, where tiles have some ten rows, and on a GPU, where they have a hundred.
NARROW, NARROW_ON_GPU = 32, 1
FEWER = 2  # times fewer terms that pay for windows whose edge is a quotient, as of taps far apart: products over them have no nest


@dataclass(frozen=True)
class Edge:
    """That an index, times a ``factor``, is at least a value, or at most."""

    value: Value
    least: bool
    factor: int


@dataclass(frozen=True)
class Band:
    """Values of the index ``dim`` of a reduction between an edge that moves with other indices and one ``width`` terms on; ``factor``: what
    the edge is divided by."""

    dim: str
    lower: Value
    width: int
    factor: int

    @property
    def value(self) -> Expr:
        """The index, if another of the same name counts the terms of the band."""
        return plus(expression(self.lower), index(self.dim)) if self.width > 1 else expression(self.lower)


def skewed(a: Assignment, values: Mapping[str, int], narrow: int) -> tuple[Assignment, dict[str, Expr]]:
    """A reduction with windows in the place of its bands, and the values that the indices of these had; products whose tiles of results
    share operands have windows in the place of bands of ``narrow`` terms at most."""
    places: dict[str, Expr] = {}
    if not a.reduction or a.outer or a.constraints or a.empty:
        return a, places

    def is_worth(band: Band) -> bool:
        few = band.factor == 1 or FEWER * band.width <= a.extents[band.dim]
        return band.width == 1 or few and _is_shared(a, band, values) and (band.width <= narrow or _is_faster(a, band, values))

    while bands := [band for band in _bands(a, values) if band.dim not in places and is_worth(band)]:
        band = min(bands, key=lambda band: band.width / a.extents[band.dim])
        a = _with_window(a, band, values)
        places = {name: with_index(old, band.dim, band.value) for name, old in places.items()} | {band.dim: band.value}
    return a, places


def _bands(a: Assignment, values: Mapping[str, int]) -> Iterator[Band]:
    """The bands of a reduction that are a part of the range of their index."""
    conditions, _ = guarded_term(a.value, a.operator, values)
    tests = [test for _, condition in conditions for test in conjuncts(condition, True)]
    divided = divided_dims(a)
    for dim in a.reduction:
        edges = [edge for test, holds in tests for edge in _edges(test, holds, dim, values)]
        for lower, factor in ((edge.value, edge.factor) for edge in edges if edge.least):
            first, aligned = divide(lower + (factor - 1), factor), _aligned(lower, factor)
            if factor > 1 and dim in divided:
                continue  # its residue classes are nests; an edge that is a quotient has others
            if isinstance(first, int) or not names(first) or affine(expression(first), values) is None:
                continue
            for upper in (edge.value for edge in edges if not edge.least and edge.factor == factor):
                last = upper - lower
                width = last // factor + 1 if isinstance(last, int) else 0
                if 0 < width < a.extents[dim] and not any(dim in names(sub) for sub in a.subscripts):
                    wide = (factor - 1 + _constant(lower) + last) // factor - (_constant(lower) + factor - 1) // factor + 1
                    yield Band(dim, aligned if wide == width else first, width, factor)


def _constant(value: Value) -> int:
    return value if isinstance(value, int) else value.terms.get((), 0)


def _aligned(lower: Value, factor: int) -> Value:
    """The multiple of a factor below an edge that is the quotient of its indices alone, as digits of one are."""
    return divide(lower - _constant(lower), factor) + (_constant(lower) + factor - 1) // factor


def _is_faster(a: Assignment, band: Band, values: Mapping[str, int]) -> bool:
    """Whether a window is faster whatever its width: but for products of which no tile of results would share the operands any more. Those
    in blocks do, whose edges move with quotients of indices alone."""
    if not isinstance(band.lower, int) and not any(isinstance(part, Index) for monomial in band.lower.terms for part in monomial):
        return True
    reads = {part for part in walk(guarded_term(a.value, a.operator, values)[1]) if isinstance(part, Access)}
    moved = [_substituted(read, band, values) for read in reads]
    return len(reads) < 2 or not is_reused(a.results, reads) or is_reused(a.results, moved)


def _is_shared(a: Assignment, band: Band, values: Mapping[str, int]) -> bool:
    """Whether results with bands of their own read the same elements."""
    moving = names(band.lower).keys()
    for read in (part for part in walk(guarded_term(a.value, a.operator, values)[1]) if isinstance(part, Access)):
        apart = {name for sub in read.subscripts if band.dim not in names(sub) for name in names(sub)}
        if band.dim in names(read) and not moving <= apart:
            return True
    return False


def _edges(test: Expr, holds: bool, dim: str, values: Mapping[str, int]) -> Iterator[Edge]:
    """What a comparison says of an index."""
    if not isinstance(test, Binary) or test.left.dtype != "int64":
        return
    op = test.op if holds else {"<": ">=", ">=": "<", ">": "<=", "<=": ">"}.get(test.op)
    signs = {"<": (-1,), "<=": (-1,), ">": (1,), ">=": (1,), "==": (-1, 1)}.get(op or "", ())
    try:
        left, right = integer(test.left, values), integer(test.right, values)
    except ZeroDivisor:
        return
    if left is None or right is None:
        return
    for sign in signs:
        surplus = sign * (left - right) - (1 if op in ("<", ">") else 0)  # at least 0
        terms = {} if isinstance(surplus, int) else surplus.terms
        atoms = [monomial[0] for monomial in terms if any(dim in names(part) for part in monomial)]
        if len(atoms) != 1 or (factor := terms.get((atoms[0],))) is None:
            continue
        rest = surplus - factor * atom(atoms[0])
        value = -rest if factor > 0 else rest
        if atoms[0] == index(dim):
            yield Edge(value, factor > 0, abs(factor))
        elif isinstance(atoms[0], Binary) and atoms[0].op == "/" and abs(factor) == 1:
            numerator, divisor = integer(atoms[0].left, values), integer(atoms[0].right, values)
            others = None if numerator is None else numerator - atom(index(dim))
            if others is not None and isinstance(divisor, int) and divisor > 0 and dim not in names(others):
                yield Edge(value * divisor - others + (0 if factor > 0 else divisor - 1), factor > 0, 1)


def _with_window(a: Assignment, band: Band, values: Mapping[str, int]) -> Assignment:
    """The reduction over a window of terms, those that the range of the index has."""
    conditions, term = guarded_term(a.value, a.operator, values)
    least, end = a.ranges[band.dim]
    first, last = a.dynamic.get(band.dim, (number(least), number(end)))
    inside = [Binary("<=", first, band.value, dtype="bool"), Binary("<", band.value, last, dtype="bool")]
    tests = [*inside, *(_substituted(test, band, values) for _, test in conditions)]
    term = _substituted(term, band, values)
    return replace(
        a,
        value=Select(conjunction(tests), term, identity(a.operator, term.dtype), dtype=term.dtype),
        bounds=tuple((band.dim, 0, band.width) if bound[0] == band.dim else bound for bound in a.bounds),
        dynamic={name: limits for name, limits in a.dynamic.items() if name != band.dim},
    )


def _substituted(expr: Expr, band: Band, values: Mapping[str, int]) -> Expr:
    """An expression with its value in the place of an index, without indices that cancel."""
    if band.dim not in names(expr):
        return expr
    if expr.dtype == "int64":
        with suppress(ZeroDivisor):
            found = integer(with_index(expr, band.dim, band.value), values)
            if found is not None:
                return expression(found)
    if isinstance(expr, Index):
        return band.value
    return rebuild(expr, partial(_substituted, band=band, values=values))
