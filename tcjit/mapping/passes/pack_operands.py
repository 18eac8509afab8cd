"""Pack operands: give a sum of products copies of its operands in an order that vectors can read (see ``pack``)."""

from __future__ import annotations

from dataclasses import replace

from tcjit.grammar.ast import Access, Index
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.pack import packings, replaced


def pack_operands(before: Assignments) -> Assignments:
    """The program with the copies before the sums that read them."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if a.operator == "=" or a.empty:
            return [a]
        copies: dict[Access, Access] = {}
        assignments = []
        target = temporaries.tensors[a.tensor]
        for packing in packings(target, a.subscripts, a.value, a.bounds, a.reduction, temporaries.tensors, before.values):
            source = packing.access
            bounds = tuple(next(bound for bound in a.bounds if bound[0] == name) for name in packing.order)
            shape = tuple(upper for _, _, upper in bounds)
            copy = temporaries.add(a.source, f"{source.tensor}_packed", source.dtype, shape, a.extents(packing.order))
            order = tuple(Index(name, dtype="int64") for name in packing.order)
            assignments.append(Assignment(copy.name, order, "=", source, bounds, a.source, dynamic=a.dynamic))
            copies[source] = Access(copy.name, order, dtype=source.dtype)
        return [*assignments, replace(a, value=replaced(a.value, copies))]

    return rewrite(before, visit)
