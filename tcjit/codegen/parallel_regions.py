"""Parallel loops one after the other, run by one team of threads: it is woken once, and waits only where a loop needs what others wrote.

A loop that only some sizes make worth threads is written twice, for a team and for the calling thread: a region that its ``if`` clause
leaves to one thread still costs the calls into OpenMP, as much as a short loop does.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tcjit.codegen.loops import ParallelLoop, ParallelRegion, runs, tile_runs
from tcjit.mapping.scop import Scop


def merged(loops: Sequence[ParallelLoop], scop: Scop) -> list[ParallelLoop | ParallelRegion]:
    """Loops that follow one another directly, as regions of those that are worth threads together."""
    regions: list[ParallelLoop | ParallelRegion] = []
    for worth, group in groupby(loops, key=lambda loop: loop.worth):
        together = tuple(group)
        if len(together) > 1 or worth is not None:
            regions.append(ParallelRegion(together, _waits(together, scop), worth))
        else:
            regions += together
    return regions


def _waits(loops: Sequence[ParallelLoop], scop: Scop) -> tuple[bool, ...]:
    """Whether a team must be done with each of the loops before it begins the next."""
    waits: list[bool] = []
    running: list[ParallelLoop] = []
    for loop, following in zip(loops, loops[1:]):
        running.append(loop)
        waits.append(any(_depends(following, other, scop) for other in running))
        if waits[-1]:
            running = []
    return (*waits, False)


def _depends(loop: ParallelLoop, other: ParallelLoop, scop: Scop) -> bool:
    """Whether a loop must not begin before another one is done."""
    (written, read), (others_written, others_read) = _tensors(loop, scop), _tensors(other, scop)
    return bool(others_written & (read | written) or written & others_read)


def _tensors(loop: ParallelLoop, scop: Scop) -> tuple[frozenset[str], frozenset[str]]:
    """The tensors that a loop writes and reads."""
    statements = [scop.statement(run.statement) for run in runs((loop,))]
    tiled = [scop.tiled(name).statement for name in dict.fromkeys(run.statement for run in tile_runs((loop,)))]
    written = {s.tensor for s in statements} | {flat.tensor for s in tiled for flat in (s.write, *(e.write for e in s.epilogue))}
    read = {access.tensor for s in statements for access, _ in s.reads()} | {flat.tensor for s in tiled for flat in s.accesses}
    return frozenset(written), frozenset(read)
