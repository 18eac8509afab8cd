"""Eliminate dead instances: terms of results that nothing reads are left out, by a condition that makes them the identity.

Scores of causal attention are read for ``k <= q`` alone, whether or not the product that computes them says so: half of its instances are
dead. The condition becomes part of the product's domain (``restrict``), on whose tiles without a point no time is spent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

from tcjit.grammar.affine import condition as affine_condition
from tcjit.grammar.ast import Binary, Expr, Index, Select
from tcjit.grammar.liveness import is_guarded_by, live_conditions
from tcjit.grammar.walk import with_names
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.reduction import identity


def eliminate_dead_instances(before: Assignments) -> Assignments:
    """The program in which reductions into temporaries have the conditions under which these are read."""
    axes: dict[str, tuple[str, ...]] = {}
    for a in before.assignments:
        if _is_candidate(before, a):
            axes.setdefault(a.tensor, tuple(sub.name for sub in a.subscripts if isinstance(sub, Index)))
    exprs = [expr for a in before.assignments for expr in (a.value, *a.subscripts, *([a.start] if a.start is not None else []))]
    live = live_conditions(exprs, axes) if axes else {}
    made = tuple(
        _under(a, axes[a.tensor], live[a.tensor], before.values) if a.tensor in live and _is_candidate(before, a) else a
        for a in before.assignments
    )
    return replace(before, assignments=made, replaced=tuple((a,) for a in made))


def _is_candidate(before: Assignments, a: Assignment) -> bool:
    """Whether an assignment is a reduction into a temporary, whose axes are its dimensions."""
    storage = next(one for one in before.tensors if one.name == a.tensor)
    places = [sub.name for sub in a.subscripts if isinstance(sub, Index)]
    whole = len({*places}) == len(a.subscripts) == len(a.results)
    return storage.role == "temporary" and bool(a.reduction) and whole and not (a.dynamic or a.final or a.constraints)


def _under(a: Assignment, axes: tuple[str, ...], conditions: tuple[Expr, ...], values: Mapping[str, int]) -> Assignment:
    """A reduction that has the affine ones of some conditions on the axes of its result, if it has not all of them already."""
    own = [sub for sub in a.subscripts if isinstance(sub, Index)]
    named = {axis: sub.name for axis, sub in zip(axes, own, strict=True)}
    renamed = (with_names(condition, named) for condition in conditions)
    missing = [one for one in renamed if affine_condition(one, values) is not None and not is_guarded_by(a.value, one)]
    if not missing:
        return a
    condition = reduce(lambda left, right: Binary("&&", left, right, dtype="bool"), missing)
    return replace(a, value=Select(condition, a.value, identity(a.operator, a.value.dtype), dtype=a.value.dtype))
