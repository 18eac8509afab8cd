"""Chunk reductions: cut a long reduction with few results into chunks with a partial result each, which another reduction combines.

The chunks are then parallel, for the threads of a CPU or the blocks of a GPU. Their number does not depend on how many threads there
are: neither does the result.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from math import isqrt, prod

from tcjit.grammar.affine import affine
from tcjit.grammar.ast import Access, Const, Expr
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.polynomial import names
from tcjit.grammar.walk import rebuild
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries, rewrite
from tcjit.mapping.machine import LINE, Device, Machine
from tcjit.mapping.operations import CALL, operations
from tcjit.mapping.options import Options
from tcjit.mapping.partial_results import Chunks, partial_results
from tcjit.mapping.plan_chunks import Sides, chunk_size, cut_dimension, product_chunks, product_sides
from tcjit.mapping.reduction import guarded_term
from tcjit.mapping.storage import Bounds, Storage
from tcjit.mapping.strides import affine_form, fits_block, stride_in
from tcjit.mapping.tile_time import LOAD

BLOCK_TERMS = 4096  # of a reduction, that are worth a block of a GPU
GATHERED_TERMS = 256  # where each of them waits for an element anywhere in memory: one of each thread
CPU_CHUNKS = 32
NEAR = 1 << 10  # numbers of chunks that are tried on either side of the one asked for: some cut a dimension into equal ones
ENOUGH_RESULTS, WORTH_CHUNKS = 16, 1 << 17  # on a CPU: results from which, and terms of all below which, no reduction is cut
FEW_TILES = 1 << 12  # results of a product with so long a sum are too few register tiles for many threads
FEW_RESULTS = 1 << 8  # results that are so for the tiles of what reads no element twice, a vector of results each at most
RUN = 1 << 10  # neighbours that a chunk takes of each row, at least
LEAST_ROWS = 64  # of a matrix that is read once, in a chunk: what partial results move is little beside that
LONG_STRETCH = 1 << 12  # elements that are read one after the other: what begins anew is little beside them
LEAST_CHUNKS = 8  # of its rows that are worth it
LONG = 256  # terms of a chunk, at least, where operands are read again
ACCURATE = 1 << 20  # terms of one result, one after the other: the sum of more loses digits that no other order of float32 would
ACCURATE_CHUNK = 1 << 13  # terms of a chunk then: lanes of a vector share them, so that each adds few before partial results are combined
MAX_DYNAMIC_RATIO = 4  # by how much the values of a dynamic size differ at most


def chunk_reductions(before: Assignments, options: Options, target: Machine | Device) -> Assignments:
    """The program with the reductions in chunks that are worth it on the target, or of which the options say so."""
    return rewrite(before, partial(chunk_reduction, before=before, options=options, target=target))


def chunk_reduction(
    a: Assignment, temporaries: Temporaries, before: Assignments, options: Options, target: Machine | Device
) -> list[Assignment]:
    """An assignment by itself, or the reductions that take its place."""
    asked = number_of_chunks(a, temporaries, before, options, target)
    if asked > 1 and not options.reduction_chunks and isinstance(target, Device) and not a.dynamic and guarded_sides(a, before) is not None:
        dim, lower, upper = cut_dimension(a.terms, asked)  # as the model has it
        size = chunk_size(upper - lower, asked)
        return partial_results(a, Chunks(dim, lower, upper, size, -(-(upper - lower) // size)), temporaries, before, apart=True)
    return [a] if asked <= 1 else in_chunks(a, asked, temporaries, before, target)


def number_of_chunks(a: Assignment, temporaries: Temporaries, before: Assignments, options: Options, target: Machine | Device) -> int:
    """How many chunks a reduction is to have, about; 1 for none."""
    if not a.terms or a.empty or a.tiled or a.outer:
        return 1
    return options.reduction_chunks or _worth(a, temporaries, before, target)


def _worth(a: Assignment, temporaries: Temporaries, before: Assignments, target: Machine | Device) -> int:
    """How many chunks give a target enough to do where the results alone do not."""
    results, terms = _volume(_middle(a, a.results)), _volume(_middle(a, a.terms))
    longest = max(upper - lower for _, lower, upper in _middle(a, a.terms))
    if isinstance(target, Machine):
        long = terms >= CPU_CHUNKS * LONG
        calls = long and results <= FEW_RESULTS and operations(_of_terms(a.value, {*a.reduction})) >= CALL  # more busy than memory
        few = results < ENOUGH_RESULTS or calls or (long and results <= FEW_TILES and _reuses(a))
        if longest < CPU_CHUNKS or not (few and results * terms >= WORTH_CHUNKS or terms >= ACCURATE):
            return _row_chunks(a, temporaries, before, target)
        asked = CPU_CHUNKS if terms < ACCURATE else min(longest, max(CPU_CHUNKS, terms // ACCURATE_CHUNK))
        ordered = _outermost_first(a, temporaries, before)
        outermost = ordered[0][2] - ordered[0][1]
        if not _reuses(a) and outermost >= max(CPU_CHUNKS, terms // ACCURATE):
            asked = min(asked, outermost)  # fewer leave whole stretches of memory, whose terms nests sum in blocks
        cut = _chunks(a, asked, target, ordered)
        rows = len(ordered) > 1 and cut.dim == ordered[-1][0]
        return min(asked, max(CPU_CHUNKS, (cut.upper - cut.lower) // RUN)) if rows else asked
    if not a.dynamic and (sides := guarded_sides(a, before)) is not None:
        processors = target.costs.fma_rate * target.processors
        if product_sides(a) is None and a.points * (1 + 2 * LOAD) / processors < target.costs.launch:
            return 1  # without a tile, too, its conditions in the loop, it takes less than another launch
        return product_chunks(a, sides, target)
    extents = {name: upper - lower for name, lower, upper in a.terms}

    def step(access: Access, dim: str) -> int | None:
        return stride_in(temporaries.tensors[access.tensor], access.subscripts, dim, before.values)

    if results >= target.processors // 2 or terms < 2 * BLOCK_TERMS or fits_block(extents, a.reads, step):
        return 1  # blocks enough, whose threads share the terms, or a block that can keep the terms of a result
    gathers = any(affine(sub, before.values) is None for access in a.reads for sub in access.subscripts)
    return min(-(-2 * target.processors // results), terms // (GATHERED_TERMS if gathers else BLOCK_TERMS), longest)


def guarded_sides(a: Assignment, before: Assignments) -> Sides | None:
    """Those of a product; where it stands under conditions, ``restrict_products`` makes one of it."""
    return product_sides(replace(a, value=guarded_term(a.value, a.operator, before.values)[1]))


def _middle(a: Assignment, bounds: Bounds) -> Bounds:
    """Bounds for sizes in the middle of those that a dynamic kernel serves, by their ratios."""
    around = isqrt(MAX_DYNAMIC_RATIO)
    return tuple((name, lower, max(lower + 1, upper // around) if name in a.dynamic else upper) for name, lower, upper in bounds)


def _reuses(a: Assignment) -> bool:
    """Whether a term's element is read for several results: register tiles hold many results each, so that there are few tiles."""
    moving = [names(access) for access in a.reads if names(access).keys() & {*a.reduction}]
    return any(name not in dims for dims in moving for name, _, _ in a.results)


def _of_terms(value: Expr, terms: AbstractSet[str]) -> Expr:
    """A value with a number in the place of what is the same for all terms, and computed once."""
    if not names(value).keys() & terms:
        return Const(0, dtype=value.dtype)
    return value if isinstance(value, Access) else rebuild(value, partial(_of_terms, terms=terms))


def _row_chunks(a: Assignment, temporaries: Temporaries, before: Assignments, machine: Machine) -> int:
    """Chunks of the rows of a matrix that comes from memory once, for what combines the rows: threads that shared its columns would each
    read short stretches of every row."""
    cut = _chunks(a, CPU_CHUNKS, machine, _outermost_first(a, temporaries, before))
    count = min(CPU_CHUNKS, cut.upper - cut.lower, _volume(a.terms) // LEAST_ROWS)
    if cut.dim in a.dynamic:
        return 1
    for access in a.reads:
        storage = temporaries.tensors[access.tensor]
        steps = {name: _estimated_step(storage, access, name, before) for name, _, _ in a.bounds}
        row = steps[cut.dim]
        once = min(steps.values()) > 0 and _volume(a.bounds) <= storage.elements
        if not once or storage.elements * DTYPES[storage.dtype].bytes <= machine.cache_bytes:
            continue
        apart = prod(upper - lower for name, lower, upper in a.results if steps[name] > row)  # results that threads share anyhow
        found = [steps[name] for name, _, _ in a.terms]
        stretch = (cut.upper - cut.lower) // max(1, count // apart) * row  # of the rows of a chunk, where it has several
        if min(found) > 1 and (max(found) == row or stretch >= LONG_STRETCH):
            return count // apart if count // apart * apart >= LEAST_CHUNKS else 1
    return 1


def _outermost_first(a: Assignment, temporaries: Temporaries, before: Assignments) -> Bounds:
    """The terms, those first along which what is read is farthest apart in memory."""

    def step(dim: str) -> int:
        return max((_estimated_step(temporaries.tensors[read.tensor], read, dim, before) for read in a.reads), default=0)

    return tuple(sorted(a.terms, key=lambda bound: -step(bound[0])))


def _estimated_step(storage: Storage, access: Access, dim: str, before: Assignments) -> int:
    """Elements by which an access moves along a dimension, for the greatest of dynamic sizes; 0 where that is not one number."""
    found = [affine_form(sub, before.values) for sub in access.subscripts]
    return sum(step * form[0].get(dim, 0) for form, step in zip(found, storage.estimated_strides) if form is not None)


def _chunks(a: Assignment, asked: int, target: Machine | Device, terms: Bounds) -> Chunks:
    """About as many as asked for of one of the ``terms``, the outermost one first."""
    dim, lower, upper = max(terms, key=lambda bound: bound[2] - bound[1])
    innermost = len(terms) > 1 and dim == terms[-1][0]  # parts of rows would be short runs
    # the outermost loop that is long enough, which leaves long runs, but where operands that are read again are better in long parts
    if isinstance(target, Device) or upper - lower < LONG or innermost or not _reuses(a):
        # on a GPU half as many whole rows, one for each processor, are better than parts of them
        dim, lower, upper = cut_dimension(terms, -(-asked // 2) if isinstance(target, Device) and not _reuses(a) else asked)
    extent, line = upper - lower, LINE // DTYPES[a.value.dtype].bytes
    if dim in a.dynamic:  # of one size: their number follows from the call, and suffices at the least value of a dynamic size too
        size = -(-extent // min(extent, asked * MAX_DYNAMIC_RATIO))
    else:  # equal ones, if a number near the one that was asked for gives such: they need no guard
        near = range(asked, min(2 * asked, asked + NEAR))
        count = equal_chunks(extent, asked)
        if isinstance(target, Machine) and extent >= asked * LONG and _reuses(a):  # and vectors of what caches hold lie in one line
            near = range(max(asked - asked // 4, asked - NEAR), near.stop)
            count = min((each for each in near if extent % (each * line) == 0), key=lambda each: abs(each - asked), default=count)
        size = -(-extent // count)
    return Chunks(dim, lower, upper, size, -(-(upper - lower) // size))


def equal_chunks(extent: int, asked: int) -> int:
    """How many chunks: near the number asked for, equal ones if there are such."""
    return next((count for count in range(asked, min(2 * asked, asked + NEAR)) if extent % count == 0), asked)


def in_chunks(a: Assignment, asked: int, temporaries: Temporaries, before: Assignments, target: Machine | Device) -> list[Assignment]:
    """The reduction into partial results of about so many chunks, and the one that combines them: on a GPU in a launch of its own, as a
    block would have to have all parts of a result otherwise."""
    on_gpu = isinstance(target, Device)
    chunks = _chunks(a, asked, target, a.terms if on_gpu and _reuses(a) else _outermost_first(a, temporaries, before))
    return partial_results(a, chunks, temporaries, before, apart=on_gpu)


def _volume(bounds: Bounds) -> int:
    return prod(max(0, upper - lower) for _, lower, upper in bounds)
