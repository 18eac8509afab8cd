"""The rule for folded contractions: a product of matrices, whose dimensions count those of the contraction in a mixed radix, has each of
its terms once, reads copies of its elements, and its results are copied to theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from tcjit.grammar.affine import linear
from tcjit.grammar.arithmetic import index
from tcjit.grammar.ast import Access, Const, Expr, Index
from tcjit.grammar.walk import with_accesses
from tcjit.mapping.assignment import Assignment, Assignments


def wrong_folding(before: Assignments, after: Assignments, old: Assignment, new: Sequence[Assignment]) -> str:
    """What is wrong with what took the place of a contraction; nothing where all is well."""
    sums = [place for place, a in enumerate(new) if a.reduction]
    if len(sums) != 1 or len(new) > sums[0] + 2:
        return "no copies around one product"
    copies, a, stored = new[: sums[0]], new[sums[0]], new[sums[0] + 1 :]
    if old.dynamic or old.constraints or old.outer or old.tensor in old.tensors_read:
        return "not all of the contraction is known"
    made = {copy.tensor: copy for copy in copies}
    # for each dimension of the product what it is of those of the contraction
    counted: dict[str, Expr] = {dim: index(dim) for dim in a.dims if dim in old.dims}
    sides = [(copy.tensor, copy.subscripts) for copy in copies]
    sides += [(a.tensor, one.value.subscripts) for one in stored if isinstance(one.value, Access)]
    for tensor, places in sides:
        if not _is_new(before, after, tensor):
            return "a copy is no temporary of its own"
        for access in (access for access in (*a.reads, a.element) if access.tensor == tensor):
            for sub, place in zip(access.subscripts, places, strict=True):
                if not isinstance(sub, Index) or counted.setdefault(sub.name, place) != place:
                    return "the product reads other elements"
    digits = {dim: _digits(old, a.ranges.get(dim), place) for dim, place in counted.items()}
    parts = [part for found in digits.values() for part in found]
    if set(digits) != set(a.dims) or not all(digits.values()) or sorted(parts) != sorted(old.dims):
        return "dimensions do not count all points once"
    if any((part in old.reduction) != (dim in a.reduction) for dim, found in digits.items() for part in found):
        return "terms and results are mixed"
    for copy in copies:
        axes = {part for dim, found in digits.items() if counted[dim] in copy.subscripts for part in found}
        if wrong := _wrong_copy(after, copy, old, axes):
            return wrong
        if not _fills(after, copy.tensor, copy.subscripts, a, counted):
            return "a copy has another shape"

    def undone(access: Access) -> Access:
        value = made[access.tensor].value if access.tensor in made else access
        assert isinstance(value, Access)
        return value

    plain = replace(a, value=with_accesses(a.value, undone), bounds=old.bounds, reduction=old.reduction)
    for store in stored:
        there = Access(a.tensor, sides[-1][1], dtype=before.storages[old.tensor].dtype)
        expected = replace(old, operator="=", value=there, bounds=old.results, reduction=(), start=None)
        if store != expected or after.storages[a.tensor].dtype != there.dtype or not isinstance(old.start, Const):
            return "the results are not copied to their elements"
        own = {sub.name for sub in a.subscripts if isinstance(sub, Index)}
        if not _fills(after, a.tensor, there.subscripts, a, counted) or any(end > 1 and dim not in own for dim, _, end in a.results):
            return "results share an element, or are no elements"
        plain = replace(plain, tensor=old.tensor, subscripts=old.subscripts)
    return "" if plain == old else "more than dimensions changed"


def _is_new(before: Assignments, after: Assignments, tensor: str) -> bool:
    """Whether a tensor is a temporary that one assignment writes."""
    written = [a.tensor for a in after.assignments].count(tensor)
    return tensor not in before.storages and after.storages[tensor].role == "temporary" and written == 1


def _digits(old: Assignment, limits: tuple[int, int] | None, place: Expr) -> tuple[str, ...]:
    """The dimensions that a number counts in a mixed radix, each value of it once, between limits from 0 on; none where it does not."""
    form = linear(place)
    if form is None or form[1] != 0 or limits is None or not all(isinstance(factor, int) for factor in form[0].values()):
        return ()
    weight, found = 1, list[str]()
    for dim, factor in sorted(form[0].items(), key=lambda term: (term[1], old.extents.get(term[0], 0))):
        if factor != weight or dim not in old.ranges or old.ranges[dim][0]:
            return ()
        weight *= old.extents[dim]
        found.append(dim)
    return tuple(found) if limits == (0, weight) else ()


def _wrong_copy(after: Assignments, copy: Assignment, old: Assignment, counted: set[str]) -> str:
    """What is wrong with a copy of an element of the contraction whose places count some dimensions."""
    read, storage = copy.value, after.storages[copy.tensor]
    if not copy.is_elementwise or read not in old.reads or not isinstance(read, Access) or storage.dtype != read.dtype:
        return "a copy is none of an element"
    own = {sub.name for sub in read.subscripts if isinstance(sub, Index)}
    if not set(copy.bounds) <= set(old.bounds) or set(copy.dims) != own or len(own) < len(read.subscripts):
        return "a copy does not have the elements of its tensor"
    wide = {dim for dim in own if old.extents[dim] > 1}
    return "" if wide <= counted <= own else "elements of a copy share a place"


def _fills(after: Assignments, tensor: str, places: Sequence[Expr], a: Assignment, counted: Mapping[str, Expr]) -> bool:
    """Whether a tensor has the places that different dimensions of the product have, and no others."""
    ends = {place: a.ranges[dim][1] for dim, place in counted.items()}
    storage = after.storages[tensor]
    sizes = tuple(ends.get(place) for place in places)
    return sizes == storage.shape and not storage.dynamic_extents and len(set(places)) == len(places) and prod(storage.shape) > 0
