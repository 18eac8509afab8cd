"""Transpose output: compute a sum of products with another index of its result last, if that one fills vectors better (see ``pack``)."""

from __future__ import annotations

from dataclasses import replace

from tcjit.grammar.ast import Access, Index
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.options import Options
from tcjit.mapping.pack import turned_lane


def transpose_output(before: Assignments, options: Options) -> Assignments:
    """The program with transposed temporaries, each copied to its result."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if a.operator == "=" or a.empty:
            return [a]
        lane = turned_lane(a, temporaries.tensors, before.values, options.vector_dim)
        if lane is None or lane in a.dynamic:
            return [a]
        target = temporaries.tensors[a.tensor]
        order = sorted(range(len(a.subscripts)), key=lambda axis: a.subscripts[axis] == Index(lane, dtype="int64"))
        shape = tuple(target.shape[axis] for axis in order)
        extents = tuple(target.dynamic_extents[axis] for axis in order) if target.dynamic_extents else ()
        transposed = temporaries.add(a.source, f"{target.name}_turned", target.dtype, shape, extents)
        subscripts = tuple(a.subscripts[axis] for axis in order)
        bounds = (*sorted(a.results, key=lambda bound: bound[0] == lane), *a.terms)
        result = Access(transposed.name, subscripts, dtype=target.dtype)
        return [
            replace(a, tensor=transposed.name, subscripts=subscripts, bounds=bounds),
            Assignment(target.name, a.subscripts, "=", result, a.results, a.source, dynamic=a.dynamic, fuse_outer_only=True),
        ]

    return rewrite(before, visit)
