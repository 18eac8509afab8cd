"""Stage operands: copy what a register tile would read with strides, or compute for each result again, into tensors in its order.

A copy is an assignment like any other, which later passes vectorise; the lanes' dimension is its last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tcjit.grammar.ast import Access, Const, Expr, Index
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import rebuild
from tcjit.mapping.assignment import Assignment, Temporaries
from tcjit.mapping.nest.operands import Operand
from tcjit.mapping.nest.plan_nest import Plan
from tcjit.mapping.nest.statement import Statement


def stage_operands(
    a: Assignment, s: Statement, plan: Plan, temporaries: Temporaries, allowed: bool
) -> tuple[list[Assignment], Assignment]:
    """Copies of the operands that the plan wants staged, and the assignment that reads them; no copies where none can be made."""
    copies: list[Assignment] = []
    reads: dict[Expr, Access] = {}
    for number in sorted(plan.estimate.staged) if allowed else ():
        operand = plan.operands[number]
        dims = _dims(a, operand, plan.nest.leaf.lane)
        if dims is None or operand.value in reads:
            continue
        bounds = tuple(bound for dim in dims for bound in a.bounds if bound[0] == dim)
        stem = f"{operand.flats[0].tensor}_staged"
        copy = temporaries.add(a.source, stem, a.value.dtype, [upper - lower for _, lower, upper in bounds])
        subscripts = tuple(_from_zero(dim, lower) for dim, lower, _ in bounds)
        copies.append(Assignment(copy.name, subscripts, "=", operand.value, bounds, a.source, fuse_outer_only=True))
        reads[operand.value] = Access(copy.name, subscripts, dtype=a.value.dtype)
    if not copies:
        return [], a
    return copies, replace(a, value=_reading(a.value, reads))


def _from_zero(dim: str, lower: int) -> Expr:
    index = Index(dim, dtype="int64")
    from tcjit.grammar.ast import Binary

    return index if lower == 0 else Binary("-", index, Const(lower, dtype="int64"), dtype="int64")


def _dims(a: Assignment, operand: Operand, lane: str) -> tuple[str, ...] | None:
    """The dimensions of an operand's copy, the lanes' last; None where a copy would be larger than what it copies."""
    assert isinstance(operand.value, Expr)
    used = dict.fromkeys(name for access in _accesses(operand.value) for sub in access.subscripts for name in names(sub))
    if operand.single is not None:
        assert isinstance(operand.value, Access)
        plain = [sub.name for sub in operand.value.subscripts if isinstance(sub, Index)]
        if len(plain) != len(operand.value.subscripts) or len(set(plain)) != len(plain):
            return None
    dims = [dim for dim, _, _ in (*a.terms, *a.results) if dim in used and dim != lane]
    return (*dims, *([lane] if lane in used else []))


def _accesses(value: Expr) -> list[Access]:
    from tcjit.grammar.walk import walk

    return [node for node in walk(value) if isinstance(node, Access)]


def _reading(value: Expr, reads: Mapping[Expr, Access]) -> Expr:
    return reads[value] if value in reads else rebuild(value, lambda part: _reading(part, reads))
