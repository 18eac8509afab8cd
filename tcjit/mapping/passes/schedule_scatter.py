"""Schedule a scatter: the terms in order, and below the result that each of them is added to, what it has beside that.

Results that data do not pick are the outer loops, and blocks of a row of results, which threads share; where there are too few of them,
blocks of the results that data pick. Every thread goes over all terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import islpy as isl

from tcjit.grammar.affine import isl_name
from tcjit.grammar.ast import Index
from tcjit.grammar.polynomial import names
from tcjit.mapping.machine import Machine
from tcjit.mapping.marks import Parallel, Scatter, Simd, Tile
from tcjit.mapping.options import Options
from tcjit.mapping.passes.parallelise import cost_of_point, worth_threads
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.tree import nested_bands

BLOCK = 64  # results that the part of a row which one thread takes is a multiple of
LEAST_TARGETS = 8  # of the results that data pick, in the part that one thread takes
LEAST_WORK = 16  # additions for each term that pay for a look at all terms by every thread


def schedule_scatter(scop: Scop, s: ScopStatement, options: Options, machine: Machine, counter: Iterator[int]) -> isl.Schedule:
    """The tree of a statement with ``scatter``; ``counter`` numbers tiles."""
    compared = {name for data in s.picks.values() for name in names(data)}
    results = [dim for dim in s.dims if dim not in s.reduction and dim not in s.scatter]
    outer, row = [d for d in results if d in compared], [d for d in results if d not in compared]
    terms, rest = [d for d in s.reduction if d in compared], [d for d in s.reduction if d not in compared]
    last = s.subscripts[-1]
    lane = last.name if isinstance(last, Index) and last.name in row else row[-1] if row else ""
    row = [dim for dim in row if dim != lane]
    shared = options.parallel and worth_threads(s.points // prod(map(s.extent, s.scatter)) * cost_of_point(s))
    block = _block(s.extent(lane), machine.threads // prod(map(s.extent, outer))) if lane and shared else 0
    blocks = [f"floor({isl_name(lane)}/{block})"] if block else []
    first, work = s.scatter[0], prod(map(s.extent, [*row, *rest, *([lane] if lane else [])]))
    few = not block and prod(map(s.extent, outer)) < machine.threads
    if shared and few and work >= LEAST_WORK and s.extent(first) >= LEAST_TARGETS * machine.threads:
        blocks = [f"floor({isl_name(first)}/{-(-s.extent(first) // machine.threads)})"]
    lanes = [f"({isl_name(lane)} mod {block})" if block else isl_name(lane)] if lane else []

    bands = (
        (Parallel() if shared else None, [*map(isl_name, outer), *blocks], True),
        (None, list(map(isl_name, terms)), False),
        *((Scatter(), [isl_name(dim)], True) for dim in s.scatter),
        (None, list(map(isl_name, row)), True),
        (None if lanes else Simd(), list(map(isl_name, rest)), False),
        (Simd(), lanes, True),
    )
    return nested_bands(scop, s, bands, Tile(next(counter)))


def _block(extent: int, threads: int) -> int:
    """The part of a row that each of so many threads takes; 0: all of it. Not less, as every thread goes over all terms."""
    block = -(-extent // (threads * BLOCK)) * BLOCK if threads > 1 else extent
    return block if block < extent else 0
