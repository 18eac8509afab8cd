"""The rule for residue classes: each result is in one class, which has all of its terms that are not the identity, each once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tcjit.errors import MappingError
from tcjit.grammar.affine import affine
from tcjit.grammar.arithmetic import index
from tcjit.grammar.ast import Access
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.instances import Instances, results_of
from tcjit.mapping.reduction import identity
from tcjit.mapping.residue_classes import placed, residue_classes
from tcjit.mapping.storage import Storage

Storages = Mapping[str, Storage]


def wrong_classes(of: Instances, before: Storages, after: Storages, old: Assignment, new: Sequence[Assignment]) -> str:
    """What is wrong with the sums of residue classes in temporaries, and the assignments of their results."""
    target = before[old.tensor]
    neutral = identity(old.operator, target.dtype)
    left, results = of.instances(old), of.instances(results_of(old))
    try:
        classes = residue_classes(old, of.values)
    except MappingError as error:
        return error.what
    if old.start != neutral or old.operator == "=":
        return "the results do not start at the identity"
    rest = list(new)
    for one in classes:
        sums, rest = rest[: int(one.terms)], rest[int(one.terms) :]
        if not rest:
            return "results without a class"
        store, rest = rest[0], rest[1:]
        places = [str(affine(placed(index(dim), one), of.values)) for dim in old.dims]
        where, subscripts = of.instances(store), zip(old.subscripts, store.subscripts, strict=True)
        if store.tensor != old.tensor or not all(of.agree(placed(sub, one), own, where, store) for sub, own in subscripts):
            return "an element is another one"
        started = where.apply(of.map(store.dims, places[: len(old.results)]))
        if store.operator != "=" or store.reduction or not started.is_subset(results):
            return "results of two classes, or of none"
        results = results.subtract(started)
        if not sums and repr(store.value) == repr(neutral):  # 0.0 is no -0.0
            continue
        a = sums[0] if sums else store
        storage, plain = after[a.tensor], tuple(index(name) for name, _, _ in a.results)
        own = a.tensor not in before and storage.role == "temporary" and storage.dtype == target.dtype
        whole = own and storage.shape == tuple(upper for _, _, upper in a.results) and a.subscripts == plain
        if not whole or (store.value, store.bounds) != (Access(a.tensor, plain, dtype=storage.dtype), a.results):
            return "what is stored is not the sum"
        moved = of.map(a.dims, places).intersect_domain(of.instances(a))
        alike = (a.operator, a.reduction, a.start) == (old.operator, old.reduction, old.start)
        if not alike or not moved.is_injective() or not moved.range().is_subset(left):
            return "a term is not summed once"
        if not of.agree(placed(old.value, one), a.value, of.instances(a), a):
            return "a term has another value"
        left = left.subtract(moved.range())
    if rest:
        return "something was added"
    if not results.is_empty():
        return "results without a class"
    return "" if of.neutral(old.value, identity(old.operator, old.value.dtype), left, old) else "a term that is no identity is gone"
