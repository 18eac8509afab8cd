"""Liveness of elements: the conditions on the axes of a tensor without which no element of it is read."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tcjit.grammar.affine import Guard, conjuncts, guarded_accesses
from tcjit.grammar.ast import Access, Expr, Index, Select, Unary
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import walk, with_names


def live_conditions(exprs: Iterable[Expr], tensors: Mapping[str, Sequence[str]]) -> dict[str, tuple[Expr, ...]]:
    """For tensors, with names for their axes, the conditions between several axes under which all expressions read them; those of one
    axis alone make no smaller box of what is not rectangular, and are left out, as are those on data."""
    found: dict[str, dict[Expr, None]] = {}
    for expr in exprs:
        for access, guards in guarded_accesses(expr):
            if access.tensor in tensors:
                here = _conditions(access, guards, tensors[access.tensor])
                known = found.setdefault(access.tensor, here)
                found[access.tensor] = {condition: None for condition in known if condition in here}
    return {name: tuple(conditions) for name, conditions in found.items() if conditions}


def _conditions(access: Access, guards: Iterable[Guard], axes: Sequence[str]) -> dict[Expr, None]:
    """The guards of a read that say something of the axes of what is read, in their names."""
    places = [sub.name for sub in access.subscripts if isinstance(sub, Index)]
    if len({*places}) != len(access.subscripts):
        return {}
    found: dict[Expr, None] = {}
    for guard, holds in guards:
        involved = names(guard)
        if len({*involved}) > 1 and {*involved} <= {*places} and not any(isinstance(part, Access) for part in walk(guard)):
            condition = guard if holds else Unary("!", guard, dtype="bool")
            found[with_names(condition, dict(zip(places, axes)))] = None
    return found


def is_guarded_by(value: Expr, condition: Expr) -> bool:
    """Whether a value is a choice by a condition, among others perhaps."""
    while isinstance(value, Select):
        if condition in (part for part, holds in conjuncts(value.condition, True) if holds):
            return True
        value = value.then
    return False
