"""Truth values as factors: a product with them is the term that they are conditions of."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tcjit.grammar.ast import Access, Cast, Const, Expr
from tcjit.grammar.walk import factors
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.nest.narrow_factors import without_conditions
from tcjit.mapping.reduction import conjuncts


def wrong_predicates(old: Assignment, new: Assignment) -> str:
    """What a product of truth values and a term computes is the term where all of them are true, and 0 elsewhere."""
    value, conditions = without_conditions(old.value)
    product, others = without_conditions(new.value)
    before, after = (Counter(part for one in some for part in conjuncts(one)) for some in (conditions, others))
    predicates = before - after
    stored = all(isinstance(part, Access) and part.dtype == "bool" for part in predicates)
    if old.operator != "+=" or old.value.dtype != "int32" or after - before or not stored:
        return "a condition changed"
    wanted: Counter[Expr] = Counter({Cast(part, dtype="int32"): times for part, times in predicates.items()})
    if value != Const(1, dtype="int32"):
        wanted.update(factors(value))
    return "" if replace(new, value=old.value) == old and Counter(factors(product)) == wanted else "a term changed"
