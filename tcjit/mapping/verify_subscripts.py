"""Elements at linear subscripts in the place of those at clamped ones: wherever one is chosen, its subscripts are what the others were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import islpy as isl

from tcjit.grammar.affine import affine, condition
from tcjit.grammar.ast import Access, Binary, Call, Expr, Select
from tcjit.grammar.walk import children, same_node
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.instances import Instances


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
    texts = _text(old, proof.values), _text(new, proof.values)
    return old == new or None not in texts and proof.empty(where, a, f"{texts[0]} != {texts[1]}")


def _text(expr: Expr, values: Mapping[str, int]) -> str | None:
    """isl's text of an integer expression, minima and maxima of indices among its parts."""
    if (known := affine(expr, values)) is not None:
        return known
    parts = [_text(child, values) for child in children(expr)]
    if None in parts or expr.dtype != "int64":
        return None
    match expr:
        case Binary(op="+" | "-" | "*" as op):
            return f"(({parts[0]}) {op} ({parts[1]}))"
        case Call(function="min" | "max" as function):
            return f"{function}({parts[0]}, {parts[1]})"
    return None
