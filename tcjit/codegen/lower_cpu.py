"""The marks of a CPU mapping, replaced by what they mean: parallel and vector loops, register tiles, private buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from math import prod

import islpy as isl

from tcjit.codegen import loops as ir
from tcjit.codegen.memory import KernelMemory
from tcjit.codegen.scope import LoopScope, inside
from tcjit.errors import MappingError
from tcjit.grammar.ast import Const
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear, Ranges, limits
from tcjit.mapping import marks
from tcjit.mapping.isl import union_set
from tcjit.mapping.passes import parallelise
from tcjit.mapping.pipeline import Mapped
from tcjit.mapping.scop import Scop

# iterations that collapsed parallel loops should offer: enough for a fair share of every thread
FAIR_SHARE = 64
# independent accumulators of a vector reduction, each over a stretch of its own: more than 2 streams defeat the hardware prefetcher;
# and the terms that each should have
SUMS, SHORT = 2, 64


def lower(nodes: tuple[ir.Node, ...], mapped: Mapped, memory: KernelMemory) -> tuple[ir.Node, ...]:
    """Nodes of isl's AST without their marks."""
    return _CpuLowering(mapped, memory).block(nodes)


class _CpuLowering(LoopScope):
    def block(self, nodes: tuple[ir.Node, ...]) -> tuple[ir.Node, ...]:
        """Parallel loops in a row become regions, with the short ones between them that fill the rest of panels."""
        lowered: list[ir.Node] = []
        row: list[ir.ParallelLoop | ir.For] = []
        for node in nodes:
            found = self.node(node)
            one = found[0] if len(found) == 1 else None
            if isinstance(one, ir.ParallelLoop) or row and isinstance(one, ir.For) and self.fills(one):
                row.append(one)
            else:
                lowered += [*merged(row, self.mapped.scop), *found]
                row = []
        return (*lowered, *merged(row, self.mapped.scop))

    def fills(self, loop: ir.For) -> bool:
        """Whether a loop does nothing but store constants, at places that no data say: it reads nothing, and cannot fail."""
        statements = [self.mapped.scop.statement(run.statement) for run in ir.runs((loop,))]
        return all(isinstance(s.value, Const) and not s.reads for s in statements) and not ir.tile_runs((loop,))

    def node(self, node: ir.Node) -> tuple[ir.Node, ...]:
        match node:
            case ir.For():
                return (self.loop(node),)
            case ir.If():
                return (ir.If(node.condition, self.block(node.then), self.block(node.other)),)
            case ir.MarkNode():
                with self.below(node.mark):
                    return self.mark(node)
        return (node,)

    def loop(self, node: ir.For) -> ir.For:
        with self.ranged(node):
            return replace(node, body=self.block(node.body))

    def mark(self, node: ir.MarkNode) -> tuple[ir.Node, ...]:
        if node.mark == marks.Parallel():
            return self.parallel(node)
        if node.mark == marks.Simd():
            return self.simd(node)
        if isinstance(node.mark, marks.Scan | marks.Scatter) and len(node.body) == 1 and isinstance(node.body[0], ir.For):
            return (ir.StatementLoop(self.loop(node.body[0]), node.mark),)
        if node.mark == marks.RowPass():
            below = ir.nest(node.body[0])[1] if len(node.body) == 1 else ()
            if not isinstance(node.body[0], ir.For) or not all(isinstance(one, ir.Run) for one in below):
                raise MappingError("isl's loops take a pass over a row apart", hint="vector_width=1")
            tiles = [mark.number for mark in self.marks if isinstance(mark, marks.Tile)]
            return (ir.RowLoops(node.body[0], tiles[-1]),)
        if isinstance(node.mark, marks.Accumulators):
            kinds = [run.kind for run in ir.tile_runs(node.body)]
            if kinds[:1] != ["start"] or kinds[-1:] != ["store"] or kinds.count("start") != 1:
                raise MappingError("isl's loops take a register tile apart", hint="vector_width=1")
            return (ir.DeclareAccumulators(node.mark.statement, self.block(node.body)),)
        if slices := self.memory.slices_below(node.mark):
            return (ir.DeclareSlices(node.mark, self.outer_loops(node.body, len(slices[0][0].steps)), self.block(node.body)),)
        if buffers := self.memory.below(node.mark):
            return (ir.Declare(node.mark, tuple(buffers), self.block(node.body)),)
        return self.block(node.body)

    def outer_loops(self, nodes: tuple[ir.Node, ...], count: int) -> tuple[Linear, ...]:
        """The values of the loops that all statements below share."""
        for tile in ir.tile_runs(nodes):
            return tile.digits[:count]
        run = ir.runs(nodes)[0]
        outer = self.mapped.scop.statement(run.statement).outer
        assert outer is not None
        return tuple(run.index(dim) for dim in outer.dims)

    # ------------------------------------------------------------ parallel loops

    def parallel(self, node: ir.MarkNode) -> tuple[ir.Node, ...]:
        """As many of the tile loops as a fair share takes, collapsed."""
        body = node.body
        while len(body) == 1 and isinstance(body[0], ir.MarkNode) and body[0].mark == marks.TileLoops():
            body = body[0].body
        if len(body) != 1 or not isinstance(body[0], ir.For):
            return self.block(node.body)
        loops, _ = ir.nest(body[0])
        depth, iterations = 0, 1
        for loop in loops:
            collapsed = {outer.variable for outer in loops[:depth]}
            if iterations >= FAIR_SHARE or (loop.lower.variables | loop.upper.variables) & collapsed:
                break
            trips = loop.trips if loop.trips is not None else _iterations(loop, self.ranges)[0]
            depth += 1
            iterations *= max(1, trips)
        pays, worth = self.worth(loops[:depth])
        outer = self.loop(body[0])
        tiled = [self.mapped.scop.tiled(name) for name in dict.fromkeys(run.statement for run in ir.tile_runs((outer,)))] if pays else []
        inner = {name for loop in loops[depth:] for name in loop.lower.variables | loop.upper.variables} if tiled else set()
        uneven = max((number for number, loop in enumerate(loops[:depth], 1) if loop.variable in inner), default=0)
        uneven = max([uneven, *(one.varying(depth) for one in tiled)])
        chunk = 0
        if uneven:  # iterations of the loops inside those are alike: neighbours, whose results may share lines of caches, stay together
            alike = prod(loop.trips or 1 for loop in loops[uneven:depth])
            chunk = max(1, min(alike, iterations // FAIR_SHARE))
        return (ir.ParallelLoop(outer, depth, worth, chunk),) if pays else (outer,)

    def worth(self, loops: list[ir.For]) -> tuple[bool, ir.Threshold | None]:
        """Whether loops are worth threads for some sizes, and for which where not for all."""
        dynamic = [loop for loop in loops if loop.trips is None]
        if not loops or not dynamic:
            return bool(loops), None
        ranges = self.ranges
        for loop in loops:
            ranges = inside(loop, ranges)
        cost = _work(loops[-1].body, self.mapped.scop, ranges)
        rounds = prod(loop.trips or 1 for loop in loops)
        alike = prod(loop.step for loop in dynamic)  # iterations in which sizes are counted as one
        enough = alike * max(-(-parallelise.WORTH_THREADS // max(1, cost * rounds)), -(-2 // rounds))
        extents = tuple(loop.upper - loop.lower + loop.step for loop in dynamic)
        reach = [found for extent in extents if (found := limits(extent, self.ranges)) is not None]
        if len(reach) == len(extents) and prod(most for _, most in reach) < enough:
            return False, None
        if len(reach) == len(extents) and prod(max(0, least) for least, _ in reach) >= enough:
            return True, None
        return True, ir.Threshold(extents, enough)

    # ------------------------------------------------------------ vectors

    def simd(self, node: ir.MarkNode) -> tuple[ir.Node, ...]:
        """The loop over lanes; a reduction along it keeps its result in variables."""
        loop = node.body[0] if len(node.body) == 1 else None
        if not isinstance(loop, ir.For) or not all(isinstance(n, ir.Run) for n in loop.body):
            return self.block(node.body)
        run = ir.runs(loop.body)[0]
        s = self.mapped.scop.statement(run.statement)
        with self.ranged(loop):
            target = self.target(s, run)
        if len(loop.body) > 1 or s.operator == "=" or target is None or target.stride(loop.variable) != 0:
            return (ir.SimdLoop(self.loop(loop)),)
        # one variable would make every step wait for the one before; bool has no vector reduction
        count = (loop.trips or 0) // SHORT if DTYPES[s.value.dtype].kind != "bool" and loop.step == 1 else 1
        count = max(1, min(count, SUMS if s.operator in ("+=", "*=") else 1))
        return (ir.SimdLoop(loop, ir.Reduction(run, target, count)),)


def _iterations(loop: ir.For, ranges: Ranges) -> tuple[int, int]:
    """The fewest and the most iterations of a loop that runs at all; one where nothing is known."""
    found = limits(loop.upper - loop.lower, ranges) or (0, 0)
    return max(1, found[0] // loop.step + 1), max(0, found[1] // loop.step + 1)


def _work(nodes: tuple[ir.Node, ...], scop: Scop, ranges: Ranges) -> int:
    """Statement instances of loops that run as often as they can, weighted as ``parallelise`` does."""
    total = 0
    for node in nodes:
        if isinstance(node, ir.For):
            within = inside(node, ranges)
            trips = node.trips if node.trips is not None else _iterations(node, ranges)[1] if node.variable in within else 1
            total += trips * _work(node.body, scop, within)
        elif isinstance(node, ir.Run):
            total += parallelise.cost_of_point(scop.statement(node.statement))
        elif isinstance(node, ir.TileRun):
            total += scop.tiled(node.statement).points_of_tile if node.kind in ("full", "partial") else 0
        else:
            total += _work(ir.children(node), scop, ranges)
    return total


# ---------------------------------------------------------------- regions


def merged(loops: Sequence[ir.ParallelLoop | ir.For], scop: Scop) -> list[ir.ParallelLoop | ir.ParallelRegion | ir.For]:
    """Loops that follow one another directly, as regions of those that are worth threads together, each run by one team: it is woken once,
    and waits only where a loop needs what others wrote. Those between them that are not worth threads, one of the team runs.

    Loops that only some sizes make worth threads are written twice, for a team and for the calling thread: a region that its ``if`` clause
    leaves to one thread still costs the calls into OpenMP, as much as a short loop does.
    """
    regions: list[ir.ParallelLoop | ir.ParallelRegion | ir.For] = []
    for worth, group in groupby(loops, key=lambda loop: loop.worth if isinstance(loop, ir.ParallelLoop) else None):
        together = list(group)
        behind = list[ir.For]()
        while together and isinstance(last := together[-1], ir.For):
            behind.insert(0, last)
            together.pop()
        if len(together) > 1 or worth is not None:
            regions.append(ir.ParallelRegion(tuple(together), _waits(together, scop), worth))
        else:
            regions += together
        regions += behind
    return regions


def _waits(loops: Sequence[ir.ParallelLoop | ir.For], scop: Scop) -> tuple[bool, ...]:
    """Whether a team must be done with each of the loops before it begins the next."""
    waits: list[bool] = []
    running: list[ir.ParallelLoop | ir.For] = []
    for loop, following in zip(loops, loops[1:]):
        running.append(loop)
        waits.append(any(_depends(following, other, scop) for other in running))
        if waits[-1]:
            running = []
    return (*waits, False)


def _depends(loop: ir.ParallelLoop | ir.For, other: ir.ParallelLoop | ir.For, scop: Scop) -> bool:
    """Whether a loop must not begin before another one is done."""
    (written, read), (others_written, others_read) = _tensors(loop, scop), _tensors(other, scop)
    if others_written & read or written & others_read:
        return True
    if not written & others_written:
        return False
    return bool(ir.tile_runs((loop, other))) or not _written(loop, scop).is_disjoint(_written(other, scop))


def _written(loop: ir.ParallelLoop | ir.For, scop: Scop) -> isl.UnionSet:
    """The elements that a loop of plain statements writes."""
    statements = [scop.statement(run.statement) for run in ir.runs((loop,))]
    return scop.writes.intersect_domain(union_set(scop.ctx, [s.tuple_text for s in statements])).range()


def _tensors(loop: ir.ParallelLoop | ir.For, scop: Scop) -> tuple[frozenset[str], frozenset[str]]:
    """The tensors that a loop writes and reads."""
    statements = [scop.statement(run.statement) for run in ir.runs((loop,))]
    tiled = [scop.tiled(name).statement for name in dict.fromkeys(run.statement for run in ir.tile_runs((loop,)))]
    written = {s.tensor for s in statements} | {flat.tensor for s in tiled for flat in (s.write, *(e.write for e in s.epilogue))}
    read = {access.tensor for s in statements for access, _ in s.reads} | {flat.tensor for s in tiled for flat in s.accesses}
    return frozenset(written), frozenset(read)
