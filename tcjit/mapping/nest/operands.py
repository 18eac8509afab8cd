"""Operands: the parts of a reduction's body that a leaf loads as one value, and how each moves.

Factors of a product that move alike are one operand: their product can be computed once, while it is copied. In any other body every
access is one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import linear
from tcjit.grammar.ast import Access, Binary, Call, Const, Expr
from tcjit.grammar.walk import factors, walk, with_accesses
from tcjit.mapping.nest.statement import FlatAccess, FlatStatement
from tcjit.mapping.nest.vector_forms import ADJACENT, PACK, is_dot_product
from tcjit.mapping.storage import are_digits


@dataclass(frozen=True)
class Operand:
    """``value`` is an access, or what is computed once from several: a product, a word; ``flats`` are their places."""

    value: Expr
    flats: tuple[FlatAccess, ...]

    @cached_property
    def dims(self) -> frozenset[str]:
        """The dimensions that it moves with."""
        return frozenset[str]().union(*(flat.dims for flat in self.flats))

    @cached_property
    def is_packed(self) -> bool:
        """Whether it is a word of elements that do not follow one another in memory."""
        calls = {part.function for part in walk(self.value) if isinstance(part, Call)}
        return PACK in calls and ADJACENT not in calls

    @property
    def separated(self) -> tuple[Operand, ...]:
        """The factors of a product, each by itself."""
        return tuple(Operand(factor, (flat,)) for factor, flat in zip(factors(self.value), self.flats, strict=True))

    def is_copyable(self, extents: Mapping[str, int]) -> bool:
        """Whether a copy has no more elements than what is copied: a product has as many as its results, an access must name each once."""
        if self.single is None:
            return True
        assert isinstance(self.value, Access)
        forms = [linear(sub) for sub in self.value.subscripts]
        moving = [dim for form in forms if form is not None for dim in form[0]]
        if None in forms or len(set(moving)) < len(moving):
            return False
        return all(form is not None and _are_digits(form[0], extents) for form in forms)

    @property
    def single(self) -> FlatAccess | None:
        """The place of an operand that is one access."""
        return self.flats[0] if len(self.flats) == 1 and isinstance(self.value, Access) else None

    def stride(self, dim: str) -> int:
        """Elements by which it moves along a dimension, the most that one of its accesses does."""
        return max((abs(flat.estimated().stride(dim)) for flat in self.flats), default=0)

    def is_contiguous(self, dim: str) -> bool:
        """Whether its values along a dimension are neighbours in memory: of as many elements as they are computed from."""
        return 0 < self.stride(dim) <= len(self.flats)


def _are_digits(form: Mapping[str, object], extents: Mapping[str, int]) -> bool:
    """Whether a sum of indices has another value for all values of them, as far as is known."""
    if len(form) < 2:
        return True
    factors = [(factor, extents[dim]) for dim, factor in form.items() if isinstance(factor, int) and dim in extents]
    return len(factors) == len(form) and are_digits(factors)


def operands(s: FlatStatement, lane: str, kept: Collection[Expr] = ()) -> tuple[tuple[Operand, ...], Expr]:
    """The operands for a choice of lanes, scalars first, and the body with ``Access("@n", ())`` for operand number n. The factors of
    products that are ``kept``, or that are so themselves, which no copy holds, are operands of their own."""
    if is_dot_product(s.body):
        words = list(dict.fromkeys(arg for arg in s.body.args if not isinstance(arg, Const)))
        words.sort(key=lambda value: any(lane in s.reads[access].dims for access in _accesses(value)))
        args = tuple(arg if isinstance(arg, Const) else _number(words.index(arg), arg) for arg in s.body.args)
        found = tuple(Operand(value, tuple(s.reads[access] for access in _accesses(value))) for value in words)
        return found, replace(s.body, args=args)
    product = list(factors(s.body))
    if s.operator == "+=" and lane not in s.terms and len(product) > 2 and all(isinstance(factor, Access) for factor in product):
        groups: dict[bool, list[Access]] = {}
        for factor in product:
            assert isinstance(factor, Access)
            groups.setdefault(lane in s.reads[factor].dims, []).append(factor)
        whole = [_operand(s, groups[moves]) for moves in sorted(groups)]
        separate = [operand.value in kept or {*factors(operand.value)} <= {*kept} for operand in whole]
        found = tuple(one for operand, each in zip(whole, separate, strict=True) for one in (operand.separated if each else (operand,)))
        body: Expr = _number(0, found[0].value)
        for number, operand in enumerate(found[1:], 1):
            body = Binary("*", body, _number(number, operand.value), dtype=operand.value.dtype)
        return found, body
    accesses = sorted(_accesses(s.body), key=lambda access: lane in s.reads[access].dims)
    body = with_accesses(s.body, lambda access: _number(accesses.index(access), access))
    return tuple(_operand(s, [access]) for access in accesses), body


def _operand(s: FlatStatement, accesses: list[Access]) -> Operand:
    value: Expr = accesses[0]
    for access in accesses[1:]:
        value = Binary("*", value, access, dtype=access.dtype)
    return Operand(value, tuple(s.reads[access] for access in accesses))


def _accesses(expr: Expr) -> dict[Access, None]:
    return dict.fromkeys(part for part in walk(expr) if isinstance(part, Access))


def _number(number: int, like: Expr) -> Access:
    return Access(f"@{number}", (), dtype=like.dtype)

