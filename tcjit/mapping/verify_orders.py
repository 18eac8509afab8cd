"""The rule for transposed tables: copies of whole tensors with their axes in another order are read where these were, and results are in a
temporary with its axes in another order, which is copied to them or read in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from tcjit.grammar.ast import Access, Expr, Index
from tcjit.grammar.walk import with_accesses
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.storage import Bounds

Orders = Mapping[str, tuple[str, Sequence[int]]]  # of tensors: which one they have the elements of, and the places of its axes


class AxisOrders:
    """A program before and after some of its tensors were given another order of their axes."""

    def __init__(self, before: Assignments, after: Assignments) -> None:
        self.before, self.after = before, after

    def wrong(self, old: Assignment, new: Sequence[Assignment]) -> str:
        """What is wrong with what took the place of an assignment; nothing where all is well."""
        *copies, a = new
        written = [one.tensor for one in self.after.assignments]
        if any(one.tensor not in self.before.storages and written.count(one.tensor) > 1 for one in new):
            return "a temporary is written again"
        if copies and a.tensor == old.tensor and a.value == self._element(copies[-1]):
            store, a = a, copies.pop()
            expected = replace(old, operator="=", value=store.value, bounds=old.results, reduction=(), start=None)
            if replace(store, fuse_outer_only=old.fuse_outer_only) != expected:
                return "the results are not copied to their elements"
            if wrong := self._wrong_results(old, a):
                return wrong
        elif a.tensor != old.tensor and self._replaced.get(a.tensor, ("",))[0] != old.tensor:
            return "results are not where they are read"
        if a.tensor != old.tensor:
            a = replace(a, tensor=old.tensor, subscripts=old.subscripts, bounds=old.bounds)
        orders = {**self._replaced, **self._copied(new[-1])}
        for copy in copies:
            if wrong := self._wrong_copy(copy):
                return wrong
            assert isinstance(copy.value, Access)
            if copy.value.tensor == old.tensor:
                return "a copy is made of results"
            orders[copy.tensor] = copy.value.tensor, [copy.subscripts.index(sub) for sub in copy.value.subscripts]
        return "" if replace(a, value=_with_axes_back(a.value, orders)) == old else "more than the order of axes changed"

    @cached_property
    def _replaced(self) -> dict[str, tuple[str, Sequence[int]]]:
        """Temporaries in the place of others, which one assignment wrote and nothing uses any more."""
        used = {tensor for a in self.after.assignments for tensor in (a.tensor, *a.tensors_read)}
        written = [a.tensor for a in self.before.assignments]
        found = dict[str, tuple[str, Sequence[int]]]()
        for old, new in zip(self.before.assignments, self.after.replaced, strict=True):
            gone = self.before.storages[old.tensor].role == "temporary" and old.tensor not in used
            if gone and written.count(old.tensor) == 1 and not self._wrong_results(old, new[-1]):
                found[new[-1].tensor] = old.tensor, [new[-1].subscripts.index(sub) for sub in old.subscripts]
        return found

    def _copied(self, reader: Assignment) -> Orders:
        """Copies of what nothing writes, which were made for assignments before a reader."""
        written = {a.tensor for a in self.before.assignments}
        found = dict[str, tuple[str, Sequence[int]]]()
        for new in self.after.replaced:
            if any(a is reader for a in new):
                break
            for copy in new[:-1]:
                read = copy.value
                if isinstance(read, Access) and read.tensor not in written and not self._wrong_copy(copy):
                    found[copy.tensor] = read.tensor, [copy.subscripts.index(sub) for sub in read.subscripts]
        return found

    def _wrong_results(self, old: Assignment, a: Assignment) -> str:
        """What is wrong with a temporary for results."""
        if sorted(a.bounds) != sorted(old.bounds) or not self._is_box(a, old.results) or set(a.subscripts) != set(old.subscripts):
            return "the results are no box of a temporary"
        if len(old.subscripts) != len(a.subscripts) or self.after.storages[a.tensor].dtype != self.before.storages[old.tensor].dtype:
            return "the temporary has other elements"
        given = old.start is not None or old.operator == "="
        return "" if given and old.tensor not in old.tensors_read else "the results depend on what their elements held"

    def _wrong_copy(self, copy: Assignment) -> str:
        """What is wrong with a copy of a whole tensor."""
        read = copy.value
        if not isinstance(read, Access) or read.tensor not in self.before.storages or not copy.is_elementwise:
            return "a copy is none of a tensor"
        storage = self.before.storages[read.tensor]
        whole = self._is_box(copy, copy.bounds) and sorted(_axes(read.subscripts, storage.shape)) == sorted(copy.bounds)
        if not whole or storage.dynamic_extents or len(read.subscripts) != len(copy.subscripts):
            return "a copy does not have the elements of its tensor"
        return "" if {self.after.storages[copy.tensor].dtype, storage.dtype} == {read.dtype} else "a copy has another type"

    def _is_box(self, a: Assignment, bounds: Bounds) -> bool:
        """Whether an assignment writes a new temporary, all of it, at the indices of some bounds."""
        storage = self.after.storages[a.tensor]
        new = a.tensor not in self.before.storages and storage.role == "temporary" and not storage.dynamic_extents
        return new and len(set(a.subscripts)) == len(bounds) and sorted(_axes(a.subscripts, storage.shape)) == sorted(bounds)

    def _element(self, a: Assignment) -> Access:
        return Access(a.tensor, a.subscripts, dtype=self.after.storages[a.tensor].dtype)


def _axes(subscripts: Sequence[Expr], shape: Sequence[int]) -> Bounds:
    """The indices that subscripts are, over all of a tensor; nothing where one is none."""
    pairs = [(sub.name, 0, extent) for sub, extent in zip(subscripts, shape, strict=True) if isinstance(sub, Index)]
    return tuple(pairs) if len(pairs) == len(subscripts) else ()


def _with_axes_back(value: Expr, orders: Orders) -> Expr:
    """A value with the tensors that others have the elements of in their place."""

    def undone(access: Access) -> Access:
        if access.tensor not in orders:
            return access
        tensor, places = orders[access.tensor]
        return replace(access, tensor=tensor, subscripts=tuple(access.subscripts[place] for place in places))

    return with_accesses(value, undone)
