"""How much loops do, where that depends on dynamic sizes."""
from __future__ import annotations

from tcjit.codegen.loops import For, Node, Run, TileRun, children
from tcjit.codegen.scope import inside
from tcjit.grammar.linear import Ranges, limits
from tcjit.mapping.passes.parallelise import cost_of_point
from tcjit.mapping.scop import Scop


def iterations(loop: For, ranges: Ranges) -> tuple[int, int]:
    """The fewest and the most iterations of a loop that runs at all; one where nothing is known."""
    found = limits(loop.upper - loop.lower, ranges) or (0, 0)
    return max(1, found[0] // loop.step + 1), max(0, found[1] // loop.step + 1)


def work(nodes: tuple[Node, ...], scop: Scop, ranges: Ranges) -> int:
    """Statement instances of loops that run as often as they can, weighted as ``parallelise`` does."""
    total = 0
    for node in nodes:
        if isinstance(node, For):
            inner = inside(node, ranges)
            trips = node.trips if node.trips is not None else iterations(node, ranges)[1] if node.variable in inner else 1
            total += trips * work(node.body, scop, inner)
        elif isinstance(node, Run):
            total += cost_of_point(scop.statement(node.statement))
        elif isinstance(node, TileRun):
            total += scop.tiled(node.statement).points_of_tile if node.kind in ("full", "partial") else 0
        else:
            total += work(children(node), scop, ranges)
    return total
