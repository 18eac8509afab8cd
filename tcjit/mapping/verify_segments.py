"""That scans of segments give the sums over the terms which tie with a running extremum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tcjit.grammar.affine import isl_name
from tcjit.grammar.ast import Index
from tcjit.mapping.assignment import Assignment, Assignments
from tcjit.mapping.equality import reads_inside
from tcjit.mapping.instances import Instances, results_of
from tcjit.mapping.tied_sums import mirrored, segments, tied_sum


def wrong_segmented(instances: Instances, before: Assignments, after: Assignments, old: Assignment, new: Sequence[Assignment]) -> str:
    """What is wrong with a first sum, the others in their order, and results by them, in the place of a sum over ties."""
    sums = tied_sum(before, old)
    if sums is None or len(new) != 3:
        return "no sum over terms that tie with a running extremum"
    first, others, result = new
    own = [sub.name for sub in first.subscripts if isinstance(sub, Index)]
    if first.tensor in before.storages or others.tensor != first.tensor or sorted(own) != sorted(name for name, _, _ in old.results):
        return "the sums have no temporary of their own"
    plain = not any(one.reduction or one.start or one.outer or one.constraints or one.operator != "=" for one in (first, others))
    if not plain or len(own) != len(first.subscripts) or others.scan != sums.dim:
        return "the sums are no scan"
    extent, dim = old.extents[sums.dim], isl_name(sums.dim)
    expected = segments(sums, old, first.element)
    places = {sums.dim: f"{extent - 1} - {dim}"} if sums.step < 0 else {}
    results = instances.instances(results_of(old), own)
    begin = results.intersect(instances.where(first, f"{dim} = {0 if sums.step > 0 else extent - 1}"))
    if not instances.instances(first, own).is_equal(begin) or not instances.agree(expected[0], first.value, begin, first):
        return "the sums begin elsewhere"
    go_on = instances.instances(others)
    if not instances.instances(others, own).is_equal(results.intersect(instances.where(first, f"{dim} >= 1"))):
        return "not all sums go on"
    if others.subscripts != tuple(mirrored(sub, sums.dim, extent) if places else sub for sub in first.subscripts):
        return "the sums lie elsewhere"
    if not instances.agree(expected[1], others.value, go_on, others, places):
        return "a segment does not go on with its neighbour's sum"
    store = replace(results_of(old), operator="=" if old.start else "+=", value=expected[2], start=None)
    if result != store:
        return "a result is another value"
    return "" if all(reads_inside(replace(after, assignments=(one,)), one) for one in new) else "a sum reads what is not there"
