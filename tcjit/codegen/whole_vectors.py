"""Loops over lanes in whole vectors: the last one begins earlier and computes again what the one before it did.

What is left of a row behind its last whole vector would run element by element, where an ``exp`` takes as long as for a whole vector.
"""

from __future__ import annotations

from tcjit.codegen.loops import For, runs
from tcjit.grammar.affine import guarded_accesses
from tcjit.grammar.ast import Binary, Call, Expr
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import walk
from tcjit.mapping.machine import Machine
from tcjit.mapping.scop import Scop


def overlapping_lanes(loop: For, scop: Scop, machine: Machine, width: int) -> int:
    """The lanes of vectors that a loop runs in, of which the last overlaps the one before; 0 where its iterations cannot be computed
    twice, or nothing costly is left behind whole vectors. ``width``: lanes that options ask for, 0 for the machine's.
    """
    statements = [scop.statement(run.statement) for run in runs(loop.body)]
    sizes = [DTYPES[dtype].bytes for s in statements for dtype in (s.value.dtype, scop.tensor(s.tensor).dtype)]
    lanes = width or machine.lanes(max(sizes, default=1))
    left = loop.trips is not None and loop.trips > lanes and loop.trips % lanes != 0
    return lanes if left and runs_again(loop, scop) and any(_is_costly(s.value) for s in statements) else 0


def runs_again(loop: For, scop: Scop) -> bool:
    """Whether iterations may be computed twice: what they write they do not read."""
    statements = [scop.statement(run.statement) for run in runs(loop.body)]
    read = {access.tensor for s in statements for access, _ in guarded_accesses(s.value)}
    return loop.step == 1 and all(s.operator == "=" and s.tensor not in read for s in statements)


def _is_costly(value: Expr) -> bool:
    return any(isinstance(node, Call) or (isinstance(node, Binary) and node.op == "/") for node in walk(value))
