"""Parallelise: mark the tile loops that threads share, where there is work enough to pay for waking them."""

from __future__ import annotations

import islpy as isl

from tcjit.grammar.ast import Call
from tcjit.grammar.walk import walk
from tcjit.mapping.machine import Costs
from tcjit.mapping.marks import Parallel, TileLoops
from tcjit.mapping.options import Options
from tcjit.mapping.scop import Scop, ScopStatement
from tcjit.mapping.tree import insert_mark, mark_of, rewrite, statements_below

# statement instances below which one thread is done before a second one has started (a parallel region costs 2-5 us)
WORTH_THREADS = 1 << 15
REGIONS = 2.5  # times the cycles of a parallel region: two threads gain at 2


def worth_region(cycles: float, costs: Costs) -> bool:
    """Whether work of so many cycles pays for threads: two save half of it, and more than they take to start and end."""
    return cycles >= REGIONS * costs.parallel_region * costs.frequency


def worth_threads(instances: float) -> bool:
    """Whether as much work as so many plain statement instances pays for threads."""
    return instances >= WORTH_THREADS


def parallelise(scop: Scop, tree: isl.Schedule, options: Options) -> isl.Schedule:
    """The tree with the mark ``Parallel`` above the bands of tiles."""
    if not options.parallel:
        return tree

    def visit(node: isl.ScheduleNode) -> isl.ScheduleNode:
        if mark_of(node) != TileLoops():
            return node
        below = [scop.statement(name) for name in statements_below(node)]
        work = sum(s.points * cost_of_point(s) for s in below)
        return insert_mark(node, Parallel()) if worth_threads(work) else node

    return rewrite(tree, visit)


def cost_of_point(s: ScopStatement) -> int:
    """What an instance of a statement costs, in plain ones."""
    return 8 if any(isinstance(part, Call) for part in walk(s.value)) else 1
