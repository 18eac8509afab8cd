"""Non-temporal stores: results that the caches would not keep are written past them, so that their lines are not read first.

A line that is written whole needs no reading, but only such a store says so. What follows finds nothing of the results in a cache then:
this pays for kernels that use more than the last cache holds, or about as much where the rest of the work hides the writing.
"""

from __future__ import annotations

from tcjit.grammar.ast import Call
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import walk
from tcjit.mapping.machine import Machine
from tcjit.mapping.operations import operations
from tcjit.mapping.scop import Scop, ScopStatement

WIDE = 4, 8  # bytes of an element, a few of which fill a line
BEYOND = 2.0  # times the last cache that a kernel uses: what reads the results next has little of them in a cache anyway
NEARLY = 0.75  # where each result takes long enough to compute, but is bound by memory
HIDING = 6  # reads and operations of a result then, at least: a store past the caches takes longer than one into them


def nontemporal(scop: Scop, machine: Machine) -> frozenset[str]:
    """The names of the statements whose results are stored past the caches."""
    if scop.program.dynamic:
        return frozenset()
    read = {access.tensor for s in scop.statements for access, _ in s.reads()}
    read |= {flat.tensor for s in scop.statements for tiled in s.tiled for flat in tiled.statement.accesses}
    used = {s.tensor for s in scop.statements} | read
    touched = sum(t.elements * DTYPES[t.dtype].bytes for t in scop.tensors if t.role != "temporary" and t.name in used)
    if touched <= NEARLY * machine.shared_bytes:
        return frozenset()
    written = [s for s in scop.statements if s.tensor not in read and _is_streamed(scop, s)]
    return frozenset(s.name for s in written if touched > BEYOND * machine.shared_bytes or _hides(s))


def _is_streamed(scop: Scop, s: ScopStatement) -> bool:
    """Whether a statement sets results, whose elements are wide."""
    storage = scop.tensor(s.tensor)
    plain = s.operator == "=" and not s.tiled and not s.fused and storage.role == "output"
    return plain and storage.dtype == s.value.dtype and DTYPES[storage.dtype].bytes in WIDE


def _hides(s: ScopStatement) -> bool:
    """Whether memory waits for a value, but not for functions."""
    computed = len(list(s.reads())) + operations(s.value)
    return computed >= HIDING and not any(isinstance(part, Call) for part in walk(s.value))
