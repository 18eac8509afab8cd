"""Sums over the terms that tie with a running extremum, as the gradient of one has them.

``M(t) max=! s <= t ? X(s) : -inf`` does not decrease along ``t``, and no ``X(s)`` up to ``t`` is greater: where ``X(s) == M(t)``, all from
``M(s)`` to ``M(t)`` are equal, and equal to ``X(s)``; where these are, so is ``X(s) == M(t)``. What is no number equals nothing. With the
sums ``S(s)`` of ``A`` from ``s`` to the end of a segment of equal extrema, the sum over ``t`` of ``s <= t && X(s) == M(t) ? A(t) : 0`` is
``X(s) == M(s) ? S(s) : 0``. The sum over ``s`` of ``(s <= t ? X(s) : -inf) == M(t) ? 1 : 0`` is the number of elements of the segment up to
``t`` that are equal to its extremum; where that is ``-inf``, those count as well that are no terms.
"""

from __future__ import annotations

from collections.abc import Sequence

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import conjuncts
from tcjit.grammar.ast import Access, Binary, Cast, Const, Expr, Index, Select
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import with_indices, with_names
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.reduction import identity, is_identity
from tcjit.mapping.scans import Triangle, scan_candidate, triangle


@dataclass(frozen=True)
class TiedSum:
    """For each result along ``dim`` the sum of ``value``, which moves along ``dim`` as well, over the rest of its segment; or, with no
    ``value``, the number of elements in it so far. A segment goes on from a result to the one ``step`` after it."""

    dim: str
    step: int
    element: Expr  # that is compared, at a result
    extremum: Access  # at a result
    neutral: Const  # what an extremum of nothing is
    value: Expr | None

    def neighbour(self, access: Access) -> Access:
        """What an access reads for the result before in the order of the sums."""
        place = Binary("+", Index(self.dim, dtype="int64"), Const(-self.step, dtype="int64"), dtype="int64")
        moved = with_indices(access, {self.dim: place})
        assert isinstance(moved, Access)
        return moved


def tied_sum(before: Assignments, a: Assignment) -> TiedSum | None:
    """What a sum is over terms that tie with a running extremum; None where it is no such sum."""
    if a.operator != "+=" or a.outer or a.dynamic or a.constraints or a.empty or a.final or len(a.reduction) != 1:
        return None
    zero = identity("+=", a.value.dtype)
    own = [sub.name for sub in a.subscripts if isinstance(sub, Index)]
    if a.start not in (None, zero) or a.tensor in a.inputs or sorted(own) != sorted(name for name, _, _ in a.results):
        return None
    if len(own) != len(a.subscripts) or any(lower for _, lower, _ in a.bounds):
        return None
    tests, value = _tests(a.value, zero)
    for test in tests:
        sides = ((test.left, test.right), (test.right, test.left)) if isinstance(test, Binary) and test.op == "==" else ()
        rest = [one for one in tests if one is not test]
        for element, extremum in sides:
            found = _tied(before, a, rest, element, extremum, value) if isinstance(extremum, Access) else None
            if found is not None:
                return found
    return None


def _tests(value: Expr, zero: Const) -> tuple[list[Expr], Expr]:
    """The conditions without which a term is 0, and what it is where they hold."""
    tests: list[Expr] = []
    while isinstance(value, Select) and value.other == zero and is_identity(value.other, "+="):
        parts = list(conjuncts(value.condition, True))
        if not all(holds for _, holds in parts):
            break
        tests += [part for part, _ in parts]
        value = value.then
    return tests, value


def _tied(before: Assignments, a: Assignment, rest: Sequence[Expr], element: Expr, extremum: Access, value: Expr) -> TiedSum | None:
    """The sum over terms of which ``element`` equals ``extremum``, and the ``rest`` of the tests holds."""
    at = [sub.name for sub in extremum.subscripts if isinstance(sub, Index)]
    if len(at) != len(extremum.subscripts) or len({*at}) != len(at):
        return None
    found = running_extremum(before, a, extremum.tensor)
    if found is None:
        return None
    of, dim, shape = found
    names_of = dict(zip((sub.name for sub in of.subscripts if isinstance(sub, Index)), at, strict=True))
    term, results = a.reduction[0], [name for name, _, _ in a.results]
    assert isinstance(of.value, Select)
    neutral = of.value.other
    assert isinstance(neutral, Const)
    if term not in at:  # a count: results move as extrema do
        renamed = {**names_of, of.reduction[0]: term}
        one = identity("*=", a.value.dtype)
        whole = with_names(of.value, renamed)
        if sorted(at) == sorted(results) and _same_ranges(of, a, renamed) and not rest and element == whole and value == one:
            own = with_indices(with_names(of.value.then, renamed), {term: Index(names_of[dim], dtype="int64")})
            return TiedSum(names_of[dim], shape.step, own, extremum, neutral, None)
        return None
    others = [name for name in results if name not in at]
    if names_of[dim] != term or len(others) != 1 or len(at) != len(results) or others[0] in names(value):
        return None
    renamed = {**names_of, of.reduction[0]: others[0]}
    guards = list(conjuncts(with_names(of.value.condition, renamed), True))
    if not all(holds for _, holds in guards) or sorted(map(repr, rest)) != sorted(repr(guard) for guard, _ in guards):
        return None
    if not _same_ranges(of, a, renamed) or with_names(of.value.then, renamed) != element:
        return None

    def here(expr: Expr) -> Expr:
        return with_indices(expr, {term: Index(others[0], dtype="int64")})

    place = here(extremum)
    assert isinstance(place, Access)
    return TiedSum(others[0], -shape.step, element, place, neutral, here(value))


def running_extremum(before: Assignments, reader: Assignment, tensor: str) -> tuple[Assignment, str, Triangle] | None:
    """What gave a tensor, before an assignment reads it, the extrema of all elements up to each place along a dimension, or from there on,
    if neither has changed since."""
    end = next(number for number, one in enumerate(before.assignments) if one is reader)
    writers = [number for number, one in enumerate(before.assignments) if one.tensor == tensor]
    if len(writers) != 1 or writers[0] >= end:
        return None
    of = before.assignments[writers[0]]
    if of.operator not in ("max=", "min=") or of.dynamic or of.constraints or len(of.reduction) != 1 or not isinstance(of.value, Select):
        return None
    if any({one.tensor} & of.tensors_read for one in before.assignments[writers[0] : end]):
        return None
    if before.storages[tensor].dtype != of.value.dtype or of.value.other != identity(of.operator, of.value.dtype):
        return None
    s = scan_candidate(of, before)
    for dim, lower, upper in of.results if s is not None else ():
        shape = triangle(s, dim, of.bounds) if s is not None else None
        if shape is not None and not shape.offset and (lower, upper) == (shape.least, shape.most + 1) == of.ranges[of.reduction[0]]:
            return of, dim, shape
    return None


def _same_ranges(of: Assignment, a: Assignment, renamed: dict[str, str]) -> bool:
    return all(of.ranges[name] == a.ranges[other] for name, other in renamed.items())


def segments(sums: TiedSum, a: Assignment, total: Access) -> tuple[Expr, Expr, Expr]:
    """Of the sums, stored in ``total``: what the first in their order is, what each other one is, and what the result is by them."""
    dtype, zero, one = a.value.dtype, identity("+=", a.value.dtype), identity("*=", a.value.dtype)
    ties = Binary("==", sums.element, sums.extremum, dtype="bool")
    term = sums.value if sums.value is not None else Select(ties, one, zero, dtype=dtype)
    goes_on = Binary("==", sums.neighbour(sums.extremum), sums.extremum, dtype="bool")
    other = Select(goes_on, Binary("+", sums.neighbour(total), term, dtype=dtype), term, dtype=dtype)
    if sums.value is not None:
        return term, other, Select(ties, total, zero, dtype=dtype)
    place: Expr = Index(sums.dim, dtype="int64")
    if sums.step > 0:
        place = Binary("-", Const(a.extents[sums.dim] - 1, dtype="int64"), place, dtype="int64")
    nothing = Binary("==", sums.extremum, sums.neutral, dtype="bool")  # which all are equal to that are no terms
    return term, other, Binary("+", total, Select(nothing, Cast(place, dtype=dtype), zero, dtype=dtype), dtype=dtype)


def mirrored(expr: Expr, dim: str, extent: int) -> Expr:
    """An expression with a dimension counted from its other end."""
    return with_indices(expr, {dim: Binary("-", Const(extent - 1, dtype="int64"), Index(dim, dtype="int64"), dtype="int64")})
