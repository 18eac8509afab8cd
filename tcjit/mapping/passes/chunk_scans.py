"""Chunk scans: on a GPU, a prefix sum is one of chunks, and one inside of each chunk: reduce, then scan.

A result is a sum over the terms up to its own. Written so, a row of N takes N * N / 2 operations; with chunks of R it takes one for the
sum of each chunk, R / 2 for the terms of its own chunk, and what the prefix sums of the N / R chunks take, which are a scan again. After
Merrill and Grimshaw, Parallel Scan for Stream Architectures (2009).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tcjit.dataclass import dataclass
from tcjit.grammar.affine import isl_name
from tcjit.grammar.arithmetic import index, total
from tcjit.grammar.ast import Access, Binary, Expr, Select
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import with_index
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.gpu.kernel_time import CALL, LOADS, REREAD
from tcjit.mapping.gpu.statement_group import WARP
from tcjit.mapping.machine import Device
from tcjit.mapping.operations import operations
from tcjit.mapping.reduction import identity
from tcjit.mapping.scans import Triangle, scan_candidate, triangle
from tcjit.mapping.storage import Bounds, Storage, fresh
from tcjit.mapping.tile_time import LOAD

SIZES = (8, 16, 32)  # of chunks: a thread can keep all results of one
LINE = 128  # bytes of a cache
LEAST = 4 * SIZES[0]  # results of a scan that is cut


@dataclass(frozen=True)
class Chunked:
    """A scan along ``dim`` whose result ``i`` has place ``i - origin`` in ``count`` chunks of ``size``, and whose terms lie ``shift``
    further: of its own chunk a result has those of its triangle up to its place, or from there on, without its own where ``strict``."""

    dim: str
    terms: Triangle
    strict: bool
    origin: int
    shift: int
    size: int
    count: int


def chunk_scans(before: Assignments, device: Device) -> Assignments:
    """The program with scans in chunks where that takes less time by the model."""

    def visit(a: Assignment, temporaries: Temporaries) -> list[Assignment]:
        if a.dynamic or a.outer or a.constraints:
            return [a]
        s = scan_candidate(a, before)
        if s is None:
            return [a]
        for dim, lower, upper in a.results:
            rows = prod(high - low for name, low, high in a.results if name != dim)
            along = a.subscripts[-1] == index(dim)
            size = _best_size(ScanShape(upper - lower, rows, along, operations(s.body, CALL), DTYPES[a.value.dtype].bytes), device)
            terms = triangle(s, dim, a.results) if size else None
            if terms is not None:
                return list(_in_chunks(a, s.body, _chunked(dim, lower, upper, terms, size), temporaries))
        return [a]

    return rewrite(before, visit)


@dataclass(frozen=True)
class ScanShape:
    """A scan of ``length`` results, ``rows`` times, of terms that take so many ``operations`` and bytes; ``along`` memory, or across."""

    length: int
    rows: int
    along: bool
    operations: float
    bytes: int

    def cycles(self, loads: float, terms: float, chain: int, accesses: int, device: Device) -> float:
        """Those of a kernel that loads so many terms for each result from a cache, adds so many, some ``chain`` of them one after the
        other, and accesses memory so many times."""
        costs, results = device.costs, self.length * self.rows
        computing = results * (loads * (LOAD + self.operations) + terms) / (costs.fma_rate * device.processors)
        waiting = chain * costs.load_latency * REREAD / LOADS
        return costs.launch + max(computing, waiting, accesses * results * self.bytes / costs.memory)


def _best_size(shape: ScanShape, device: Device) -> int:
    """Of the sizes of chunks the one that takes the least time; 0 where a scan takes less that has none."""
    if shape.length < LEAST:
        return 0
    size, least = min(((size, _in_chunks_of(size, shape, device)) for size in SIZES), key=lambda way: way[1])
    return size if least < _whole(shape, device) else 0


def _whole(shape: ScanShape, device: Device) -> float:
    return shape.cycles(shape.length, shape.length, shape.length, 2, device)


def _in_chunks_of(size: int, shape: ScanShape, device: Device) -> float:
    """Cycles of the kernels of a scan in chunks, those of the scan of the chunks among them."""
    chunks = replace(shape, length=-(-shape.length // size), operations=0.0)
    best = _best_size(chunks, device)
    between = _in_chunks_of(best, chunks, device) if best else _whole(chunks, device)
    # along memory the threads of a warp sum chunks in as many lines, and then have a result each; across it, one has a whole chunk
    lines = min(WARP, max(1, size * shape.bytes * WARP // LINE)) if shape.along else 1
    sums = shape.cycles(lines, 1 + shape.operations, size, 1, device)
    return sums + between + shape.cycles(size if shape.along else 1, size, size, 2, device)


def _chunked(dim: str, lower: int, upper: int, terms: Triangle, size: int) -> Chunked:
    """Chunks of the places of terms and results, whole but for the last, of which no result has the sum."""
    prefix = terms.step > 0
    strict = lower + terms.offset < terms.least if prefix else upper - 1 + terms.offset > terms.most  # a result at one end has no terms
    shift = terms.offset + strict * terms.step
    first, end = min(terms.least, lower + shift), max(terms.most + 1, upper + shift)
    count = -(-(end - first) // size)
    return Chunked(dim, terms, strict, (first if prefix else end - size * count) - shift, shift, size, count)


def _in_chunks(a: Assignment, body: Expr, c: Chunked, temporaries: Temporaries) -> Iterator[Assignment]:
    """The sums of chunks, for each chunk the combination of those before it, and the results, which start from that."""
    (term, _, _), neutral, result = a.terms[0], identity(a.operator, a.value.dtype), temporaries.tensors[a.tensor]
    taken = {bound[0] for bound in a.bounds} | set(temporaries.tensors)
    chunk = fresh("chunk", taken)
    at = fresh("at", {*taken, chunk})

    def indexed(*dims: str) -> tuple[Expr, ...]:
        return tuple(one for sub in a.subscripts for one in (map(index, dims) if sub == index(c.dim) else [sub]))

    def bounded(*dims: tuple[str, int, int]) -> Bounds:
        return tuple(one for bound in a.results for one in (dims if bound[0] == c.dim else [bound]))

    def stored(stem: str, *axes: int) -> Storage:
        extents = [axes if sub == index(c.dim) else (extent,) for sub, extent in zip(a.subscripts, result.shape, strict=True)]
        return temporaries.add(a.source, f"{result.name}_{stem}", result.dtype, [one for axis in extents for one in axis])

    sums, before, part = stored("sums", c.count), stored("before", c.count), stored("scan", c.count, c.size)
    prefix = c.terms.step > 0
    summed = (0, c.count - 1) if prefix else (1, c.count)  # of the chunk at the end no result has the sum
    inside, base = (term, 0, c.size), c.origin + c.shift
    there = _within(f"{c.size} * {isl_name(chunk)} + {isl_name(term)} + {base}", c, summed, c.terms.least, c.terms.most + 1)
    of_chunk = with_index(body, term, total([(c.size, index(chunk)), (1, index(term))], base))
    bounds = (*bounded((chunk, *summed)), inside)
    chunk_sum = replace(a, tensor=sums.name, subscripts=indexed(chunk), value=of_chunk, bounds=bounds, start=neutral)
    yield replace(chunk_sum, constraints=there, fuse_outer_only=True)
    test = Binary("<" if prefix else ">", index(chunk), index(at), dtype="bool")
    value = Select(test, Access(sums.name, indexed(chunk), dtype=result.dtype), neutral, dtype=result.dtype)
    bounds = (*bounded((at, 0, c.count)), (chunk, *summed))
    yield replace(
        a, tensor=before.name, subscripts=indexed(at), value=value, bounds=bounds, reduction=(chunk,), start=neutral, fuse_outer_only=True
    )
    own = Access(before.name, indexed(at), dtype=result.dtype)
    bounds = bounded((at, 0, c.count), (c.dim, 0, c.size))
    # across memory a thread has all results of a chunk: the one with all terms comes first, the others find what it has loaded
    back = prefix and a.subscripts[-1] != index(c.dim)
    sign, last = (-1, c.size - 1) if back else (1, 0)
    result_place, term_place = (f"{c.size} * {isl_name(at)} + {sign} * {isl_name(name)} + {base + last}" for name in (c.dim, term))
    upwards = prefix and not back
    strict = "" if not c.strict else f" {'-' if upwards else '+'} 1"
    order = f"{isl_name(term)} {'<=' if upwards else '>='} {isl_name(c.dim)}{strict}"
    lower, upper = a.ranges[c.dim]
    ended = _within(result_place, c, (0, c.count), lower + c.shift, upper + c.shift)
    known = _within(term_place, c, (0, c.count), c.terms.least, c.terms.most + 1)
    of_result = with_index(body, term, total([(c.size, index(at)), (sign, index(term))], base + last))
    own_terms = replace(a, tensor=part.name, subscripts=indexed(at, c.dim), value=of_result, bounds=(*bounds, inside), start=own)
    yield replace(own_terms, constraints=(*known, order))
    moved = total([(c.size, index(at)), (sign, index(c.dim))], c.origin + last)
    subscripts = tuple(with_index(sub, c.dim, moved) for sub in a.subscripts)
    copied = Access(part.name, indexed(at, c.dim), dtype=result.dtype)
    yield Assignment(a.tensor, subscripts, "=", copied, bounds, a.source, constraints=ended)


def _within(place: str, c: Chunked, chunks: tuple[int, int], lower: int, upper: int) -> tuple[str, ...]:
    """That places of some chunks, those of terms, are from ``lower`` on and before ``upper``, as far as they may not be."""
    first, end = (c.origin + c.shift + c.size * chunk for chunk in chunks)
    return (*((f"{lower} <= {place}",) if first < lower else ()), *((f"{place} < {upper}",) if upper < end else ()))
