"""Schedule a scan: its dimension in order, the others in parallel, and of these the one along memory in vector lanes.

Where none of the others follows memory, the running value stays in a register.
"""

from __future__ import annotations

from collections.abc import Iterator

import islpy as isl

from tcjit.grammar.affine import isl_name
from tcjit.grammar.ast import Index
from tcjit.mapping.marks import Parallel, Scan, Simd, Tile
from tcjit.mapping.options import Options
from tcjit.mapping.passes.parallelise import cost_of_point, worth_threads
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.tree import nested_bands

BLOCK = 128  # results along memory that one thread carries through a scan, at most


def schedule_scan(scop: Scop, s: ScopStatement, options: Options, counter: Iterator[int]) -> isl.Schedule:
    """The tree of a statement with ``scan``; ``counter`` numbers tiles."""
    dim = s.scan
    lane = s.subscripts[-1].name if isinstance(s.subscripts[-1], Index) and s.subscripts[-1].name != dim else ""
    block = BLOCK if lane and s.extent(lane) > BLOCK else 0
    outer = [isl_name(other) for other in s.dims if other not in (dim, lane)] + ([f"floor({isl_name(lane)}/{block})"] if block else [])
    lanes = [f"({isl_name(lane)} mod {block})" if block else isl_name(lane)] if lane else []
    shared = options.parallel and worth_threads(s.points * cost_of_point(s))
    bands = ((Parallel() if shared else None, outer, True), (None if lanes else Scan(), [isl_name(dim)], False), (Simd(), lanes, True))
    return nested_bands(scop, s, bands, Tile(next(counter)))
