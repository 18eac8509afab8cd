"""An index that an equality with data determines: of ``(I(n) == v && more) ? term : identity``, the one ``v`` that has a term."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise

import islpy as isl

from tcjit.dataclass import dataclass
from tcjit.errors import VerifyError
from tcjit.grammar.affine import affine, isl_name
from tcjit.grammar.arithmetic import times
from tcjit.grammar.ast import Access, Binary, Cast, Const, Expr, Index, Select, Size, Unary
from tcjit.grammar.dtypes import DTYPES, holds
from tcjit.grammar.polynomial import INTEGERS, names
from tcjit.grammar.walk import rebuild, replaced, walk
from tcjit.mapping.assignment import Assignment, Assignments, to_scop
from tcjit.mapping.isl import points
from tcjit.mapping.operations import may_fail
from tcjit.mapping.reduction import conjunction, conjuncts, is_identity, leaves_any
from tcjit.mapping.storage import Bounds, fresh

Form = dict[str, int]  # the coefficients of indices, and the constant as that of ""


@dataclass(frozen=True)
class Equality:
    """``all(before) && index == value && all(after) ? term : identity``, what a reduction has for a term.

    ``value`` is int64, that of the index for which the other side of the comparison is ``data``; neither it nor ``before`` has the index.
    Where there is no such value, it is outside the index's range, also where its arithmetic wraps.
    """

    index: str
    data: Expr
    value: Expr
    before: tuple[Expr, ...]
    after: tuple[Expr, ...]
    term: Expr
    identity: Expr
    reordered: bool  # whether ``value`` or ``before`` stood behind a condition that comes after them now


def equality(a: Assignment, index: str, values: Mapping[str, int]) -> Equality | None:
    """The equality with data that determines an index of a reduction; ``values`` are the numbers of sizes.

    None where there is none, or where which terms are evaluated decides on an error that the program raises.
    """
    conditions, term, identity = conditions_of(a.value, a.operator)
    for number, condition in enumerate(conditions):
        found = _solved(condition, index, a.bounds, values)
        if found is None:
            continue
        data, value = found
        before = tuple(one for one in conditions[:number] if index not in names(one))
        moved = tuple(one for one in conditions[:number] if index in names(one))
        # evaluated for other values of the index than before, or for an empty range of it
        unsure = (*moved, *before, value) if moved or index in a.dynamic else ()
        if not any(map(may_fail, unsure)):
            return Equality(index, data, value, before, (*moved, *conditions[number + 1 :]), term, identity, bool(moved))
    return None


def picked_index(a: Assignment, condition: Expr, values: Mapping[str, int]) -> str | None:
    """The index of a reduction's results that a condition compares with data, so that each term counts for one of them; None of others."""
    some = (name for name, lower, upper in a.results if upper - lower > 1)
    return next((name for name in some if _solved(condition, name, a.bounds, values) is not None), None)


def where(conditions: Sequence[Expr], then: Expr, other: Expr) -> Expr:
    """``then`` where all of the conditions hold, evaluated from the left."""
    if not conditions:
        return then
    return Select(conjunction(conditions), then, other, dtype=then.dtype)


def reads_inside(before: Assignments, a: Assignment) -> bool:
    """Whether an assignment reads elements of its tensors only, by the conditions that isl understands."""
    scop = to_scop(replace(before, assignments=(a,)))
    return bool(scop.reads.range().is_subset(scop.elements))


def verify_equality(before: Assignments, a: Assignment, e: Equality) -> None:
    """Prove that a term is the identity but where the index has the value, and that conditions are neither lost nor added."""
    conditions, term, identity = conditions_of(a.value, a.operator)
    for one in (*e.before, *e.after):
        if one not in conditions:
            raise VerifyError(f"equality: {a.show()}: a condition is new")
        conditions.remove(one)
    if len(conditions) != 1 or (term, identity) != (e.term, e.identity) or any(e.index in names(one) for one in (*e.before, e.value)):
        raise VerifyError(f"equality: {a.show()}: a condition is gone")
    compared = conditions[0]
    assert isinstance(compared, Binary) and e.data in (compared.left, compared.right)
    near = compared.left if compared.right == e.data else compared.right
    scop = to_scop(replace(before, assignments=(a,)))
    dims = [isl_name(name) for name, _, _ in a.bounds]
    data = fresh("data", dims)
    instances = scop.instances(scop.statements[0]).reset_tuple_id().insert_dims(isl.dim_type.set, len(dims), 1)

    def where_holds(fact: str) -> isl.Set:
        return instances.intersect(points(scop.ctx, [*dims, data], [fact], scop.parameters))

    for part in walk(near):
        kind, text = DTYPES[part.dtype], affine(exact(part), before.values)
        if not where_holds(f"not ({kind.least} <= {text} <= {kind.greatest})").is_empty():
            raise VerifyError(f"equality: {a.show()}: what is compared with data may wrap")
    value = exact(replaced(e.value, {e.data: Index(data, dtype="int64")}))
    sides = affine(exact(near), before.values), affine(value, before.values)
    if None in sides or not where_holds(f"{sides[0]} = {data}").is_equal(where_holds(f"{isl_name(e.index)} = {sides[1]}")):
        raise VerifyError(f"equality: {a.show()}: the index has another value")


def exact(expr: Expr) -> Expr:
    """An integer expression computed without wrapping."""
    return exact(expr.operand) if isinstance(expr, Cast) else rebuild(expr, exact)


def conditions_of(value: Expr, operator: str) -> tuple[list[Expr], Expr, Expr]:
    """The conditions on which a term is none of the operator's identity, the term, and the identity; a conversion goes inwards."""
    conditions: list[Expr] = []
    casts: list[str] = []
    neutral = value
    while True:
        if isinstance(value, Cast) and isinstance(value.operand, Cast | Select):
            casts.append(value.dtype)
            value = value.operand
        elif isinstance(value, Select) and is_neutral(other := _converted(value.other, casts), operator):
            conditions += conjuncts(value.condition)
            value, neutral = value.then, other
        else:
            return conditions, reduce(lambda inner, dtype: Cast(inner, dtype=dtype), reversed(casts), value), neutral


def is_neutral(value: Expr, operator: str) -> bool:
    return is_identity(value, operator) or leaves_any(value, operator)


def _converted(value: Expr, casts: Sequence[str]) -> Expr:
    """A constant in the last type that it is converted to, the first of ``casts``, where all of them hold it."""
    exact = all(holds(wide, narrow) for wide, narrow in pairwise((*casts, value.dtype)))
    return replace(value, dtype=casts[0]) if casts and exact else value


def _solved(condition: Expr, index: str, bounds: Bounds, values: Mapping[str, int]) -> tuple[Expr, Expr] | None:
    """The data that a condition compares an index with, which do not use it, and the value that it has where the condition holds."""
    if not isinstance(condition, Binary) or condition.op != "==" or condition.left.dtype not in INTEGERS:
        return None
    for near, far in ((condition.left, condition.right), (condition.right, condition.left)):
        form = linear_form(near, {name: (lower, upper - 1) for name, lower, upper in bounds}, values)
        if form is None or abs(form.get(index, 0)) != 1 or index in names(far):
            continue
        if any(isinstance(node, Access) for node in walk(far)):
            return far, _isolated(far, form, index)
    return None


def _isolated(far: Expr, form: Form, index: str) -> Expr:
    """The value of an index for which a form is ``far``.

    Data may make it wrap. Then it is no value of the index, for which the form would not have wrapped; conversions to int64 around the
    arithmetic say that this is no error of a subscript.
    """
    value: Expr = far if isinstance(far, Access | Cast) and far.dtype == "int64" else Cast(far, dtype="int64")
    rest = {name: c for name, c in form.items() if name != index and c}
    for name, c in rest.items():
        term = times(c, Index(name, dtype="int64")) if name else Const(c, dtype="int64")
        value = Binary("-", value, term, dtype="int64")
    value = Unary("-", value, dtype="int64") if form[index] < 0 else value
    return Cast(value, dtype="int64") if rest or form[index] < 0 else value


def linear_form(expr: Expr, ranges: Mapping[str, tuple[int, int]], values: Mapping[str, int]) -> Form | None:
    """The linear form of an integer expression over indices, where no part of it wraps or is cut off; the constant is that of ``""``."""
    found: Form | None = None
    match expr:
        case Const():
            found = {"": int(expr.value)}
        case Index():
            found = {expr.name: 1}
        case Size() if expr.name in values:
            found = {"": values[expr.name]}
        case Cast():
            found = linear_form(expr.operand, ranges, values)
        case Unary(op="-"):
            found = _sum({}, -1, linear_form(expr.operand, ranges, values))
        case Binary(op="+" | "-"):
            left, right = linear_form(expr.left, ranges, values), linear_form(expr.right, ranges, values)
            found = None if left is None else _sum(left, 1 if expr.op == "+" else -1, right)
    if found is None or expr.dtype not in INTEGERS:
        return None
    ends = [[c * (1 if not name else end) for end in ranges.get(name, (1, 1))] for name, c in found.items()]
    least, greatest = sum(map(min, ends)), sum(map(max, ends))
    return found if DTYPES[expr.dtype].least <= least and greatest <= DTYPES[expr.dtype].greatest else None


def _sum(left: Form, sign: int, right: Form | None) -> Form | None:
    return None if right is None else {name: left.get(name, 0) + sign * right.get(name, 0) for name in {**left, **right}}
