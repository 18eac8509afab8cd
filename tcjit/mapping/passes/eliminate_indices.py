"""Eliminate indices: a reduction index that a condition sets equal to data takes that value, and its loop is gone.

A row of a table that a product with a one-hot matrix picks, ``O(n,d) +=! (I(n) == v) ? X(v,d) : 0.0``, becomes a gather under the
condition that its row exists. Every result has the terms that it had, less those equal to the identity that it starts from.
"""

from __future__ import annotations

from dataclasses import replace

from tcjit.grammar.ast import Binary, Const, Index, Select
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import with_index
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.equality import Equality, equality, reads_inside, verify_equality, where
from tcjit.mapping.reduction import identity


def eliminate_indices(before: Assignments, prove: bool, scatters: bool) -> Assignments:
    """The program without the reduction indices that equalities with data determine, which are proved where ``prove`` says so.

    Where the target ``scatters``, an index stays where the data that determine it pick one of more results instead.
    """

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        dtype = temporaries.tensors[a.tensor].dtype
        if a.empty or a.constraints or a.start is None or a.start != identity(a.operator, dtype) or a.value.dtype != dtype:
            return [a]
        if a.tensor in a.inputs:
            return [a]
        left = a
        for index in a.reduction:
            found = equality(left, index, before.values)
            if found is None or found.reordered and not reads_inside(before, _without(left, found)):
                continue
            if scatters and _picks_more(before, left, found):
                continue
            if prove:
                verify_equality(before, left, found)
            left = _without(left, found)
        return [left if left is a or left.reduction else _assigned(left)]

    return rewrite(before, visit)


def _picks_more(before: Assignments, a: Assignment, e: Equality) -> bool:
    """Whether the data that determine an index pick a result of each term, of more than the index has values."""
    if not all(isinstance(subscript, Index) for subscript in a.subscripts):
        return False
    longer = (name for name, lower, upper in a.results if upper - lower > a.extents[e.index])
    picks = (equality(a, name, before.values) for name in longer)
    return any(pick is not None and pick.data == e.data and not pick.reordered for pick in picks)


def _without(a: Assignment, e: Equality) -> Assignment:
    """The reduction without an index, whose terms are those at the value that it has."""
    least, end = next((least, end) for name, least, end in a.bounds if name == e.index)
    lower, upper = a.dynamic.get(e.index, (Const(least, dtype="int64"), Const(end, dtype="int64")))
    inside = Binary("<=", lower, e.value, dtype="bool"), Binary("<", e.value, upper, dtype="bool")
    after = (with_index(condition, e.index, e.value) for condition in e.after)
    value = where((*e.before, *inside, *after), with_index(e.term, e.index, e.value), e.identity)
    return replace(
        a,
        value=value,
        bounds=tuple(bound for bound in a.bounds if bound[0] != e.index),
        reduction=tuple(name for name in a.reduction if name != e.index),
        dynamic={name: limits for name, limits in a.dynamic.items() if name != e.index},
    )


def _assigned(a: Assignment) -> Assignment:
    """A reduction of one term as an assignment: the term added to 0.0, which is what turns -0.0 into 0.0."""
    value = a.value
    if a.operator == "+=" and DTYPES[value.dtype].kind == "float":
        assert a.start is not None and isinstance(value, Select)
        value = replace(value, then=Binary("+", a.start, value.then, dtype=value.dtype))
    return replace(a, operator="=", value=value, start=None)
