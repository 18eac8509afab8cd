"""Reductions over parts of the terms: each term that counts stands in one of them, and has its value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tcjit.grammar.walk import addends
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.instances import Instances
from tcjit.mapping.reduction import EXTREMES, guarded_term, identity


def wrong_unions(instances: Instances, old: Assignment, new: Sequence[Assignment]) -> str:
    """What is wrong with a reduction over some terms, and others that go on with it, in the place of a reduction."""
    if old.operator not in ("+=", *EXTREMES) or [part.start for part in new] != [old.start, *[None] * (len(new) - 1)]:
        return "no reduction, and others that go on with it"
    if old.tensor in old.inputs or any(replace(part, value=old.value, start=old.start) != old for part in new):
        return "more than the terms of a reduction changed"
    conditions, term = guarded_term(old.value, old.operator, instances.values)
    left = instances.instances(replace(old, constraints=(*old.constraints, *(text for text, _ in conditions))))
    for part in new:
        own, value = guarded_term(part.value, part.operator, instances.values)
        counted = instances.instances(replace(part, constraints=(*part.constraints, *(text for text, _ in own))))
        if not counted.is_subset(left) or not (counted.is_empty() or instances.agree(term, value, counted, part)):
            return "a term has another value, or counts twice"
        left = left.subtract(counted)
    nothing = left.is_empty() or instances.neutral(term, identity(old.operator, term.dtype), left, old)
    return "" if nothing else "a term that counts is lost"


def wrong_addends(instances: Instances, old: Assignment, new: Sequence[Assignment]) -> str:
    """What is wrong with a sum of each addend of a sum's terms, where the addend counts, in the place of the sum."""
    if old.operator != "+=" or [part.start for part in new] != [old.start, *[None] * (len(new) - 1)]:
        return "no sum, and others that go on with it"
    if old.tensor in old.inputs or any(replace(part, value=old.value, start=old.start) != old for part in new):
        return "more than the terms of a sum changed"
    outside, term = guarded_term(old.value, "+=", instances.values)
    parts = addends(term)
    if len(parts) != len(new):
        return "an addend is lost"
    for addend, part in zip(parts, new, strict=True):
        inside, value = guarded_term(addend, "+=", instances.values)
        own, made = guarded_term(part.value, "+=", instances.values)
        sides = [[text for text, _ in some] for some in ((*outside, *inside), own)]
        wanted, counted = (instances.instances(replace(old, constraints=(*old.constraints, *texts))) for texts in sides)
        if made != value or not counted.is_equal(wanted):
            return "an addend has another value, or counts elsewhere"
    return ""
