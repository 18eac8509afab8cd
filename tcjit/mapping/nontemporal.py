"""Non-temporal stores: results that the caches would not keep are written past them, so that their lines are not read first.

A line that is written whole needs no reading, but only such a store says so. What follows finds nothing of the results in a cache then:
this pays for kernels that use twice what the last cache holds, of whose results little would be left in it anyway. Where statements hand
values on to others of the kernel, it pays as soon as the last cache is full: results that go through it drive these values out.
"""

from __future__ import annotations

from collections import Counter

from tcjit.grammar.dtypes import DTYPES
from tcjit.mapping.machine import Machine
from tcjit.mapping.scop import Scop, ScopStatement

WIDE = 4, 8  # bytes of an element, a few of which fill a line
BEYOND = 2.0  # times the last cache that a kernel uses: what reads the results next has little of them in a cache anyway
FULL = 0.95  # of the last cache, in which there is more than a kernel's tensors


def nontemporal(scop: Scop, machine: Machine) -> frozenset[str]:
    """The names of the statements whose results are stored past the caches."""
    if scop.program.dynamic:
        return frozenset()
    read, points = set[str](), Counter[str]()  # no more elements than there are accesses: a gather may take a few rows of a table
    for s in scop.statements:
        accesses = [access.tensor for access, _ in s.reads()]
        accesses += [flat.tensor for tiled in s.tiled for flat in tiled.statement.accesses]
        read |= set(accesses)
        points.update({tensor: count * s.points for tensor, count in Counter([*accesses, s.tensor]).items()})
    written = {s.tensor for s in scop.statements}
    own = [t for t in scop.tensors if t.role != "temporary"]
    touched = sum(min(t.elements, points[t.name]) * DTYPES[t.dtype].bytes for t in own)
    if touched <= (FULL if written & read else BEYOND) * machine.shared_bytes:
        return frozenset()
    return frozenset(s.name for s in scop.statements if s.tensor not in read and _is_streamed(scop, s))


def _is_streamed(scop: Scop, s: ScopStatement) -> bool:
    """Whether a statement sets results, whose elements are wide."""
    storage = scop.tensor(s.tensor)
    plain = s.operator == "=" and not s.tiled and not s.fused and storage.role == "output"
    return plain and storage.dtype == s.value.dtype and DTYPES[storage.dtype].bytes in WIDE
