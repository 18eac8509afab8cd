"""Synchronise: barriers where threads of a block use what others wrote, or are about to overwrite what others read.

The body of a kernel is followed in the order in which it runs, a loop of steps twice, with the statements since the last barrier at hand; a
statement that shares an element with one of them across threads gets a barrier before it, of a warp where that is enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import islpy as isl

from tcjit.mapping.gpu_nest import BlockNode, GpuKernel, GroupPlan, SequentialLoops, StatementPlan
from tcjit.mapping.isl import points
from tcjit.mapping.machine import Device
from tcjit.mapping.marks import Collective, Sync, Threads
from tcjit.mapping.passes.allocate import Where, accesses_of, same_thread
from tcjit.mapping.scop_builder import LoweredScop
from tcjit.mapping.tree import insert_mark, mark_of, rewrite, statements_below

BARRIERS = (None, Sync("warp"), Sync("block"))  # weakest first


def synchronise(lowered: LoweredScop, tree: isl.Schedule, kernels: Sequence[GpuKernel], device: Device) -> isl.Schedule:
    """The tree with marks ``Sync`` above the regions that wait."""
    needed: dict[str, int] = {}
    for kernel in kernels:
        needed |= _BarrierPlacement(lowered, kernel, device).needed

    def visit(node: isl.ScheduleNode) -> isl.ScheduleNode:
        outermost = isinstance(mark_of(node), Threads) and not isinstance(mark_of(node.parent()), Collective)
        if not outermost and not isinstance(mark_of(node), Collective):
            return node
        barrier = BARRIERS[max((needed.get(below, 0) for below in statements_below(node)), default=0)]
        return insert_mark(node, barrier) if barrier else node

    return rewrite(tree, visit)


class _BarrierPlacement:
    """One kernel; ``needed`` gives, per statement, the barrier before it."""

    def __init__(self, lowered: LoweredScop, kernel: GpuKernel, device: Device) -> None:
        self.lowered = lowered
        self.items = kernel.items
        self.copies = {name: item for name, (item, _) in self.items.items() if item.reader}
        self.device = device
        self.registers = {b.tensor for b in kernel.buffers if b.space == "thread"}
        self.accesses: Mapping[str, tuple[set[str], set[str]]] = {name: self._tensors(name) for name in self.items}
        self.needed: dict[str, int] = {}
        # statements since the last barrier of the block, and since the last of any kind
        self.pending: list[tuple[str, int]] = []
        self.ahead = False  # copies fill other pieces than those that are read meanwhile
        self._follow(kernel.body)

    def _tensors(self, name: str) -> tuple[set[str], set[str]]:
        """What a statement reads and writes outside registers."""
        s = self.lowered.scop.statement(name)
        return {a.tensor for a, _ in s.reads} - self.registers, {s.tensor} - self.registers

    def _follow(self, body: Sequence[BlockNode]) -> None:
        for phase in body:
            if isinstance(phase, SequentialLoops):
                for _ in range(2):
                    if phase.stages > 1:  # begins with a barrier of its own
                        self._passed(2)
                    self.ahead = phase.stages > 1
                    self._follow(phase.body)
                self.ahead = False
            else:
                self._reach(phase)

    def _reach(self, name: str) -> None:
        # a barrier that stands with a statement which not every block or step reaches separates nothing but that statement
        always = not self.lowered.scop.statement(name).constraints or self._always(name)
        if always:
            self._passed(self.needed.get(name, 0))
        wanted = max((self._barrier(other, name) for other, seen in self.pending if self._barrier(other, name) > seen), default=0)
        if wanted > self.needed.get(name, 0):
            self.needed[name] = wanted
            if always:
                self._passed(wanted)
        self.pending.append((name, 0))

    def _always(self, name: str) -> bool:
        """Whether a statement has an instance in every block and at every step of its loops."""
        s = self.lowered.scop.statement(name)
        if name not in self.copies:
            return False
        uniform = {*filter(None, self.copies[name].columns), *(dim for dim, _ in self.copies[name].steps)}
        domain = self.lowered.scop.instances(s)
        left = domain.project_out(isl.dim_type.set, len(uniform), len(s.dims) - len(uniform)).reset_tuple_id()
        scop = self.lowered.scop
        facts = [f"{lower} <= {dim} < {upper}" for dim, lower, upper in (*s.bounds, *s.dynamic_bounds) if dim in uniform]
        dims = [dim for dim in s.dims if dim in uniform]
        return bool(left.is_equal(points(scop.ctx, dims, [*facts, *scop.context], scop.parameters)))

    def _passed(self, barrier: int) -> None:
        """Note the strongest barrier that each statement has behind it; a block's is the end of it."""
        self.pending = [(name, max(seen, barrier)) for name, seen in self.pending if max(seen, barrier) < 2]

    def _barrier(self, first: str, second: str) -> int:
        """The barrier that two statements need between them: 0 for none."""
        reads, writes = self.accesses[first]
        later_reads, later_writes = self.accesses[second]
        shared = (writes & (later_reads | later_writes)) | (reads & later_writes)
        return max((self._between(tensor, first, second) for tensor in shared), default=0)

    def _between(self, tensor: str, first: str, second: str) -> int:
        _, plan = self.items[first]
        users = accesses_of(self.lowered, plan, tensor, (first, second))
        if users and same_thread(plan, users):
            return 0
        if self.ahead and any(buffer.tensor == tensor for buffer in self.lowered.buffers):
            return 0
        if {first, second} <= self.copies.keys():
            return 0  # they fill one piece together
        if users and self._one_warp(plan, users):
            return 1
        return 2

    def _one_warp(self, plan: GroupPlan, users: Sequence[tuple[StatementPlan, list[Where]]]) -> bool:
        """Whether all users of an element are threads of one lane that lies inside a warp."""
        lane = plan.lane_threads
        if plan.lane_first or lane == 1 or self.device.warp % lane or "warp_barrier" not in self.device.capabilities:
            return False
        columns = [{axis: where for axis, where in enumerate(wheres) if where[0] == "column"} for _, wheres in users]
        covered = {number for _, number in columns[0].values()}
        return all(other == columns[0] for other in columns) and covered >= set(plan.order)
