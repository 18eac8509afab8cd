"""The least work that a program can be done with: arithmetic, and memory traffic with a perfect cache."""

from __future__ import annotations

from dataclasses import dataclass

from tcjit.grammar.affine import affine
from tcjit.grammar.ast import Binary, Call, Program, Select, Unary
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import walk
from tcjit.mapping.isl import sets, union_map
from tcjit.mapping.options import Options
from tcjit.mapping.scop import Scop, build


@dataclass(frozen=True)
class Roofline:
    """``flops``: arithmetic operations and calls on values, one each; ``bytes``: every touched element once, inputs read, outputs written.

    ``intensity`` is their ratio: below a machine's FLOP/s over bytes/s, memory is the bound.
    """

    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes if self.bytes else float("inf")

    def seconds(self, flops_per_second: float, bytes_per_second: float) -> float:
        """The least time on a machine with these two ceilings."""
        return max(self.flops / flops_per_second, self.bytes / bytes_per_second)

    def bound(self, flops_per_second: float, bytes_per_second: float) -> str:
        """What the least time is spent on: ``arithmetic`` or ``memory``."""
        return "arithmetic" if self.flops / flops_per_second > self.bytes / bytes_per_second else "memory"


def roofline(program: Program) -> Roofline:
    """Operations and compulsory traffic of a program, counted on its statements as written: elements by isl, each once."""
    scop = build(program, Options(reduction_chunks=1, pack=False))
    flops = sum(s.points * (_operations(scop, number) + (s.operator != "=")) for number, s in enumerate(scop.statements))
    touched: dict[str, list[str]] = {}
    gathered: dict[str, int] = {}
    for s in scop.statements:
        for tensor, subscripts, guards in [(s.tensor, s.subscripts, ()), *((a.tensor, a.subscripts, g) for a, g in s.reads())]:
            if scop.tensor(tensor).role == "temporary":
                continue
            if any(affine(sub, scop.values) is None for sub in subscripts):
                gathered[tensor] = gathered.get(tensor, 0) + s.points  # no more elements than there are reads
            else:
                touched.setdefault(tensor, []).append(scop.access_text(s, tensor, subscripts, guards))
    total = 0
    for storage in scop.tensors:
        exact = union_map(scop.ctx, touched[storage.name]).range() if storage.name in touched else None
        count = sum(one.count_val().to_python() for one in sets(exact)) if exact is not None else 0
        total += min(storage.elements, count + gathered.get(storage.name, 0)) * DTYPES[storage.dtype].bytes
    return Roofline(flops, total)


def _operations(scop: Scop, number: int) -> int:
    """Arithmetic in a statement's value; index arithmetic is free."""
    value = scop.statements[number].value
    kinds = (Binary, Unary, Call, Select)
    return sum(isinstance(node, kinds) and DTYPES[node.dtype].kind == "float" for node in walk(value))
