"""Segment scans: sums over the terms that tie with a running extremum are scans that begin again where it changes.

The gradient of a running maximum, and the number of equal elements that share it, are sums over all pairs of a result and a term of it.
They are scans of the segments of equal maxima (Blelloch, Prefix Sums and Their Applications, 1990; see ``tied_sums``).
"""

from __future__ import annotations

from dataclasses import replace

from tcjit.grammar.polynomial import names
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.equality import reads_inside
from tcjit.mapping.operations import may_fail
from tcjit.mapping.passes.hoist_invariants import TYPES
from tcjit.mapping.reduction import identity
from tcjit.mapping.tied_sums import mirrored, segments, tied_sum

LEAST = 64  # results along the dimension that pay for scans, which run in order: sums run in vectors


def segment_scans(before: Assignments) -> Assignments:
    """The program with scans of segments in the place of sums over ties."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if a.value.dtype not in TYPES or not a.reduction or max((a.extents[name] for name in a.reduction), default=0) < LEAST:
            return [a]
        sums = tied_sum(before, a)
        if sums is None or sums.value is not None and may_fail(sums.value, before.values):
            return [a]
        zero, extent = identity("+=", a.value.dtype), a.extents[sums.dim]
        bounds = tuple((name, *a.ranges[name]) for sub in a.subscripts for name in names(sub))
        stored = temporaries.stored(a, f"{a.tensor}_segments", zero, bounds)
        first, other, value = segments(sums, a, stored.element)
        place = 0 if sums.step > 0 else extent - 1
        begin = replace(stored, value=first, bounds=tuple((n, *((place, place + 1) if n == sums.dim else ends)) for n, *ends in bounds))
        later = tuple((n, lower + (n == sums.dim), upper) for n, lower, upper in bounds)
        go_on = replace(stored, value=other, bounds=later, scan=sums.dim)
        if sums.step < 0:
            subscripts = tuple(mirrored(sub, sums.dim, extent) for sub in stored.subscripts)
            go_on = replace(go_on, value=mirrored(other, sums.dim, extent), subscripts=subscripts)
        result = replace(a, operator="=" if a.start else "+=", value=value, bounds=a.results, reduction=(), start=None)
        made = [begin, go_on, result]
        return made if all(reads_inside(before.with_parts([made], temporaries), one) for one in made) else [a]

    return rewrite(before, visit)
