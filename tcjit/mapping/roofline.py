"""The least work that a program can be done with: arithmetic, and memory traffic with a perfect cache."""

from __future__ import annotations

from dataclasses import dataclass

from tcjit.grammar.ast import Binary, Call, Program, Select, Unary
from tcjit.grammar.dtypes import DTYPES
from tcjit.grammar.walk import walk
from tcjit.mapping.options import Options
from tcjit.mapping.scop import Scop, build
from tcjit.mapping.strides import coefficients


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


def roofline(program: Program) -> Roofline:
    """Operations and compulsory traffic of a program, counted on its statements as written."""
    plain = Options(reduction_chunks=1, pack=False)
    scop = build(program, plain)
    flops = sum(s.points * (_operations(scop, number) + (s.operator != "=")) for number, s in enumerate(scop.statements))
    touched: dict[str, int] = {}
    for s in scop.statements:
        boxes = {name: (lower, upper) for name, lower, upper in s.bounds}
        accesses = [(s.tensor, s.subscripts), *((a.tensor, a.subscripts) for a, _ in s.reads())]
        for tensor, subscripts in accesses:
            storage = scop.tensor(tensor)
            if storage.role == "temporary":
                continue
            elements = 1
            for subscript, extent in zip(subscripts, storage.shape, strict=True):
                factors = coefficients(subscript, scop.values)
                width = extent if factors is None else 1 + sum(abs(f) * (boxes[d][1] - boxes[d][0] - 1) for d, f in factors.items())
                elements *= min(width, extent)
            # a gather touches no more elements than there are reads
            touched[tensor] = min(storage.elements, touched.get(tensor, 0) + min(elements, s.points))
    return Roofline(flops, sum(count * DTYPES[scop.tensor(t).dtype].bytes for t, count in touched.items()))


def _operations(scop: Scop, number: int) -> int:
    """Arithmetic in a statement's value; index arithmetic is free."""
    value = scop.statements[number].value
    kinds = (Binary, Unary, Call, Select)
    return sum(isinstance(node, kinds) and DTYPES[node.dtype].kind == "float" for node in walk(value))
