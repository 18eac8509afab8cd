"""How much loops do, where that depends on dynamic sizes."""
from __future__ import annotations

from tcjit.codegen.loops import For, Node, Run, TileRun, children
from tcjit.grammar.linear import Ranges, limits
from tcjit.mapping.passes.parallelise import cost_of_point
from tcjit.mapping.scop import Scop


def fewest(loop: For, ranges: Ranges) -> int:
    """Iterations that a loop has at least."""
    found = limits(loop.upper - loop.lower, ranges)
    return 1 if found is None else max(1, found[0] // loop.step + 1)


def work(nodes: tuple[Node, ...], scop: Scop, ranges: Ranges) -> int:
    """Statement instances of loops that run as often as they can, weighted as ``parallelise`` does."""
    total = 0
    for node in nodes:
        if isinstance(node, For):
            inner = below(node, ranges)
            trips = node.trips if node.trips is not None else most(node, ranges) if node.variable in inner else 1
            total += trips * work(node.body, scop, inner)
        elif isinstance(node, Run):
            total += cost_of_point(scop.statement(node.statement))
        elif isinstance(node, TileRun):
            total += scop.tiled(node.statement).points_of_tile if node.kind in ("full", "partial") else 0
        else:
            total += work(children(node), scop, ranges)
    return total


def below(loop: For, ranges: Ranges) -> Ranges:
    """The ranges inside of a loop; without its variable where its limits are not known."""
    lower, upper = limits(loop.lower, ranges), limits(loop.upper, ranges)
    return ranges if lower is None or upper is None else {**ranges, loop.variable: (lower[0], upper[1])}


def most(loop: For, ranges: Ranges) -> int:
    """Iterations that a loop has at most."""
    found = limits(loop.upper - loop.lower, ranges)
    return 1 if found is None else max(0, found[1] // loop.step + 1)
