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
from tcjit.mapping.tree import insert_band, insert_mark

BLOCK = 128  # results along memory that one thread carries through a scan, at most


def schedule_scan(scop: Scop, s: ScopStatement, options: Options, counter: Iterator[int]) -> isl.Schedule:
    """The tree of a statement with ``scan``; ``counter`` numbers tiles."""
    dim = s.scan
    lane = s.subscripts[-1].name if isinstance(s.subscripts[-1], Index) and s.subscripts[-1].name != dim else ""
    block = BLOCK if lane and s.extent(lane) > BLOCK else 0
    outer = [isl_name(other) for other in s.dims if other not in (dim, lane)] + ([f"floor({isl_name(lane)}/{block})"] if block else [])
    lanes = [f"({isl_name(lane)} mod {block})" if block else isl_name(lane)] if lane else []
    node = isl.Schedule.from_domain(scop.domain).get_root().child(0)

    def band(node: isl.ScheduleNode, texts: list[str], coincident: bool) -> isl.ScheduleNode:
        return insert_band(scop, node, [{s.name: text} for text in texts], range(len(texts)) if coincident else ())

    if outer:
        node = band(node, outer, True)
        if options.parallel and worth_threads(s.points * cost_of_point(s)):
            node = insert_mark(node, Parallel()).child(0)
        node = node.child(0)
    node = insert_mark(node, Tile(next(counter))).child(0)
    node = band(node, [isl_name(dim)], False)
    if not lanes:
        return insert_mark(node, Scan()).get_schedule()
    return insert_mark(band(node.child(0), lanes, True), Simd()).get_schedule()
