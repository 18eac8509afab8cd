"""Allocate: registers or shared memory for the temporaries of one kernel.

What only the thread that wrote it reads again stays in that thread's registers; what other threads of the block read goes to shared memory;
what does neither fit nor stay inside a block remains in the workspace.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tcjit.grammar.ast import Access, Expr, Index
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.gpu_nest import BlockNode, Distribution, GpuKernel, GroupPlan, SequentialLoops, StatementPlan, statements
from tcjit.mapping.machine import BUFFER_REGISTERS, Device
from tcjit.mapping.marks import GridBlock, Mark
from tcjit.mapping.scop import Scop
from tcjit.mapping.scop_builder import LoweredScop, owner
from tcjit.mapping.storage import BOUNDARY, Axis, Buffer, Storage
from tcjit.mapping.strides import accesses

WORKING_REGISTERS = 24  # of a thread for addresses, operands and what is under way, beside its buffers
Where = tuple[str, Distribution | int]  # "column", "lane", "owner" or "rest", and its share or the whole extent


def allocate(lowered: LoweredScop, kernels: Sequence[GpuKernel], device: Device) -> tuple[GpuKernel, ...]:
    """The kernels with buffers for their temporaries."""
    result = []
    for number, kernel in enumerate(kernels):
        plans, mark = kernel.plans, GridBlock(number)
        between = (passed_on(lowered.scop, plans, storage, mark) for storage in lowered.scop.tensors if len(plans) > 1)
        buffers = [*kernel.buffers, *(buffer for buffer in between if buffer is not None)]
        most = device.max_shared_bytes if len(plans) > 1 else device.shared_bytes
        room = min(BUFFER_REGISTERS, device.registers // kernel.threads - WORKING_REGISTERS)
        lives: list[tuple[range, int]] = []  # of buffers in registers: when, and their words
        used = sum(b.elements * DTYPES[lowered.scop.tensor(b.tensor).dtype].bytes for b in buffers) + _scratch(lowered, kernel, device)
        placed = {b.tensor for b in buffers}
        updated = {lowered.scop.statement(name).tensor for name in kernel.items if lowered.scop.statement(name).scatter}  # by all blocks
        # what tensor cores compute has to stay in registers, whatever else finds no place there
        mma_results = {lowered.scop.statement(name).tensor for name, (item, _) in kernel.items.items() if item.mma}
        for storage in sorted(lowered.scop.tensors, key=lambda t: t.name not in mma_results):
            if storage.role != "temporary" or storage.name in placed or storage.name in updated:
                continue
            plan, users = next(((p, found) for p in plans if (found := accesses_of(lowered, p, storage.name))), (plans[0], None))
            if users is None:
                continue
            buffer = _registers(plan, storage, users, mark)
            if buffer is not None:
                live = _live_range(kernel.body, {item.statement for item, _ in users})
                words = buffer.elements * max(1, DTYPES[storage.dtype].bytes // 4)
                if all(words + sum(more for other, more in lives if at in other) <= room for at in live):
                    lives.append((live, words))
                    buffers.append(buffer)
                    continue
            buffer = _shared(plan, storage, users, mark)
            if buffer is not None and used + buffer.elements * DTYPES[storage.dtype].bytes <= most:
                used += -(-buffer.elements * DTYPES[storage.dtype].bytes // BOUNDARY) * BOUNDARY
                buffers.append(buffer)
        result.append(replace(kernel, buffers=tuple(buffers)))
    return tuple(result)


def passed_on(scop: Scop, plans: Sequence[GroupPlan], storage: Storage, mark: Mark) -> Buffer | None:
    """The array, of one block, of a temporary that several plans of a kernel use, and nothing else does; its rows are 16 bytes apart
    from whole ones, so that threads which take neighbouring rows find them in different banks. None for any other tensor."""
    of = {item.statement: (number, plan, item) for number, plan in enumerate(plans) for item in plan.items if not item.reader}
    users = [(s.name, a) for s in scop.statements for a in accesses(s) if a.tensor == storage.name]
    inside = all(name in of for name, _ in users)
    if storage.role != "temporary" or any(storage.dynamic_extents) or not inside or len({of[name][0] for name, _ in users}) < 2:
        return None
    parts: list[tuple[int, int]] = []
    for axis in range(len(storage.shape)):
        shares = set()
        for name, access in users:
            _, plan, item = of[name]
            kind, what = _where(plan, item, access.subscripts[axis], storage.shape[axis])
            share = plan.columns[what] if kind == "column" and isinstance(what, int) else None
            in_part = share is not None and share.blocks > 1
            shares.add((share.lower, min(share.tile * share.sequence, share.extent)) if share and in_part else (0, storage.shape[axis]))
        if len(shares) > 1:
            return None
        parts += shares
    return _row_major(storage, parts, mark, BOUNDARY // DTYPES[storage.dtype].bytes)


def _row_major(storage: Storage, parts: Sequence[tuple[int, int]], mark: Mark, padding: int = 0) -> Buffer:
    """An array in shared memory for part of each axis, ``(base, size)``; ``padding``: elements behind each row."""
    axes: list[Axis] = []
    step = 1
    for base, size in reversed(parts):
        axes.insert(0, Axis(base, ((1, size, step),) if size > 1 else ()))
        step = step * size + (padding if len(axes) == 1 and size > 1 else 0)
    return Buffer(storage.name, mark, "shared", tuple(axes), step)


def _live_range(body: tuple[BlockNode, ...], users: Collection[str]) -> range:
    """The live range ``[first use, last use)`` of a buffer in the order of the statements; the last user may reuse its registers."""
    places = [place for place, name in enumerate(statements(body)) if name in users]
    first, last = _all_the_while(body, 0, min(places), max(places))
    return range(first, max(last, first + 1))


def _all_the_while(body: tuple[BlockNode, ...], start: int, first: int, last: int) -> tuple[int, int]:
    """What comes into a loop or leaves it is kept all the while."""
    for phase in body:
        stop = start + len(statements((phase,)))
        if isinstance(phase, SequentialLoops):
            if start <= first and last < stop:
                first, last = _all_the_while(phase.body, start, first, last)
            elif first < start <= last < stop:
                last = stop
            elif start <= first < stop <= last:
                first = start
        start = stop
    return first, last


def _scratch(lowered: LoweredScop, kernel: GpuKernel, device: Device) -> int:
    """Bytes of shared memory in which threads of different warps combine their parts."""
    writers = -(-kernel.threads // device.warp) if "shuffle" in device.capabilities else kernel.threads
    dtypes = {lowered.scop.statement(name).value.dtype for name, (item, _) in kernel.items.items() if item.reduce}
    return sum(writers * DTYPES[dtype].bytes for dtype in dtypes)


def accesses_of(
    lowered: LoweredScop, plan: GroupPlan, tensor: str, statements: Collection[str] = ()
) -> list[tuple[StatementPlan, list[Where]]] | None:
    """Who uses a tensor (of some statements, or of all), and where in the group each subscript stands; None where a copy or another group
    uses it."""
    items = {item.statement: item for item in plan.items}
    users: list[tuple[StatementPlan, list[Where]]] = []
    for s in lowered.scop.statements:
        if statements and s.name not in statements:
            continue
        for access in (Access(s.tensor, s.subscripts), *(a for a, _ in s.reads)):
            if access.tensor != tensor:
                continue
            item = items.get(s.name)
            if item is None or item.reader:
                return None
            shape = lowered.scop.tensor(tensor).shape
            wheres = [_where(plan, item, sub, extent) for sub, extent in zip(access.subscripts, shape, strict=True)]
            users.append((item, wheres))
    return users or None


def _where(plan: GroupPlan, item: StatementPlan, subscript: Expr, extent: int) -> Where:
    if isinstance(subscript, Index) and subscript.name in item.columns:
        return "column", item.columns.index(subscript.name)
    if item.lane:
        dim, share = item.lane
        if isinstance(subscript, Index) and subscript.name == dim:
            return ("owner", share.threads) if share.per_thread == 1 and share.lower == 0 else ("lane", share)
        if share.threads > 1 and subscript == owner(dim, share):
            return "owner", share.threads
    return "rest", extent


def same_thread(plan: GroupPlan, users: Sequence[tuple[StatementPlan, list[Where]]]) -> bool:
    """Whether every element is used by one thread only."""
    first = users[0][1]
    if any(wheres != first for _, wheres in users[1:]):
        return False
    columns = {number for kind, number in first if kind == "column"}
    if not columns >= set(plan.order):
        return False
    if plan.lane_threads == 1 or any(kind in ("lane", "owner") for kind, _ in first):
        return True
    return all(item.lane is None or item.reduce for item, _ in users)  # the lane's first thread, which also has what it combines


def _registers(plan: GroupPlan, storage: Storage, users: Sequence[tuple[StatementPlan, list[Where]]], mark: Mark) -> Buffer | None:
    if not same_thread(plan, users):
        return None
    axes: list[Axis] = []
    step = 1
    for kind, what in reversed(users[0][1]):
        if kind == "owner":
            axes.insert(0, Axis(0, ()))
            continue
        if kind == "rest":
            assert isinstance(what, int)
            axes.insert(0, Axis(0, ((1, what, step),) if what > 1 else ()))
            step *= what
            continue
        share = plan.columns[what] if isinstance(what, int) else what
        if share.tiles > 1 and share.tile % (share.warps * share.threads * share.vector):
            return None
        parts = [(share.threads * share.vector, share.rounds, step * share.vector)] if share.rounds > 1 else []
        parts += [(1, share.vector, step)] if share.vector > 1 else []
        axes.insert(0, Axis(share.lower, tuple(parts)))
        step *= share.per_thread
    return Buffer(storage.name, mark, "thread", tuple(axes), step)


def _shared(plan: GroupPlan, storage: Storage, users: Sequence[tuple[StatementPlan, list[Where]]], mark: Mark) -> Buffer | None:
    parts: list[tuple[int, int]] = []
    padded = any(item.padded for item, _ in users)
    for axis in range(len(storage.shape)):
        kinds = {wheres[axis] for _, wheres in users}
        base, size = 0, storage.shape[axis]
        for kind, what in kinds:
            if kind == "column" and isinstance(what, int):
                share = plan.columns[what]
                if len(kinds) > 1 and share.tiles > 1:
                    return None
                values = share.whole_tile if padded else min(share.tile, share.extent)
                base, size = (share.lower, values) if len(kinds) == 1 else (base, size)
        parts.append((base, size))
    return _row_major(storage, parts, mark)
