"""Strip-mine: a dimension of the results as blocks and the points inside, so that a panel of an operand is contiguous in each block.

A dimension divided by a constant, as the groups of a convolution divide its channels, becomes quotient and rest: ``X(f / 3 * 13 + c)`` is
no linear access in ``f``; with ``f = 3 * f_block + f`` it is one in ``f_block``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tcjit.dataclass import dataclass
from tcjit.errors import MappingError
from tcjit.grammar.affine import affine, isl_name
from tcjit.grammar.arithmetic import divided, index, modulo, plus, total
from tcjit.grammar.ast import Binary, Const, Expr, Index
from tcjit.grammar.polynomial import Value, expression, from_terms, integer, number
from tcjit.grammar.walk import children, rebuild, walk, with_indices
from tcjit.mapping.assignment import Assignment, DynamicRanges
from tcjit.mapping.reduction import guarded_term
from tcjit.mapping.scop import OuterLoops
from tcjit.mapping.storage import Bounds, fresh


@dataclass(frozen=True)
class Strip:
    """``dim``, which started at ``lower``, is ``lower + block * outer + dim`` now, less than ``extent`` above ``lower``: the greatest one
    where it is the value of ``dynamic``, over dynamic sizes."""

    dim: str
    outer: str
    block: int
    lower: int
    extent: int
    dynamic: Expr | None = None

    @property
    def value(self) -> Expr:
        return total([(self.block, index(self.outer)), (1, index(self.dim))], self.lower)

    @property
    def constraints(self) -> tuple[str, ...]:
        """What ends the last block, in isl's words."""
        if self.extent % self.block == 0 and self.dynamic is None:
            return ()
        extent = self.extent if self.dynamic is None else affine(self.dynamic, {})
        return (f"{self.block} * {isl_name(self.outer)} + {isl_name(self.dim)} < {extent}",)

    @property
    def blocks(self) -> Expr:
        """The number of blocks over dynamic sizes."""
        assert self.dynamic is not None
        return divided(plus(self.dynamic, self.block - 1), self.block)

    def parts(self, box: Bounds, dynamic: DynamicRanges) -> list[tuple[Bounds, DynamicRanges]]:
        """A box over the new dimensions, some of which have ``dynamic`` ranges, as the whole blocks and what the last one has."""
        whole, rest = divmod(self.extent, self.block)
        if not self.splits(box):
            return [(box, dynamic)]
        if self.dynamic is not None:
            every = box, {**dynamic, self.outer: (number(0), divided(self.dynamic, self.block))}
            return [every, self._last(box, dynamic, number(0), modulo(self.dynamic, self.block))]
        parts: tuple[dict[str, tuple[int, int]], ...] = {self.outer: (0, whole)}, {self.outer: (whole, whole + 1), self.dim: (0, rest)}
        return [(_limited(box, part), dynamic) for part in parts[whole == 0 :]]

    def padding(self, box: Bounds, dynamic: DynamicRanges) -> list[tuple[Bounds, DynamicRanges]]:
        """The points of the last block beyond the extent."""
        whole, rest = divmod(self.extent, self.block)
        if not self.splits(box):
            return []
        if self.dynamic is not None:
            return [self._last(box, dynamic, modulo(self.dynamic, self.block), number(self.block))]
        return [(_limited(box, {self.outer: (whole, whole + 1), self.dim: (rest, self.block)}), dynamic)]

    def splits(self, box: Bounds) -> bool:
        """Whether a box over the new dimensions has a last block that may not be whole."""
        return self.dim in {name for name, _, _ in box} and (self.extent % self.block > 0 or self.dynamic is not None)

    def _last(self, box: Bounds, dynamic: DynamicRanges, lower: Expr, upper: Expr) -> tuple[Bounds, DynamicRanges]:
        """The points of the last block between two dynamic ends: none where it is whole."""
        assert self.dynamic is not None
        ends = {self.outer: (divided(self.dynamic, self.block), self.blocks), self.dim: (lower, upper)}
        return _limited(box, {self.dim: (0, self.block)}), {**dynamic, **ends}

    def rewritten(self, expr: Expr) -> Expr:
        """An expression over the new dimensions."""
        return with_indices(expr, {self.dim: self.value})


def strip_mine(a: Assignment, dim: str, block: int) -> Strip:
    """Blocks of a dimension, which start at 0."""
    lower, upper = next((least, end) for name, least, end in a.bounds if name == dim)
    dynamic = plus(a.dynamic[dim][1], -lower) if dim in a.dynamic else None
    return Strip(dim, fresh(f"{dim}_block", [name for name, _, _ in a.bounds]), block, lower, upper - lower, dynamic)


def strip_mined(a: Assignment, strip: Strip) -> Assignment:
    """An assignment over blocks of a dimension, the loop over which stands before it."""
    bounds = []
    for bound in a.bounds:
        bounds += [(strip.outer, 0, -(-strip.extent // strip.block)), (strip.dim, 0, strip.block)] if bound[0] == strip.dim else [bound]
    word, text = rf"\b{isl_name(strip.dim)}\b", f"({affine(strip.value, {})})"
    constraints = tuple(re.sub(word, text, constraint) for constraint in a.constraints)
    constraints += strip.constraints if len(bounds) > len(a.bounds) else ()
    start = None if a.start is None else strip.rewritten(a.start)
    subscripts, value = tuple(map(strip.rewritten, a.subscripts)), strip.rewritten(a.value)
    reduction = tuple(part for name in a.reduction for part in ((strip.outer, name) if name == strip.dim else (name,)))
    dynamic = {name: limits for name, limits in a.dynamic.items() if name != strip.dim}
    if strip.dynamic is not None:
        dynamic[strip.outer] = number(0), strip.blocks
    a = replace(a, subscripts=subscripts, value=value, start=start, reduction=reduction)
    return replace(a, bounds=tuple(bounds), constraints=constraints, dynamic=dynamic)


def _limited(box: Bounds, limits: Mapping[str, tuple[int, int]]) -> Bounds:
    return tuple((name, *limits.get(name, own)) for name, *own in box)


# ---------------------------------------------------------------- divisions


def split_divisions(a: Assignment, values: Mapping[str, int], *, terms: bool = False) -> tuple[Assignment, list[Strip]]:
    """The assignment without divisions of single dimensions by constants that divide their extents, and how those were split; ``terms``:
    also those of terms in reads."""
    strips: list[Strip] = []
    while found := list(divisions(a, values, terms=terms)):
        strip = strip_mine(a, *max(found, key=lambda each: each[1]))  # the greatest divisor first: others divide its blocks
        a = replace(strip_mined(a, strip), outer=_in_digits(a.outer, strip))
        strips.append(strip)
    return replace(a, value=_simplified(a, values)), strips


def _in_digits(outer: OuterLoops | None, strip: Strip) -> OuterLoops | None:
    """Shared loops whose last block, where it is not whole, has fewer values of a dimension's outer digit."""
    if outer is None or outer.rest is None or outer.rest[0] != strip.dim:
        return outer
    if outer.rest[1] % strip.block:
        raise MappingError("the last block of shared loops does not have all values of a digit")
    return replace(outer, rest=(strip.outer, outer.rest[1] // strip.block))


def divisions(a: Assignment, values: Mapping[str, int], *, terms: bool = False) -> Iterator[tuple[str, int]]:
    """Dimensions of the results, and of ``terms``, and what divides them and their extents in reads; all dimensions and what divides them
    in the conditions on terms, unless they are those of residue classes."""
    a = replace(a, value=_simplified(a, values))
    extents = {name: upper for name, lower, upper in a.bounds if lower == 0}
    parts = [(node, True) for access in a.reads for sub in access.subscripts for node in walk(sub)]
    for _, test in guarded_term(a.value, a.operator, values)[0] if a.reduction else []:
        parts += [(node, False) for node in _outside_classes(test, values)]
    for node, read in parts:
        match node:
            case Binary(op="/", left=Index(name=name), right=Const(value=int(block))) if name in extents and 1 < block < extents[name]:
                if not read or (terms or name not in a.reduction) and name not in a.dynamic and extents[name] % block == 0:
                    yield name, block


def _outside_classes(test: Expr, values: Mapping[str, int]) -> Iterator[Expr]:
    """The parts of a condition but for the quotients of equalities between rests, which residue classes serve better."""
    if isinstance(test, Binary) and test.op == "==" and test.left.dtype == "int64":
        found = integer(Binary("-", test.left, test.right, dtype="int64"), values)
        terms = {} if found is None or isinstance(found, int) else found.terms
        for (atom, *others), factor in ((monomial, factor) for monomial, factor in terms.items() if monomial):
            match atom:
                case Binary(op="/", left=left, right=Const(value=int(block))) if terms.get((left,)) == -factor // block and not others:
                    continue
            yield from walk(atom)
        return
    yield test
    for part in children(test):
        yield from _outside_classes(part, values)


def _simplified(a: Assignment, values: Mapping[str, int]) -> Expr:
    """The value of an assignment; in its subscripts and conditions, quotients and rests are sums of indices where they are for all in their
    ranges."""
    ranges = {name: (lower, upper - 1) for name, lower, upper in a.bounds}

    def simplified(expr: Expr) -> Expr:
        if not any(isinstance(node, Binary) and node.op in ("/", "%") for node in walk(expr)):
            return expr
        if expr.dtype == "int64" and (value := integer(expr, values)) is not None:
            return expression(_without_zeros(value, ranges))
        return rebuild(expr, simplified)

    return simplified(a.value)


def _without_zeros(value: Value, ranges: Mapping[str, tuple[int, int]]) -> Value:
    if isinstance(value, int):
        return value
    kept = {monomial: c for monomial, c in value.terms.items() if not any(_span(factor, ranges) == (0, 0) for factor in monomial)}
    return from_terms(kept)


def _span(factor: Expr, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int] | None:
    """The least and the greatest value of an index or of a quotient of a sum, if they are known."""
    match factor:
        case Index(name=name):
            return ranges.get(name)
        case Binary(op="/", left=left, right=Const(value=int(by))) if (value := integer(left)) is not None:
            least = greatest = 0
            for monomial, c in [] if isinstance(value, int) else value.terms.items():
                span = _span(monomial[0], ranges) if len(monomial) == 1 else None if monomial else (1, 1)
                if span is None:
                    return None
                least, greatest = least + min(c * end for end in span), greatest + max(c * end for end in span)
            return least // by, greatest // by
    return None
