"""The marks of a CPU mapping, replaced by what they mean: parallel and vector loops, register tiles, private buffers."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tcjit.codegen.loops import (
    Declare,
    DeclareAccumulators,
    DeclareSlices,
    For,
    If,
    MarkNode,
    Node,
    ParallelLoop,
    Reduction,
    RowLoops,
    Run,
    SimdLoop,
    StatementLoop,
    Threshold,
    nest,
    runs,
    tile_runs,
)
from tcjit.codegen.memory import KernelMemory
from tcjit.codegen.parallel_regions import merged
from tcjit.codegen.scope import LoopScope, inside
from tcjit.codegen.trip_counts import iterations as iterations_of
from tcjit.codegen.trip_counts import work
from tcjit.errors import MappingError
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear, limits
from tcjit.mapping import marks
from tcjit.mapping.passes import parallelise
from tcjit.mapping.pipeline import Mapped

# iterations that collapsed parallel loops should offer: enough for a fair share of every thread
FAIR_SHARE = 64
# independent accumulators of a vector reduction, each over a stretch of its own: more than 2 streams defeat the hardware prefetcher;
# and the terms that each should have
SUMS, SHORT = 2, 64


def lower(nodes: tuple[Node, ...], mapped: Mapped, memory: KernelMemory) -> tuple[Node, ...]:
    """Nodes of isl's AST without their marks."""
    return _CpuLowering(mapped, memory).block(nodes)


class _CpuLowering(LoopScope):
    def block(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        """Parallel loops in a row become regions."""
        lowered: list[Node] = []
        row: list[ParallelLoop] = []
        for node in nodes:
            found = self.node(node)
            if len(found) == 1 and isinstance(found[0], ParallelLoop):
                row.append(found[0])
            else:
                lowered += [*merged(row, self.mapped.scop), *found]
                row = []
        return (*lowered, *merged(row, self.mapped.scop))

    def node(self, node: Node) -> tuple[Node, ...]:
        match node:
            case For():
                return (self.loop(node),)
            case If():
                return (If(node.condition, self.block(node.then), self.block(node.other)),)
            case MarkNode():
                with self.below(node.mark):
                    return self.mark(node)
        return (node,)

    def loop(self, node: For) -> For:
        with self.ranged(node):
            return replace(node, body=self.block(node.body))

    def mark(self, node: MarkNode) -> tuple[Node, ...]:
        if node.mark == marks.Parallel():
            return self.parallel(node)
        if node.mark == marks.Simd():
            return self.simd(node)
        if isinstance(node.mark, marks.Scan | marks.Scatter) and len(node.body) == 1 and isinstance(node.body[0], For):
            return (StatementLoop(self.loop(node.body[0]), node.mark),)
        if node.mark == marks.RowPass():
            below = nest(node.body[0])[1] if len(node.body) == 1 else ()
            if not isinstance(node.body[0], For) or not all(isinstance(one, Run) for one in below):
                raise MappingError("isl's loops take a pass over a row apart", hint="vector_width=1")
            tiles = [mark.number for mark in self.marks if isinstance(mark, marks.Tile)]
            return (RowLoops(node.body[0], tiles[-1]),)
        if isinstance(node.mark, marks.Accumulators):
            kinds = [run.kind for run in tile_runs(node.body)]
            if kinds[:1] != ["start"] or kinds[-1:] != ["store"] or kinds.count("start") != 1:
                raise MappingError("isl's loops take a register tile apart", hint="vector_width=1")
            return (DeclareAccumulators(node.mark.statement, self.block(node.body)),)
        if slices := self.memory.slices_below(node.mark):
            return (DeclareSlices(node.mark, self.outer_loops(node.body, len(slices[0][0].steps)), self.block(node.body)),)
        if buffers := self.memory.below(node.mark):
            return (Declare(node.mark, tuple(buffers), self.block(node.body)),)
        return self.block(node.body)

    def outer_loops(self, nodes: tuple[Node, ...], count: int) -> tuple[Linear, ...]:
        """The values of the loops that all statements below share."""
        for tile in tile_runs(nodes):
            return tile.digits[:count]
        run = runs(nodes)[0]
        outer = self.mapped.scop.statement(run.statement).outer
        assert outer is not None
        return tuple(run.index(dim) for dim in outer.dims)

    # ------------------------------------------------------------ parallel loops

    def parallel(self, node: MarkNode) -> tuple[Node, ...]:
        """As many of the tile loops as a fair share takes, collapsed."""
        body = node.body
        while len(body) == 1 and isinstance(body[0], MarkNode) and body[0].mark == marks.TileLoops():
            body = body[0].body
        if len(body) != 1 or not isinstance(body[0], For):
            return self.block(node.body)
        loops, _ = nest(body[0])
        depth, iterations = 0, 1
        for loop in loops:
            collapsed = {outer.variable for outer in loops[:depth]}
            if iterations >= FAIR_SHARE or (loop.lower.variables | loop.upper.variables) & collapsed:
                break
            trips = loop.trips if loop.trips is not None else iterations_of(loop, self.ranges)[0]
            depth += 1
            iterations *= max(1, trips)
        pays, worth = self.worth(loops[:depth])
        outer = self.loop(body[0])
        tiled = [self.mapped.scop.tiled(name) for name in dict.fromkeys(run.statement for run in tile_runs((outer,)))] if pays else []
        inner = {name for loop in loops[depth:] for name in loop.lower.variables | loop.upper.variables} if tiled else set()
        uneven = max((number for number, loop in enumerate(loops[:depth], 1) if loop.variable in inner), default=0)
        uneven = max([uneven, *(one.varying(depth) for one in tiled)])
        chunk = 0
        if uneven:  # iterations of the loops inside those are alike: neighbours, whose results may share lines of caches, stay together
            alike = prod(loop.trips or 1 for loop in loops[uneven:depth])
            chunk = max(1, min(alike, iterations // FAIR_SHARE))
        return (ParallelLoop(outer, depth, worth, chunk),) if pays else (outer,)

    def worth(self, loops: list[For]) -> tuple[bool, Threshold | None]:
        """Whether loops are worth threads for some sizes, and for which where not for all."""
        dynamic = [loop for loop in loops if loop.trips is None]
        if not loops or not dynamic:
            return bool(loops), None
        ranges = self.ranges
        for loop in loops:
            ranges = inside(loop, ranges)
        cost = work(loops[-1].body, self.mapped.scop, ranges)
        rounds = prod(loop.trips or 1 for loop in loops)
        alike = prod(loop.step for loop in dynamic)  # iterations in which sizes are counted as one
        enough = alike * max(-(-parallelise.WORTH_THREADS // max(1, cost * rounds)), -(-2 // rounds))
        extents = tuple(loop.upper - loop.lower + loop.step for loop in dynamic)
        reach = [found for extent in extents if (found := limits(extent, self.ranges)) is not None]
        if len(reach) == len(extents) and prod(most for _, most in reach) < enough:
            return False, None
        if len(reach) == len(extents) and prod(max(0, least) for least, _ in reach) >= enough:
            return True, None
        return True, Threshold(extents, enough)

    # ------------------------------------------------------------ vectors

    def simd(self, node: MarkNode) -> tuple[Node, ...]:
        """The loop over lanes; a reduction along it keeps its result in variables."""
        loop = node.body[0] if len(node.body) == 1 else None
        if not isinstance(loop, For) or not all(isinstance(n, Run) for n in loop.body):
            return self.block(node.body)
        run = runs(loop.body)[0]
        s = self.mapped.scop.statement(run.statement)
        with self.ranged(loop):
            target = self.target(s, run)
        if len(loop.body) > 1 or s.operator == "=" or target is None or target.stride(loop.variable) != 0:
            return (SimdLoop(self.loop(loop)),)
        # one variable would make every step wait for the one before; bool has no vector reduction
        count = (loop.trips or 0) // SHORT if DTYPES[s.value.dtype].kind != "bool" and loop.step == 1 else 1
        count = max(1, min(count, SUMS if s.operator in ("+=", "*=") else 1))
        return (SimdLoop(loop, Reduction(run, target, count)),)
