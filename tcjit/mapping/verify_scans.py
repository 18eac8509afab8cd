"""The rule for scans in chunks: every result has each of its terms once, from its own chunk or through the sums of others.

The instances of a term's way to a result are pairs, of an instance that adds it to the sum of a chunk and one that adds that sum to what
a chunk starts from; dimensions of the same name have the same value along the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tcjit.grammar.affine import affine
from tcjit.grammar.ast import Access, Cast, Expr, Index
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import children
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.instances import Instances, results_of
from tcjit.mapping.reduction import casts_inside, guarded_term, identity
from tcjit.mapping.storage import Storage

Storages = Mapping[str, Storage]


def wrong_scan(of: Instances, before: Storages, after: Storages, old: Assignment, new: Sequence[Assignment]) -> str:
    """What is wrong with sums of chunks, their prefix sums, the scans of chunks, which start from these, and the copies of the results."""
    if len(new) != 4 or len(old.terms) != 1 or any(a.dynamic or a.outer or a.final for a in (old, *new)):
        return "no sums, prefix sums, scans and results"
    sums, prefix, scan, store = new
    value = casts_inside(old.value)
    target, neutral = before[old.tensor], identity(old.operator, before[old.tensor].dtype)
    if {a.operator for a in (sums, prefix, scan)} != {old.operator} or (old.start, sums.start, prefix.start) != (neutral,) * 3:
        return "not all start at the identity"
    for a in (sums, prefix, scan):
        storage, extents = after[a.tensor], tuple(a.ranges[sub.name][1] for sub in a.subscripts if isinstance(sub, Index))
        if a.tensor in before or storage.role != "temporary" or storage.dtype != target.dtype:
            return "partial results are no temporaries of their type"
        plain = sorted(sub.name for sub in a.subscripts if isinstance(sub, Index)) == sorted(results_of(a).dims)
        if not plain or len(extents) != len(storage.shape) or any(end > size for end, size in zip(extents, storage.shape, strict=True)):
            return "partial results share an element"
    own = [Access(a.tensor, a.subscripts, dtype=target.dtype) for a in (sums, prefix, scan)]
    conditions, added = guarded_term(prefix.value, old.operator, of.values)
    if (added, scan.start, store.value) != tuple(own) or len({a.tensor for a in (old, sums, prefix, scan)}) < 4:
        return "a partial result is not what was computed"
    if old.tensor in old.inputs or store.operator != "=" or store.tensor != old.tensor or store.start is not None:
        return "the terms depend on results"
    ranges: dict[str, tuple[int, int]] = {}
    if any(ranges.setdefault(name, (lower, upper)) != (lower, upper) for a in new for name, lower, upper in a.bounds):
        return "a dimension has two ranges"
    if set(results_of(scan).dims) != set(store.dims):
        return "the results are others"
    _, body = guarded_term(value, old.operator, of.values)
    where = [affine(sub, of.values) for sub in store.subscripts]
    moved = {sub.name for sub, at in zip(old.subscripts, store.subscripts, strict=True) if isinstance(sub, Index) and sub != at}
    if None in where or moved & set(names(body)):
        return "terms depend on the result that they are added to"
    stored = of.map(store.dims, [str(text) for text in where]).intersect_domain(of.instances(store))
    results = results_of(old)
    if not stored.is_injective() or not stored.range().is_equal(of.elements(results, old.subscripts, of.instances(results))):
        return "results are lost, or written twice"
    # all ways of a term to a result
    place = {sub.name: str(text) for sub, text in zip(old.subscripts, where, strict=True) if isinstance(sub, Index)}
    inside = replace(scan, constraints=(*scan.constraints, *store.constraints))
    facts = (*store.constraints, *prefix.constraints, *(text for text, _ in conditions), *sums.constraints)
    bounds = dict.fromkeys((*store.bounds, *prefix.terms, *sums.terms))
    through = replace(sums, bounds=tuple(bounds), constraints=facts)
    covered, term = of.instances(old).subtract(of.instances(old)), old.terms[0][0]
    for a, way in ((sums, through), (scan, inside)):
        text = _place(body, a.value, term, of.values)
        if text is None or not set(names(a.value)) <= set(a.dims) or not of.agree(body, a.value, of.instances(a), a, {term: text}):
            return "a term has another value"
        terms = of.map(way.dims, [text if name == term else place[name] for name in old.dims]).intersect_domain(of.instances(way))
        if not terms.is_injective() or not terms.range().intersect(covered).is_empty():
            return "a term is added twice"
        covered = covered.union(terms.range())
    if not covered.is_subset(of.instances(old)) or not of.agree(value, body, covered, old):
        return "a result has terms of others"
    return "" if of.neutral(value, neutral, of.instances(old).subtract(covered), old) else "a term is lost"


def _place(old: Expr, new: Expr, name: str, values: Mapping[str, int]) -> str | None:
    """What stands in a value for an index of another one, in isl's words; None where it stands nowhere."""
    if isinstance(old, Index) and old.name == name:
        return affine(new.operand if isinstance(new, Cast) else new, values)
    found = (_place(left, right, name, values) for left, right in zip(children(old), children(new)))
    return next((text for text in found if text is not None), None)
