"""Reductions in temporaries of other types, which hold every partial result, and whose results are converted once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tcjit.grammar.ast import Access, Cast, Const, Expr, Select
from tcjit.grammar.dtypes import DTYPES, holds
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.counts import compared, holds_counts
from tcjit.mapping.instances import Instances, results_of, same_element
from tcjit.mapping.reduction import identity
from tcjit.mapping.storage import Storage

Tensors = Mapping[str, Storage]


def wrong_widened(instances: Instances, before: Tensors, after: Tensors, old: Assignment, new: Sequence[Assignment]) -> str:
    """What is wrong with a reduction in a wider type in the place of one."""
    if len(new) != 2:
        return "no reduction and conversion"
    wide, narrow = after[new[0].tensor].dtype, before[old.tensor].dtype
    # a bool is any number but 0: what it is converted to holds it
    if not holds(wide, narrow) and not DTYPES[narrow].kind == "bool" != DTYPES[wide].kind:
        return "the temporary is no wider one"
    return _wrong_converted(instances, before, after, old, new)


def wrong_counts(instances: Instances, before: Tensors, after: Tensors, old: Assignment, new: Sequence[Assignment]) -> str:
    """What is wrong with a count in another type in the place of one."""
    if len(new) != 2:
        return "no reduction and conversion"
    exact = holds_counts(old, after[new[0].tensor].dtype, before[old.tensor].dtype)
    if not exact or old.operator != "+=" or old.start is None or compared(old.value) is None:
        return "sums are not exact"
    return _wrong_converted(instances, before, after, old, new)


def _wrong_converted(instances: Instances, before: Tensors, after: Tensors, old: Assignment, new: Sequence[Assignment]) -> str:
    wide, store = new
    storage, narrow = after[wide.tensor], before[old.tensor]
    element = Access(wide.tensor, wide.subscripts, dtype=storage.dtype)
    if wide.tensor in before or storage.role != "temporary":
        return "the temporary is no new one"
    if (storage.shape, storage.dynamic_extents) != (narrow.shape, narrow.dynamic_extents) or wide.subscripts != old.subscripts:
        return "the temporary has other elements"
    if replace(wide, tensor=old.tensor, value=old.value, start=old.start) != old or not _is_converted(wide.value, old.value):
        return "the reduction changed"
    held = Cast(Access(narrow.name, old.subscripts, dtype=narrow.dtype), dtype=storage.dtype)
    start = held if old.start is None else identity(old.operator, storage.dtype)
    if wide.start != start or old.start not in (None, identity(old.operator, narrow.dtype)):
        return "the reduction starts from another value"
    if store.operator != "=" or not same_element(store, old) or store.value != Cast(element, dtype=narrow.dtype):
        return "the results are not what was reduced"
    return "" if instances.instances(store).is_equal(instances.instances(results_of(old))) else "results are lost"


def _is_converted(wide: Expr, value: Expr) -> bool:
    """Whether a value is another one in a type that holds it, converted inside choices perhaps."""
    if isinstance(wide, Select) and isinstance(value, Select) and wide != value:
        return wide.condition == value.condition and _is_converted(wide.then, value.then) and _is_converted(wide.other, value.other)
    if isinstance(wide, Select) and isinstance(value, Cast):  # of a bool
        arms = [arm.value if isinstance(arm, Const) else None for arm in (wide.then, wide.other)]
        return wide.condition == value.operand and arms == [1, 0]
    if isinstance(wide, Const) and isinstance(value, Const):
        kinds = DTYPES[wide.dtype].kind, DTYPES[value.dtype].kind
        if kinds == ("float", "float"):
            return repr(wide.value) == repr(value.value)
        return not isinstance(wide.value, bool) and wide.value == int(value.value)
    return wide in (value, Cast(value, dtype=wide.dtype))
