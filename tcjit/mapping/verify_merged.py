"""Temporaries in the place of others: both were given the same values before, of what has not changed between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tcjit.grammar.ast import Access, Expr, Index
from tcjit.grammar.walk import children, same_node, with_names
from tcjit.mapping.assignment import Assignment, Assignments


def wrong_merged(before: Assignments, after: Assignments, old: Assignment, new: Sequence[Assignment]) -> str:
    """What is wrong with an assignment that reads other temporaries, or with nothing in the place of one to what no other reads."""
    if not new:
        read = any(old.tensor in a.tensors_read for a in after.assignments)
        return "what is read is not computed" if read or before.storages[old.tensor].role != "temporary" else ""
    if len(new) > 1:
        return "something was added"
    (a,), held = new, _SameValues(before)
    place = next(number for number, other in enumerate(before.assignments) if other is old)
    kept = replace(a, value=old.value, subscripts=old.subscripts, start=old.start) == old and (old.start is None) == (a.start is None)
    values = [(old.value, a.value), *zip(old.subscripts, a.subscripts), *([(old.start, a.start)] if old.start and a.start else [])]
    return "" if kept and all(held.same(one, other, place) for one, other in values) else "a value changed"


class _SameValues:
    """Which values are the same where temporaries of a program hold the same."""

    def __init__(self, before: Assignments) -> None:
        self.program, self.storages = before.assignments, before.storages

    def same(self, one: Expr, other: Expr, end: int) -> bool:
        """Whether two values are, before some assignment."""
        if isinstance(one, Access) and isinstance(other, Access) and one.tensor != other.tensor:
            alike = one.dtype == other.dtype and len(one.subscripts) == len(other.subscripts)
            if not alike or not self.hold_alike(one.tensor, other.tensor, end):
                return False
        elif not same_node(one, other):
            return False
        return all(self.same(left, right, end) for left, right in zip(children(one), children(other), strict=True))

    def hold_alike(self, tensor: str, other: str, end: int) -> bool:
        """Whether two temporaries were given the same values before an assignment, each by one other."""
        found = [[number for number, a in enumerate(self.program) if a.tensor == name] for name in (tensor, other)]
        storages = self.storages[tensor], self.storages[other]
        if any(len(numbers) != 1 or numbers[0] >= end for numbers in found) or any(storage.role != "temporary" for storage in storages):
            return False
        numbers = sorted(number for (number,) in found)
        pair = [self.program[number] for number in numbers]
        axes = [[sub.name for sub in a.subscripts if isinstance(sub, Index)] for a in pair]
        plain = all(a.is_elementwise and sorted(own) == sorted(a.dims) and len(own) == len(a.subscripts) for a, own in zip(pair, axes))
        changed = {a.tensor for a in self.program[numbers[0] : numbers[1]]}
        if not plain or storages[0].shape != storages[1].shape or changed & pair[0].inputs & pair[1].inputs:
            return False  # what one of them alone reads holds the same as what the other does, and is given its values once
        ranges = [[a.ranges[name] for name in own] for a, own in zip(pair, axes, strict=True)]
        renamed = with_names(pair[1].value, dict(zip(axes[1], axes[0], strict=True)))
        return ranges[0] == ranges[1] and self.same(renamed, pair[0].value, numbers[1])
