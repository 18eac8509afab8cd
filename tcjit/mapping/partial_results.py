"""Partial results: what a reduction over chunks of one of its dimensions computes in each, and the reduction that combines them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import affine, isl_name
from tcjit.grammar.arithmetic import divided, index, plus
from tcjit.grammar.ast import Access, Binary
from tcjit.grammar.polynomial import number
from tcjit.grammar.walk import with_index
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries
from tcjit.mapping.reduction import identity
from tcjit.mapping.storage import Storage, fresh


@dataclass(frozen=True)
class Chunks:
    """``count`` chunks of ``size`` values of one dimension of a reduction, the last perhaps shorter."""

    dim: str
    lower: int
    upper: int
    size: int
    count: int


def partial_results(a: Assignment, chunks: Chunks, temporaries: Temporaries, before: Assignments, *, apart: bool) -> list[Assignment]:
    """The reduction into a partial result of each chunk, the start of the results, and the reduction that combines them; ``apart``: these
    share outer loops with nothing else."""
    result = temporaries.tensors[a.tensor]
    chunk = fresh("chunk", {bound[0] for bound in a.bounds} | set(temporaries.tensors))
    extents = (None, *result.dynamic_extents) if result.dynamic_extents else ()
    part = temporaries.add(a.source, f"{result.name}_part", result.dtype, (chunks.count, *result.shape), extents)
    accumulate = replace(partial_result(a, chunks, chunk, part, before.values), fuse_outer_only=apart)
    results, dynamic, subscripts, counted = a.results, accumulate.dynamic, accumulate.subscripts, accumulate.bounds[0]
    combined = Access(part.name, subscripts, dtype=result.dtype)
    start = [] if a.start is None else [Assignment(result.name, a.subscripts, "=", a.start, results, a.source, dynamic=dynamic)]
    bounds = (*results, counted)
    combine = Assignment(result.name, a.subscripts, a.operator, combined, bounds, a.source, (chunk,), (), apart, dynamic=dynamic)
    return [accumulate, *start, combine]


def partial_result(a: Assignment, chunks: Chunks, chunk: str, part: Storage, values: Mapping[str, int]) -> Assignment:
    """The reduction into a partial result of each chunk, which is ``part``'s first subscript."""
    dim, lower, extent, size = chunks.dim, chunks.lower, chunks.upper - chunks.lower, chunks.size
    # the reduced dimension now counts inside its chunk
    moved = plus(plus(Binary("*", index(chunk), number(size), dtype="int64"), index(dim)), lower)
    inside = tuple((name, 0, size) if name == dim else (name, low, high) for name, low, high in a.terms)
    short = () if chunks.count * size == extent else (f"{size} * {isl_name(chunk)} + {isl_name(dim)} < {extent}",)
    dynamic = dict(a.dynamic)
    if dim in dynamic:
        first_term, end = dynamic.pop(dim)
        place = f"{size} * {isl_name(chunk)} + {isl_name(dim)} + {lower}"
        short = (f"{affine(first_term, values)} <= {place} < {affine(end, values)}",)
        dynamic[chunk] = number(0), divided(plus(end, size - 1 - lower), size)
    return Assignment(
        part.name, (index(chunk), *a.subscripts), a.operator, with_index(a.value, dim, moved),
        ((chunk, 0, chunks.count), *a.results, *inside), a.source, a.reduction, short,
        # an untouched element of a partial result (left indices that cover a part of the tensor) is never read
        start=identity(a.operator, part.dtype), dynamic=dynamic,
    )  # fmt: skip
