"""Block panels: products run block by block of their results, so that the packed operand of one block stays in a core's cache.

An operand that is packed as a whole goes to memory and comes back, for each thread again. Under a loop over blocks of columns, which
threads share, its copy is one block's, in the slice of a thread (``contract_slices``). This is the loop over NC columns of Goto and van de
Geijn, Anatomy of High-Performance Matrix Multiplication (2008), with what is packed inside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tcjit.errors import MappingError
from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.assignment import Assignment, Assignments, Temporaries
from tcjit.mapping.machine import MOVES, Core, Machine
from tcjit.mapping.nest.epilogue import epilogue_of
from tcjit.mapping.nest.nest import Leaf
from tcjit.mapping.nest.operands import Operand
from tcjit.mapping.nest.statement import FlatStatement
from tcjit.mapping.options import Options
from tcjit.mapping.passes.chunk_reductions import number_of_chunks
from tcjit.mapping.passes.fuse_outer_loops import under_loops
from tcjit.mapping.passes.tile_reductions import ReductionTiling, Setting

WORK = 1 << 22  # terms of all results together that are worth the time of a second plan
UNEVEN = 1.1  # of the mean of the threads' work that the greatest may be

Loops = Sequence[tuple[str, int]]  # dimensions, and the points of a block
_NO_LOOPS: tuple[Loops, Leaf | None] = (), None


def block_panels(before: Assignments, options: Options, machine: Machine) -> Assignments:
    """The program with the loops over blocks that its reductions are worth."""
    program, temporaries, setting = before.assignments, Temporaries(before), Setting(before, options, machine, prove=False)
    number = 1 + max((a.outer.number for a in program if a.outer), default=-1)
    parts: list[tuple[Assignment, ...]] = []
    while len(parts) < len(program):
        at = len(parts)
        a, following = program[at], program[at + 1 :]
        loops, leaf = _NO_LOOPS
        if _is_large(a, before, machine):
            epilogue = epilogue_of(a, following, program[:at], temporaries.tensors)
            with temporaries.trial():
                loops, leaf = _loops(ReductionTiling(f"B{at}", a, epilogue, alone=True, by_rows=False, setting=setting), temporaries)
        if not loops:
            parts.append((a,))
            continue
        parts.append((under_loops(a, number, loops, leaf),))
        for e, naming in zip(following, epilogue.namings):
            parts.append((under_loops(e, number, [(naming[dim], size) for dim, size in loops]),))
        number += 1
    return before.with_parts(parts)


def _is_large(a: Assignment, before: Assignments, machine: Machine) -> bool:
    """Whether a reduction by itself has much to do with an operand that a core's cache does not hold."""
    alone = a.reduction and not (a.final or a.empty or a.outer or a.dynamic or a.constraints)
    if not alone or prod(upper - lower for _, lower, upper in a.bounds) < WORK:
        return False
    sizes = (before.storages[access.tensor] for access in a.reads)
    return any(storage.elements * DTYPES[storage.dtype].bytes > machine.cache_bytes for storage in sizes)


def _loops(tiling: ReductionTiling, temporaries: Temporaries) -> tuple[Loops, Leaf | None]:
    """The loops around a reduction, those over all points of dimensions first, then one over blocks, and its register tile; none where they
    are of no use."""
    a, setting = tiling.a, tiling.setting
    if number_of_chunks(a, temporaries, setting.program, setting.options, setting.machine) > 1:
        return _NO_LOOPS
    try:
        planned = tiling.planned(temporaries)
    except MappingError:
        return _NO_LOOPS  # it has no nest, or not this one
    if len(planned.rewritten.statements) > 1 or planned.before or planned.sums or planned.after or not setting.options.parallel:
        return _NO_LOOPS  # what is copied as a whole is read from memory anyway
    (s,), (plan,) = planned.rewritten.statements, planned.plans
    core, leaf, threads = tiling.core, plan.nest.leaf, setting.machine.threads
    extents = {name: upper - lower for name, lower, upper in a.results if lower == 0}
    staged = [plan.operands[number] for number in sorted(plan.estimate.staged)]
    best: tuple[int, Loops] = (core.l2, ())
    for dim in (leaf.lane, *(row for row, _ in leaf.rows)):
        size, moving = leaf.tile(dim, core.lanes), [operand for operand in staged if dim in operand.dims]
        if not moving or dim not in extents or len(s.merged.get(dim, (dim,))) > 1:
            continue
        inside = {leaf.lane, *(row for row, _ in leaf.rows)}
        batch = [name for name in s.outputs if name not in inside and all(name in operand.dims for operand in moving)]
        if any(name not in extents or len(s.merged.get(name, (name,))) > 1 for name in batch):
            continue
        whole = core.element * sum(prod(s.extent(name) for name in operand.dims) for operand in moving)
        count = prod(extents[name] for name in batch)
        tiles = -(-extents[dim] // size)
        most = core.l2 // 2 * tiles * count // whole  # tiles whose panels stay in the cache
        if whole <= best[0] or most < 1:
            continue
        around: list[tuple[str, int]] = [(name, 1) for name in batch]
        if most >= tiles and count > 1 and _is_even(count, 1, threads):
            best = whole, around
        elif sizes := [n for n in range(min(most, tiles), 0, -1) if _is_even(tiles, n, threads)]:
            best = whole, [*around, (dim, sizes[0] * size)]
    return (best[1], leaf) if best[1] and _reread(s, best[1], core) <= plan.moved + _passed(s, best[1], staged, core) else _NO_LOOPS


def _reread(s: FlatStatement, loops: Loops, core: Core) -> float:
    """Cycles in which a core reads again for each block what does not move with it: as blocks are, of all terms."""
    blocks = {dim: -(-s.extent(dim) // size) for dim, size in loops}
    cycles = 0.0
    for access, flat in s.reads.items():
        element, batch = DTYPES[access.dtype].bytes, [dim for dim, size in loops if size == 1 and dim in flat.dims]
        again = prod(count for dim, count in blocks.items() if dim not in flat.dims) - 1
        inside = element * prod(s.extent(dim) for dim in flat.dims if dim not in batch)
        cycles += again * inside * prod(s.extent(dim) for dim in batch) * core.far_byte(inside)
    return cycles


def _passed(s: FlatStatement, loops: Loops, staged: Sequence[Operand], core: Core) -> float:
    """Cycles in which panels go to where all of them have room, and come back."""
    dims = {dim for dim, _ in loops}
    whole = core.element * sum(prod(map(s.extent, operand.dims)) for operand in staged if dims <= set(operand.dims))
    return MOVES * whole * core.far_byte(whole)


def _is_even(tiles: int, size: int, threads: int) -> bool:
    """Whether threads have about as many tiles each in blocks of such a size."""
    blocks = -(-tiles // size)
    return blocks >= threads and -(-blocks // threads) * size * threads <= UNEVEN * tiles
