"""Blocks and threads: what stands below the marks of a GPU mapping, as the code that every thread runs.

Below ``unroll`` all loops run over constants, so that the indices of a thread's arrays are constants too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from math import prod

from tcjit.codegen import async_copy, atomic, integers, mma, quotients, reduce, vector
from tcjit.codegen.expression import ctype
from tcjit.codegen.gpu_emitter import Digit, GpuEmitter, digits
from tcjit.codegen.inequalities import facts
from tcjit.codegen.isolate import separate
from tcjit.codegen.loops import Condition, For, If, MarkNode, Node, Run, children, marks_below, runs, substitute
from tcjit.codegen.loops import walk as all_below
from tcjit.codegen.unroll import constant_trips, full_trips
from tcjit.errors import MappingError
from tcjit.grammar.ast import Access, Binary, Call, Cast, Expr
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear, Ranges, limits
from tcjit.grammar.polynomial import names, number
from tcjit.mapping.footprint import WIDE
from tcjit.mapping.marks import AsyncCopy, Atomic, Grid, GridBlock, Mma, Reduce, Scatter, Sync, Threads, Unroll, Vector, WaitGroup

UNROLLED_BYTES = 128  # of the values of iterations that are written out, and may be under way at once, where nothing is kept in arrays
UNROLLED_STEPS = 768  # multiply-adds under conditions that are written out: with 16 bytes each 12 KB of code


class GpuBodyEmitter(GpuEmitter):
    """Writes the body of one kernel after another."""

    # ------------------------------------------------------------ marks

    def mark(self, node: MarkNode) -> None:
        mark = node.mark
        if isinstance(mark, Grid):
            self.blocks(node)
        elif isinstance(mark, Sync):
            self.barrier(mark.scope)
            self.block(node.body)
        elif isinstance(mark, Reduce):
            reduce.write(self, node)
        elif isinstance(mark, AsyncCopy):
            self.early = "async_copy" in self.device.capabilities
            self.block(node.body)
            self.early = False
        elif isinstance(mark, WaitGroup):
            if "async_copy" in self.device.capabilities:
                self.write(f"{self.printer.helper(f'tc_arrived_{mark.number}')}();")
            self.block(node.body)
        elif isinstance(mark, Mma):
            mma.write(self, node)
        elif isinstance(mark, Scatter):
            self.pick(node.body)
        elif isinstance(mark, Threads):
            self.region(mark.radices, node.body)
        elif isinstance(mark, Unroll | Vector):
            kept, self.unrolling = self.unrolling, True
            if isinstance(mark, Unroll) or not vector.write(self, node):
                self.block(node.body)
            self.unrolling = kept
        elif isinstance(mark, Atomic):
            self.block(node.body)
        else:
            self.buffers(node)

    def buffers(self, node: MarkNode) -> None:
        """A mark below which every thread may have arrays of its own; everything that is known here, all threads of the block share."""
        for private in self.memory.below(node.mark):
            if private.space == "thread":
                kind = ctype(self.mapped.scop.tensor(private.tensor).dtype, self.dialect)
                self.array(f"{kind} {self.memory.private_name(private)}", private.elements)
        body = node.body
        if isinstance(node.mark, GridBlock) and any(self.sums_products(run) for run in _unrolled(body)):
            body = separate(body, frozenset(self.ranges), self.ranges, self.sums_products)
        self.block(body)

    def pick(self, nodes: tuple[Node, ...]) -> None:
        """The loops below ``scatter``, in the guards that isl puts around them."""
        for node in nodes:
            if isinstance(node, If):
                self.branch(node, self.pick)
            elif isinstance(node, For):
                self.scatter(node)
            else:
                raise MappingError("isl's loops take a scatter apart")

    def picked(self, nodes: tuple[Node, ...]) -> None:
        if any(isinstance(node, For) for node in all_below(nodes)) and Scatter() not in marks_below(nodes):
            atomic.write_sum(self, nodes)
        else:
            self.block(nodes)

    def thread_body(self, nodes: tuple[Node, ...]) -> None:
        if self.instead is not None or not quotients.write(self, nodes):
            self.block(nodes)

    def sums_products(self, run: Run) -> bool:
        """Whether a statement is the heart of a contraction: then a second copy of its kernel without guards is worth its size."""
        s = self.mapped.scop.statement(run.statement)
        value: Expr = s.value
        while isinstance(value, Cast):
            value = value.operand
        return s.operator == "+=" and isinstance(value, Binary) and value.op == "*"

    # ------------------------------------------------------------ blocks and threads

    def blocks(self, node: MarkNode) -> None:
        """Block loops along x, y and z, the last one along x; in turns where the device does not have as many blocks."""
        counts = block_counts(node.body, self.ranges)
        x, y, z = ([1, 1, *counts][-1], [1, 1, *counts][-2], counts[:-2])
        most = self.device.max_grid
        if x <= most[0] and y <= most[1] and prod(z) <= most[2]:
            self.grid = (x, y, prod(z))
            self.fewer = self.open_counts(node.body, counts)
            inner = [Digit(self.gpu.blocks[axis], count, "") for axis, count in reversed(list(enumerate(counts[:-3:-1])))]
            self.bind(node.body, digits(self.gpu.blocks[2], z) + inner, self.block)
            return
        total = prod(counts)
        self.grid = (min(total, most[0]), 1, 1)
        if total <= most[0]:
            self.bind(node.body, digits(self.gpu.blocks[0], counts), self.block)
            return
        kind = "int" if total + most[0] <= integers.GREATEST else "int64_t"
        with self.indented(f"for ({kind} tc_block = {self.gpu.blocks[0]}; tc_block < {total}; tc_block += {most[0]}) {{"):
            self.bind(node.body, digits("tc_block", counts), self.block)
            if self.scratch or self.shares(node.body):
                self.barrier("block")  # before the next turn writes what this one still reads

    def shares(self, nodes: tuple[Node, ...]) -> bool:
        """Whether the threads of a block share a buffer below one of the marks of these nodes."""
        below = marks_below(nodes)
        return any(buffer.space == "shared" and buffer.mark in below for buffer in self.memory.privates.values())

    def open_counts(self, nodes: tuple[Node, ...], counts: Sequence[int]) -> list[tuple[str, Expr]]:
        """The blocks along x, y and z where a loop's end depends on dynamic sizes alone; along z the outermost loop's, times the others."""
        sizes = {d.name for d in self.mapped.scop.program.dynamic}
        found: list[tuple[str, Expr]] = []
        for depth in range(len(counts)):
            if len(nodes) != 1 or not isinstance(nodes[0], For):
                break
            axis = len(counts) - 1 - depth
            if nodes[0].upper.variables and nodes[0].upper.variables <= sizes and (axis < 2 or depth == 0):
                others = prod(counts[1:-2]) if axis >= 2 else 1
                count = nodes[0].upper.expression()
                whole = Binary("*", Binary("+", count, number(1), dtype="int64"), number(others), dtype="int64")
                found.append(("xyz"[min(axis, 2)], Call("max", (number(1), whole), dtype="int64")))
            nodes = nodes[0].body
        return found

    # ------------------------------------------------------------ loops of one thread

    def loop(self, node: For) -> None:
        found = constant_trips(node, self.ranges) if self.unrolling else None
        self.loops += 1
        if found is None:
            super().loop(node)
        else:
            self.constant_loop(*found)
        self.loops -= 1

    def constant_loop(self, node: For, guards: Sequence[Condition]) -> None:
        """A loop over constants, unrolled: where the guards hold anyway in most of the iterations, those, and the ones before and after."""
        first, last = node.lower.constant, node.upper.constant
        if self.moves_conditions(node):
            for value in range(first, last + 1):
                self.guarded_loop(replace(node, lower=Linear.of(value), upper=Linear.of(value)), guards)
            return
        full = full_trips(node, guards, self.ranges)
        if full is None or 2 * (full[1] - full[0] + 1) <= last - first + 1:
            full = first, last
        for low, high in ((first, full[0] - 1), full, (full[1] + 1, last)):
            if low <= high:
                self.guarded_loop(replace(node, lower=Linear.of(low), upper=Linear.of(high)), guards)

    def guarded_loop(self, node: For, guards: Sequence[Condition]) -> None:
        """With a single trip only the body."""
        if node.lower == node.upper:
            value = {node.variable: node.lower}
            with self.when(self.tests(*(guard.substitute(value) for guard in guards))):
                self.block(tuple(substitute(n, value) for n in node.body))
            return
        self.pragma(self.unroll_factor(node))
        with self.ranged(node), self.iterated(node), self.when(self.tests(*guards)):
            self.block(node.body)

    def moves_conditions(self, node: For) -> bool:
        """Whether multiply-adds below stand under conditions on the loop's variable that are the same in all tiles, as those of a window at
        the borders of an image are. With one copy of the body for each value most of them are decided."""
        if not any(self.sums_products(run) and self._in_arrays(run) for run in runs(node.body)):
            return False
        conditions = [fact.variables for guard in self._guards(node.body) for fact in facts(guard) or ()]
        moved = any(node.variable in names and not names & self.uniform for names in conditions)
        return moved and self._steps((node,)) <= UNROLLED_STEPS

    def unroll_factor(self, node: For) -> int:
        """How many iterations of a loop over constants are written out one after the other; 0: all.

        It must be all where a thread's own array is indexed, which lies in registers only if its indices are constants. Elsewhere the
        compiler would load the elements of many iterations before it needs them, or keep them for a later loop, and run out of registers.
        """
        below = runs(node.body)
        arrays = [(run, access) for run in below for access in self._in_arrays(run)]
        dims = [(run, name) for run, access in arrays for sub in access.subscripts for name in names(sub)]
        moving = any(node.variable in run.index(name).variables for run, name in dims)
        if arrays and not moving and any(self._guards(node.body)):
            if any(self.sums_products(run) for run in below):
                return 1  # a copy of the code with guards is for few tiles: a short one suffices
            factor = max(1, UNROLLED_STEPS // self._steps(node.body))
        elif arrays and not moving and (together := self._loaded_together(node)) > 1:
            factor = together  # in more of them the compiler loads ahead, for which there are no registers
        elif arrays:
            return 0
        else:
            factor = max(1, UNROLLED_BYTES // self._bytes(node.body))
        return factor if factor < (node.trips or 0) else 0

    def _loaded_together(self, node: For) -> int:
        """The neighbours in shared memory that one access loads, where iterations of a loop read neighbours there."""
        found = [1]
        for run in runs(node.body):
            for access, _ in self.mapped.scop.statement(run.statement).reads:
                buffer = self.memory.private(access.tensor, self.marks)
                with self.ranged(node):
                    address = self.operand(access, run) if buffer is not None and buffer.space == "shared" else None
                    follows = address is not None and replace(address, fixed=self.plain(address.fixed)).follows(node.variable)
                if follows:
                    found.append(WIDE // DTYPES[access.dtype].bytes)
        return max(found)

    def _in_arrays(self, run: Run) -> list[Access]:
        """The accesses of a statement to arrays of the thread's own."""
        s = self.mapped.scop.statement(run.statement)
        found = []
        for access in (Access(s.tensor, s.subscripts), *(access for access, _ in s.reads)):
            buffer = self.memory.private(access.tensor, self.marks)
            if buffer is not None and buffer.space == "thread" and buffer.elements > 1:
                found.append(access)
        return found

    def _guards(self, nodes: Sequence[Node]) -> Iterator[Condition]:
        """The conditions in front of statements, and in loops over constants."""
        for node in nodes:
            found = constant_trips(node, self.ranges) if isinstance(node, For) else None
            yield from (node.condition,) if isinstance(node, If) else () if found is None else found[1]
            yield from self._guards(children(node))

    def _steps(self, nodes: Sequence[Node]) -> int:
        """How often statements run in loops over constants."""
        found = [constant_trips(node, self.ranges) if isinstance(node, For) else None for node in nodes]
        return sum((one[0].trips or 1 if one else 1) * (self._steps(children(node)) or 1) for node, one in zip(nodes, found, strict=True))

    def _bytes(self, nodes: Sequence[Node]) -> int:
        """The bytes of the values that one run through ``nodes`` computes, in loops over constants."""
        total = 0
        for node in nodes:
            if isinstance(node, Run):
                total += DTYPES[self.mapped.scop.statement(node.statement).value.dtype].bytes
                continue
            found = constant_trips(node, self.ranges) if isinstance(node, For) else None
            parts = (node.then, node.other) if isinstance(node, If) else (children(node),)
            total += (1 if found is None else found[0].trips or 0) * sum(map(self._bytes, parts))
        return max(total, 1)

    # ------------------------------------------------------------ statements

    def statement(self, run: Run) -> None:
        if self.instead is not None:
            self.instead(run)
        elif Atomic() in self.marks:
            atomic.write(self, run)
        elif not async_copy.write(self, run):
            super().statement(run)

def block_counts(nodes: tuple[Node, ...], ranges: Ranges) -> list[int]:
    """How many values each of the nested block loops takes, outermost first."""
    found: list[int] = []
    for node in nodes:
        inner: list[int] = []
        if isinstance(node, If):
            inner = [max(pair) for pair in zip_longest(block_counts(node.then, ranges), block_counts(node.other, ranges), fillvalue=1)]
        elif isinstance(node, For):
            reach = limits(node.upper, ranges)
            if reach is None or limits(node.lower, ranges) is None:
                raise MappingError(f"the number of blocks along {node.variable} is not a constant")
            inner = [max(1, reach[1] + 1), *block_counts(node.body, {**ranges, node.variable: (0, max(0, reach[1]))})]
        found = [max(pair) for pair in zip_longest(found, inner, fillvalue=1)]
    return found


def _unrolled(nodes: tuple[Node, ...]) -> Iterator[Run]:
    """The statements below ``unroll`` marks."""
    for node in nodes:
        if isinstance(node, MarkNode) and isinstance(node.mark, Unroll):
            yield from runs(node.body)
        else:
            yield from _unrolled(children(node))
