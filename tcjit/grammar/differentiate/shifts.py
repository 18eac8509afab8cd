"""Maxima that are subtracted for safety only, as in softmax: no result depends on them, so they need no cotangent.

The proof is one pass over the statements: let the maximum change by ``delta``. Every tensor then changes by ``(rate * Z + offset) * delta``
for two numbers ``rate`` and ``offset``: ``exp`` turns an offset into a rate, ``log`` turns it back, products add rates, quotients
subtract them. Where every result has ``(0, 0)``, the maximum is one that cancels.
"""
from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple

from tcjit.grammar.ast import Access, Binary, Call, Cast, Const, Expr, Index, Select, Unary
from tcjit.grammar.differentiate.normalise import NormalForm, Update
from tcjit.grammar.differentiate.simplify import is_float, is_number, reads
from tcjit.grammar.walk import children


class _Change(NamedTuple):
    """``(rate * Z + offset) * delta(place)``; ``zero`` marks a literal 0, which fits every rate."""

    rate: float = 0
    offset: float = 0
    place: tuple[Expr, ...] = ()
    zero: bool = False

    @property
    def is_none(self) -> bool:
        return not self.rate and not self.offset


class _OtherChange(Exception):
    """The change of an expression has another form."""


_Changes = Mapping[str, tuple[float, float, tuple[int, ...]]]  # rate, offset, which dimensions of the tensor are those of delta


def shifts(form: NormalForm, active: Container[str]) -> frozenset[str]:
    """The results of ``max`` and ``min`` that cancel."""
    candidates = [u.target for u in form.updates if u.operator in ("max=", "min=") and u.target in active]
    return frozenset(name for name in candidates if name not in form.definition.returns and _cancels(name, form))


def _cancels(maximum: str, form: NormalForm) -> bool:
    changes = {maximum: (0.0, 1.0, tuple(range(len(form.shapes[maximum]))))}
    try:
        for update in form.updates:
            if update.target == maximum or not is_float(form.dtypes[update.target]):
                continue
            change = _of_update(update, changes)
            if change is not None:
                changes[update.target] = change
    except _OtherChange:
        return False
    return not any(name in changes for name in form.definition.returns)


def _of_update(update: Update, changes: _Changes) -> tuple[float, float, tuple[int, ...]] | None:
    """How a tensor changes; None where it does not."""
    accumulates = update.operator == "+=" and not update.initialise
    if accumulates and update.target in changes:
        raise _OtherChange
    change = _of(update.value, changes)
    if change.is_none:
        return None
    if update.targets:
        raise _OtherChange
    if update.operator == "*=" or accumulates or (update.operator == "+=" and change.offset):
        raise _OtherChange
    if update.operator in ("max=", "min=") and change.rate:
        raise _OtherChange
    names = [place.name if isinstance(place, Index) else "" for place in change.place]
    if any(name not in update.left for name in names):
        raise _OtherChange
    return change.rate, change.offset, tuple(update.left.index(name) for name in names)


def _of(expr: Expr, changes: _Changes) -> _Change:
    if not is_float(expr.dtype):
        _refuse_reads(expr, changes)
        return _Change()
    match expr:
        case Const():
            return _Change(zero=is_number(expr, 0))
        case Access(tensor=name, subscripts=subscripts):
            if name not in changes:
                return _Change()
            rate, offset, positions = changes[name]
            return _Change(rate, offset, tuple(subscripts[position] for position in positions))
        case Cast(operand=operand):
            return _of(operand, changes)
        case Select():
            return _of_select(expr, changes)
    return _of_operation(expr, [_of(child, changes) for child in children(expr)])


def _of_select(expr: Select, changes: _Changes) -> _Change:
    _refuse_reads(expr.condition, changes)
    then, other = _of(expr.then, changes), _of(expr.other, changes)
    for one, rest in ((then, other), (other, then)):
        if one.zero and not rest.offset:
            return rest
    if (then.is_none and other.is_none) or then == other:
        return then
    raise _OtherChange


def _of_operation(expr: Expr, operands: list[_Change]) -> _Change:
    places = {operand.place for operand in operands if not operand.is_none}
    if not places:
        return _Change()
    if len(places) > 1:
        raise _OtherChange
    place = places.pop()
    rates, offsets = [operand.rate for operand in operands], [operand.offset for operand in operands]
    match expr:
        case Unary():
            return _Change(rates[0], -offsets[0], place)
        case Binary(op="+" | "-" as op):
            if not any(rates):
                return _Change(0, offsets[0] + (offsets[1] if op == "+" else -offsets[1]), place)
            if rates[0] == rates[1] and not any(offsets):
                return _Change(rates[0], 0, place)
        case Binary(op="*", left=left, right=right):
            if not any(offsets):
                return _Change(sum(rates), 0, place)
            for factor, (rate, offset) in ((left, (rates[1], offsets[1])), (right, (rates[0], offsets[0]))):
                if isinstance(factor, Const):
                    return _Change(rate, offset * factor.value, place)
        case Binary(op="/") if not any(offsets):
            return _Change(rates[0] - rates[1], 0, place)
        case Call(function="exp") if not rates[0]:
            return _Change(offsets[0], 0, place)
        case Call(function="log") if not offsets[0]:
            return _Change(0, rates[0], place)
    raise _OtherChange


def _refuse_reads(expr: Expr, changes: _Changes) -> None:
    """A choice by what changes is no smooth change."""
    if any(name in changes for name in reads(expr)):
        raise _OtherChange
