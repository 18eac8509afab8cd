"""Transpose tables: put a dimension that data do not decide on innermost in what is read where data say, so that vectors run along it.

Of ``Y(b,m,i) +=! W(m, S(b,i+k), k)`` each lane along ``i`` reads another row of the table; lanes along ``m`` have the row in common, and
are neighbours in a copy ``V(s,k,m) = W(m,s,k)``. So are the lanes of sums between bounds in data (see ``data_bounds``). Results in another
order are transposed behind, temporaries read as they are. For images this is the layout with channels last. Rows whose elements lie apart
are copied where they are reduced and written as rows: what a function gives for an element is then at hand in the next pass over the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import TypeVar

from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.arithmetic import index
from tcjit.grammar.ast import Access, Call, Const, Expr, Index, Select
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import children, walk, with_accesses
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.data_bounds import bounds_of_terms, without
from tcjit.mapping.machine import Machine
from tcjit.mapping.operations import CALL, operations
from tcjit.mapping.plan_loops import WIDE
from tcjit.mapping.storage import Storage
from tcjit.mapping.strides import affine_form, stride_in

Item = TypeVar("Item")
FEW = 2  # of a vector's lanes one in so many is enough


def transpose_tables(before: Assignments, machine: Machine) -> Assignments:
    """The program with transposed copies before the assignments that read them."""

    relaid: dict[str, tuple[str, int]] = {}  # what has its axes in another order from now on

    def visit(old: Assignment, temporaries: Temporaries) -> list[Assignment]:
        tensors = temporaries.tensors
        rows = []
        for tensor, axis in _strided_rows(old, before, machine):
            if tensor not in relaid:
                rows.append(_copy(old, tensor, axis, temporaries))
                relaid[tensor] = rows[-1].tensor, axis
        a = replace(old, value=_moved(old.value, relaid))
        if rows:
            return [*rows, a]
        found = _lane(a, tensors, before.values, machine)
        if found is None or not found[1].keys() <= before.storages.keys():  # what is a copy is not copied again
            return [a]
        lane, axes = found
        copies: dict[str, tuple[Assignment, int]] = {}
        for tensor, axis in axes.items():
            copies[tensor] = _copy(a, tensor, axis, temporaries), axis
        value = _moved(a.value, {tensor: (copy.tensor, axis) for tensor, (copy, axis) in copies.items()})
        made = [copy for copy, _ in copies.values()]
        if stride_in(tensors[a.tensor], a.subscripts, lane, before.values) == 1:
            return [*made, replace(a, value=value)]
        place = next(number for number, sub in enumerate(a.subscripts) if lane in names(sub))
        results = _put_last(tuple(next(bound for bound in a.bounds if bound[0] in names(sub)) for sub in a.subscripts), place)
        store = temporaries.stored(a, f"{a.tensor}_transposed", Const(0, dtype=tensors[a.tensor].dtype), results)
        inner = replace(a, tensor=store.tensor, subscripts=store.subscripts, value=value, bounds=(*results, *a.terms))
        if tensors[a.tensor].role == "temporary" and _is_read_by_values(before, a.tensor):
            relaid[a.tensor] = store.tensor, place
            return [*made, inner]
        apart = bool(a.reduction)  # a tile of results would stand inside of the loops over terms
        stored = replace(a, operator="=", value=store.element, bounds=a.results, reduction=(), start=None, fuse_outer_only=apart)
        return [*made, inner, stored]

    return rewrite(before, visit)


def _copy(a: Assignment, tensor: str, axis: int, temporaries: Temporaries) -> Assignment:
    """The copy of a tensor with one axis behind the others."""
    storage, free = temporaries.tensors[tensor], "axis"
    while any(name.startswith(free) for name in a.dims):
        free += "_"
    bounds = tuple((f"{free}{number}", 0, extent) for number, extent in enumerate(storage.shape))
    read = Access(tensor, tuple(index(name) for name, _, _ in bounds), dtype=storage.dtype)
    return temporaries.stored(a, f"{tensor}_transposed", read, _put_last(bounds, axis))


def _strided_rows(a: Assignment, before: Assignments, machine: Machine) -> Iterator[tuple[str, int]]:
    """The inputs whose elements along the only dimension that an assignment reduces lie apart, and the axes along it: where another one
    writes rows along it, of the same elements, and functions are called of these, or beside each other lie no more than fill half a
    vector."""
    if not a.reduction or len(a.reduction) > 1 or a.dynamic or a.constraints or a.empty or any(lower for _, lower, _ in a.bounds):
        return
    lane, tensors, lanes = a.reduction[0], before.storages, machine.lanes(max(4, DTYPES[a.value.dtype].bytes))
    for access in dict.fromkeys(access for access, guards in guarded_accesses(a.value) if not guards):
        storage = tensors[access.tensor]
        readers = [one for one in before.assignments if access.tensor in one.tensors_read]
        if storage.role != "input" or any(storage.dynamic_extents) or sorted(_axes_of(access, storage)) != sorted(a.bounds):
            continue
        if any(step == 0 and extent > 1 for step, extent in zip(storage.strides, storage.shape, strict=True)):
            continue  # which would be larger than what it is copied from
        near = next((one for one, _, _ in a.bounds if stride_in(storage, access.subscripts, one, before.values) == 1), lane)
        worth = 2 * a.extents[near] <= lanes or any(_calls(one.value, access.tensor) for one in readers)
        place = access.subscripts.index(index(lane))
        rows = all(map(partial(_goes_along, tensor=access.tensor, place=place), readers))
        if near != lane and worth and lanes <= a.extents[lane] and rows and any(_writes_rows(one, access, lane, before) for one in readers):
            yield access.tensor, place


def _calls(value: Expr, tensor: str) -> bool:
    """Whether a value is computed by functions of a tensor's elements."""
    calls = [part for part in walk(value) if isinstance(part, Call) and operations(part) >= CALL]
    return any(isinstance(part, Access) and part.tensor == tensor for call in calls for part in walk(call))


def _axes_of(access: Access, storage: Storage) -> tuple[tuple[str, int, int], ...]:
    """The indices that subscripts are, over all of a tensor."""
    pairs = zip(access.subscripts, storage.shape, strict=True)
    return tuple((sub.name, 0, extent) for sub, extent in pairs if isinstance(sub, Index))


def _goes_along(a: Assignment, tensor: str, place: int) -> bool:
    """Whether an assignment reduces nothing but the rows of a tensor, along one of its axes, and data pick none of these."""
    reads = [read for read in a.reads if read.tensor == tensor]
    moving = [read.subscripts[place] for read in reads]
    if any(isinstance(part, Access) for read in reads for sub in read.subscripts for part in walk(sub)):
        return False
    return not a.reduction or len(a.reduction) == 1 and all(sub == index(a.reduction[0]) for sub in moving)


def _writes_rows(a: Assignment, access: Access, lane: str, before: Assignments) -> bool:
    """Whether neighbours along a dimension of an element are neighbours in what a pointwise assignment that reads the tensor writes."""
    place = access.subscripts.index(index(lane))
    moving = [read.subscripts[place] for read in a.reads if a.is_elementwise and read.tensor == access.tensor]
    storage = before.storages[a.tensor]
    return any(isinstance(sub, Index) and stride_in(storage, a.subscripts, sub.name, before.values) == 1 for sub in moving)


def _moved(value: Expr, tensors: Mapping[str, tuple[str, int]]) -> Expr:
    """A value with the elements of other tensors, which have an axis behind the others, in the place of some."""

    def moved(access: Access) -> Access:
        if access.tensor not in tensors:
            return access
        name, axis = tensors[access.tensor]
        return replace(access, tensor=name, subscripts=_put_last(access.subscripts, axis))

    return with_accesses(value, moved) if tensors else value


def _is_read_by_values(before: Assignments, tensor: str) -> bool:
    """Whether one assignment writes a tensor, and others read it in values that later passes may change."""
    apart = [expr for a in before.assignments for expr in (*a.subscripts, *([] if a.start is None else [a.start]))]
    free = not any(isinstance(part, Access) and part.tensor == tensor for expr in apart for part in walk(expr))
    written = sum(a.tensor == tensor for a in before.assignments) == 1
    return free and written and not any(a.final for a in before.assignments if tensor in a.inputs)


def _lane(a: Assignment, tensors: Mapping[str, Storage], values: Mapping[str, int], machine: Machine) -> tuple[str, dict[str, int]] | None:
    """The dimension that vectors are to run along, and of the tables that are to be transposed the axis along it; None where lanes along
    the neighbours of a result have rows and bounds in common, or copies would cost more than reads that others have in common."""
    started = isinstance(a.start, Const) if a.reduction else a.operator == "="
    plain = started and all(isinstance(sub, Index) for sub in a.subscripts) and len(set(a.subscripts)) == len(a.results)
    if not plain or a.outer or a.dynamic or a.constraints or a.empty or a.tensor in a.inputs or any(lower for _, lower, _ in a.bounds):
        return None
    bounded = bounds_of_terms(a, values)
    decided = set(_decided(a.value, values))
    value = without(a.value, a.operator, bounded) if bounded else a.value
    if a.reduction and any(isinstance(part, Select) for part in walk(value)):
        return None
    reads = list(dict.fromkeys(access for access, _ in guarded_accesses(value)))
    picked = [access for access in reads if bounded or any(isinstance(part, Access) for sub in access.subscripts for part in walk(sub))]
    storage = tensors[a.tensor]
    now = next((name for name, _, _ in a.results if stride_in(storage, a.subscripts, name, values) == 1), "")
    apart = any(stride_in(tensors[access.tensor], access.subscripts, now, values) not in (0, 1) for access in picked)
    if not apart and not any(now in names(bound.value) for bound in bounded):
        return None
    if not {a.value.dtype, storage.dtype, *(tensors[access.tensor].dtype for access in reads)} <= WIDE:
        return None
    lanes = machine.lanes(DTYPES[a.value.dtype].bytes)
    points = prod(upper - lower for _, lower, upper in a.bounds)
    found: list[tuple[int, str, dict[str, int]]] = []
    for lane, _, extent in a.results:
        axes = _axes(reads, lane, tensors, values) if lane not in decided and extent * FEW >= lanes else None
        if axes is None or a.tensor in axes or any(tensors[tensor].dynamic_extents for tensor in axes):
            continue
        stays = stride_in(storage, a.subscripts, lane, values) == 1
        cost = sum(tensors[tensor].elements for tensor in axes) + (0 if stays else prod(upper for _, _, upper in a.results))
        found.append((cost, lane, axes))
    cost, lane, axes = min(found, default=(0, "", {}), key=lambda one: one[0])
    return (lane, axes) if 0 < cost <= points * len(picked) else None


def _axes(reads: list[Access], lane: str, tensors: Mapping[str, Storage], values: Mapping[str, int]) -> dict[str, int] | None:
    """Of the tensors whose elements along a dimension are apart the axis that it runs along; None where there are several."""
    axes: dict[str, int] = {}
    for access in reads:
        along = [axis for axis, sub in enumerate(access.subscripts) if lane in names(sub)]
        form = affine_form(access.subscripts[along[0]], values) if len(along) == 1 else None
        if along and (form is None or form[0].get(lane) != 1):
            return None
        apart = along and stride_in(tensors[access.tensor], access.subscripts, lane, values) != 1
        if (apart or access.tensor in axes) and axes.setdefault(access.tensor, along[0] if along else -1) not in along:
            return None
    return axes


def _decided(value: Expr, values: Mapping[str, int]) -> Iterator[str]:
    """The indices on which a value depends other than by subscripts that are linear forms:"""
    if isinstance(value, Access):
        for sub in value.subscripts:
            yield from () if affine_form(sub, values) is not None else names(sub)
    elif isinstance(value, Index):
        yield value.name
    else:
        yield from names(value.condition) if isinstance(value, Select) else ()
        for part in children(value):
            yield from _decided(part, values)


def _put_last(items: tuple[Item, ...], place: int) -> tuple[Item, ...]:
    """One of them behind the others."""
    return (*items[:place], *items[place + 1 :], items[place])
