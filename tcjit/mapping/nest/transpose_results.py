"""Transpose results: compute a reduction in an order of results that its operands have, and copy them to their places.

``O(a, c, b) +=! X(a, d) * U(d, b, c)``: in ``U`` the dimensions ``b`` and ``c`` are one, which fills vectors; in ``O`` they are not, and
neighbours in ``c`` are stored one by one.
"""

from __future__ import annotations

from collections.abc import Iterator

from tcjit.grammar.affine import isl_name
from tcjit.grammar.ast import Index
from tcjit.mapping.assignment import Assignment
from tcjit.mapping.nest.statement import FlatAccess, FlatStatement

GAIN = 0.9  # of a plan's cycles that another order must stay below: the model is no better than that


def result_orders(a: Assignment, s: FlatStatement, lanes: frozenset[str]) -> Iterator[tuple[int, ...]]:
    """Orders of a result's axes in which an operand has them, where they help: neighbours in the operand are apart in the result, or the
    result is scattered along one of ``lanes``. ``s`` is the assignment as a statement, before its dimensions are merged."""
    if not all(isinstance(sub, Index) for sub in a.subscripts) or len(a.subscripts) != len(a.results):
        return
    dims = [isl_name(sub.name) for sub in a.subscripts if isinstance(sub, Index)]
    if len(set(dims)) != len(dims):
        return
    known = {tuple(range(len(dims)))}
    for read in s.reads.values():
        inside = sorted((dim for dim in dims if read.stride(dim)), key=lambda dim: -abs(read.stride(dim)))
        if not lanes & set(inside) and not any(_part(s, read, outer, inner) for outer, inner in zip(inside, inside[1:], strict=False)):
            continue
        outside = [dim for dim in dims if dim not in inside]
        outside.sort(key=lambda dim: [-abs(other.stride(dim)) for other in s.reads.values()])
        order = tuple(dims.index(dim) for dim in (*outside, *inside))
        if order not in known:
            known.add(order)
            yield order


def _part(s: FlatStatement, read: FlatAccess, outer: str, inner: str) -> bool:
    """Whether two dimensions are one to an access, and two to the result."""
    extent = s.extent(inner)
    several = extent > 1 and s.extent(outer) > 1
    return several and read.walks_as_one(outer, inner, extent) and not s.write.walks_as_one(outer, inner, extent)
