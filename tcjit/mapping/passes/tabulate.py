"""Tabulate functions of index differences: what an assignment computes of indices alone is computed once for each value of the linear forms
that it depends on.

``Y(t) +=! s <= t ? pow(0.9, t - s) * X(s) : 0.0`` has T * T / 2 powers, of T numbers. Their table is read at ``t - s``, as a filter is.
This is strength reduction by tables; what depends on the indices themselves is left to `hoist_invariants`.

Conditions on indices that leave no convex set of terms, as ``(i + j) % 3 != 0`` or ``i * j < N``, have a table as well where elements are
used for several results: a nest reads it, and chooses. So have those on data of other types, as ``Segment(j) == Segment(i)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

import islpy as isl

from tcjit.grammar.affine import affine, guarded_accesses, is_gather, isl_name
from tcjit.grammar.affine import conjuncts as affine_conjuncts
from tcjit.grammar.arithmetic import index, plus, total
from tcjit.grammar.ast import Access, Binary, Cast, Const, Expr, Index, Select
from tcjit.grammar.polynomial import names, number
from tcjit.grammar.walk import rebuild, replaced, walk, with_accesses
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.convex_parts import convex_parts
from tcjit.mapping.equality import conditions_of
from tcjit.mapping.isl import context, index_fact, points
from tcjit.mapping.nest.strip_mine import divisions
from tcjit.mapping.operations import divides_integers, may_fail, operations
from tcjit.mapping.padded_copies import has_windows, stays_inside
from tcjit.mapping.passes.hoist_invariants import TRAFFIC, TYPES, USES, WORTH_HOISTING, WORTH_LOAD
from tcjit.mapping.reduction import EXTREMES, conjuncts, guarded_factors, guarded_term, identity, is_reused
from tcjit.mapping.storage import fresh
from tcjit.mapping.strides import Form, LinearParts, linear_parts

SHORTER = 2  # times fewer elements than there are values of the indices that pay for a table of forms


class _TableAxis(NamedTuple):
    """A linear form of indices with the least of its values, and the number of values from there on."""

    form: Form
    least: int
    extent: int

    @property
    def place(self) -> Expr:
        """The subscript at which the table is read."""
        return total([(factor, index(dim)) for dim, factor in self.form], -self.least)


def tabulate(before: Assignments) -> Assignments:
    """The program with tables of functions of linear forms, where these have fewer values than their indices together."""
    return _with_tables(before, lambda tables: tables.rewritten(tables.a.value, []) if tables.a.reduction else tables.a.value)


def tabulate_conditions(before: Assignments) -> Assignments:
    """The program with tables of the conditions that no nest evaluates."""
    return _with_tables(before, _Tables.with_conditions)


def _with_tables(before: Assignments, value: Callable[[_Tables], Expr]) -> Assignments:
    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if a.empty or a.constraints or a.dynamic or not a.dims:
            return [a]
        tables = _Tables(a, before.values, temporaries)
        made = value(tables)
        return [*tables.made, replace(a, value=made)] if tables.made else [a]

    return rewrite(before, visit)


class _Tables:
    """Those of one assignment, in ``made``."""

    def __init__(self, a: Assignment, values: Mapping[str, int], temporaries: Temporaries) -> None:
        self.a, self.values, self.temporaries = a, values, temporaries
        self.made: list[Assignment] = []

    def with_conditions(self) -> Expr:
        """The value that reads the conditions on indices which no nest's domain is made of: those of products, and those that divide."""
        a, chosen = self.a, [part for part in walk(self.a.value) if isinstance(part, Select)]
        guards = guarded_factors(a.value)[0] if a.operator == "+=" else conditions_of(a.value, a.operator)[0]
        outside = [part for _, test in guarded_term(a.value, a.operator, self.values)[0] for part, _ in affine_conjuncts(test, True)]
        elements = [part for part in walk(a.value) if isinstance(part, Access)]
        reused = bool(a.reduction) and a.operator in ("+=", *EXTREMES) and is_reused(a.results, elements)
        tables: dict[Expr, Expr] = {}
        for test, choice in {test: part for part in chosen for test in conjuncts(part.condition)}.items():
            data = [part for part in walk(test) if isinstance(part, Access)]
            divides = any(map(divides_integers, walk(test))) and (a.reduction or a.dims[-1] in names(test))
            inside = test not in outside and self.is_whole(choice) and not has_windows(choice)  # in every term
            pays = reused and (test in guards or inside) or divides and a.points >= WORTH_HOISTING and not data
            digits = divides and len(names(test)) == 1  # of which copies are made in digits
            if pays and self.may_be_stored(test, data) and (read := self.condition(test, data, digits or not inside)) is not None:
                tables[test] = read
        return replaced(a.value, tables)

    def is_whole(self, value: Expr) -> bool:
        """Whether a value changes with nearly all indices, so that it is no invariant."""
        return self.a.points < USES * prod(self.a.extents[dim] for dim in names(value) if dim in self.a.extents)

    def may_be_stored(self, test: Expr, data: Sequence[Access]) -> bool:
        """Whether a table may hold a condition: of indices alone, or on data of types that no nest of the assignment compares. Data that
        are compared with an index bound its loop, or pick results."""
        if not data:
            return True
        others = all(one.dtype != self.a.value.dtype and one.tensor != self.a.tensor and self.exists(one) for one in data)
        return others and not names(with_accesses(test, lambda access: number(0)))

    def condition(self, test: Expr, data: Sequence[Access], outside: bool) -> Expr | None:
        """Whether the element of a table for a condition is not 0; None for those ``outside`` of the term, or of a pointwise value, that a
        nest's domain is made of, or that copies in digits do without, and for those that change often."""
        zero = identity("+=", self.a.value.dtype)
        truth = Select(test, Const(1.0, dtype=zero.dtype), zero, dtype=zero.dtype)
        if zero.dtype not in TYPES or may_fail(test, self.values):
            return None
        if self.a.reduction:
            domain = replace(self.a, value=replace(truth, other=identity(self.a.operator, zero.dtype)))
            served = outside and len(convex_parts(domain, self.values) or ()) == 1
        else:
            served = any(divisions(self.a, self.values))
        if served or not all(map(self.exists, (access for access, guards in guarded_accesses(self.a.value) if test in dict(guards)))):
            return None
        parts, dims = linear_parts(test, self.values), [dim for dim in self.a.dims if dim in names(test)]
        indices = {part.name: part for part in walk(test) if isinstance(part, Index)}
        own: LinearParts = {indices[dim]: (((dim, 1),), 0) for dim in dims}
        if data or self.count(parts) >= self.count(own):
            parts = own
        if names(test).keys() != {*dims} or self.a.points < USES * self.count(parts):
            return None
        return Binary("!=", self.element(truth, parts, []), zero, dtype="bool")

    def exists(self, access: Access) -> bool:
        """Whether there is an element whatever conditions say, or a subscript is checked."""
        boxes = {name: (lower, upper - 1) for name, lower, upper in self.a.bounds}
        places = zip(access.subscripts, self.temporaries.tensors[access.tensor].shape, strict=True)
        return all(is_gather(sub) or stays_inside(sub, extent, boxes, self.values) for sub, extent in places)

    def count(self, parts: LinearParts) -> int:
        """The elements of a table over linear forms."""
        return prod(self.axis(form, []).extent for form in {form for form, _ in parts.values()})

    def rewritten(self, value: Expr, conditions: Sequence[str]) -> Expr:
        """A value that reads tables, where all ``conditions`` hold, in isl's words."""
        if value.dtype in TYPES and not any(isinstance(part, Access) for part in walk(value)):
            return self.tabulated(value, conditions)
        if isinstance(value, Access):
            return value
        if isinstance(value, Select) and (fact := index_fact(value.condition, self.values)) is not None:
            then = self.rewritten(value.then, [*conditions, fact])
            return replace(value, then=then, other=self.rewritten(value.other, [*conditions, f"(not {fact})"]))
        return rebuild(value, lambda part: self.rewritten(part, conditions))

    def tabulated(self, value: Expr, conditions: Sequence[str]) -> Expr:
        """The element of a table, or the value where that does not pay."""
        parts = linear_parts(value, self.values)
        dims = frozenset(names(value)) & self.a.extents.keys()
        work = operations(value)
        if not any(len(form) > 1 for form, _ in parts.values()) or may_fail(value, self.values) or names(value).keys() != dims:
            return value
        axes = {form: self.axis(form, conditions) for form, _ in parts.values()}
        count = prod(axis.extent for axis in axes.values())
        if count * SHORTER > prod(self.a.extents[dim] for dim in dims) or self.a.points < USES * count:
            return value
        if work < WORTH_LOAD or work * (self.a.points - count) < max(WORTH_HOISTING, TRAFFIC * count):
            return value
        return self.element(value, parts, conditions)

    def element(self, value: Expr, parts: LinearParts, conditions: Sequence[str]) -> Expr:
        """The element of a value's table over the linear forms of its parts."""
        axes = {form: self.axis(form, conditions) for form, _ in parts.values()}
        taken = {*self.a.dims, *self.values}
        bounds, places = [], dict[Form, str]()
        for form, axis in axes.items():
            places[form] = fresh("v", taken)
            taken.add(places[form])
            bounds.append((places[form], 0, axis.extent))
        own = {part: _at(places[form], constant + axes[form].least, part.dtype) for part, (form, constant) in parts.items()}
        table = self.table(replaced(value, own), tuple(bounds))
        return Access(table, tuple(axis.place for axis in axes.values()), dtype=value.dtype)

    def axis(self, form: Form, conditions: Sequence[str]) -> _TableAxis:
        """The values that a form takes where some conditions hold."""
        text = affine(total([(factor, index(dim)) for dim, factor in form]), {})
        box = [f"{lower} <= {isl_name(dim)} < {upper}" for dim, lower, upper in self.a.bounds]
        value = fresh("v", {*self.a.dims})
        dims = [*map(isl_name, self.a.dims), value]
        there = points(context(), dims, [*box, *conditions, f"{value} = {text}"]).project_out(isl.dim_type.set, 0, len(dims) - 1)
        if there.is_empty():
            return _TableAxis(form, 0, 1)
        least, greatest = there.dim_min_val(0).to_python(), there.dim_max_val(0).to_python()
        return _TableAxis(form, least, greatest - least + 1)

    def table(self, value: Expr, bounds: tuple[tuple[str, int, int], ...]) -> str:
        """The name of the table of a value, which may be there already."""
        for copy in self.made:
            if copy.value == value and copy.bounds == bounds:
                return copy.tensor
        self.made.append(self.temporaries.stored(self.a, f"{self.a.tensor}_table", value, bounds))
        return self.made[-1].tensor


def _at(place: str, constant: int, dtype: str) -> Expr:
    """The value of a linear part at a place of the table."""
    value = plus(index(place), constant)
    return value if dtype == "int64" else Cast(value, dtype=dtype)
