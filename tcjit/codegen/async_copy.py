"""Copies that a thread does not wait for: below ``ahead``, elements go from global to shared memory while the block computes.

They have arrived for certain only behind a mark ``wait``. What the instruction cannot move (2 bytes, or not the element itself) is copied
as usual, which is earlier than needed.
"""

from __future__ import annotations

from tcjit.codegen.gpu_emitter import GpuEmitter
from tcjit.codegen.loops import For, Run
from tcjit.grammar.ast import Access
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.linear import Linear
from tcjit.mapping.scop import ScopStatement

SIZES = (4, 8, 16)  # bytes of one copy


def copied(emitter: GpuEmitter, s: ScopStatement) -> Access | None:
    """What a statement copies to shared memory, if it does nothing else."""
    target = emitter.memory.private(s.tensor, emitter.marks)
    if not emitter.early or s.operator != "=" or not isinstance(s.value, Access) or target is None or target.space != "shared":
        return None
    if s.value.dtype != emitter.mapped.scop.tensor(s.tensor).dtype or emitter.memory.private(s.value.tensor, emitter.marks) is not None:
        return None
    return s.value


def write(emitter: GpuEmitter, run: Run) -> bool:
    """Write the copy of one element; False, and nothing written, where that cannot be."""
    s = emitter.mapped.scop.statement(run.statement)
    source = copied(emitter, s)
    if source is None or DTYPES[source.dtype].bytes not in SIZES or emitter.gathers(source, run):
        return False
    emitter.run_now = run
    send(emitter, s, source, DTYPES[source.dtype].bytes)
    return True


def aligned(emitter: GpuEmitter, tensor: str, place: Linear | None, count: int) -> bool:
    """Whether so many neighbours from a place on begin on a boundary of as many: memory does, and contiguous tensors of known strides."""
    storage = emitter.mapped.scop.tensor(tensor)
    dense = emitter.memory.private(tensor, emitter.marks) or (storage.layout == "contiguous" and None not in storage.strides)
    return bool(dense) and place is not None and all(f % count == 0 for f in (place.constant, *(f for _, f in place.terms)))


def write_neighbours(emitter: GpuEmitter, loop: For, run: Run, first: tuple[Linear | None, Linear | None]) -> bool:
    """Write the copies of neighbours that lie at ``first`` in the source and in the copy, all in one where they are aligned."""
    s = emitter.mapped.scop.statement(run.statement)
    source = copied(emitter, s)
    if source is None:
        return False
    count, size = loop.trips or 1, DTYPES[source.dtype].bytes
    if count * size in SIZES and all(aligned(emitter, *one, count) for one in zip((source.tensor, s.tensor), first, strict=True)):
        emitter.run_now = Run(run.statement, tuple((d, e.substitute({loop.variable: Linear.of(0)})) for d, e in run.indices))
        emitter.aligned[source.tensor] = None
        send(emitter, s, source, count * size)
        return True
    if size not in SIZES:
        return False
    emitter.pragma()
    with emitter.iterated(loop):
        return write(emitter, run)


def send(emitter: GpuEmitter, s: ScopStatement, source: Access, size: int) -> None:
    """The instruction for so many bytes from the elements of ``run_now``."""
    target, origin = emitter.place(s.tensor, s.subscripts), emitter.place(source.tensor, source.subscripts)
    emitter.write(f"{emitter.printer.helper(f'tc_ahead_{size}')}(&{target}, &{origin});")
    emitter.written[s.tensor] = None
