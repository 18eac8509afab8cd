"""Elements at linear subscripts in the place of those at clamped ones: wherever one is chosen, its subscripts are what the others were."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import islpy as isl

from tcjit.grammar.affine import affine, condition
from tcjit.grammar.ast import Access, Binary, Call, Expr, Select, Unary
from tcjit.grammar.polynomial import INTEGERS
from tcjit.grammar.walk import children, same_node
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.instances import Instances

_HOLDS: Mapping[str, Callable[[isl.PwAff, isl.PwAff], isl.Set]] = {
    "<": isl.PwAff.lt_set, "<=": isl.PwAff.le_set, ">": isl.PwAff.gt_set, ">=": isl.PwAff.ge_set,
}  # fmt: skip


def wrong_subscripts(proof: Instances, old: Assignment, new: Sequence[Assignment]) -> str:
    """What is wrong with an assignment of other elements in the place of one."""
    if len(new) != 1 or replace(new[0], value=old.value) != old:
        return "more than a value changed"
    return "" if _same(proof, old, old.value, new[0].value, proof.instances(replace(old, constraints=()))) else "an element is another one"


def _same(proof: Instances, a: Assignment, old: Expr, new: Expr, where: isl.Set) -> bool:
    """Whether values are the same at some instances, of which conditions on indices leave parts."""
    if isinstance(old, Access) and isinstance(new, Select):
        text = condition(new.condition, proof.values)
        if text is None:
            return False
        there = proof.where(a, text)
        return _same(proof, a, old, new.then, where.intersect(there)) and _same(proof, a, old, new.other, where.subtract(there))
    if isinstance(old, Access) and isinstance(new, Access) and (old.tensor, old.dtype) == (new.tensor, new.dtype):
        return all(_equal(proof, a, *pair, where) for pair in zip(old.subscripts, new.subscripts, strict=True))
    pairs = zip(children(old), children(new), strict=True) if same_node(old, new) else ()
    return old == new or same_node(old, new) and all(_same(proof, a, left, right, where) for left, right in pairs)


def _equal(proof: Instances, a: Assignment, old: Expr, new: Expr, where: isl.Set) -> bool:
    if old == new:
        return True
    if isinstance(old, Select) and isinstance(old.condition, Binary):
        left, right = _value(proof, a, old.condition.left), _value(proof, a, old.condition.right)
        there = None if left is None or right is None else _HOLDS[old.condition.op](left, right)
        arms = () if there is None else ((old.then, where.intersect(there)), (old.other, where.subtract(there)))
        return bool(arms) and all(_equal(proof, a, arm, new, part) for arm, part in arms)
    value, other = _value(proof, a, old), _value(proof, a, new)
    return value is not None and other is not None and bool(value.ne_set(other).intersect(where).is_empty())


def _value(proof: Instances, a: Assignment, expr: Expr) -> isl.PwAff | None:
    """An integer expression of indices, minima, maxima and quotients of these among its parts; None where it is another one."""
    if (text := affine(expr, proof.values)) is not None:
        return proof.function(a, text)
    operands = children(expr)
    parts = [value for child in operands if (value := _value(proof, a, child)) is not None]
    if not parts or len(parts) < len(operands) or expr.dtype not in INTEGERS:
        return None
    one, other = parts[0], parts[-1]
    match expr:
        case Unary(op="-"):
            return one.neg()
        case Binary(op="+"):
            return one.add(other)
        case Binary(op="-"):
            return one.sub(other)
        case Binary(op="*") if one.is_cst() or other.is_cst():
            return one.mul(other)
        case Binary(op="/" | "%" as op) if other.is_cst():
            quotient = one.div(other).floor()
            return quotient if op == "/" else one.sub(quotient.mul(other))
        case Call(function="min"):
            return one.min(other)
        case Call(function="max"):
            return one.max(other)
        case Call(function="abs"):
            return one.max(one.neg())
    return None
