"""Reductions over windows in the place of bands: the same terms, each once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tcjit.grammar.affine import affine
from tcjit.grammar.arithmetic import index
from tcjit.grammar.walk import with_indices
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.bands import NARROW, NARROW_ON_GPU, skewed
from tcjit.mapping.instances import Instances
from tcjit.mapping.reduction import guarded_term


def wrong_skews(instances: Instances, old: Assignment, new: Sequence[Assignment]) -> str:
    """What is wrong with a reduction whose terms are counted in another way."""
    window, values = new[0], instances.values
    known = (skewed(old, values, narrow) for narrow in (NARROW, NARROW_ON_GPU))
    places = next((places for made, places in known if made.bounds == window.bounds), {})  # nothing of them is believed
    same = replace(window, value=old.value, bounds=old.bounds, dynamic=old.dynamic)
    if len(new) > 1 or same != old or window.results != old.results or not {*places} <= {*old.reduction}:
        return "more than the terms of a reduction changed"
    (before, term), (after, moved) = (guarded_term(a.value, a.operator, values) for a in (old, window))
    terms, counted = (
        instances.instances(replace(a, constraints=tuple(text for text, _ in tests))) for a, tests in ((old, before), (window, after))
    )
    to = instances.map(window.dims, [str(affine(places.get(dim, index(dim)), values)) for dim in old.dims]).intersect_domain(counted)
    if not instances.agree(with_indices(term, places), moved, counted, window):
        return "a term has another value"
    if not to.is_injective():
        return "a term counts twice"
    return "" if to.range().is_equal(terms) else "a term is lost, or added"
